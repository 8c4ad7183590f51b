"""The asyncio bindings on loopback sockets, with a relay between that loses datagrams."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import sys
from collections.abc import Generator, Iterable
from typing import Any

import pytest

from eloquent import Reason, Server, aio
from eloquent.udp import Address
from eloquent.wire import Data, decode

HOST = "127.0.0.1"


def port_of(endpoint: Any) -> int:
    return int(endpoint.address[1])


class Relay(asyncio.DatagramProtocol):
    """Loses datagrams both ways between one client and a server."""

    def __init__(self, server_port: int, loss: float) -> None:
        self.server = (HOST, server_port)
        self.client: Any = None
        self.loss = loss
        self.rng = random.Random(5)
        self.lost = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if addr != self.server:
            self.client = addr
        if self.rng.random() < self.loss:
            self.lost += 1
        else:
            self.transport.sendto(data, self.client if addr == self.server else self.server)


async def count(prompt: bytes, reply: aio.Reply) -> None:
    for number in range(int(prompt)):
        await reply.send(b"%d " % number)
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("scheme", ["eloquent", "duplicate"])
def test_an_answer_through_a_lossy_relay(scheme: str) -> None:
    async def scenario() -> tuple[list[bytes], int]:
        server = await aio.serve(count, HOST, 0, scheme=scheme)
        loop = asyncio.get_running_loop()
        transport, relay = await loop.create_datagram_endpoint(
            lambda: Relay(port_of(server), 0.2), local_addr=(HOST, 0)
        )
        port = transport.get_extra_info("sockname")[1]
        tokens = [token.data async for token in aio.ask(b"200", HOST, port)]
        transport.close()
        server.close()
        return tokens, relay.lost

    tokens, lost = asyncio.run(scenario())
    assert tokens == [b"%d " % number for number in range(200)]
    assert lost > 10


def test_what_a_handler_gives_at_once_travels_together() -> None:
    """As a step of speculative decoding does: no datagram ends within three such tokens."""
    ends: list[int] = []

    async def burst(prompt: bytes, reply: aio.Reply) -> None:
        for _ in range(5):
            for token in (b"a", b"b", b"c"):
                await reply.send(token)
            await asyncio.sleep(0.02)

    class Watched(aio.ServerEndpoint):
        def _due(self, now: float) -> Generator[Iterable[tuple[bytes, Address]], None, None]:
            for group in super()._due(now):
                for message in (decode(datagram) for datagram, _ in group):
                    if isinstance(message, Data):
                        ends.append(message.first + len(message.tokens))
                yield group

    async def scenario() -> list[bytes]:
        server = Watched(Server("eloquent"), burst)
        await server.open(HOST, 0)
        tokens = [token.data async for token in aio.ask(b"go", HOST, port_of(server))]
        server.close()
        return tokens

    assert asyncio.run(scenario()) == [b"a", b"b", b"c"] * 5
    assert set(ends) == {3, 6, 9, 12, 15}


def test_leaving_the_loop_early_cancels_the_answer() -> None:
    stopped = asyncio.Event()

    async def endless(prompt: bytes, reply: aio.Reply) -> None:
        try:
            while True:
                await reply.send(b"more ")
                await asyncio.sleep(0.001)
        finally:
            stopped.set()

    async def scenario() -> None:
        server = await aio.serve(endless, HOST, 0)
        answer = aio.ask(b"talk", HOST, port_of(server))
        async for token in answer:
            if token.index == 10:
                break
        await answer.aclose()
        await asyncio.wait_for(stopped.wait(), 10)
        server.close()

    asyncio.run(scenario())


def test_a_handler_that_fails_does_not_leave_the_reader_waiting() -> None:
    async def broken(prompt: bytes, reply: aio.Reply) -> None:
        await reply.send(b"so far ")
        await asyncio.sleep(0.05)
        raise RuntimeError("the model broke")

    async def scenario() -> list[bytes]:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        server = await aio.serve(broken, HOST, 0)
        got: list[bytes] = []

        async def read() -> None:
            async for token in aio.ask(b"?", HOST, port_of(server)):
                got.append(token.data)

        with pytest.raises(aio.AnswerLost, match="after 1 tokens: the server could not generate"):
            await read()
        server.close()
        return got

    assert asyncio.run(asyncio.wait_for(scenario(), 10)) == [b"so far "]
    gc.collect()


def test_many_clients_and_a_long_token() -> None:
    long = "é".encode() * 2000  # cut at 1024 bytes, which splits characters

    async def echo(prompt: bytes, reply: aio.Reply) -> None:
        await reply.send(prompt)
        await reply.send(long)
        reply.finish(Reason.LENGTH)

    async def ask(port: int, prompt: bytes) -> bytes:
        return b"".join([token.data async for token in aio.ask(prompt, HOST, port)])

    async def scenario() -> list[bytes]:
        server = await aio.serve(echo, HOST, 0)
        port = port_of(server)
        answers = await asyncio.gather(*(ask(port, b"%d:" % n) for n in range(50)))
        server.close()
        return answers

    answers = asyncio.run(asyncio.wait_for(scenario(), 30))
    assert answers == [b"%d:" % n + long for n in range(50)]


def test_a_port_in_use_and_an_unknown_scheme_are_errors() -> None:
    async def taken() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind((HOST, 0))
            with pytest.raises(OSError, match="in use"):
                await aio.serve(count, HOST, other.getsockname()[1])
        with pytest.raises(ValueError, match="unknown scheme 'morse'"):
            await aio.serve(count, HOST, 0, scheme="morse")

    asyncio.run(taken())


def test_closing_a_server_tells_its_readers() -> None:
    async def forever(prompt: bytes, reply: aio.Reply) -> None:
        await reply.send(b"and then ")
        await asyncio.sleep(1000)

    async def scenario() -> None:
        server = await aio.serve(forever, HOST, 0)
        answer = aio.ask(b"?", HOST, port_of(server))
        assert (await anext(answer)).data == b"and then "
        server.close()
        with pytest.raises(aio.AnswerLost, match="busy"):
            await anext(answer)

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_a_cancelled_handler_does_not_leave_the_reader_waiting() -> None:
    async def gone(prompt: bytes, reply: aio.Reply) -> None:
        await asyncio.sleep(0.05)
        raise asyncio.CancelledError

    async def scenario() -> None:
        server = await aio.serve(gone, HOST, 0)
        with pytest.raises(aio.AnswerLost, match="after 0 tokens: the server stopped it"):
            await anext(aio.ask(b"?", HOST, port_of(server)))
        server.close()

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_closing_a_client_wakes_who_waits_for_it() -> None:
    async def scenario() -> None:
        endpoint = await aio.connect(b"?", HOST, 9, lambda tokens: None)
        endpoint.close()
        await endpoint.wait_closed()

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_a_callback_that_raises_ends_its_stream_with_one_error() -> None:
    """Not with one for every datagram; and what it had not shown is not passed over."""
    ended: list[str | None] = []
    calls: list[int] = []
    stray: list[dict[str, Any]] = []

    async def endless(prompt: bytes, reply: aio.Reply) -> None:
        try:
            while True:
                await reply.send(b"more ")
                await asyncio.sleep(0.001)
        finally:
            ended.append(reply.stream.ended)

    def show(tokens: list[Any]) -> None:
        calls.append(len(tokens))
        if len(calls) == 5:
            raise RuntimeError("the screen broke")

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: stray.append(context))
        server = await aio.serve(endless, HOST, 0)
        endpoint = await aio.connect(b"talk", HOST, port_of(server), show)
        for _ in range(2):  # whoever asks
            with pytest.raises(RuntimeError, match="the screen broke"):
                await endpoint.wait_closed()
        assert endpoint.client.error == "cancelled"
        endpoint.close()
        while not ended:
            await asyncio.sleep(0.01)
        server.close()

    asyncio.run(asyncio.wait_for(scenario(), 10))
    gc.collect()
    assert len(calls) == 5
    assert ended == ["cancelled"]
    assert stray == []


def test_a_callback_that_raises_is_told_also_if_nobody_awaits() -> None:
    stray: list[dict[str, Any]] = []

    def show(tokens: list[Any]) -> None:
        raise RuntimeError("the screen broke")

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: stray.append(context))
        server = await aio.serve(count, HOST, 0)
        endpoint = await aio.connect(b"3", HOST, port_of(server), show)
        while not endpoint.core.closed:
            await asyncio.sleep(0.01)
        endpoint.close()
        del endpoint
        gc.collect()
        await asyncio.sleep(0)
        server.close()

    asyncio.run(asyncio.wait_for(scenario(), 10))
    assert [str(context["exception"]) for context in stray] == ["the screen broke"]


@pytest.mark.parametrize("when", ["before a token", "after a token", "no coroutine"])
def test_a_handler_that_raises_is_one_error_at_once(when: str) -> None:
    """And the reader gets what was sent before that, and the reason."""
    told: list[dict[str, Any]] = []
    got: list[bytes] = []

    async def broken(prompt: bytes, reply: aio.Reply) -> None:
        if when == "after a token":
            await reply.send(b"so far ")
        raise RuntimeError("the model broke")

    def none(prompt: bytes, reply: aio.Reply) -> None:
        raise RuntimeError("the model broke")

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        handler: Any = none if when == "no coroutine" else broken
        server = await aio.serve(handler, HOST, 0)

        async def read() -> None:
            async for token in aio.ask(b"?", HOST, port_of(server)):
                got.append(token.data)

        with pytest.raises(aio.AnswerLost, match="the server could not generate the rest"):
            await read()
        assert [str(context["exception"]) for context in told] == ["the model broke"]
        server.close()

    asyncio.run(asyncio.wait_for(scenario(), 10))
    gc.collect()
    assert len(told) == 1
    assert got == ([b"so far "] if when == "after a token" else [])


def test_an_answer_that_is_whole_arrives_though_its_handler_then_fails() -> None:
    async def careless(prompt: bytes, reply: aio.Reply) -> None:
        await reply.send(b"whole")
        reply.finish()
        raise RuntimeError("while tidying up")

    async def scenario() -> list[bytes]:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        server = await aio.serve(careless, HOST, 0)
        tokens = [token.data async for token in aio.ask(b"?", HOST, port_of(server))]
        server.close()
        return tokens

    assert asyncio.run(asyncio.wait_for(scenario(), 10)) == [b"whole"]


def test_a_handler_that_ignores_that_its_reader_has_gone_does_not_take_the_loop() -> None:
    async def deaf(prompt: bytes, reply: aio.Reply) -> None:
        while True:  # until it is cancelled: it waits for nothing but `send`
            await reply.send(b"x" * 1000)

    async def scenario() -> None:
        server = await aio.serve(deaf, HOST, 0)
        answer = aio.ask(b"?", HOST, port_of(server))
        await anext(answer)
        await answer.aclose()
        while server.core.streams:
            await asyncio.sleep(0.01)
        for _ in range(10):
            await asyncio.sleep(0.001)
        server.close()

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_a_handler_that_survives_its_cancellation_does_no_harm() -> None:
    left = asyncio.Event()

    async def stubborn(prompt: bytes, reply: aio.Reply) -> None:
        await reply.send(b"first")
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            with pytest.raises(aio.ReaderGone, match=r"has ended \(cancelled\)"):
                await reply.send(b"last words")
            reply.finish()
            left.set()

    async def scenario() -> None:
        server = await aio.serve(stubborn, HOST, 0)
        answer = aio.ask(b"?", HOST, port_of(server))
        await anext(answer)
        server.close()
        with pytest.raises(aio.AnswerLost, match="busy"):
            await anext(answer)
        await left.wait()

    asyncio.run(asyncio.wait_for(scenario(), 10))


ABANDONED = """
import asyncio
from eloquent import aio

