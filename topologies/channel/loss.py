"""What all loss models have in common, and the simplest of them."""

from __future__ import annotations

import abc
import math
import random
from dataclasses import dataclass
from typing import ClassVar

from .randomness import Stream, check_number

DIRECTIONS = ("up", "down")
"""up: from the client to the server; down: from the server to the client."""


class LossProcess(abc.ABC):
    """A loss model at work in one direction."""

    def __init__(self, draws: random.Random) -> None:
        self._draws = draws

    @abc.abstractmethod
    def loss_at(self, t: float) -> float:
        """The probability that a frame entering at channel time `t` is lost.

        Models per packet give their long-run mean: they do not know which packet it will be.
        """

    def lost(self, t: float) -> bool:
        """Draw the fate of the next frame, which enters at channel time `t`."""
        loss = self.loss_at(t)
        return loss > 0 and (loss >= 1 or self._draws.random() < loss)

    def next_change(self, t: float) -> float:
        """The first moment after `t` at which `loss_at` takes another value; inf for never."""
        return math.inf

    def outages(self, t0: float, t1: float) -> list[tuple[float, float]]:
        """The bad spells (start, end) in [t0, t1), cut to it; empty for models without states."""
        return []


@dataclass(frozen=True)
class LossModel(abc.ABC):
    """What a loss model is meant to be."""

    kind: ClassVar[str]

    @property
    def in_time(self) -> bool:
        """Do bad spells depend on the time alone, so that every sender meets the same ones?"""
        return False

    @property
    def memoryless(self) -> bool:
        """Given the time, is each fate independent of all others? Then loss_at says all."""
        return self.in_time

    @property
    @abc.abstractmethod
    def mean_loss(self) -> float:
        """Long-run share of frames lost, if they are spread evenly over time."""

    @property
    @abc.abstractmethod
    def mean_outage(self) -> float:
        """Mean length of a bad spell in seconds; 0 for models that count packets."""

    @property
    def mean_burst(self) -> float | None:
        """Mean number of losses in a row; None where it depends on when frames are sent."""
        return None

    @abc.abstractmethod
    def process(self, stream: Stream) -> LossProcess:
        """The model at work, with random streams of its own."""


@dataclass(frozen=True)
class Bernoulli(LossModel):
    """Each frame is lost with probability `loss`, independently of all others."""

    kind: ClassVar[str] = "bernoulli"
    loss: float

    def __post_init__(self) -> None:
        check_number("loss", self.loss, 0, 1)

    @property
    def memoryless(self) -> bool:
        """Yes."""
        return True

    @property
    def mean_loss(self) -> float:
        """The loss itself."""
        return self.loss

    @property
    def mean_outage(self) -> float:
        """0: no memory."""
        return 0.0

    @property
    def mean_burst(self) -> float | None:
        """Geometric: 1 / (1 - loss)."""
        return 1 / (1 - self.loss) if self.loss < 1 else math.inf

    def process(self, stream: Stream) -> LossProcess:
        """See LossModel."""
        return _BernoulliProcess(self.loss, stream("loss"))


class _BernoulliProcess(LossProcess):
    def __init__(self, loss: float, draws: random.Random) -> None:
        super().__init__(draws)
        self._loss = loss

    def loss_at(self, t: float) -> float:
        return self._loss
