"""Losses that count packets: who sends more, meets them sooner."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from .loss import LossModel, LossProcess
from .randomness import ChannelError, Stream, check_number, sequence


@dataclass(frozen=True)
class GilbertElliottPackets(LossModel):
    """Gilbert-Elliott per packet, with the parameters of netem's `loss gemodel p r 1-h 1-k`.

    `p` and `r` are the probabilities of a step from good to bad and from bad to good, one step a
    packet; a packet is lost with `loss_bad` (1-h) or `loss_good` (1-k) by the state in which it
    finds the channel. The first packet finds it good (sch_netem.c, loss_gilb_ell).
    """

    kind: ClassVar[str] = "gilbert-elliott-packets"
    p: float
    r: float
    loss_bad: float = 1.0
    loss_good: float = 0.0

    def __post_init__(self) -> None:
        for name in ("p", "r", "loss_bad", "loss_good"):
            check_number(name, getattr(self, name), 0, 1)
        if self.p + self.r == 0:
            raise ChannelError("p and r must not both be 0: the channel would never change")

    @property
    def mean_loss(self) -> float:
        """(p loss_bad + r loss_good) / (p + r)."""
        return (self.p * self.loss_bad + self.r * self.loss_good) / (self.p + self.r)

    @property
    def mean_outage(self) -> float:
        """0: its bad spells last packets, not seconds; see mean_burst."""
        return 0.0

    @property
    def mean_burst(self) -> float | None:
        """P(loss) / P(loss after a delivery); 1/r for loss_bad = 1 and loss_good = 0."""
        if self.mean_loss == 0:
            return None
        bad = self.p / (self.p + self.r)
        both = bad * self.loss_bad * ((1 - self.r) * self.loss_bad + self.r * self.loss_good)
        good = (1 - self.p) * self.loss_good + self.p * self.loss_bad
        both += (1 - bad) * self.loss_good * good
        starts = self.mean_loss - both
        return self.mean_loss / starts if starts > 0 else math.inf

    def process(self, stream: Stream) -> LossProcess:
        """See LossModel."""
        return _PacketsProcess(self, stream("states"), stream("loss"))


class _PacketsProcess(LossProcess):
    def __init__(
        self, model: GilbertElliottPackets, states: random.Random, draws: random.Random
    ) -> None:
        super().__init__(draws)
        self._states = states
        self._bad = False
        self._step = (model.p, model.r)
        self._loss = (model.loss_good, model.loss_bad)
        self._mean = model.mean_loss

    def loss_at(self, t: float) -> float:
        return self._mean

    def lost(self, t: float) -> bool:
        loss = self._loss[self._bad]
        if self._states.random() < self._step[self._bad]:
            self._bad = not self._bad
        return self._draws.random() < loss


@dataclass(frozen=True)
class DropList(LossModel):
    """Exactly these packets are lost, counted from 1 since the channel was seeded."""

    kind: ClassVar[str] = "drop-list"
    packets: tuple[int, ...]

    def __post_init__(self) -> None:
        for number in sequence("packets", self.packets):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ChannelError(f"packets must be whole numbers from 1 on, not {number!r}")
        object.__setattr__(self, "packets", tuple(sorted(set(self.packets))))

    @property
    def mean_loss(self) -> float:
        """0: in the long run nothing more is lost."""
        return 0.0

    @property
    def mean_outage(self) -> float:
        """0: it counts packets, not seconds."""
        return 0.0

    @property
    def mean_burst(self) -> float | None:
        """Mean length of the runs of consecutive numbers; None for an empty list."""
        numbers = set(self.packets)
        starts = sum(number - 1 not in numbers for number in numbers)
        return len(numbers) / starts if starts else None

    def process(self, stream: Stream) -> LossProcess:
        """See LossModel."""
        return _ListProcess(frozenset(self.packets))


class _ListProcess(LossProcess):
    def __init__(self, packets: frozenset[int]) -> None:
        super().__init__(random.Random(0))  # nothing is drawn
        self._packets, self._seen = packets, 0

    def loss_at(self, t: float) -> float:
        return 0.0

    def lost(self, t: float) -> bool:
        self._seen += 1
        return self._seen in self._packets


@dataclass(frozen=True)
class FateList(LossModel):
    """Recorded fates, one a packet, repeated from the start at their end: True is lost."""

    kind: ClassVar[str] = "fate-list"
    fates: tuple[bool, ...]

    def __post_init__(self) -> None:
        if not sequence("fates", self.fates):
            raise ChannelError("fates must hold at least one packet, not nothing")
        for fate in self.fates:
            if not (isinstance(fate, int) and fate in (0, 1)):
                raise ChannelError(f"each of fates must be true (lost) or false, not {fate!r}")
        object.__setattr__(self, "fates", tuple(bool(fate) for fate in self.fates))

    @property
    def mean_loss(self) -> float:
        """Share of packets lost."""
        return sum(self.fates) / len(self.fates)

    @property
    def mean_outage(self) -> float:
        """0: it counts packets, not seconds."""
        return 0.0

    @property
    def mean_burst(self) -> float | None:
        """Losses over runs of losses, the end joined to the start; None without a loss."""
        fates = self.fates
        starts = sum(fates[i] and not fates[i - 1] for i in range(len(fates)))
        if starts:
            return sum(fates) / starts
        return math.inf if all(fates) else None

    def process(self, stream: Stream) -> LossProcess:
        """See LossModel."""
        return _FateListProcess(self)


class _FateListProcess(LossProcess):
    def __init__(self, model: FateList) -> None:
        super().__init__(random.Random(0))  # nothing is drawn
        self._fates, self._mean, self._seen = model.fates, model.mean_loss, 0

    def loss_at(self, t: float) -> float:
        return self._mean

    def lost(self, t: float) -> bool:
        fate = self._fates[self._seen % len(self._fates)]
        self._seen += 1
        return fate


@dataclass(frozen=True)
class Combined(LossModel):
    """Several causes at once, independent of each other: lost if any of them says so."""

    kind: ClassVar[str] = "combined"
    models: tuple[LossModel, ...]

    def __post_init__(self) -> None:
        if len(self.models) < 2:
            raise ChannelError(f"models must hold at least two, not {len(self.models)}")
        object.__setattr__(self, "models", tuple(self.models))

    @property
    def in_time(self) -> bool:
        """If all of its models are."""
        return all(model.in_time for model in self.models)

    @property
    def memoryless(self) -> bool:
        """If all of its models are."""
        return all(model.memoryless for model in self.models)

    @property
    def mean_loss(self) -> float:
        """1 minus the product of what each lets through."""
        return 1 - math.prod(1 - model.mean_loss for model in self.models)

    @property
    def mean_outage(self) -> float:
        """The longest of its models' mean outages."""
        return max(model.mean_outage for model in self.models)

    def process(self, stream: Stream) -> LossProcess:
        """See LossModel."""
        return _CombinedProcess(
            model.process(_numbered(stream, number)) for number, model in enumerate(self.models)
        )


def _numbered(stream: Stream, number: int) -> Stream:
    """Streams of one part, so that two models of one kind are independent."""
    return lambda purpose: stream(f"{number}/{purpose}")


class _CombinedProcess(LossProcess):
    def __init__(self, parts: Iterable[LossProcess]) -> None:
        super().__init__(random.Random(0))  # the parts draw
        self._parts = list(parts)

    def loss_at(self, t: float) -> float:
        return 1 - math.prod(1 - part.loss_at(t) for part in self._parts)

    def lost(self, t: float) -> bool:
        # All are asked: each counts its packets, whatever the others say.
        return sum(part.lost(t) for part in self._parts) > 0

    def next_change(self, t: float) -> float:
        return min(part.next_change(t) for part in self._parts)

    def outages(self, t0: float, t1: float) -> list[tuple[float, float]]:
        spells: list[tuple[float, float]] = []
        for start, end in sorted(s for part in self._parts for s in part.outages(t0, t1)):
            if spells and start <= spells[-1][1]:
                spells[-1] = (spells[-1][0], max(end, spells[-1][1]))
            else:
                spells.append((start, end))
        return spells
