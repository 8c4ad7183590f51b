"""Packet duplication, the paper's second baseline: each datagram several times."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ..rtt import RttEstimator
from ..window import Window
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
        self._due: deque[tuple[float, tuple[int, ...]]] = deque()

    def on_token(self, window: Window, now: float) -> Iterable[int]:
        return self._again(range(window.unsent, window.next_index), now)

    def on_timeout(self, window: Window, now: float, timeout: float) -> Iterable[int]:
        late = now - timeout + 1e-9
        return self._again([i for i in window.unacknowledged() if window.last_sent(i) <= late], now)

    def _again(self, indices: Iterable[int], now: float) -> Iterable[int]:
        same = tuple(indices)
        if same:
            self._due.extend((now + n * self._spacing, same) for n in range(1, self._later + 1))
        return same

    def next_timer(self, window: Window, rtt: RttEstimator) -> float | None:
        return min((due for due, _ in self._due), default=None)

    def on_timer(self, window: Window, rtt: RttEstimator, now: float) -> Iterable[int]:
        copy = {i for due, indices in self._due if due <= now for i in indices}
        self._due = deque(item for item in self._due if item[0] > now)
        return [index for index in window.unacknowledged() if index in copy]
