"""A bottleneck: a rate and the queue before it."""

from __future__ import annotations

import functools
import math
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import trace_file
from .randomness import ChannelError, check_number

OPPORTUNITY = 1504
"""Bytes that one delivery opportunity of a Mahimahi trace carries (Netravali et al., 2015)."""

# CoDel's constants (RFC 8289, section 4.4).
_TARGET, _INTERVAL = 0.005, 0.1


@dataclass(frozen=True)
class DeliveryTrace:
    """Mahimahi's packet-delivery trace: a line with a time in ms for each chance to send 1504 B.

    Several lines with one time are several chances. After its last time it starts again.
    """

    file: str
    sha256: str = ""
    times: Sequence[float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        path = trace_file.named(self.file)
        object.__setattr__(self, "sha256", trace_file.check_fingerprint(path, self.sha256))
        object.__setattr__(self, "times", _times(path, self.sha256))

    @property
    def length(self) -> float:
        """Seconds until it starts again."""
        return self.times[-1]

    @property
    def mean_rate(self) -> float:
        """Bits per second."""
        return 8 * OPPORTUNITY * len(self.times) / self.length


@functools.lru_cache(maxsize=4)  # both directions of a link often have the same
def _times(path: Path, sha256: str) -> Sequence[float]:
    """Seconds. `sha256` is that of the file."""
    times = trace_file.numbers(path, "time") / 1e3
    back = (times[1:] < times[:-1]).nonzero()[0]
    if len(back):
        first = int(back[0])
        where = trace_file.place_of(path, first + 1, "time")
        raise ChannelError(
            f"{where}: time goes back, from {times[first]:g} to {times[first + 1]:g} s"
        )
    if not len(times) or times[-1] == 0:
        raise ChannelError(f"{path}: the trace is empty: it needs a time above 0 ms")
    return array("d", times.tobytes())


@dataclass(frozen=True)
class Bottleneck:
    """A rate in bit/s, or a delivery trace, and its queue in packets or in bytes.

    Sizes are those of Ethernet frames without FCS, as netem and tbf count them. The queue counts
    what waits, the frame in transmission excluded. `drop-tail` refuses what does not fit; `codel`
    also drops what waited too long (RFC 8289; as fates are drawn on arrival, its rule that a
    nearly empty queue loses nothing looks at the backlog of that moment).
    """

    rate: float | None = None
    trace: DeliveryTrace | None = None
    queue_packets: int | None = None
    queue_bytes: int | None = None
    discipline: str = "drop-tail"

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.trace is None):
            raise ChannelError("a bottleneck needs a rate or a delivery trace, and not both")
        if self.rate is not None:
            check_number("rate", self.rate, 1e3)
        if (self.queue_packets is None) == (self.queue_bytes is None):
            raise ChannelError("a bottleneck needs queue_packets or queue_bytes, and not both")
        for name, low in (("queue_packets", 1), ("queue_bytes", 1514)):
            value = getattr(self, name)
            if value is not None:
                check_number(name, value, low)
                if value != int(value):
                    raise ChannelError(f"{name} must be a whole number, not {value!r}")
        if self.discipline not in ("drop-tail", "codel"):
            known = "drop-tail, codel"
            raise ChannelError(f"discipline must be one of {known}, not {self.discipline!r}")

    @property
    def mean_rate(self) -> float:
        """Bits per second in the long run."""
        if self.rate is not None:
            return self.rate
        assert self.trace is not None
        return self.trace.mean_rate

    @property
    def longest_wait(self) -> float:
        """Seconds that a full queue of full frames (1514 B) takes at the mean rate."""
        size = self.queue_bytes or 1514 * (self.queue_packets or 0)
        return 8 * size / self.mean_rate

    def process(self) -> BottleneckProcess:
        """The bottleneck at work; it draws nothing."""
        return BottleneckProcess(self)


