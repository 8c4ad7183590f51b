"""The asyncio bindings on loopback sockets, with a relay between that loses datagrams."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
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
        while not reply.cancelled:
            await reply.send(b"more ")
            await asyncio.sleep(0.001)
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

        with pytest.raises(aio.AnswerLost, match="after 1 tokens"):
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
        with pytest.raises(aio.AnswerLost):
            await anext(aio.ask(b"?", HOST, port_of(server)))
        server.close()

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_closing_a_client_wakes_who_waits_for_it() -> None:
    async def scenario() -> None:
        endpoint = await aio.connect(b"?", HOST, 9, lambda tokens: None)
        endpoint.close()
        await endpoint.wait_closed()

    asyncio.run(asyncio.wait_for(scenario(), 10))
