"""Handlers on asyncio: none runs for nobody, none waits for another's reader."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator, Iterable
from typing import Any

import pytest

from eloquent import Client, Server, Stream, aio, replies, udp, window
from eloquent.udp import Address
from eloquent.wire import Ack, Cancel, CancelReason, Data, Reason, decode, encode

HOST = "127.0.0.1"


def run(main: Any) -> Any:
    return asyncio.run(asyncio.wait_for(main, 20))


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def ask(server: aio.ServerEndpoint, prompt: bytes = b"?") -> Any:
    return aio.ask(prompt, HOST, server.address[1])


async def texts(server: aio.ServerEndpoint, prompt: bytes = b"?") -> list[bytes]:
    return [token.data async for token in ask(server, prompt)]


class Crowd:
    """Many clients on one socket, which speak only when they are told to."""

    def __init__(self, server: aio.ServerEndpoint, count: int) -> None:
        self.loop = server.loop
        self.socket = udp.unconnected(socket.AF_INET)
        self.server = Address(server.address)
        clients = (Client(b"?", self.loop.time()) for _ in range(count))
        self.clients = {client.stream_id: client for client in clients}

    @property
    def address(self) -> Address:
        return Address((HOST, self.socket.sock.getsockname()[1]))

    async def speak(self, condition: Any) -> None:
        while not condition():
            for client in self.clients.values():
                for datagram in client.datagrams(self.loop.time()):
                    self.socket.send(datagram, self.server)
            await asyncio.sleep(0.01)
            for datagram, _ in self.socket.receive(10_000):
                client = self.clients[decode(datagram).stream_id]
                client.receive(datagram, self.loop.time())


def test_a_handler_is_cancelled_when_its_reader_leaves() -> None:
    ended: list[str | None] = []

    async def thinking(prompt: bytes, reply: aio.Reply) -> None:
        await reply.send(b"first")
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            ended.append(reply.stream.ended)
            raise

    async def main() -> None:
        server = await aio.serve(thinking, HOST, 0)
        answer = ask(server)
        await anext(answer)
        await answer.aclose()
        await until(lambda: ended)
        await until(lambda: not server.handlers)
        server.close()

    run(main())
    assert ended == ["cancelled"]


def test_a_handler_that_waits_for_room_is_cancelled_as_well() -> None:
    left = asyncio.Event()

    async def deaf(prompt: bytes, reply: aio.Reply) -> None:
        try:
            while True:
                await reply.send(b"x" * 1000)
        finally:
            left.set()

    async def main() -> None:
        server = await aio.serve(deaf, HOST, 0)
        answer = ask(server)
        await anext(answer)
        await answer.aclose()
        await left.wait()
        server.close()

    run(main())


def test_what_a_handler_does_after_the_answer_is_its_own() -> None:
    done = asyncio.Event()

    async def diligent(prompt: bytes, reply: aio.Reply) -> None:
        await reply.send(b"whole")
        reply.finish()
        await until(lambda: reply.cancelled)
        await asyncio.sleep(0.05)
        done.set()

    async def main() -> None:
        server = await aio.serve(diligent, HOST, 0)
        assert await texts(server) == [b"whole"]
        await done.wait()
        server.close()

    run(main())


def test_forged_prompts_run_no_more_handlers_than_streams() -> None:
    """Of which no one answers; and a reader who does is served all the same."""
    started = 0
    tasks: list[int] = []

    def look() -> None:
        tasks.append(len(asyncio.all_tasks()))

    async def slow(prompt: bytes, reply: aio.Reply) -> None:
        nonlocal started
        started += 1
        look()
        if prompt == b"honest":
            await reply.send(b"answer")
        else:
            await asyncio.sleep(1000)

    async def main() -> list[bytes]:
        server = aio.ServerEndpoint(Server(max_streams=16), slow)
        await server.open(HOST, 0)
        look()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forger:
            for number in range(300):
                prompt = Data(number + 1, 0, False, 0, (b"?",), Reason.STOP)
                forger.sendto(encode(prompt), (HOST, server.address[1]))
                if number % 20 == 0:
                    await asyncio.sleep(0.005)
                    look()
        await asyncio.sleep(0.05)
        look()
        words = await texts(server, b"honest")
        server.close()
        return words

    assert run(main()) == [b"answer"]
    assert max(tasks) - tasks[0] <= 16
    assert started > 1


def test_handlers_that_swallow_their_cancellation_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They keep their places, and the next reader is told to come again."""
    monkeypatch.setattr(replies, "TIDY_TIME", 0.2)
    release = asyncio.Event()

    async def stubborn(prompt: bytes, reply: aio.Reply) -> None:
        await reply.send(b"first")
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                pass

    async def main() -> None:
        server = await aio.serve(stubborn, HOST, 0, max_streams=2)
        for _ in range(2):
            answer = ask(server)
            await anext(answer)
            await answer.aclose()
        await until(lambda: not server.core.streams)
        assert len(server.handlers) == 2
        with pytest.raises(aio.AnswerLost, match="after 0 tokens: refused by the server: busy"):
            await texts(server)
        assert len(server.handlers) == 2
        release.set()
        assert await texts(server) == [b"first"]
        server.close()

    run(main())


