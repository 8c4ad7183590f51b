"""Which packet numbers have come: the anti-replay window of RFC 4303, section 3.4.3."""

from __future__ import annotations

#: Packets that may overtake one another. RFC 4303 asks for 32 at least; at the most that a sender
#: sends (200 flights/s) this covers 5 s, as ``path._STAMPS`` does.
WINDOW = 1024


class ReplayWindow:
    """Takes each number once, and none that is ``size`` or more below the largest.

    Only what was found authentic may be marked: a forged number must not move the window.
    """

    __slots__ = ("_came", "_mask", "largest", "size")

    def __init__(self, size: int = WINDOW) -> None:
        self.size = size
        #: The largest number that was marked, -1 before the first.
        self.largest = -1
        self._mask = (1 << size) - 1
        self._came = 0  # bit n: the number that is n below the largest

    def fresh(self, number: int) -> bool:
        """Whether ``number`` may still be taken."""
        below = self.largest - number
        return below < 0 or (below < self.size and not self._came >> below & 1)

    def mark(self, number: int) -> None:
        """Take ``number``, of which ``fresh`` was said."""
        ahead = number - self.largest
        if ahead <= 0:
            self._came |= 1 << -ahead
            return
        # A forward jump of any size must not make a number of that many bits.
        self._came = 1 if ahead >= self.size else (self._came << ahead | 1) & self._mask
        self.largest = number
