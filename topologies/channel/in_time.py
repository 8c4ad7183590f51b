"""Losses in time: the channel is good or bad, whoever sends whatever."""

from __future__ import annotations

import abc
import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from .loss import LossModel, LossProcess
from .randomness import ChannelError, Stream, check_number, exponential, sequence

#: Seconds of the shortest mean stay: below, no real-time back end could follow the states.
SHORTEST = 1e-3


@dataclass(frozen=True)
class InTime(LossModel):
    """A loss model whose losses depend on the time alone. Before time 0 nothing is lost."""

    @property
    def in_time(self) -> bool:
        """Yes."""
        return True


@dataclass(frozen=True)
class _Alternating(InTime):
    """Good and bad stays take turns. The first state is drawn from the stationary distribution.

    So the expected loss is `mean_loss` in every window, however short.
    """

    mean_good: float
    mean_bad: float

    def __post_init__(self) -> None:
        check_number("mean_good", self.mean_good, SHORTEST)
        check_number("mean_bad", self.mean_bad, SHORTEST)

    @property
    def losses(self) -> tuple[float, float]:
        """The loss in the good and in the bad state."""
        return 0.0, 1.0

    @property
    def share_bad(self) -> float:
        """Long-run share of time in the bad state."""
        return self.mean_bad / (self.mean_good + self.mean_bad)

    @property
    def mean_loss(self) -> float:
        """The states' losses, weighted by the time spent in each."""
        good, bad = self.losses
        return good + (bad - good) * self.share_bad

    @property
    def mean_outage(self) -> float:
        """Mean length of a stay in the bad state."""
        return self.mean_bad

    @abc.abstractmethod
    def draw_bad(self, draws: random.Random, *, first: bool) -> float:
        """The length of a bad stay; of the rest of one that time 0 falls into if `first`."""

    def process(self, stream: Stream) -> LossProcess:
        """See LossModel."""
        # The states have a stream to themselves: traffic draws from the other and moves nothing.
        return _AlternatingProcess(self, stream("states"), stream("loss"))


@dataclass(frozen=True)
class GilbertElliott(_Alternating):
    """Two states in continuous time (Gilbert 1960, Elliott 1963, as a Markov process in time).

    The channel stays good for exponentially distributed times of mean `mean_good` seconds, bad
    for `mean_bad` seconds; a frame is lost with `loss_good` or `loss_bad`.
    """

    kind: ClassVar[str] = "gilbert-elliott-time"
    loss_good: float = 0.0
    loss_bad: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("loss_good", self.loss_good, 0, 1)
        check_number("loss_bad", self.loss_bad, 0, 1)
        if self.loss_good > self.loss_bad:
            raise ChannelError(
                f"loss_good ({self.loss_good:g}) must not exceed loss_bad ({self.loss_bad:g})"
            )

    @property
    def losses(self) -> tuple[float, float]:
        """See _Alternating."""
        return self.loss_good, self.loss_bad

    def draw_bad(self, draws: random.Random, *, first: bool) -> float:
        """Exponential, so the rest of a stay is as long as a whole one."""
        return exponential(draws, self.mean_bad)


@dataclass(frozen=True)
class ParetoOutages(_Alternating):
    """Outages with a heavy tail: Pareto lengths of mean `mean_bad` s and shape `shape` > 1.

    Good times are exponential of mean `mean_good` seconds; in an outage all is lost. 802.11 losses
    have heavier tails than Gilbert-Elliott's (Carvalho et al., 2005). With a shape of at most 2
    the variance is infinite: single outages dominate, and means settle slowly.
    """

    kind: ClassVar[str] = "pareto-outages"
    shape: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("shape", self.shape, 1.05, 100)

    @property
    def shortest(self) -> float:
        """The shortest outage in seconds: mean_bad (shape - 1) / shape."""
        return self.mean_bad * (self.shape - 1) / self.shape

    def draw_bad(self, draws: random.Random, *, first: bool) -> float:
        """By inversion; the first from the equilibrium distribution of what is left of a stay."""
        u = draws.random()
        if not first:
            return float(self.shortest * (1 - u) ** (-1 / self.shape))
        if u < (self.shape - 1) / self.shape:
            return u * self.mean_bad
        return float(self.shortest * (self.shape * (1 - u)) ** (-1 / (self.shape - 1)))


@dataclass(frozen=True)
class Blackouts(InTime):
    """A schedule: all passes for `on` seconds, nothing for `off` seconds, and so on."""

    kind: ClassVar[str] = "blackouts"
    on: float
    off: float

    def __post_init__(self) -> None:
        check_number("on", self.on, SHORTEST)
        check_number("off", self.off, SHORTEST)

    @property
    def mean_loss(self) -> float:
        """off / (on + off)."""
        return self.off / (self.on + self.off)

    @property
    def mean_outage(self) -> float:
        """The time off."""
        return self.off

    def process(self, stream: Stream) -> LossProcess:
        """See LossModel."""
        return SpellsProcess([(self.on, self.on + self.off)], self.on + self.off)


