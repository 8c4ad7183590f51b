"""Eloquent on asyncio: ``serve`` answers prompts over UDP, ``ask`` iterates over an answer.

With ``endpoint``, ``replies`` and ``udp`` the only modules of the library that touch sockets and
clocks. Both ends are thin shells around ``Server`` and ``Client``; the time is the loop's, which is
``time.monotonic``.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

from . import udp
from .attempts import Attempts
from .client import Client
from .endpoint import Endpoint, Groups, Transported
from .receiver import Token
from .replies import Handler, Handlers, ReaderGone, Reply
from .server import MAX_STREAMS, Asked, Server
from .udp import Address, UdpSocket
from .wire import Reason

__all__ = [
    "AnswerLost",
    "ClientEndpoint",
    "Handler",
    "ReaderGone",
    "Reply",
    "ServerEndpoint",
    "ask",
    "connect",
    "serve",
]

#: Ends of an answer that is not whole, and what is said of them.
_BROKEN: dict[Reason | None, str] = {
    Reason.ERROR: "the server could not generate the rest",
    Reason.CANCELLED: "the server stopped it",
}


class AnswerLost(ConnectionError):
    """The answer will not be complete: the server refused, failed, or was not heard for 60 s."""


class ServerEndpoint(Endpoint):
    """A server's socket; ``handler`` is called in a task of its own for each prompt.

    The task is cancelled when its reader has gone (see ``Handlers``). Where a handler raises, its
    answer ends with ``Reason.ERROR`` after what it sent, and the error goes to the loop's exception
    handler; if it is cancelled by somebody else, with ``Reason.CANCELLED``.
    """

    core: Server

    def __init__(self, server: Server, handler: Handler) -> None:
        super().__init__(server)
        #: The handlers that run.
        self.handlers = Handlers(handler, self, server)
        #: Where it listens, after ``open``: host and port, of IPv6 two numbers more.
        self.address: tuple[Any, ...] = ()

    async def open(self, host: str, port: int) -> None:
        """Listen. Raises OSError: the port is taken, or no such address is here."""
        found = await self.loop.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )
        sock = udp.bound(found)
        self.address = sock.sock.getsockname()
        await self._attach(sock)

    def _received(self, arrived: list[tuple[bytes, Address]]) -> None:
        self.datagrams_received += len(arrived)
        for data, address in arrived:
            stream = self.core.receive(data, address, self.loop.time())
            if stream is not None:
                self.handlers.heard(stream)
        self.pump()

    def pump(self) -> None:
        super().pump()
        for event in self.core.events():
            if isinstance(event, Asked):
                self.handlers.start(event.stream, event.prompt)
            else:
                self.handlers.ended(event.stream)

    def _due(self, now: float) -> Groups:
        return cast(Groups, self.core.departures(now))

    def close(self) -> None:
        """Tell every client, end the handlers, close the socket."""
        self.core.cancel_all(self.loop.time())
        self.pump()
        self.handlers.close()
        super().close()


async def serve(
    handler: Handler,
    host: str,
    port: int,
    *,
    scheme: str = "eloquent",
    max_streams: int = MAX_STREAMS,
) -> ServerEndpoint:
    """Answer prompts on a UDP port until ``close`` is called on the result.

    On 0.0.0.0 or :: (IPv4 as well) an answer leaves from the address that was asked. At most
    ``max_streams`` answers, and as many handlers, run at any time.

    Raises OSError when the port is taken, ValueError for an unknown scheme or no streams.
    """
    if max_streams < 1:
        raise ValueError(f"max_streams is {max_streams}; it must be 1 at least")
    endpoint = ServerEndpoint(Server(scheme, max_streams=max_streams), handler)
    await endpoint.open(host, port)
    return endpoint


class ClientEndpoint(Endpoint):
    """A client's sockets for one question; ``on_tokens`` is called for tokens as they come.

    It is called with an empty list where something else has changed. Where it raises, the answer
    is cancelled and ``wait_closed`` raises the same; it is not called again.
    """

    core: Attempts[Address]

    def __init__(self, core: Attempts[Address], on_tokens: Callable[[list[Token]], None]) -> None:
        super().__init__(core)
        self._ways: dict[Address, UdpSocket | Transported] = {}
        self._on_tokens = on_tokens
        self._failure: BaseException | None = None
        self._done: asyncio.Future[None] = self.loop.create_future()
        self._leaving = False

    @property
    def client(self) -> Client:
        """The conversation: what came of it, and why it ended."""
        return self.core.client

    async def open(self, sockets: dict[int, UdpSocket], ways: list[tuple[int, Address]]) -> None:
        """Ask at these (family, address) pairs, over the sockets of their families."""
        attached = {family: await self._attach(sock) for family, sock in sockets.items()}
        for family, address in ways:
            self._ways[address] = attached[family]
        for sock in sockets.values():
            sock.on_unreachable = self._unreachable
        self.pump()

    def _unreachable(self, peer: tuple[Any, ...], error: OSError) -> None:
        address = Address(peer)
        if address in self._ways:
            self.core.failed(address, error.strerror or str(error), self.loop.time())
            self.pump_soon()

    def _socket(self, address: Address) -> UdpSocket | Transported:
        return self._ways[address]

    def _due(self, now: float) -> Groups:
        yield self.core.datagrams(now)

    def _received(self, arrived: list[tuple[bytes, Address]]) -> None:
        tokens: list[Token] = []
        for data, address in arrived:
            if address in self._ways:
                self.datagrams_received += 1
                tokens += self.core.receive(data, address, self.loop.time())
        super().pump()  # the ACK leaves before the tokens are shown
        self._show(tokens)
        self._settle()

    def _show(self, tokens: list[Token]) -> None:
        if self._failure is not None:
            return
        try:
            self._on_tokens(tokens)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - whoever awaits the end gets it
            self._failure = error
            self.cancel()

    def pump(self) -> None:
        super().pump()
        self._settle()

    def _settle(self) -> None:
        """After all that came was shown: whether it is over."""
        if self.core.closed and not self._done.done():
            self._show([])
            self._end()
        if self.core.closed and self._leaving:
            self.close()

    def _end(self) -> None:
        if self._done.done():
            return
        if self._failure is not None:
            self._done.set_exception(self._failure)
        else:
            self._done.set_result(None)

    async def wait_closed(self) -> None:
        """Wait until nothing is left to do, the lingering included.

        Raises what ``on_tokens`` raised.
        """
        await asyncio.shield(self._done)

    def cancel(self) -> None:
        """The reader wants no more: tell the server. It takes until ``wait_closed``."""
        self.core.cancel(self.loop.time())  # does nothing once the answer is complete
        self.pump()

    def leave(self) -> None:
        """``cancel``, and close once the server knows: nobody needs to wait for that."""
        self._leaving = True
        self.cancel()

    def close(self) -> None:
        """Close the sockets; whoever waits for that goes on."""
        super().close()
        self._end()


#: Makes a client of a prompt and the time, as ``Client`` does.
Asker = Callable[[bytes, float], Client]


async def connect(
    prompt: bytes,
    host: str,
    port: int,
    on_tokens: Callable[[list[Token]], None],
    *,
    asker: Asker | None = None,
) -> ClientEndpoint:
    """Ask ``prompt``; see ``ClientEndpoint``. For most uses ``ask`` is simpler.

    Of a name with several addresses all are tried: see ``Attempts``. What an ``asker`` makes, say a
    sealed client, asks at the first only. Raises OSError (the name has no address that can be used
    here) and ValueError (the prompt is too long).
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    sockets: dict[int, UdpSocket] = {}
    ways: list[tuple[int, Address]] = []
    problem: OSError | None = None
    for family, address in udp.candidates(found):
        try:
            udp.check(address)
            if family not in sockets:
                sockets[family] = udp.unconnected(family)
        except OSError as error:  # say, a kernel without IPv6
            problem = error
        else:
            ways.append((family, address))
    if not ways:
        raise problem or OSError(f"no address of {host} can be used")
    client = None
    if asker is not None:
        client = asker(prompt, loop.time())
        del ways[1:]
    core = Attempts(prompt, [address for _, address in ways], loop.time(), client=client)
    endpoint = ClientEndpoint(core, on_tokens)
    await endpoint.open(sockets, ways)
    return endpoint


async def ask(
    prompt: bytes, host: str, port: int, *, asker: Asker | None = None
) -> AsyncGenerator[Token, None]:
    """Iterate over the tokens of the answer, each at the moment it can be shown.

    Leaving the loop early (``aclose``) cancels the answer at the server. Raises AnswerLost when
    the answer breaks off, at the server or on the way; the tokens before that were delivered.
    """
    queue: asyncio.Queue[list[Token]] = asyncio.Queue()
    endpoint = await connect(prompt, host, port, queue.put_nowait, asker=asker)
    try:
        while not (endpoint.client.complete and queue.empty()):
            for token in await queue.get():
                yield token
            if endpoint.client.error is not None and queue.empty():
                break
        client = endpoint.client
        why = client.error or _BROKEN.get(client.reason)
        if why is not None:
            raise AnswerLost(f"the answer ended after {client.tokens_received} tokens: {why}")
    finally:
        # It stays a moment to repeat the last ACK or the CANCEL, without making the reader wait.
        endpoint.leave()