class BottleneckProcess:
    """A bottleneck at work in one direction, first in, first out."""

    def __init__(self, model: Bottleneck) -> None:
        self._rate, self._trace = model.rate, model.trace
        self._most_packets, self._most_bytes = model.queue_packets, model.queue_bytes
        self._codel = _CoDel() if model.discipline == "codel" else None
        self._waiting: deque[tuple[float, int]] = deque()  # (transmission starts, size)
        self._backlog = 0
        self._free_at = -math.inf  # when the last accepted frame has left
        self._left = 0  # bytes that the trace's current opportunity still carries
        self._next = 0  # number of the trace's next opportunity
        self._zero = math.nan  # the trace's time 0 by which that was counted

    def enter(self, now: float, zero: float, size: int) -> float | None:
        """When a frame that enters at `now` has left; None if the queue loses it.

        `zero` is the moment at which channel time is 0; the same clock as `now`, in seconds.
        """
        waiting = self._waiting
        while waiting and waiting[0][0] <= now:
            self._backlog -= waiting.popleft()[1]
        starts = max(now, self._free_at)
        if starts > now:
            if self._most_packets is not None and len(waiting) >= self._most_packets:
                return None
            if self._most_bytes is not None and self._backlog + size > self._most_bytes:
                return None
        after = (self._next, self._left)
        if self._rate:
            leaves = starts + 8 * size / self._rate
        else:
            leaves, after = self._chance(now, zero, size)
            starts = leaves  # it waits for its opportunity
        if self._codel and self._codel.drops(starts, starts - now, self._backlog):
            return None
        self._next, self._left = after
        if starts > now:
            waiting.append((starts, size))
            self._backlog += size
        self._free_at = leaves
        return leaves

    def _chance(self, now: float, zero: float, size: int) -> tuple[float, tuple[int, int]]:
        """When the opportunity comes that carries the last byte of a frame, and what then is left.

        (number of the next opportunity, bytes that the current one still carries).
        """
        assert self._trace is not None
        times, length = self._trace.times, self._trace.length
        if zero != self._zero or now > self._free_at:
            # Nothing waits, or the trace starts anew: what has passed by then cannot be used.
            first = self._first(max(now, self._free_at) - zero)
            upcoming = first if zero != self._zero else max(first, self._next)
            self._zero, self._next, self._left = zero, upcoming, 0
        count = max(0, -(-(size - self._left) // OPPORTUNITY))
        upcoming = self._next + count
        rounds, index = divmod(upcoming - 1, len(times))
        at = zero + rounds * length + times[index] if count else self._free_at
        return max(now, self._free_at, at), (upcoming, self._left + count * OPPORTUNITY - size)

    def _first(self, t: float) -> int:
        """Number of the first opportunity at or after channel time `t`."""
        assert self._trace is not None
        times, length = self._trace.times, self._trace.length
        rounds, rest = divmod(t, length)
        if rest == 0:
            rounds, rest = rounds - 1, length  # its last opportunities are at this moment
        return int(rounds) * len(times) + bisect_left(times, rest)


class _CoDel:
    """The state of RFC 8289, section 5, asked frame by frame in the order of departure."""

    def __init__(self) -> None:
        self._above_since: float | None = None
        self._dropping = False
        self._drop_at = 0.0
        self._count = self._last_count = 0

    def drops(self, now: float, waited: float, backlog: int) -> bool:
        """Is the frame dropped that reaches the head of the queue at `now`?"""
        if waited < _TARGET or backlog <= 1514:
            self._above_since = None
            self._dropping = False
            return False
        if self._above_since is None:
            self._above_since = now + _INTERVAL
        if now < self._above_since:
            return False
        if self._dropping:
            if now < self._drop_at:
                return False
            self._count += 1
            self._drop_at += _INTERVAL / math.sqrt(self._count)
            return True
        self._dropping = True
        fresh = now - self._drop_at < 16 * _INTERVAL
        delta = self._count - self._last_count
        self._count = delta if fresh and delta > 1 else 1
        self._last_count = self._count
        self._drop_at = now + _INTERVAL / math.sqrt(self._count)
        return True
