"""Holes in one TCP direction: how long what came after one had to wait, and what filled it."""

from __future__ import annotations

import bisect
import enum
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.pcap.mapped_file import Numbers

REORDERING = 0.003
"""A hole that fills within this many seconds was reordering, later a retransmission. The value is
the one that Wireshark takes: a network reorders within a queue, a sender repeats after a round
trip at the earliest."""


class Kind(enum.IntEnum):
    """What a segment with data was."""

    NEW = 0
    """In order."""
    AHEAD = 1
    """Data before it was missing: it waits."""
    REPEATED = 2
    """All of it was seen before."""
    REORDERED = 3
    """Filled a hole within `REORDERING`."""
    RESENT = 4
    """Filled a hole later: repeated after a loss before the point of capture."""


class Events(NamedTuple):
    """Segments with data of one direction and the acknowledgements of them, by time."""

    is_data: npt.NDArray[np.bool_]
    start: Numbers
    end: Numbers
    """Of the segment; or what is acknowledged."""
    time: npt.NDArray[np.float64]


def through_holes(
    events: Events, walk: Walk, kind: npt.NDArray[np.int8], fresh: Numbers
) -> tuple[Numbers, npt.NDArray[np.float64]]:
    """Walk from each hole until it is filled, correct `kind` and `fresh`; the flow's `fronts`.

    Where nothing waits, the kinds that came from the numbers seen before are right.
    """
    seen = np.maximum.accumulate(np.where(events.is_data, np.maximum(events.end, 0), 0))
    place = np.cumsum(events.is_data) - 1
    simple = np.ones(len(kind), dtype=np.bool_)
    ahead = np.flatnonzero(events.is_data)[kind == Kind.AHEAD].tolist()
    is_data, starts, ends, times = (column.tolist() for column in events)
    at = 0
    for hole in ahead:
        if hole < at:
            continue
        walk.front = int(seen[hole - 1]) if hole else 0
        kinds, news = [], []
        for at in range(hole, len(is_data)):
            if is_data[at]:
                what, new = walk.add(starts[at], ends[at], times[at])
                kinds.append(what)
                news.append(new)
            else:
                walk.acknowledged(ends[at], times[at])
            # An acknowledgement may have gone beyond what the capture has.
            if not walk.waiting and walk.front == seen[at]:
                break
        at += 1
        part = slice(int(place[hole]), int(place[hole]) + len(kinds))
        kind[part], fresh[part], simple[part] = kinds, news, False
    simple &= fresh > 0
    end, time = events.end[events.is_data][simple], events.time[events.is_data][simple]
    front = np.concatenate((np.array(walk.fronts, dtype=np.int64), end))
    since = np.concatenate((np.array(walk.since), time))
    order = np.argsort(front, kind="stable")
    return front[order], since[order]


class Walk:
    """One direction from a hole on, segment by segment: what is here, and what waits."""

    def __init__(self) -> None:
        self.front = 0
        self.waiting: list[tuple[int, int, float]] = []  # start, end, first arrival; not touching
        self.fronts, self.since = [0], [-math.inf]
        self.blocked, self.blocked_since, self.holes, self.unseen = 0.0, math.nan, 0, 0

    def add(self, start: int, end: int, time: float) -> tuple[Kind, int]:
        """A segment arrived: what it was, and how many of its bytes are new."""
        if end <= self.front:
            return Kind.REPEATED, 0
        start = max(start, self.front)
        if start == self.front and not self.waiting:  # the usual case, kept short
            self._advance(end, time)
            return Kind.NEW, end - start
        low = bisect.bisect_left(self.waiting, start, key=lambda piece: piece[1])
        high = bisect.bisect_right(self.waiting, end, key=lambda piece: piece[0])
        touched = self.waiting[low:high]
        fresh = (
            end
            - start
            - sum(max(0, min(end, piece[1]) - max(start, piece[0])) for piece in touched)
        )
        if fresh == 0:
            return Kind.REPEATED, 0
        # Whatever waits beyond a hole has shown the hole; the first of it, first.
        later = [piece[2] for piece in self.waiting[low:] if piece[0] > start]
        kind = Kind.NEW if start == self.front else Kind.AHEAD
        if later:
            soon = time - min(later) <= REORDERING
            kind = Kind.REORDERED if soon else Kind.RESENT
        if start == self.front:
            self._advance(end, time)
        else:
            if not self.waiting:
                self.blocked_since = time
                self.holes += 1
            merged = (
                min([start, *(piece[0] for piece in touched)]),
                max([end, *(piece[1] for piece in touched)]),
                min([time, *(piece[2] for piece in touched)]),
            )
            self.waiting[low:high] = [merged]
        return kind, fresh

    def acknowledged(self, end: int, time: float) -> None:
        """The receiver has everything below `end`, whether the capture does or not."""
        if self.waiting and end > self.front:
            here = sum(min(e, end) - s for s, e, _ in self.waiting if s < end)
            self.unseen += end - self.front - here
            self._advance(end, time)

    def _advance(self, end: int, time: float) -> None:
        was_waiting = bool(self.waiting)
        while self.waiting and self.waiting[0][0] <= end:
            end = max(end, self.waiting.pop(0)[1])
        self.front = end
        self.fronts.append(end)
        self.since.append(time)
        if was_waiting and not self.waiting:
            self.blocked += time - self.blocked_since
