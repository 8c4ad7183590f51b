"""The rule of mosh's State Synchronization Protocol: all that may be missing, if that is cheap."""

from __future__ import annotations

from collections.abc import Iterable

from ..rtt import RttEstimator
from ..window import Window
from .base import Scheme

#: The diff from the last acknowledged state is sent if it is shorter than this, and not more than
#: _EXTRA_BYTES longer than that from the state which the peer is assumed to have (Winstein and
#: Balakrishnan, USENIX ATC 2012, and mosh's sources, of which nothing is used here).
_CHEAP_BYTES, _EXTRA_BYTES = 1000, 100
#: What was sent so long ago without an ACK (a timeout and the ACK's delay) is assumed lost.
_ACK_DELAY = 0.1


class Mosh(Scheme):
    """All unacknowledged tokens while they are cheap; else those not assumed to be delivered."""

    name = "mosh"
    steady = True

    def __init__(self, argument: str = "") -> None:
        super().__init__(argument)
        self._timeout = 1.0

    def on_ack(self, window: Window, fresh: object, rtt: RttEstimator, now: float) -> None:
        # mosh keeps its timeout between 50 ms and 1 s.
        self._timeout = min(max(rtt.smoothed + 4 * rtt.variation, 0.05), 1.0)

    def on_token(self, window: Window, now: float) -> Iterable[int]:
        everything = list(window.unacknowledged())
        horizon = now - self._timeout - _ACK_DELAY
        # The assumed state ends before the first token that is new or overdue.
        overdue = (i for i in everything if window.last_sent(i) <= horizon)
        first = next(overdue, window.unsent)
        rest = [index for index in everything if index >= first]
        total = sum(window.size(index) for index in everything)
        extra = total - sum(window.size(index) for index in rest)
        return everything if total < _CHEAP_BYTES and extra < _EXTRA_BYTES else rest