def test_a_prompt_waits_for_a_handler_that_tidies_up() -> None:
    async def tidy(prompt: bytes, reply: aio.Reply) -> None:
        try:
            await reply.send(prompt)
            if prompt == b"1":
                await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0.2)

    async def main() -> None:
        server = await aio.serve(tidy, HOST, 0, max_streams=1)
        answer = ask(server, b"1")
        await anext(answer)
        await answer.aclose()
        await until(lambda: not server.core.streams)
        assert len(server.handlers) == 1
        assert await texts(server, b"2") == [b"2"]
        server.close()

    run(main())


def test_who_waits_for_a_place_and_leaves_is_not_answered() -> None:
    prompts: list[bytes] = []

    async def tidy(prompt: bytes, reply: aio.Reply) -> None:
        prompts.append(prompt)
        try:
            await reply.send(prompt)
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0.3)

    async def main() -> None:
        server = await aio.serve(tidy, HOST, 0, max_streams=1)
        answer = ask(server, b"1")
        await anext(answer)
        await answer.aclose()
        await until(lambda: not server.core.streams)
        waiting = asyncio.create_task(texts(server, b"2"))
        await until(lambda: server.core.streams)
        waiting.cancel()
        await until(lambda: not server.handlers)
        server.close()

    run(main())
    assert prompts == [b"1"]


def test_a_place_for_one_reader() -> None:
    async def thinking(prompt: bytes, reply: aio.Reply) -> None:
        await reply.send(b"first")
        await asyncio.sleep(1000)

    async def main() -> None:
        server = await aio.serve(thinking, HOST, 0, max_streams=1)
        answer = ask(server)
        await anext(answer)
        await asyncio.sleep(0.1)  # its address is proven now
        with pytest.raises(aio.AnswerLost, match="busy"):
            await texts(server)
        server.close()

    run(main())


@pytest.mark.parametrize("number", [0, -1])
def test_a_server_without_a_place_is_an_error(number: int) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match=f"max_streams is {number}; it must be 1 at least"):
            await aio.serve(lambda prompt, reply: reply.send(prompt), HOST, 0, max_streams=number)

    run(main())


def test_a_token_for_nobody_is_told_of_and_no_failure() -> None:
    """A part of the handler that is not cancelled with it meets the error."""
    told: list[Any] = []
    gone: list[BaseException | None] = []

    async def careless(prompt: bytes, reply: aio.Reply) -> None:
        async def generate() -> None:
            while True:
                await reply.send(b"more ")
                await asyncio.sleep(0.005)

        generating = asyncio.create_task(generate())
        while not generating.done():
            try:
                await asyncio.wait([generating])
            except asyncio.CancelledError:
                pass
        gone.append(generating.exception())
        await generating  # raises it

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        server = await aio.serve(careless, HOST, 0)
        answer = ask(server)
        await anext(answer)
        await answer.aclose()
        await until(lambda: gone)
        await until(lambda: not server.handlers)
        server.close()

    run(main())
    assert isinstance(gone[0], aio.ReaderGone)
    assert str(gone[0]) == "nobody reads: the stream has ended (cancelled)"
    assert told == []


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        (Reason.ERROR, "the server could not generate the rest"),
        (Reason.CANCELLED, "the server stopped it"),
        (Reason.LENGTH, None),
    ],
)
def test_an_answer_that_breaks_off_is_told_from_a_whole_one(
    reason: Reason, why: str | None
) -> None:
    async def part(prompt: bytes, reply: aio.Reply) -> None:
        await reply.send(b"part")
        reply.finish(reason)

    async def main() -> tuple[list[bytes], str | None]:
        server = await aio.serve(part, HOST, 0)
        got: list[bytes] = []
        try:
            async for token in ask(server):
                got.append(token.data)
        except aio.AnswerLost as lost:
            return got, str(lost)
        finally:
            server.close()
        return got, None

    expected = why and f"the answer ended after 1 tokens: {why}"
    assert run(main()) == ([b"part"], expected)


