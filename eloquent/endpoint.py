"""What both ends of a conversation are on asyncio: sockets, a sans-I/O object and its one timer.

A datagram is made when it can leave: while a socket is full none are, so that none grow old. What
arrives together is read together, and answered once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, cast

from .attempts import Attempts
from .server import Server
from .udp import Address, UdpSocket

#: Datagrams that are read at once, so that a flood leaves time for everything else.
BATCH = 64

Groups = Generator[Iterable[tuple[bytes, Address]], None, None]


class Transported(asyncio.DatagramProtocol):
    """What stands in for a ``UdpSocket`` on loops that cannot watch sockets (Windows' default).

    Such a loop keeps a queue of its own, and nobody says at which address a datagram arrived.
    """

    def __init__(
        self, sock: UdpSocket, received: Callable[[list[tuple[bytes, Address]]], None]
    ) -> None:
        self._sock = sock  # which closes with its last reference
        self._received = received
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No isinstance: a selector loop's transport is not registered as a DatagramTransport.
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._received([(data, Address(addr))])

    def send(self, data: bytes, address: Address) -> bool:
        if self._transport is None or self._transport.is_closing():
            return False
        self._transport.sendto(data, address.peer)
        return True

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Endpoint:
    """Moves datagrams between sockets and a sans-I/O object, and keeps its one timer."""

    def __init__(self, core: Server | Attempts[Address]) -> None:
        self.core = core
        self.loop = asyncio.get_running_loop()
        self.datagrams_sent = 0
        self.datagrams_received = 0
        self._sockets: list[UdpSocket | Transported] = []
        self._outgoing: deque[tuple[bytes, Address]] = deque()
        self._full: UdpSocket | None = None
        self._timer: asyncio.Handle | None = None
        self._soon: asyncio.Handle | None = None
        self._is_closed = False

    async def _attach(self, sock: UdpSocket) -> UdpSocket | Transported:
        """Read this socket from now on."""
        attached: UdpSocket | Transported = sock
        try:
            self.loop.add_reader(sock.sock, self._readable, sock)
        except NotImplementedError:
            _, attached = await self.loop.create_datagram_endpoint(
                lambda: Transported(sock, self._received), sock=sock.sock
            )
        self._sockets.append(attached)
        return attached

    def _readable(self, sock: UdpSocket) -> None:
        arrived = sock.receive(BATCH)
        if arrived and not self._is_closed:
            self._received(arrived)

    def _received(self, arrived: list[tuple[bytes, Address]]) -> None:
        """Give what came together to the core, and pump once."""
        raise NotImplementedError

    def pump(self) -> None:
        """Send what is due and set the timer. To be called after every call into the core."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._is_closed or self._full is not None:
            return  # the latter: it goes on when the socket is writable
        now = self.loop.time()
        # Closed at once: what a core has not made yet stays due.
        with contextlib.closing(self._due(now)) as groups:
            while self._flush():
                group = next(groups, None)
                if group is None:
                    break
                self._outgoing += group
        if self._timer is not None:
            self._timer.cancel()
        due = None if self._full else self.core.next_timeout()
        self._timer = None if due is None else self.loop.call_at(due, self.pump)

    def _flush(self) -> bool:
        """Send what is made. Returns whether all of it left, and more may be made."""
        while self._outgoing:
            data, address = self._outgoing[0]
            sock = self._socket(address)
            try:
                self.datagrams_sent += sock.send(data, address)
            except BlockingIOError:
                assert isinstance(sock, UdpSocket)
                self._full = sock
                self.loop.add_writer(sock.sock, self._writable)
                return False
            self._outgoing.popleft()
        return True

    def _writable(self) -> None:
        if self._full is not None:
            self.loop.remove_writer(self._full.sock)
            self._full = None
        self.pump()

    def pump_soon(self) -> None:
        """``pump`` once the caller waits for something: what it gives until then goes together.

        That is not put off by others who give something meanwhile.
        """
        if self._soon is None and not self._is_closed:
            self._soon = self.loop.call_soon(self.pump)

    def _socket(self, address: Address) -> UdpSocket | Transported:
        return self._sockets[0]

    def _due(self, now: float) -> Groups:
        """The (datagram, address) pairs that are to be sent now, a group at a time."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the socket."""
        self._is_closed = True
        for handle in (self._timer, self._soon):
            if handle is not None:
                handle.cancel()
        if self._full is not None:
            self.loop.remove_writer(self._full.sock)
        for sock in self._sockets:
            if isinstance(sock, UdpSocket):
                self.loop.remove_reader(sock.sock)
            sock.close()
        self._sockets.clear()
