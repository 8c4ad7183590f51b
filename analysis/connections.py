"""TCP connections that follow each other between the same two ports.

A client's port comes round again, and a capture may lack the SYN that would say so. Then the
numbers tell: two connections number their bytes independently of each other.
"""

from __future__ import annotations

from analysis.headers import ACK, FIN, RST, SYN

WINDOW = 1 << 30
"""Bytes in flight at most (RFC 7323, section 2.3): no segment of a connection is further away."""

LEAP = 1 << 24
"""Where sequence number and acknowledgement both move by more than this between two segments of
one direction, it is another connection: a capture that misses as much, misses it one way."""

_MODULUS = 1 << 32
_MASK = _MODULUS - 1

Numbered = list[int | None]


class _Connection:
    """What is known of one connection's numbers; lists have one entry for each side."""

    __slots__ = ("ack", "closed", "first", "isn", "number", "seq")

    def __init__(self, number: int) -> None:
        self.number = number
        self.isn: Numbered = [None, None]
        self.first: Numbered = [None, None]
        """Sequence number of the first segment that is no SYN."""
        self.seq: Numbered = [None, None]
        self.ack: Numbered = [None, None]
        """Numbers of the latest segment."""
        self.closed = False

    @property
    def has_begun(self) -> bool:
        """Whether there was more than SYNs."""
        return self.first != [None, None]

    def fits(self, side: int, seq: int, ack: int | None) -> bool:
        """Whether a segment that is no SYN can belong to this connection."""
        other = 1 - side
        moved = [
            distance
            for distance in (
                _nearest(seq, self.seq[side], self.ack[other]),
                _nearest(ack, self.ack[side], self.seq[other]),
            )
            if distance is not None
        ]
        return not moved or (max(moved) <= WINDOW and min(moved) <= LEAP)

    def opened_by(self, side: int, seq: int, ack: int | None) -> bool:
        """Whether a SYN is this connection's: also repeated, late, or one of two (RFC 9293, 3.5).

        Of a server with SYN cookies a repeated SYN can bring another answer (RFC 4987, 3.6).
        """
        other = 1 - side
        if self.isn[side] == seq:
            # The same number again is a repetition, until the connection is over.
            return not (self.closed and self.first[side] is not None)
        theirs = self.isn[other]
        if ack is not None and theirs is not None:
            # Data in the SYN is acknowledged with it (RFC 7413).
            return (ack - theirs - 1) & _MASK <= LEAP
        mine = self.first[side]
        if self.isn[side] is None and mine is not None:
            return (mine - seq) & _MASK <= 1  # captured after what was sent after it
        if ack is not None:
            # The other side's SYN is not in the capture; perhaps what came after it is.
            begun = self.first[other]
            return mine is None and ack == (self.ack[side] if begun is None else begun)
        if self.isn[side] is not None or theirs is None:
            return False
        answered = self.ack[other]
        if answered is None:
            return not self.has_begun  # simultaneous open
        return (seq + 1) & _MASK == answered

    def note(self, side: int, flags: int, seq: int, ack: int | None) -> None:
        """A segment belongs to this connection."""
        if flags & SYN:
            self.isn[side] = seq
        elif self.first[side] is None:
            self.first[side] = seq
        self.seq[side] = seq
        if ack is not None:
            self.ack[side] = ack
        if flags & FIN:
            self.closed = True


class Ports:
    """Two ports, and the connections between them, from segment to segment."""

    def __init__(self) -> None:
        self._latest = _Connection(0)
        self._before: _Connection | None = None

    def place(self, side: int, flags: int, seq: int, ack: int) -> int:
        """Which connection a segment belongs to: 0 for the first, 1 for the next, and so on.

        `side` is 0 or 1 for the port that it comes from. A late segment of the connection before
        the latest one is recognised as such.
        """
        latest = self._latest
        if flags & (ACK | SYN | RST | FIN) == ACK:  # nearly all of them
            own, heard = latest.seq[side], latest.ack[side]
            if (
                own is not None
                and heard is not None
                and latest.first[side] is not None
                and (seq - own + LEAP) & _MASK <= 2 * LEAP
                and (ack - heard + LEAP) & _MASK <= 2 * LEAP
            ):
                latest.seq[side], latest.ack[side] = seq, ack
                return latest.number
        if flags & RST:
            # Its numbers may answer to anything, a late segment for one (RFC 9293, 3.10.7).
            latest.closed = True
            return latest.number
        acknowledged = ack if flags & ACK else None
        found = None
        for known in (latest, self._before):
            if known is not None and self._belongs(known, side, flags, seq, acknowledged):
                found = known
                break
        if found is None:
            if latest.has_begun:
                self._before = latest
            found = self._latest = _Connection(latest.number + 1)
        found.note(side, flags, seq, acknowledged)
        return found.number

    @staticmethod
    def _belongs(known: _Connection, side: int, flags: int, seq: int, ack: int | None) -> bool:
        if flags & SYN:
            untouched = not known.has_begun and known.isn == [None, None]
            return untouched or known.opened_by(side, seq, ack)
        return known.fits(side, seq, ack)


def _nearest(value: int | None, *known: int | None) -> int | None:
    """The distance modulo 2^32 to the nearest number known; None if there is none."""
    if value is None:
        return None
    distances = [
        min((value - one) & _MASK, (one - value) & _MASK) for one in known if one is not None
    ]
    return min(distances) if distances else None