async def main():
    async for token in aio.ask(b"?", "127.0.0.1", PORT):
        break

asyncio.run(main())
"""


def test_an_iterator_that_is_abandoned_at_the_end_of_a_program_cancels_in_silence() -> None:
    """Nothing is printed, and the server hears of it, though the loop ends right away."""
    ended: list[str | None] = []

    async def endless(prompt: bytes, reply: aio.Reply) -> None:
        try:
            while True:
                await reply.send(b"more ")
                await asyncio.sleep(0.01)
        finally:
            ended.append(reply.stream.ended)

    async def scenario() -> bytes:
        server = await aio.serve(endless, HOST, 0)
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", ABANDONED.replace("PORT", str(port_of(server)))),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await program.communicate()
        while not ended:
            await asyncio.sleep(0.01)
        server.close()
        return output

    assert asyncio.run(asyncio.wait_for(scenario(), 30)) == b""
    assert ended == ["cancelled"]


def test_a_task_that_is_cancelled_while_it_reads_cancels_the_answer() -> None:
    ended: list[str | None] = []

    async def endless(prompt: bytes, reply: aio.Reply) -> None:
        try:
            while True:
                await reply.send(b"more ")
                await asyncio.sleep(0.01)
        finally:
            ended.append(reply.stream.ended)

    async def scenario() -> None:
        server = await aio.serve(endless, HOST, 0)
        got = asyncio.Event()

        async def read() -> None:
            async for _ in aio.ask(b"?", HOST, port_of(server)):
                got.set()

        task = asyncio.create_task(read())
        await got.wait()
        task.cancel()
        while not ended:
            await asyncio.sleep(0.01)
        server.close()

    asyncio.run(asyncio.wait_for(scenario(), 10))
    assert ended == ["cancelled"]
