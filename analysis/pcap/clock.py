"""Capture times on one clock, although the clock was set during the capture.

An interface hands over packets in the order in which it saw them, but for microseconds between
its queues. So its time runs back only where the clock was set back.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.pcap.mapped_file import Numbers

Times = npt.NDArray[np.float64]

LEAST_STEP = 0.01
"""Seconds that one interface's time must run back by; less is disorder between its queues."""

_MOST_STEPS = 10
"""So many, or one in a thousand packets: with more, the file is in no order at all."""


class Steps(NamedTuple):
    """Where a clock was set back."""

    number: int
    largest: float
    """Seconds."""
    after: int
    """Number of packets in the file before the first one."""
    disorder: bool
    """Whether there are so many that the file was taken to be in no order instead."""


def on_one_clock(time: Times, interface: Numbers) -> tuple[Times, Steps | None]:
    """Times of all frames in file order; after a step back, those of its interface are moved on.

    The pause at the step is not known and becomes 0. What steps forward cannot be told from a
    pause, unless it undoes a step back. None if no clock was set back.
    """
    order = np.argsort(interface, kind="stable")
    own = np.diff(interface[order]) == 0
    jump = np.where(own, np.diff(time[order]), 0.0)
    back = np.flatnonzero(jump < -LEAST_STEP)
    if not len(back):
        return time, None
    first = int(order[back + 1].min())
    steps = Steps(len(back), float(-jump[back].min()), first, _in_disorder(len(back), len(time)))
    if steps.disorder:
        return time, steps
    moved = time[order]
    edges = [0, *(np.flatnonzero(~own) + 1).tolist(), len(time)]
    parts = [_changes(moved, low, high) for low, high in itertools.pairwise(edges)]
    _make_alike([changes for changes in parts if changes])
    for changes, high in zip(parts, edges[1:], strict=True):
        for change in changes:
            undone = change.undoes
            moved[change.place : high] += -undone.amount if undone else change.amount
    result = np.empty_like(time)
    result[order] = moved
    return result, steps


def _in_disorder(steps: int, packets: int) -> bool:
    return steps > max(_MOST_STEPS, packets // 1000)


@dataclasses.dataclass
class _Change:
    """From which packet on times are to be moved further."""

    place: int
    before: float
    """Time of the packet before it."""
    after: float
    """Its own."""
    undoes: _Change | None = None
    """The step back that this one forward ends."""
    amount: float = 0.0

    def __post_init__(self) -> None:
        self.amount = self.before - self.after


def _changes(time: Times, low: int, high: int) -> list[_Change]:
    """Those of one interface, whose packets are those from low to high."""
    changes: list[_Change] = []
    steps: list[_Change] = []
    jump = np.diff(time[low:high])
    for place in (np.flatnonzero(np.abs(jump) > LEAST_STEP) + low).tolist():
        before, after = float(time[place]), float(time[place + 1])
        if after < before:
            steps.append(_Change(place + 1, before, after))
            changes.append(steps[-1])
            continue
        for step in reversed(steps[-_MOST_STEPS:]):
            if 0 <= after - before - step.amount <= min(1.0, 0.1 * step.amount):
                steps.remove(step)
                changes.append(_Change(place + 1, before, after, step))
                break
    return changes


def _make_alike(interfaces: list[list[_Change]]) -> None:
    """One clock stamps all interfaces: what any of them saw before its step stays before it."""
    kinds = [[change.undoes is None for change in changes] for changes in interfaces]
    if any(kind != kinds[0] for kind in kinds):
        return
    for same in zip(*interfaces, strict=True):
        amount = max(change.before for change in same) - min(change.after for change in same)
        for change in same:
            change.amount = amount
