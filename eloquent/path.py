"""One way to the peer: its clock stamps, its RTT, and what may be sent before it is proven."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable

from .rtt import RttEstimator

#: Before the peer's address is proven: bytes sent per byte received (RFC 9000, section 8.1).
AMPLIFICATION = 3
#: Stamps that are remembered. At the most that a sender sends (200 flights/s, see sender.py)
#: this covers 5 s of round trip.
_STAMPS = 1024
_U32 = 2**32
#: ACKs leave at once. An echo older than this (in a PING) proves the peer but not the RTT.
MAX_ACK_DELAY = 0.025
#: When nothing was answered for this long (s), or for 3 PTO if that is more, but not more than
#: MOST_QUIET_AFTER, although an answer was due, the path is taken for broken off.
QUIET_AFTER = 1.0
MOST_QUIET_AFTER = 3.0


class Path:
    """State of one (local, remote) address pair.

    ``sent_at`` in our datagrams is this path's clock: microseconds plus a random salt. An ACK
    proves that the peer is really there when it echoes a stamp that was sent on *this* path: who
    does not see our datagrams cannot know the salt (the role of PATH_CHALLENGE in RFC 9000).
    """

    def __init__(self, *, validated: bool, salt: int | None = None) -> None:
        self.validated = validated
        self.rtt = RttEstimator()
        self._salt = secrets.randbits(32) if salt is None else salt
        self._stamps: dict[int, float] = {}
        self._unanswered_since: float | None = None
        self._resumed_at = -math.inf  # when the last outage was over
        #: How large a datagram of so many bytes will be on the wire, and was there: larger, where a
        #: layer wraps it.
        self.on_wire: Callable[[int], int] = lambda size: size
        self.was_on_wire = self.on_wire
        self._received = 0
        self._sent = 0

    def clock(self, now: float) -> int:
        """This path's time, for a datagram that needs no answer."""
        return (int(now * 1e6) + self._salt) % _U32

    def stamp(self, now: float) -> int:
        """This path's time, remembered, for a datagram whose answer will echo it."""
        stamp = self.clock(now)
        if self._unanswered_since is None:
            self._unanswered_since = now
        self._stamps[stamp] = now
        if len(self._stamps) > _STAMPS:
            del self._stamps[next(iter(self._stamps))]
        return stamp

    def answered(self, echo: int, delay: int, now: float) -> bool:
        """Take the echo of an ACK. False when that stamp was never sent here.

        ``delay`` is in microseconds. Each stamp gives one RTT sample at most: a copy of a
        datagram, or a second ACK for it, says nothing new about the path.
        """
        sent = self._stamps.pop(echo, None)
        if sent is None:
            return False
        self.validated = True
        silence = self._silence(now)
        if silence > self.quiet_after:
            # Late answers to what was sent before say how long that was, not how long the way is.
            self._resumed_at = now
            self.rtt.broken_off(silence)
        elif sent >= self._resumed_at and delay <= MAX_ACK_DELAY * 1e6:
            self.rtt.add(max(0.0, now - sent), delay / 1e6)
        self._unanswered_since = None
        return True

    @property
    def quiet_after(self) -> float:
        """Seconds without an answer after which the path is taken for broken off."""
        return min(max(QUIET_AFTER, 3 * self.rtt.probe_timeout), MOST_QUIET_AFTER)

    def _silence(self, now: float) -> float:
        """Seconds since the first stamp that no answer has followed."""
        return 0.0 if self._unanswered_since is None else now - self._unanswered_since

    def remembers(self, stamp: int) -> bool:
        """Whether ``stamp`` was sent here and is not answered yet."""
        return stamp in self._stamps

    def received(self, size: int) -> None:
        """A datagram of ``size`` bytes came from the peer's address."""
        self._received += self.was_on_wire(size)

    def may_send(self, size: int, copies: int = 1) -> bool:
        """Whether that many datagrams of ``size`` bytes more may go to the peer's address."""
        if self.validated:
            return True
        return self._sent + copies * self.on_wire(size) <= AMPLIFICATION * self._received

    def sent(self, size: int, copies: int = 1) -> None:
        """That many datagrams of ``size`` bytes went to the peer's address."""
        self._sent += copies * self.on_wire(size)
