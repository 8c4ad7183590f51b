"""Capture times on one clock, although the clock was set during the capture.

An interface hands over packets in the order in which it saw them, but for microseconds between
its queues. So its time runs back only where the clock was set back.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

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
    parts = [(low, _changes(jump[low : high - 1])) for low, high in itertools.pairwise(edges)]
    _make_alike([changes for _, changes in parts if changes])
    for (low, changes), high in zip(parts, edges[1:], strict=True):
        for place, amount in changes:
            moved[low + place : high] += amount
    result = np.empty_like(time)
    result[order] = moved
    return result, steps


def _in_disorder(steps: int, packets: int) -> bool:
    return steps > max(_MOST_STEPS, packets // 1000)


def _changes(jump: Times) -> list[list[Any]]:
    """From which packet of an interface on its times are to be moved further, and by how much."""
    changes: list[list[Any]] = []
    steps: list[float] = []
    for place in np.flatnonzero(np.abs(jump) > LEAST_STEP).tolist():
        value = float(jump[place])
        if value < 0:
            steps.append(-value)
            changes.append([place + 1, -value])
            continue
        undone = [s for s in steps if 0 <= value - s <= min(1.0, 0.1 * s)]
        if undone:
            steps.remove(undone[-1])
            changes.append([place + 1, -undone[-1]])
    return changes


def _make_alike(interfaces: list[list[list[Any]]]) -> None:
    """One clock stamps all interfaces: its step is what the busiest one, with no pause, shows."""
    signs = [[amount > 0 for _, amount in changes] for changes in interfaces]
    if any(other != signs[0] for other in signs):
        return
    for same in zip(*interfaces, strict=True):
        amount = max((change[1] for change in same), key=abs)
        for change in same:
            change[1] = amount
