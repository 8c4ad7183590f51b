"""Deadlines of many objects, the nearest first."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from typing import Generic, TypeVar

#: Entries that were overtaken are swept out when they outnumber the others by this many.
_SLACK = 64

T = TypeVar("T", bound=Hashable)


class Timers(Generic[T]):
    """At most one deadline for each object; the memory is that of the objects that have one."""

    def __init__(self) -> None:
        self._due: dict[T, float] = {}
        self._heap: list[tuple[float, int, T]] = []
        self._order = itertools.count()

    def set_by(self, item: T, due: float) -> None:
        """Have ``item`` expire at ``due``, or when it was said to before, if that is earlier.

        Deadlines mostly move forward, and so they cost nothing until the first one has passed.
        """
        known = self._due.get(item)
        if known is not None and known <= due:
            return
        self._due[item] = due
        heapq.heappush(self._heap, (due, next(self._order), item))
        if len(self._heap) > 2 * len(self._due) + _SLACK:
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def drop(self, item: T) -> None:
        """``item`` does not expire."""
        self._due.pop(item, None)

    def expired(self, now: float) -> list[T]:
        """Those whose deadline has passed; they have none any more."""
        out = []
        while (due := self.next()) is not None and due <= now:
            item = heapq.heappop(self._heap)[2]
            del self._due[item]
            out.append(item)
        return out

    def next(self) -> float | None:
        """The nearest deadline."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
