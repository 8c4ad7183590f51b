"""Recorded losses in time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from . import trace_file
from .in_time import InTime, SpellsProcess
from .loss import LossProcess
from .randomness import ChannelError, Stream

_STATES = {"up": False, "1": False, "good": False, "down": True, "0": True, "bad": True}


@dataclass(frozen=True)
class LossTrace(InTime):
    """Up and down times from a CSV file with the columns time (seconds) and state.

    A state holds from its time to that of the next line; the last line ends the trace with `end`,
    and it starts again from its first line. States are up or down (also 1 or 0, good or bad).
    Times count from the first line. `sha256` of the file is filled in; given, it must be the same.

    Recorded fates of packets, without times, are a `FateList`.
    """

    kind: ClassVar[str] = "loss-trace"
    file: str
    sha256: str = ""
    spells: tuple[tuple[float, float], ...] = field(init=False, repr=False, compare=False)
    length: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        path = trace_file.named(self.file)
        spells, length = _read(path)
        object.__setattr__(self, "spells", spells)
        object.__setattr__(self, "length", length)
        object.__setattr__(self, "sha256", trace_file.check_fingerprint(path, self.sha256))

    @property
    def mean_loss(self) -> float:
        """Share of the trace's time that is down."""
        return sum(end - start for start, end in self.spells) / self.length

    @property
    def mean_outage(self) -> float:
        """Mean length of its spells; one that crosses the end and the start counts as one."""
        count = len(self.spells)
        if self.spells == ((0, self.length),):
            return math.inf
        if count > 1 and self.spells[0][0] == 0 and self.spells[-1][1] == self.length:
            count -= 1
        return self.mean_loss * self.length / count if count else 0.0

    def process(self, stream: Stream) -> LossProcess:
        """See LossModel."""
        return SpellsProcess(self.spells, self.length)


def _read(path: Path) -> tuple[tuple[tuple[float, float], ...], float]:
    times: list[float] = []
    states: list[str] = []
    where = str(path)
    for where, (time, state) in trace_file.rows(path, 2):
        if states and states[-1] == "end":
            raise ChannelError(f"{where}: nothing may follow the end")
        if state not in _STATES and state != "end":
            raise ChannelError(f"{where}: a state is up, down or end, not {state!r}")
        at = trace_file.number(where, "time", time)
        if times and at <= times[-1]:
            raise ChannelError(f"{where}: time goes back, from {times[-1]:g} to {at:g} s")
        times.append(at)
        states.append(state)
    if len(times) < 2:
        raise ChannelError(f"{path}: the trace is empty: it needs a state and an end")
    if states[-1] != "end":
        raise ChannelError(f"{where}: the last line must be the time and end")
    zero = times[0]
    spells: list[tuple[float, float]] = []
    for i, state in enumerate(states[:-1]):
        if _STATES.get(state):
            start, end = times[i] - zero, times[i + 1] - zero
            if spells and spells[-1][1] == start:
                start = spells.pop()[0]
            spells.append((start, end))
    return tuple(spells), times[-1] - zero
