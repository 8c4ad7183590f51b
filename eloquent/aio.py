"""Eloquent on asyncio: ``serve`` answers prompts over UDP, ``ask`` iterates over an answer.

The only module of the library that touches sockets and clocks. Both ends are thin shells around
``Server`` and ``Client``; the time is the loop's, which is ``time.monotonic``.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any, cast

from .client import Client
from .receiver import Token
from .server import Asked, Server, Stream
from .wire import MAX_TOKEN, Reason


class AnswerLost(ConnectionError):
    """The answer will not be complete: the server refused, or nothing was heard for 60 s."""


class _Endpoint(asyncio.DatagramProtocol):
    """Moves datagrams between a socket and a sans-I/O object, and keeps its one timer."""

    def __init__(self, core: Server | Client) -> None:
        self.core = core
        self.loop = asyncio.get_running_loop()
        self.datagrams_sent = 0
        self.datagrams_received = 0
        self._transport: asyncio.DatagramTransport | None = None
        self._timer: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No isinstance: the selector loop's transport is not registered as a DatagramTransport.
        self._transport = cast(asyncio.DatagramTransport, transport)
        self.pump()

    def error_received(self, error: Exception) -> None:
        """An ICMP error, say "port unreachable", proves nothing: the lease decides."""

    def pump(self) -> None:
        """Send what is due and set the timer. To be called after every call into the core."""
        if self._transport is None or self._transport.is_closing():
            return
        now = self.loop.time()
        for datagram, address in self._due(now):
            self._transport.sendto(datagram, address)
            self.datagrams_sent += 1
        if self._timer is not None:
            self._timer.cancel()
        due = self.core.next_timeout()
        self._timer = None if due is None else self.loop.call_at(due, self.pump)

    def pump_soon(self) -> None:
        """``pump`` once the caller waits for something: what it gives until then goes together."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_soon(self.pump)

    def _due(self, now: float) -> Iterable[tuple[bytes, Any]]:
        """The (datagram, address) pairs that are to be sent now."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the socket."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.close()


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


class ServerEndpoint(_Endpoint):
    """A server's socket; ``handler`` is called in a task of its own for each prompt."""

    core: Server

    def __init__(self, server: Server, handler: Handler) -> None:
        super().__init__(server)
        self._handler = handler
        self._tasks: set[asyncio.Task[None]] = set()
        self._progress = asyncio.Event()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.datagrams_received += 1
        self.core.receive(data, addr, self.loop.time())
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
        except BaseException:  # a cancelled task as well
            # The reader must not wait for an answer that cannot come.
            self.core.cancel(reply.stream, self.loop.time())
            self.pump()
            raise
        if reply.stream.ended is None and not reply.stream.finished:
            reply.finish()

    def _due(self, now: float) -> Iterable[tuple[bytes, Any]]:
        return cast(Iterable[tuple[bytes, Any]], self.core.datagrams(now))

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

    Raises OSError when the port is taken, ValueError for an unknown scheme.
    """
    loop = asyncio.get_running_loop()
    server = Server(scheme)
    _, endpoint = await loop.create_datagram_endpoint(
        lambda: ServerEndpoint(server, handler), local_addr=(host, port)
    )
    return endpoint


class ClientEndpoint(_Endpoint):
    """A client's socket for one question; ``on_tokens`` is called for tokens as they come."""

    core: Client

    def __init__(
        self, client: Client, server: Any, on_tokens: Callable[[list[Token]], None]
    ) -> None:
        super().__init__(client)
        self._server = server
        self._on_tokens = on_tokens
        #: Set when nothing is left to do, the lingering included.
        self.closed = asyncio.Event()

    def _due(self, now: float) -> Iterable[tuple[bytes, Any]]:
        return ((datagram, self._server) for datagram in self.core.datagrams(now))

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if addr[:2] != self._server[:2]:
            return
        self.datagrams_received += 1
        tokens = self.core.receive(data, self.loop.time())
        self.pump()  # the ACK leaves before the tokens are shown
        self._on_tokens(tokens)

    def pump(self) -> None:
        super().pump()
        if self.core.closed and not self.closed.is_set():
            self.closed.set()
            self._on_tokens([])

    def close(self) -> None:
        """Close the socket; whoever waits for ``closed`` goes on."""
        super().close()
        self.closed.set()


async def connect(
    prompt: bytes, host: str, port: int, on_tokens: Callable[[list[Token]], None]
) -> ClientEndpoint:
    """Ask ``prompt``; see ``ClientEndpoint``. For most uses ``ask`` is simpler."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    family, _, _, _, server = found[0]
    client = Client(prompt, loop.time())
    # Not connected: a connected socket keeps its source address when the host gets a new one.
    anywhere = "::" if family == socket.AF_INET6 else "0.0.0.0"
    _, endpoint = await loop.create_datagram_endpoint(
        lambda: ClientEndpoint(client, server, on_tokens), local_addr=(anywhere, 0), family=family
    )
    return endpoint


async def ask(prompt: bytes, host: str, port: int) -> AsyncGenerator[Token, None]:
    """Iterate over the tokens of the answer, each at the moment it can be shown.

    Leaving the loop early (``aclose``) cancels the answer at the server. Raises AnswerLost when
    the answer breaks off; the tokens before that were delivered.
    """
    queue: asyncio.Queue[list[Token]] = asyncio.Queue()
    endpoint = await connect(prompt, host, port, queue.put_nowait)
    client = endpoint.core
    try:
        while not (client.complete and queue.empty()):
            for token in await queue.get():
                yield token
            if client.error is not None and queue.empty():
                raise AnswerLost(
                    f"the answer ended after {client.tokens_received} tokens: {client.error}"
                )
    finally:
        client.cancel(endpoint.loop.time())  # does nothing once the answer is complete
        endpoint.pump()
        # Stay a moment to repeat the last ACK or the CANCEL, without making the reader wait.
        task = endpoint.loop.create_task(_linger(endpoint))
        _lingering.add(task)
        task.add_done_callback(_lingering.discard)


_lingering: set[asyncio.Task[None]] = set()


async def _linger(endpoint: ClientEndpoint) -> None:
    try:
        await endpoint.closed.wait()
    finally:
        endpoint.close()