@dataclass(frozen=True)
class Gaps(InTime):
    """Exact bad spells, each (start, end) in seconds of channel time; for example a handover."""

    kind: ClassVar[str] = "gaps"
    spells: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        last = 0.0
        if not sequence("spells", self.spells):
            raise ChannelError("spells must hold at least one (start, end), not nothing")
        for spell in self.spells:
            if not isinstance(spell, list | tuple) or len(spell) != 2:
                raise ChannelError(f"each of spells must be (start, end), not {spell!r}")
            check_number("start of a spell", spell[0], last)
            check_number("end of a spell", spell[1], spell[0] + SHORTEST)
            last = spell[1]
        object.__setattr__(self, "spells", tuple((float(a), float(b)) for a, b in self.spells))

    @property
    def mean_loss(self) -> float:
        """0: in the long run there are no more gaps."""
        return 0.0

    @property
    def mean_outage(self) -> float:
        """Mean length of the spells."""
        return sum(end - start for start, end in self.spells) / len(self.spells)

    def process(self, stream: Stream) -> LossProcess:
        """See LossModel."""
        return SpellsProcess(self.spells, math.inf)


class _StatesProcess(LossProcess):
    """Changes of state by number: change i happens at `_at(i)`, state 0 lasts until `_at(0)`."""

    @abc.abstractmethod
    def _index(self, t: float) -> int:
        """How many changes have happened by `t` >= 0."""

    @abc.abstractmethod
    def _change(self, index: int) -> float:
        """When change number `index` happens."""

    @abc.abstractmethod
    def _bad(self, index: int) -> bool:
        """Is the state after `index` changes bad?"""

    def next_change(self, t: float) -> float:
        return 0.0 if t < 0 else self._change(self._index(t))

    def outages(self, t0: float, t1: float) -> list[tuple[float, float]]:
        t0 = max(t0, 0.0)
        spells = []
        index, start = self._index(t0), t0
        while start < t1:
            end = min(self._change(index), t1)
            if self._bad(index) and start < end:
                spells.append((start, end))
            index, start = index + 1, end
        return spells


class _AlternatingProcess(_StatesProcess):
    def __init__(self, model: _Alternating, states: random.Random, draws: random.Random) -> None:
        super().__init__(draws)
        self._model = model
        self._losses = model.losses
        self._states = states
        self._starts_bad = states.random() < model.share_bad
        self._ends: list[float] = []  # when stay number i ends
        self._extend(0.0)

    def _extend(self, t: float) -> None:
        """Draw stays until one ends after `t`."""
        ends = self._ends
        last = ends[-1] if ends else 0.0
        while last <= t:
            if self._bad(len(ends)):
                last += self._model.draw_bad(self._states, first=not ends)
            else:
                last += exponential(self._states, self._model.mean_good)
            ends.append(last)

    def _bad(self, index: int) -> bool:
        return self._starts_bad == (index % 2 == 0)

    def _index(self, t: float) -> int:
        if t >= self._ends[-1]:
            self._extend(t)
        return bisect_right(self._ends, t)

    def _change(self, index: int) -> float:
        while index >= len(self._ends):
            self._extend(self._ends[-1])
        return self._ends[index]

    def loss_at(self, t: float) -> float:
        if t < 0:
            return 0.0
        return self._losses[self._bad(self._index(t))]


class SpellsProcess(_StatesProcess):
    """Given bad spells, repeated every `period` seconds (inf: once)."""

    def __init__(self, spells: Sequence[tuple[float, float]], period: float) -> None:
        super().__init__(random.Random(0))  # nothing is drawn
        # Spells that touch are one, so that every change is one.
        edges: list[float] = []
        for start, end in spells:
            if edges and edges[-1] == start:
                edges[-1] = end
            else:
                edges += [start, end]
        # So is one that crosses the end of a period.
        self._starts_bad = bool(edges) and edges[0] == 0 and edges[-1] == period
        if self._starts_bad:
            edges = edges[1:-1]
        self._edges, self._period = edges, period

    def _bad(self, index: int) -> bool:
        return (index % 2 == 1) != self._starts_bad

    def _index(self, t: float) -> int:
        if self._period == math.inf or not self._edges:
            return bisect_right(self._edges, t)
        rounds, rest = divmod(t, self._period)
        index = int(rounds) * len(self._edges) + bisect_right(self._edges, rest)
        # divmod and _change may round differently; what counts is _change.
        while self._change(index) <= t:
            index += 1
        while index > 0 and self._change(index - 1) > t:
            index -= 1
        return index

    def _change(self, index: int) -> float:
        if not self._edges:
            return math.inf
        rounds, rest = divmod(index, len(self._edges))
        if self._period == math.inf:
            return self._edges[index] if rounds == 0 else math.inf
        return rounds * self._period + self._edges[rest]

    def loss_at(self, t: float) -> float:
        return 1.0 if t >= 0 and self._bad(self._index(t)) else 0.0