@pytest.mark.parametrize("count", [10, 100])
def test_a_datagram_wakes_one_handler(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many wait for readers who do not keep up: counted by how often they look for room."""
    monkeypatch.setattr(window, "WINDOW_BYTES", 3000)
    started: set[Stream] = set()
    looks: list[Stream] = []
    genuine = Stream.room

    def room(self: Stream) -> int:
        looks.append(self)
        return genuine(self)

    async def flood(prompt: bytes, reply: aio.Reply) -> None:
        started.add(reply.stream)
        while True:
            await reply.send(b"x" * 900)

    async def main() -> None:
        server = await aio.serve(flood, HOST, 0)
        crowd = Crowd(server, count)
        await crowd.speak(lambda: len(started) == count)
        await asyncio.sleep(0.2)  # what they said is heard, and every window full
        monkeypatch.setattr(Stream, "room", room)
        one, other = list(crowd.clients)[:2]
        ping = encode(Ack(one, 1, False, 0, 0, 0, (), asks=True))
        for _ in range(20):
            server._received([(ping, crowd.address)])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert {stream.stream_id for stream in looks} == {one}
        assert len(looks) == 20
        leaves = encode(Cancel(other, 1, False, CancelReason.READER))
        server._received([(leaves, crowd.address)])
        await asyncio.sleep(0.01)
        assert {stream.stream_id for stream in looks} <= {one, other}
        assert len(server.handlers) == count - 1
        server.close()

    run(main())


def test_handlers_that_never_rest_do_not_put_off_the_tokens() -> None:
    first: dict[int, int] = {}

    async def restless(prompt: bytes, reply: aio.Reply) -> None:
        await asyncio.sleep(0.1)  # then nothing arrives that would send them along
        for _ in range(200):
            await reply.send(b"x")
            await asyncio.sleep(0)

    class Watched(aio.ServerEndpoint):
        def _due(self, now: float) -> Generator[Iterable[tuple[bytes, Address]], None, None]:
            for group in super()._due(now):
                for message in (decode(datagram) for datagram, _ in group):
                    if isinstance(message, Data):
                        first.setdefault(message.stream_id, len(message.tokens))
                yield group

    async def main() -> None:
        server = Watched(Server("eloquent"), restless)
        await server.open(HOST, 0)
        for words in await asyncio.gather(*(texts(server) for _ in range(2))):
            assert words == [b"x"] * 200
        server.close()

    run(main())
    assert len(first) == 2
    assert max(first.values()) <= 3


def test_a_callback_that_fails_over_the_last_tokens_is_heard_of() -> None:
    """Also where the end of the stream comes together with them."""

    def show(tokens: list[Any]) -> None:
        if tokens:
            raise RuntimeError("the screen broke")

    async def main() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind((HOST, 0))
            endpoint = await aio.connect(b"?", HOST, silent.getsockname()[1], show)
            (address,) = endpoint._ways
            head = endpoint.client.stream_id, 1, True
            token = encode(Data(*head, 0, (b"last",), None, 7))
            stop = encode(Cancel(*head, CancelReason.BUSY))
            endpoint._received([(token, address), (stop, address)])
            with pytest.raises(RuntimeError, match="the screen broke"):
                await endpoint.wait_closed()
            endpoint.close()

    run(main())
