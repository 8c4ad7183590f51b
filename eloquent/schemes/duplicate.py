"""Packet duplication, the paper's second baseline: each datagram several times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..rtt import RttEstimator
from ..window import Fresh, Window
from .base import Scheme


class Duplicate(Scheme):
    """New tokens only, each datagram ``k`` times (``duplicate:3`` for three, two by default).

    ``duplicate:3:20`` sends the copies 20 ms apart, so that a short outage does not hit them all;
    a copy of what is known to have arrived is left out. What is still missing after a probe
    timeout is sent again, in copies as well, so that nothing is lost. Only tokens whose own
    timeout has passed are repeated.
    """

    name = "duplicate"

    def __init__(self, argument: str = "") -> None:
        super().__init__()
        number, _, spacing = argument.partition(":")
        if argument and not (number.isdecimal() and 2 <= int(number) <= 5):
            raise ValueError(f"duplicate takes 2 to 5 copies, got {number!r}")
        if spacing and not (spacing.isdecimal() and 5 <= int(spacing) <= 1000):
            raise ValueError(f"duplicate takes a spacing of 5 to 1000 ms, got {spacing!r}")
        copies = int(number or 2)
        self._spacing = int(spacing or 0) / 1e3
        self._later = copies - 1 if spacing else 0
        self.copies = 1 if spacing else copies
        #: When the copies of an index are due: those of its last sending, so that this never grows
        #: beyond the window, whether the timer may act or not.
        self._due: dict[int, tuple[float, ...]] = {}

    def on_token(self, window: Window, now: float) -> Iterable[int]:
        return self._again(range(window.unsent, window.next_index), now)

    def on_timeout(self, window: Window, now: float, timeout: float) -> Iterable[int]:
        late = now - timeout + 1e-9
        return self._again([i for i in window.unacknowledged() if window.last_sent(i) <= late], now)

    def _again(self, indices: Iterable[int], now: float) -> Iterable[int]:
        same = tuple(indices)
        if self._later:
            due = tuple(now + n * self._spacing for n in range(1, self._later + 1))
            self._due.update(dict.fromkeys(same, due))
        return same

    def on_ack(self, window: Window, fresh: Sequence[Fresh], rtt: RttEstimator, now: float) -> None:
        for item in fresh:
            self._due.pop(item.index, None)

    def next_timer(self, window: Window, rtt: RttEstimator) -> float | None:
        return min((due[0] for due in self._due.values()), default=None)

    def on_timer(self, window: Window, rtt: RttEstimator, now: float) -> Iterable[int]:
        copy = [index for index, due in self._due.items() if due[0] <= now]
        for index in copy:
            later = tuple(due for due in self._due.pop(index) if due > now)
            if later:
                self._due[index] = later
        return sorted(copy)
