"""Beyond the paper: refresh what is not acknowledged just before the reader would notice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ..rtt import RttEstimator
from ..window import Fresh, Window
from .eloquent import Eloquent

#: A reader who got no token for this long waits (the paper's definition of a stall), seconds.
THETA = 0.2
#: An ACK is overdue after the RTT and this, or twice the RTT's variation if that is more.
_SLACK = 0.005
#: The first refresh arrives this much before the reader's patience ends.
_MARGIN = 0.0005
#: Spacing of the refreshes: the outage's end is met half a spacing late on average, so it may
#: grow with the stall itself and stay the same small share of it.
_SHORTEST, _SHARE, _LONGEST = 0.012, 0.04, 0.2
#: The same once a PING has said that the reader hears nothing. Without one it may be the ACKs that
#: are lost, and every refresh in vain.
_ASKED, _ASKED_SHARE = 0.005, 0.025


class EloquentDeadline(Eloquent):
    """Eloquent, and refreshes while the reader waits for what an overdue ACK leaves in doubt.

    The sender estimates when the reader saw the last token, by the ACK less half an RTT. A reader
    stalls one theta later. If by then, less the way there, the ACK of the oldest token is overdue,
    all that is unacknowledged goes out every 12 ms, then at growing intervals of 4% of the stall
    so far; every 5 ms and 2.5% when the reader's PING has confirmed that it waits. Nothing is sent
    while all is well, nor for a loss that the next token repairs before anybody notices.
    ``eloquent-deadline:500`` has a theta of 500 ms.
    """

    name = "eloquent-deadline"

    def __init__(self, argument: str = "") -> None:
        super().__init__()
        if argument and not (argument.isdecimal() and 20 <= int(argument) <= 10_000):
            raise ValueError(f"eloquent-deadline takes theta as 20 to 10000 ms, got {argument!r}")
        self._theta = int(argument) / 1e3 if argument else THETA
        self._shown_at = math.inf  # when the reader saw the last token that is acknowledged
        self._base = 0
        self._start = -math.inf  # when this stall's refreshes began
        self._refreshed = -math.inf
        self._asked = False

    def on_ack(self, window: Window, fresh: Sequence[Fresh], rtt: RttEstimator, now: float) -> None:
        if window.base > self._base:
            self._base = window.base
            self._shown_at = now - rtt.minimum / 2
            self._start = -math.inf
            self._asked = False

    def on_ping(self, window: Window, now: float) -> None:
        self._asked = True

    def on_sent(self, indices: range, now: float) -> None:
        if self._base in indices:
            self._refreshed = now  # by a new token or a probe: as good as a refresh

    def next_timer(self, window: Window, rtt: RttEstimator) -> float | None:
        if window.unsent <= window.base or not rtt.samples:
            return None
        begin = self._begin(window, rtt)
        if self._start < begin:
            return begin
        least, share = (_ASKED, _ASKED_SHARE) if self._asked else (_SHORTEST, _SHARE)
        return self._refreshed + min(max(least, share * (self._refreshed - self._start)), _LONGEST)

    def _begin(self, window: Window, rtt: RttEstimator) -> float:
        """When the oldest unacknowledged token is overdue and the reader's patience runs out."""
        overdue = window.first_sent(window.base) + rtt.smoothed + max(2 * rtt.variation, _SLACK)
        if math.isinf(self._shown_at):  # nothing was shown yet: the first token is always urgent
            return overdue
        return max(overdue, self._shown_at + self._theta - rtt.minimum / 2 - _MARGIN)

    def on_timer(self, window: Window, rtt: RttEstimator, now: float) -> Iterable[int]:
        if self._start < self._begin(window, rtt):
            self._start = now
        return window.unacknowledged()
