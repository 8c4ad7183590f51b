"""Both ends of a sealed stream: ``Client`` and ``Server`` behind a layer that seals and opens.

What is not authentic, or came before, is counted in ``malformed`` and reaches neither of them. A
plain datagram is not authentic.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from ..client import Client
from ..path import Path
from ..receiver import Token
from ..server import Datagrams, Server
from ..stream import LEASE, Address, Stream
from .packets import (
    SealedOut,
    check_pad,
    datagram_of,
    message_of,
    packet_size,
    session_of,
    stream_of,
)
from .tickets import Session, Ticket, Tickets

#: Seconds for which a session is kept after its last authentic packet: until the server within has
#: given its stream up, and can have nothing more to send.
SESSION_LEASE = LEASE + 1.0


#: Largest step of a server: with one step it answers the smallest packet of a client (37 bytes, a
#: CANCEL), which may come from a forged address, and that must be at most 3 times as large.
MAX_SERVER_PAD = 96


class SealedClient(Client):
    """A ``Client`` in the session of ``ticket``. Packets are filled up in steps of ``pad`` bytes.

    Raises what ``Client`` and ``Ticket.session`` do.
    """

    def __init__(
        self, prompt: bytes, now: float, ticket: Ticket, *, pad: int = 0, **options: Any
    ) -> None:
        super().__init__(prompt, now, **options)
        self._session = ticket.session(server=False, pad=pad)
        # The server's end knows the stream by the session's id, this one by its own.
        self._own_id = self.stream_id.to_bytes(8, "big")

    def receive(self, datagram: bytes, now: float) -> list[Token]:
        """See ``Client.receive``."""
        message = self._session.opener.open(datagram)
        if message is None:
            self.malformed += 1
            return []
        return super().receive(datagram_of(message, self._own_id), now)

    def datagrams(self, now: float) -> list[bytes]:
        """See ``Client.datagrams``."""
        sealed = []
        for plain in super().datagrams(now):
            try:
                sealed.append(self._session.sealer.seal(message_of(plain)))
            except SealedOut as error:
                self.error = self.error or str(error)
                break
        return sealed


class SealedServer(Server):
    """A ``Server`` for clients with ``tickets`` only. ``options`` are those of ``Server``.

    Raises ValueError as that does, and for a ``pad`` above MAX_SERVER_PAD.
    """

    def __init__(self, tickets: Tickets, *, pad: int = 0, **options: Any) -> None:
        super().__init__(**options)
        if check_pad(pad) > MAX_SERVER_PAD:
            raise ValueError(
                f"pad is {pad}: more than {MAX_SERVER_PAD} bytes would be more than 3 times what a "
                "forged address may have sent; give a smaller step"
            )
        self._tickets = tickets
        self._pad = pad
        self._on_wire = functools.partial(packet_size, pad=pad)
        self._arriving = 0  # bytes of the packet that the server within is being given
        #: With the time of the last authentic packet, which is their order too.
        self._sessions: OrderedDict[int, tuple[Session, float]] = OrderedDict()

    @property
    def sessions(self) -> int:
        """Number of sessions whose keys are held."""
        return len(self._sessions)

    def receive(self, datagram: bytes, address: Address, now: float) -> Stream | None:
        """See ``Server.receive``."""
        self._forget(now)
        session_id = session_of(datagram)
        session = None if session_id is None else self._session(session_id, now)
        message = None if session is None else session.opener.open(datagram)
        if session_id is None or session is None or message is None:
            self.malformed += 1
            return None
        self._sessions[session_id] = session, now
        self._sessions.move_to_end(session_id)
        plain = datagram_of(message, session_id.to_bytes(8, "big"))
        self._arriving = len(datagram)
        return super().receive(plain, address, now)

    def _session(self, session_id: int, now: float) -> Session | None:
        known = self._sessions.get(session_id)
        if known is not None:
            return known[0]
        ticket = self._tickets.take(session_id)
        if ticket is None:
            return None
        # It stays though the packet may be forged: the ticket cannot be taken again.
        session = ticket.session(server=True, pad=self._pad)
        self._sessions[session_id] = session, now
        return session

    def _forget(self, now: float) -> None:
        while self._sessions:
            session_id, (_, heard_at) = next(iter(self._sessions.items()))
            if now < heard_at + SESSION_LEASE:
                return
            del self._sessions[session_id]

    def departures(self, now: float) -> Iterator[Datagrams]:
        """See ``Server.departures``."""
        for group in super().departures(now):
            sealed = []
            for plain, address in group:
                packet = self._seal(plain)
                if packet is not None:
                    sealed.append((packet, address))
            yield sealed

    def _seal(self, plain: bytes) -> bytes | None:
        session = self._sessions.get(stream_of(plain))
        if session is None:
            return None
        try:
            return session[0].sealer.seal(message_of(plain))
        except SealedOut:
            return None  # the client hears nothing more, and gives up as after any silence

    def _was_on_wire(self, size: int) -> int:
        return self._arriving  # a client need not pad as this end does

    def _new_path(self, *, validated: bool) -> Path:
        # The limit before an address is proven is one for what leaves, not for what is within.
        path = super()._new_path(validated=validated)
        path.on_wire = self._on_wire
        path.was_on_wire = self._was_on_wire
        return path
