"""How serving systems shape a stream: when a step of the model ends, and how many tokens it gives.

Each shape is a small model of one mechanism, with few parameters and a long-run mean in closed
form. Which values the parameters take, and where those come from, is said in the profiles
(``apps/data/timing/*.toml``). Times are seconds since the request.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

#: The shortest step (s): ten times less than what a timer keeps.
SHORTEST = 1e-4
#: What any value may be at most: larger ones are mistakes.
LARGEST = 1e9


@dataclass(frozen=True)
class Parameter:
    """What a parameter means, and which values it takes."""

    meaning: str
    unit: str
    low: float
    high: float
    whole: bool
    optional: bool


def parameter(
    meaning: str,
    unit: str = "s",
    low: float = 0.0,
    high: float = LARGEST,
    *,
    whole: bool = False,
    optional: bool = False,
) -> Any:
    """A field of a shape. An optional one is None where a profile does not name it."""
    about = Parameter(meaning, unit, low, high, whole, optional)
    if optional:
        return field(default=None, metadata={"parameter": about})
    return field(metadata={"parameter": about})


@dataclass(frozen=True, kw_only=True)
class Shape(ABC):
    """When the tokens of an answer exist."""

    kind: ClassVar[str]
    first: float = parameter("from the request to the first step: the prompt is read")
    tokens: int | None = parameter(
        "length of the answer, after which it stops; as long as asked for if absent",
        "tokens",
        1,
        whole=True,
        optional=True,
    )

    @abstractmethod
    def steps(self, rng: random.Random) -> Iterator[tuple[float, int]]:
        """Yield, without end, when each step of the model ends and how many tokens it gives.

        ``rng`` is used through ``random()`` alone: its sequence is the same in all versions of
        Python, which is not promised of the distributions.
        """

    @abstractmethod
    def mean_spacing(self) -> float:
        """Return the seconds per token of a long answer, in closed form."""

    @classmethod
    def parameters(cls) -> dict[str, Parameter]:
        """The parameters by name."""
        return {f.name: f.metadata["parameter"] for f in dataclasses.fields(cls)}


@dataclass(frozen=True, kw_only=True)
class Steady(Shape):
    """The same number of tokens at each tick of a clock."""

    kind: ClassVar[str] = "steady"
    spacing: float = parameter("from one step to the next", low=SHORTEST)
    per_step: int = parameter("tokens of one step", "tokens", 1, whole=True)

    def steps(self, rng: random.Random) -> Iterator[tuple[float, int]]:
        for number in itertools.count():
            yield self.first + number * self.spacing, self.per_step

    def mean_spacing(self) -> float:
        return self.spacing / self.per_step


@dataclass(frozen=True, kw_only=True)
class Vllm(Shape):
    """Continuous batching: one token a step, and a step takes longer the fuller the batch.

    Other answers share the batch (Orca, Yu et al. 2022; vLLM, Kwon et al. 2023). Between two
    steps a Poisson number of them arrives and each leaves with probability ``1 / length``, so
    their number is Poisson with mean ``others`` and is forgotten within ``length`` steps. A
    prompt that arrives is read before the next step, while everybody waits: the generation
    stalls of Agrawal et al. 2024 (Sarathi-Serve). This answer joins a batch that has been
    running for long.
    """

    kind: ClassVar[str] = "vllm"
    base: float = parameter("a step of an empty batch", low=SHORTEST)
    per_sequence: float = parameter("what each answer in the batch adds to a step")
    others: float = parameter("mean number of other answers in the batch", "answers", 0, 1000)
    length: float = parameter("mean length of the others", "tokens", 1)
    prefill: float = parameter("what reading the prompt of a new answer adds to a step")

    def steps(self, rng: random.Random) -> Iterator[tuple[float, int]]:
        now, batch = self.first, _poisson(rng, self.others)
        yield now, 1
        while True:
            arrived = _poisson(rng, self.others / self.length)
            batch = sum(rng.random() >= 1 / self.length for _ in range(batch)) + arrived
            now += self.base + self.per_sequence * (1 + batch) + self.prefill * arrived
            yield now, 1

    def mean_spacing(self) -> float:
        step = self.base + self.per_sequence * (1 + self.others)
        return step + self.prefill * self.others / self.length


@dataclass(frozen=True, kw_only=True)
class Speculative(Shape):
    """Speculative decoding: a step gives the drafted tokens that are accepted, and one more.

    Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding",
    section 3: each of ``gamma`` drafts is accepted with probability ``alpha`` until one is not
    (equation 1 is the mean), and a step takes ``1 + gamma * cost`` runs of the target model
    (theorem 3.8). Reading the prompt gives the first token alone.
    """

    kind: ClassVar[str] = "speculative"
    spacing: float = parameter("one run of the target model", low=SHORTEST)
    alpha: float = parameter("probability that a draft is accepted", "1", 0, 1)
    gamma: int = parameter("drafts of a step", "tokens", 0, 1000, whole=True)
    cost: float = parameter("a run of the draft model, in runs of the target model", "1", 0)

    def steps(self, rng: random.Random) -> Iterator[tuple[float, int]]:
        yield self.first, 1
        for number in itertools.count(1):
            accepted = 0
            while accepted < self.gamma and rng.random() < self.alpha:
                accepted += 1
            yield self.first + number * self._step(), accepted + 1

    def _step(self) -> float:
        return self.spacing * (1 + self.gamma * self.cost)

    def mean_tokens(self) -> float:
        """Mean tokens of a step: Leviathan et al. 2023, equation 1."""
        if self.alpha == 1:
            return self.gamma + 1
        return float((1 - self.alpha ** (self.gamma + 1)) / (1 - self.alpha))

    def mean_spacing(self) -> float:
        return self._step() / self.mean_tokens()


@dataclass(frozen=True, kw_only=True)
class Preemption(Shape):
    """A multi-level feedback queue: the answer is put aside whenever its time slice is used up.

    FastServe (Wu et al. 2023): level i has slices of ``quantum * ratio**i`` seconds. An answer
    joins at the first level whose slice holds the reading of its prompt ("skip-join"), and goes
    down one level with each slice that it uses up. Then others run: a pause, here exponential,
    and no longer than ``starve``, after which a job is promoted. Two simplifications: the lowest
    of ``levels`` is kept, so that long answers go on being interrupted, and a promotion ends the
    pause but does not start the slices anew.
    """

    kind: ClassVar[str] = "preemption"
    spacing: float = parameter("from one step to the next, while it runs", low=SHORTEST)
    quantum: float = parameter("slice of the highest level", low=SHORTEST)
    ratio: float = parameter("slice of a level, in slices of the level above", "1", 1, 100)
    levels: int = parameter("number of levels", "levels", 1, 100, whole=True)
    pause: float = parameter("mean time until it runs again, were there no promotion")
    starve: float = parameter("longest pause")

    def steps(self, rng: random.Random) -> Iterator[tuple[float, int]]:
        now, level, used = self.first, self._first_level(), 1
        yield now, 1
        while True:
            if used == self.slice_steps(level):
                now += min(-math.log(1 - rng.random()) * self.pause, self.starve)
                level, used = min(level + 1, self.levels - 1), 0
            now, used = now + self.spacing, used + 1
            yield now, 1

    def _first_level(self) -> int:
        fitting = (i for i in range(self.levels) if self._slice(i) >= self.first)
        return next(fitting, self.levels - 1)

    def _slice(self, level: int) -> float:
        return float(self.quantum * self.ratio**level)

    def slice_steps(self, level: int) -> int:
        """Steps until the slice is overrun; the sum may not be off by a rounding error."""
        return math.floor(self._slice(level) / self.spacing + 1e-9) + 1

    def mean_pause(self) -> float:
        """Mean of the smaller of an exponential time and ``starve``."""
        if self.pause == 0:
            return 0.0
        return -self.pause * math.expm1(-self.starve / self.pause)

    def mean_spacing(self) -> float:
        return self.spacing + self.mean_pause() / self.slice_steps(self.levels - 1)


@dataclass(frozen=True, kw_only=True)
class Offloading(Shape):
    """Weights that do not fit: each step moves them all, for a whole batch of answers.

    Such systems (FlexGen, Sheng et al. 2023) are judged by the tokens per second of all answers
    together, and each answer gets one token a step.
    """

    kind: ClassVar[str] = "offloading"
    batch: int = parameter("answers that are generated together", "answers", 1, whole=True)
    throughput: float = parameter("tokens per second of all of them", "tokens/s", 1e-6)

    def steps(self, rng: random.Random) -> Iterator[tuple[float, int]]:
        for number in itertools.count():
            yield self.first + number * self.mean_spacing(), 1

    def mean_spacing(self) -> float:
        return self.batch / self.throughput


@dataclass(frozen=True, kw_only=True)
class Reasoning(Shape):
    """A model that thinks before it answers, and does not show its thoughts."""

    kind: ClassVar[str] = "reasoning"
    silence: float = parameter("how long it thinks, after the prompt is read")
    spacing: float = parameter("from one token to the next", low=SHORTEST)

    def steps(self, rng: random.Random) -> Iterator[tuple[float, int]]:
        for number in itertools.count():
            yield self.first + self.silence + number * self.spacing, 1

    def mean_spacing(self) -> float:
        return self.spacing


SHAPES: dict[str, type[Shape]] = {
    shape.kind: shape for shape in (Steady, Vllm, Speculative, Preemption, Offloading, Reasoning)
}


def _poisson(rng: random.Random, mean: float) -> int:
    """Count the arrivals within ``mean`` units of time, one a unit on average.

    The usual product of uniform numbers is compared with exp(-mean), which is 0 for large means.
    """
    count, total = 0, -math.log(1 - rng.random())
    while total < mean:
        count += 1
        total -= math.log(1 - rng.random())
    return count
