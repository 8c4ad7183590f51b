"""Retransmission as a modern TCP does it: RACK-TLP, RTO, a congestion window."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..rtt import RttEstimator
from ..window import Fresh, Window
from .base import Scheme

#: RFC 6298 says 1 s at least; Linux takes 200 ms, as the floor of the variation's part.
MIN_RTO = 0.2
INITIAL_RTO = 1.0
MAX_RTO = 120.0
#: RFC 6928, in segments.
INITIAL_WINDOW = 10.0
#: Bytes of tokens in a full segment.
SEGMENT_BYTES = 1100
#: What CUBIC keeps of its window after a loss (RFC 9438, section 4.6).
_BETA = 0.7
#: RFC 8985, section 7.2: what a lone segment's probe waits on top, for a delayed ACK. Linux adds
#: its minimum RTO.
_LONE_DELAY = 0.2
#: Segments that arrived after a missing one and show its loss without further waiting.
_DUPLICATE_ACKS = 3


@dataclass(slots=True)
class _Segment:
    """Indices [first, stop) that travel together."""

    first: int
    stop: int
    sent_at: float
    lost: bool = False
    resent: bool = False


class Retransmit(Scheme):
    """New tokens only, once; what is lost is sent again when that is noticed. In order, as ever.

    The stand-in for kernel TCP where there is no kernel. Losses are noticed by RACK (RFC 8985): a
    segment is lost when one that was sent later has arrived and a quarter of the RTT has passed
    since; three such show it at once. A tail loss probe goes out after two RTTs of silence, or in
    place of the first RTO if that is earlier; then the RTO (RFC 6298 with Linux's 200 ms), doubled
    each time. The congestion window starts at 10 segments and follows CUBIC's factor at a loss; its
    growth is slow start's and Reno's, as a token stream hardly ever fills it. Not modelled: undoing
    of spurious recoveries, delayed ACKs.
    """

    name = "retransmit"
    recovers = True

    def __init__(self, argument: str = "") -> None:
        super().__init__(argument)
        self._flight: list[_Segment] = []
        self._window = INITIAL_WINDOW
        self._threshold = math.inf
        self._recover_until = -1  # the window is cut once for all losses below this index
        self._backoff = 0
        self._timer_base = -math.inf  # when the RTO was last set anew
        self._last_sent = -math.inf
        self._probed_until = -1  # one tail loss probe until this index is acknowledged
        self._newest = (-math.inf, -1)  # when the newest that has arrived was sent, and its stop
        self._newest_rtt = 0.0
        self._ahead: list[int] = []  # first indices of segments that arrived before an older one
        self._recovering = False

    # -- sending ---------------------------------------------------------------------------------

    def on_token(self, window: Window, now: float) -> Iterable[int]:
        # What finds no room is sent as one segment later, as from a socket's buffer.
        room = SEGMENT_BYTES * (int(self._window) - self._outstanding())
        for index in range(window.unsent, window.next_index):
            room -= window.size(index)
            if room < 0 and index > window.unsent:
                return
            if room + window.size(index) <= 0:
                return
            yield index

    def on_sent(self, indices: range, now: float) -> None:
        known = self._flight[-1].stop if self._flight else indices.start
        self._split(indices.start)  # two lost segments may be cut at another place than before
        self._split(indices.stop)
        for segment in self._flight:
            if indices.start <= segment.first and segment.stop <= indices.stop:
                segment.sent_at, segment.lost, segment.resent = now, False, True
        if indices.stop > known:
            if not self._flight:
                self._timer_base = now
            self._flight.append(_Segment(max(known, indices.start), indices.stop, now))
        self._last_sent = now

    def _split(self, at: int) -> None:
        for number, segment in enumerate(self._flight):
            if segment.first < at < segment.stop:
                self._flight.insert(number + 1, replace(segment, first=at))
                segment.stop = at
                return

    def _outstanding(self) -> int:
        return sum(not segment.lost for segment in self._flight)

    def _due_again(self) -> list[int]:
        """What is lost, as far as the window has room."""
        room = max(0, int(self._window) - self._outstanding())
        lost = [segment for segment in self._flight if segment.lost][:room]
        return [index for segment in lost for index in range(segment.first, segment.stop)]

    def on_move(self, now: float) -> None:
        """Another path: its window and its RTO start anew (RFC 9000, section 9.4)."""
        for segment in self._flight:
            segment.lost = True
        self._window, self._threshold, self._backoff = INITIAL_WINDOW, math.inf, 0
        self._newest, self._newest_rtt = (-math.inf, -1), 0.0
        self._recovering, self._recover_until, self._probed_until = False, -1, -1
        self._timer_base = now

    # -- noticing losses -------------------------------------------------------------------------

    def on_ack(self, window: Window, fresh: Sequence[Fresh], rtt: RttEstimator, now: float) -> None:
        indices = {item.index for item in fresh}
        arrived = [s for s in self._flight if s.first in indices]
        self._flight = [s for s in self._flight if s.first not in indices]
        for segment in arrived:
            took = now - segment.sent_at
            if segment.resent and took < rtt.minimum:
                continue  # RFC 8985, section 6.2: the original has arrived, not the repetition
            if (segment.sent_at, segment.stop) > self._newest:
                self._newest, self._newest_rtt = (segment.sent_at, segment.stop), took
        self._ahead += [segment.first for segment in arrived]
        self._ahead = [first for first in self._ahead if first > window.base]
        if window.base >= self._recover_until:
            self._recovering = False
        if not self._flight or self._flight[0].first >= min(indices):
            self._timer_base, self._backoff = now, 0
        if window.base >= self._probed_until:
            self._probed_until = -1
        if self._outstanding() + len(arrived) >= int(self._window):  # the window was in use
            for _ in arrived:
                self._window += 1.0 if self._window < self._threshold else 1.0 / self._window
        self._mark(window, rtt, now)

    def _mark(self, window: Window, rtt: RttEstimator, now: float) -> None:
        """RACK: what was sent before the newest arrival, and long enough ago, is lost."""
        for segment in self._suspects():
            if now >= self._lost_at(segment, rtt) - 1e-9:
                segment.lost = True
                if segment.first >= self._recover_until:
                    self._cut(window)

    def _cut(self, window: Window) -> None:
        self._threshold = self._window = max(2.0, _BETA * self._window)
        self._recover_until = window.unsent
        self._recovering = True

    def _suspects(self) -> list[_Segment]:
        # Of what left at the same moment, the order decides (RACK_sent_after in RFC 8985).
        return [s for s in self._flight if not s.lost and (s.sent_at, s.stop) < self._newest]

    def _lost_at(self, segment: _Segment, rtt: RttEstimator) -> float:
        # In recovery nothing is added for reordering (RFC 8985, section 6.2).
        known = self._recovering or len(self._ahead) >= _DUPLICATE_ACKS
        return segment.sent_at + self._newest_rtt + (0.0 if known else rtt.minimum / 4)

    # -- timers ----------------------------------------------------------------------------------

    def next_timer(self, window: Window, rtt: RttEstimator) -> float | None:
        if not self._flight:
            return None
        due = self._rto_at(rtt)
        if any(segment.lost for segment in self._flight):
            if self._outstanding() < int(self._window):
                return self._last_sent  # at once
        else:
            probe = self._probe_at(rtt)
            if probe is not None:
                due = min(due, probe)
        for segment in self._suspects():
            due = min(due, self._lost_at(segment, rtt))
        return due

    def _rto(self, rtt: RttEstimator) -> float:
        known = rtt.smoothed + max(4 * rtt.variation, MIN_RTO)
        return min((known if rtt.samples else INITIAL_RTO) * 2.0**self._backoff, MAX_RTO)

    def _rto_at(self, rtt: RttEstimator) -> float:
        return self._timer_base + self._rto(rtt)

    def _probe_at(self, rtt: RttEstimator) -> float | None:
        """When the tail loss probe is due; None when there is none (RFC 8985, section 7.2).

        Never after the RTO, in place of which it goes out then.
        """
        if self._probed_until >= 0 or self._recovering or self._ahead or not rtt.samples:
            return None
        lone = _LONE_DELAY if len(self._flight) == 1 else 0.002
        return min(self._last_sent + 2 * rtt.smoothed + lone, self._rto_at(rtt))

    def on_timer(self, window: Window, rtt: RttEstimator, now: float) -> Iterable[int]:
        probe = self._probe_at(rtt)
        self._mark(window, rtt, now)
        if any(segment.lost for segment in self._flight):
            again = self._due_again()
            if again:
                return again
        elif probe is not None and probe <= now:
            last = self._flight[-1]
            self._timer_base = now
            self._probed_until = window.unsent
            return range(last.first, last.stop)
        if now < self._rto_at(rtt):
            return ()
        for segment in self._flight:
            segment.lost = True
        if self._backoff == 0:  # held constant when the same segment expires again (RFC 5681, 3.1)
            self._threshold = max(2.0, _BETA * self._window)
        self._window = 1.0
        self._recover_until = window.unsent
        self._recovering = True
        self._backoff = min(self._backoff + 1, 16)
        self._timer_base = now
        return self._due_again()
