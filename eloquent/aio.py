"""Eloquent on asyncio: ``serve`` answers prompts over UDP, ``ask`` iterates over an answer.

With ``endpoint`` and ``udp`` the only modules of the library that touch sockets and clocks. Both
ends are thin shells around ``Server`` and ``Client``; the time is the loop's, which is
``time.monotonic``.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, cast

from . import udp
from .attempts import Attempts
from .client import Client
from .endpoint import Endpoint, Groups, Transported
from .receiver import Token
from .server import Asked, Server, Stream
from .udp import Address, UdpSocket
from .wire import MAX_TOKEN, Reason


class AnswerLost(ConnectionError):
    """The answer will not be complete: the server refused, or nothing was heard for 60 s."""


class Reply:
    """What a handler writes its answer to."""

    def __init__(self, endpoint: ServerEndpoint, stream: Stream) -> None:
        self.stream = stream
        self._endpoint = endpoint

    @property
    def cancelled(self) -> bool:
        """The reader has gone: nothing more needs to be generated."""
        return self.stream.ended is not None

    async def send(self, token: bytes) -> None:
        """Send one token; waits while the client is far behind. Longer than 1024 B is cut."""
        if self.cancelled:  # a handler that does not look must not keep the loop for itself
            await asyncio.sleep(0)
        for start in range(0, len(token) or 1, MAX_TOKEN):
            part = token[start : start + MAX_TOKEN]
            while not self.cancelled and self.stream.room() < len(part):
                await self._endpoint.progress()
            self.stream.push(part, self._endpoint.loop.time())
            # A step of a model with speculative decoding gives several tokens at once.
            self._endpoint.pump_soon()

    def finish(self, reason: Reason = Reason.STOP) -> None:
        """The answer is complete."""
        self.stream.finish(reason, self._endpoint.loop.time())
        self._endpoint.pump()


Handler = Callable[[bytes, Reply], Awaitable[None]]


class ServerEndpoint(Endpoint):
    """A server's socket; ``handler`` is called in a task of its own for each prompt.

    A handler that raises ends its answer; the error goes to the loop's exception handler.
    """

    core: Server

    def __init__(self, server: Server, handler: Handler) -> None:
        super().__init__(server)
        self._handler = handler
        self._tasks: set[asyncio.Task[None]] = set()
        self._progress = asyncio.Event()
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
            self.core.receive(data, address, self.loop.time())
        self.pump()
        self._progress.set()

    def pump(self) -> None:
        super().pump()
        for event in self.core.events():
            if isinstance(event, Asked):
                task = self.loop.create_task(self._answer(event.prompt, Reply(self, event.stream)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                self._progress.set()

    async def _answer(self, prompt: bytes, reply: Reply) -> None:
        try:
            await self._handler(prompt, reply)
        except BaseException as error:  # a cancelled task as well
            # The reader must not wait for an answer that cannot come; one that is whole may leave.
            if not reply.stream.finished:
                self.core.cancel(reply.stream, self.loop.time())
                self.pump()
            if not isinstance(error, Exception):
                raise
            # At once and once: as the result of a task nobody would see it before the task dies.
            self.loop.call_exception_handler(
                {"message": "a handler could not answer its prompt", "exception": error}
            )
            return
        if reply.stream.ended is None and not reply.stream.finished:
            reply.finish()

    def _due(self, now: float) -> Groups:
        return cast(Groups, self.core.departures(now))

    def close(self) -> None:
        """Tell every client, end the handlers, close the socket."""
        self.core.cancel_all(self.loop.time())
        self.pump()
        for task in self._tasks:
            task.cancel()
        super().close()

    async def progress(self) -> None:
        """Wait until something has arrived or a stream has ended."""
        self._progress.clear()
        await self._progress.wait()


async def serve(
    handler: Handler, host: str, port: int, *, scheme: str = "eloquent"
) -> ServerEndpoint:
    """Answer prompts on a UDP port until ``close`` is called on the result.

    On 0.0.0.0 or :: (IPv4 as well) an answer leaves from the address that was asked.

    Raises OSError when the port is taken, ValueError for an unknown scheme.
    """
    endpoint = ServerEndpoint(Server(scheme), handler)
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
        self.pump()  # the ACK leaves before the tokens are shown
        self._show(tokens)

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
    the answer breaks off; the tokens before that were delivered.
    """
    queue: asyncio.Queue[list[Token]] = asyncio.Queue()
    endpoint = await connect(prompt, host, port, queue.put_nowait, asker=asker)
    try:
        while not (endpoint.client.complete and queue.empty()):
            for token in await queue.get():
                yield token
            error = endpoint.client.error
            if error is not None and queue.empty():
                raise AnswerLost(
                    f"the answer ended after {endpoint.client.tokens_received} tokens: {error}"
                )
    finally:
        # It stays a moment to repeat the last ACK or the CANCEL, without making the reader wait.
        endpoint.leave()
