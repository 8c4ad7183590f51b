"""Tickets: what lets a client into one sealed session, and who hands them out.

A ticket reaches the client over a channel that is secure already (HTTPS, SSH, a file). It is good
for one session, whatever came of it: the packet numbers of a session start at 0, and a second one
with the same secret would seal with the same nonces.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

from .keys import SECRET_SIZE, Aead, derive
from .packets import Opener, Sealer

#: Seconds from the hand-out to the first packet, unless the book says otherwise.
LIFETIME = 60.0


class TicketError(ValueError):
    """A ticket that cannot be used: one line says why, and what to do."""


class Session(NamedTuple):
    """One end of a session."""

    sealer: Sealer
    opener: Opener


class Ticket:
    """Session id, secret, the server's (host, port), and when it expires (UNIX time, s).

    Raises TicketError for values that cannot be. The secret is in no repr, str or log; ``export``
    hands it over, to be sent over a secure channel.
    """

    def __init__(
        self,
        session_id: int,
        secret: bytes,
        address: tuple[str, int],
        expires: float,
        aead: Aead = Aead.AES_256_GCM,
    ) -> None:
        if not 0 <= session_id < 2**64:
            raise TicketError(f"session id {session_id} has more than 64 bits")
        if len(secret) != SECRET_SIZE:
            raise TicketError(f"the secret has {len(secret)} bytes, not {SECRET_SIZE}")
        self.session_id = session_id
        self.address = address
        self.expires = expires
        self.aead = aead
        self._secret = secret
        self._used: set[bool] = set()  # by which sides

    def __repr__(self) -> str:
        host, port = self.address
        return f"<ticket of session {self.session_id:016x} at {host} port {port}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TicketError("a ticket cannot be copied: it is good for one session")

    def expired(self, now: float) -> bool:
        """Whether it may open a session no more at ``now`` (UNIX time, s). Running ones go on."""
        return now >= self.expires

    def session(self, *, server: bool, pad: int = 0) -> Session:
        """The server's or the client's end of the session, packets filled up in steps of ``pad``.

        Raises TicketError when that side has had it before, ValueError for ``pad``, ImportError
        without the package ``cryptography``.
        """
        if server in self._used:
            raise TicketError(f"{self!r} was used before: take a fresh one")
        mine = derive(self._secret, self.session_id, self.aead, from_server=server)
        theirs = derive(self._secret, self.session_id, self.aead, from_server=not server)
        end = Session(
            Sealer(mine, self.session_id, self.aead, pad=pad),
            Opener(theirs, self.session_id, self.aead),
        )
        self._used.add(server)
        return end

    def export(self) -> str:
        """All of it, the secret too, as JSON."""
        host, port = self.address
        return json.dumps(
            {
                "session": f"{self.session_id:016x}",
                "secret": self._secret.hex(),
                "host": host,
                "port": port,
                "expires": self.expires,
                "aead": self.aead.value,
            }
        )

    @classmethod
    def parse(cls, text: str) -> Ticket:
        """The ticket of ``export``. Raises TicketError, which never quotes the text."""
        try:
            fields = json.loads(text)
            host, port, expires = fields["host"], fields["port"], float(fields["expires"])
            session_id, secret = int(fields["session"], 16), bytes.fromhex(fields["secret"])
            aead = Aead(fields["aead"])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            raise TicketError("not a ticket: take a fresh one") from None
        if not isinstance(host, str) or type(port) is not int or not 0 < port < 2**16:
            raise TicketError("the ticket names no address: take a fresh one")
        if not math.isfinite(expires):
            raise TicketError("the ticket does not say when it expires: take a fresh one")
        return cls(session_id, secret, (host, port), expires, aead)


class Tickets(Protocol):
    """Where a server finds the tickets that were handed out for it."""

    def take(self, session_id: int) -> Ticket | None:
        """The ticket of this session, if it was handed out and has not expired; never twice."""


class TicketBook:
    """Hands out tickets and keeps them, in memory, until they are taken or expire.

    After a restart it is empty, so that nothing can be sealed with an earlier session's nonces.
    ``clock`` is UNIX time: clients, who are elsewhere, compare it with theirs.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        lifetime: float = LIFETIME,
        aead: Aead = Aead.AES_256_GCM,
        clock: Callable[[], float] = time.time,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.address = address
        self._lifetime, self._aead, self._clock = lifetime, aead, clock
        self._random_bytes = random_bytes
        self._waiting: dict[int, Ticket] = {}  # in the order of their expiry

    def __len__(self) -> int:
        return len(self._waiting)

    def issue(self) -> Ticket:
        """A fresh ticket, for one client."""
        now = self._clock()
        while self._waiting and next(iter(self._waiting.values())).expired(now):
            del self._waiting[next(iter(self._waiting))]
        session_id = int.from_bytes(self._random_bytes(8), "big")
        secret = self._random_bytes(SECRET_SIZE)
        ticket = Ticket(session_id, secret, self.address, now + self._lifetime, self._aead)
        self._waiting[session_id] = ticket
        return ticket

    def take(self, session_id: int) -> Ticket | None:
        """See ``Tickets``."""
        ticket = self._waiting.pop(session_id, None)
        return None if ticket is None or ticket.expired(self._clock()) else ticket


def write_ticket(path: Path, ticket: Ticket) -> None:
    """Write ``ticket`` to a new file that only its owner can read. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(path, flags, 0o600), "w", encoding="ascii") as file:
        file.write(ticket.export() + "\n")


def take_ticket(path: Path, now: float) -> Ticket:
    """Read the ticket in ``path`` and remove the file, so that nobody uses it again.

    ``now`` is UNIX time. Raises OSError, and TicketError: others can read the file, it is no
    ticket, it has expired, or somebody else took it at this moment. In the first case the file
    stays, and its secret may be known to others.
    """
    # Neither wait for a pipe's other end, nor remove a link and leave the file.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise TicketError(f"{path}: not a file")
        mode = stat.S_IMODE(status.st_mode)
        if os.name == "posix" and mode & 0o077:
            raise TicketError(
                f"{path}: others than its owner may use it (mode {mode:04o}, not 0600): "
                "take a fresh ticket"
            )
        text = file.read(4096).decode("utf-8", "replace")
    try:
        ticket = Ticket.parse(text)
    except TicketError as error:
        raise TicketError(f"{path}: {error}") from None
    try:
        os.unlink(path)  # of several who have read it, one succeeds
    except FileNotFoundError:
        raise TicketError(f"{path}: somebody else has taken it: take a fresh ticket") from None
    if ticket.expired(now):
        raise TicketError(f"{path}: expired {now - ticket.expires:.0f} s ago: take a fresh ticket")
    return ticket
