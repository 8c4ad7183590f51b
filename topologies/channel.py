"""Channel models: is a frame lost, and when does it arrive? Seeded, without I/O or global state.

A model is split in two. The *specification* (`LossModel`, `DelayModel`: frozen data, closed forms)
says what is meant; the *process* made from it carries the random streams. A `Channel` is one
direction of a link: it joins a delay and a loss process and the moment the channel's clock starts.

Models *in time* make runs paired: with one seed every sender meets the same bad moments, whatever
it sends and when. A model that changes state per packet (netem's gemodel) keeps a sender that
backs off in the bad state; its outages depend on who is asking.

All times are float seconds.
"""

from __future__ import annotations

import abc
import hashlib
import math
import random
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, NamedTuple

Stream = Callable[[str], random.Random]
"""From a purpose ("loss", "states", ...) to a random stream of its own."""

DIRECTIONS = ("up", "down")
"""up: from the client to the server; down: from the server to the client."""


class ChannelError(ValueError):
    """A parameter of a channel model makes no sense."""


def subseed(seed: int, *names: str) -> int:
    """A 64-bit seed for one named purpose, independent of all other names of the same seed.

    It is a hash (SHA-256), so it is the same on every machine and every version of Python.
    """
    text = "/".join([str(seed), *names])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def check_number(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Raise ChannelError unless `value` is a finite number within [low, high]."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if known and math.isfinite(value) and low <= value <= high:
        return
    limits = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
    raise ChannelError(f"{name} must be a number {limits}, not {value!r}")


class LossProcess(abc.ABC):
    """A loss model at work in one direction."""

    def __init__(self, draws: random.Random) -> None:
        self._draws = draws

    @abc.abstractmethod
    def loss_at(self, t: float) -> float:
        """The probability that a frame entering at channel time `t` is lost."""

    def lost(self, t: float) -> bool:
        """Draw the fate of a frame that enters at channel time `t`."""
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
    @abc.abstractmethod
    def mean_loss(self) -> float:
        """Long-run share of frames lost, if they are spread evenly over time."""

    @property
    @abc.abstractmethod
    def mean_outage(self) -> float:
        """Mean length of a bad spell in seconds; 0 for models without memory."""

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
    def mean_loss(self) -> float:
        """The loss itself."""
        return self.loss

    @property
    def mean_outage(self) -> float:
        """0: no memory."""
        return 0.0

    def process(self, stream: Stream) -> LossProcess:
        """See LossModel."""
        return _BernoulliProcess(self.loss, stream("loss"))


class _BernoulliProcess(LossProcess):
    def __init__(self, loss: float, draws: random.Random) -> None:
        super().__init__(draws)
        self._loss = loss

    def loss_at(self, t: float) -> float:
        return self._loss


@dataclass(frozen=True)
class GilbertElliott(LossModel):
    """Two states in continuous time (Gilbert 1960, Elliott 1963, as a Markov process in time).

    The channel stays good for exponentially distributed times of mean `mean_good` seconds, bad
    for `mean_bad` seconds; a frame is lost with `loss_good` or `loss_bad`. The first state is
    drawn from the stationary distribution, so that the expected loss is `mean_loss` in every
    window, however short. Before time 0 nothing is lost.
    """

    kind: ClassVar[str] = "gilbert-elliott-time"
    mean_good: float
    mean_bad: float
    loss_good: float = 0.0
    loss_bad: float = 1.0

    def __post_init__(self) -> None:
        # Below a millisecond no real-time back end could follow the states.
        check_number("mean_good", self.mean_good, 1e-3)
        check_number("mean_bad", self.mean_bad, 1e-3)
        check_number("loss_good", self.loss_good, 0, 1)
        check_number("loss_bad", self.loss_bad, 0, 1)
        if self.loss_good > self.loss_bad:
            raise ChannelError(
                f"loss_good ({self.loss_good:g}) must not exceed loss_bad ({self.loss_bad:g})"
            )

    @property
    def share_bad(self) -> float:
        """Long-run share of time in the bad state."""
        return self.mean_bad / (self.mean_good + self.mean_bad)

    @property
    def mean_loss(self) -> float:
        """The state's losses, weighted by the time spent in each."""
        return self.loss_good + (self.loss_bad - self.loss_good) * self.share_bad

    @property
    def mean_outage(self) -> float:
        """Mean length of a stay in the bad state."""
        return self.mean_bad

    def process(self, stream: Stream) -> LossProcess:
        """See LossModel."""
        # The states have a stream to themselves: traffic draws from the other and moves nothing.
        return _GilbertElliottProcess(self, stream("states"), stream("loss"))


class _GilbertElliottProcess(LossProcess):
    def __init__(self, model: GilbertElliott, states: random.Random, draws: random.Random) -> None:
        super().__init__(draws)
        self._model = model
        self._states = states
        self._starts_bad = states.random() < model.share_bad
        self._ends: list[float] = []  # when stay number i ends
        self._extend(0.0)

    def _extend(self, t: float) -> None:
        """Draw stays until one ends after `t`."""
        ends = self._ends
        last = ends[-1] if ends else 0.0
        while last <= t:
            mean = self._model.mean_bad if self._bad(len(ends)) else self._model.mean_good
            # -mean ln(1 - u): Python promises the same random() in all versions, not expovariate().
            last -= mean * math.log(1.0 - self._states.random())
            ends.append(last)

    def _bad(self, stay: int) -> bool:
        return self._starts_bad == (stay % 2 == 0)

    def _stay(self, t: float) -> int:
        if t >= self._ends[-1]:
            self._extend(t)
        return bisect_right(self._ends, t)

    def loss_at(self, t: float) -> float:
        if t < 0:
            return 0.0
        return self._model.loss_bad if self._bad(self._stay(t)) else self._model.loss_good

    def next_change(self, t: float) -> float:
        if t < 0:
            return 0.0
        return self._ends[self._stay(t)]

    def outages(self, t0: float, t1: float) -> list[tuple[float, float]]:
        t0 = max(t0, 0.0)
        if t1 <= t0:
            return []
        first, last = self._stay(t0), self._stay(t1)
        spells = []
        for stay in range(first, last + 1):
            if self._bad(stay):
                start = max(self._ends[stay - 1] if stay else 0.0, t0)
                end = min(self._ends[stay], t1)
                if start < end:
                    spells.append((start, end))
        return spells


LOSS_MODELS: dict[str, type[LossModel]] = {
    model.kind: model for model in (Bernoulli, GilbertElliott)
}
"""All loss models by their name in files."""


@dataclass(frozen=True)
class DelayModel:
    """A one-way delay of `delay` seconds, with normal jitter of standard deviation `jitter`.

    A draw below 0 counts as 0 (as in netem, which cannot send before a frame came).
    """

    delay: float
    jitter: float = 0.0

    def __post_init__(self) -> None:
        check_number("delay", self.delay, 0)
        check_number("jitter", self.jitter, 0)
        if self.jitter > self.delay:
            raise ChannelError(
                f"jitter ({self.jitter:g} s) must not exceed delay ({self.delay:g} s): "
                "more than 16% of the draws would be negative"
            )

    @property
    def mean_delay(self) -> float:
        """Mean of max(0, N(delay, jitter)), for frames too far apart to wait for each other."""
        if self.jitter == 0:
            return self.delay
        ratio, normal = self.delay / self.jitter, NormalDist()
        return self.delay * normal.cdf(ratio) + self.jitter * normal.pdf(ratio)

    def process(self, stream: Stream) -> DelayProcess:
        """The model at work."""
        return DelayProcess(self, stream("delay"))


class DelayProcess:
    """A delay model at work in one direction."""

    def __init__(self, model: DelayModel, draws: random.Random) -> None:
        self._delay, self._jitter = model.delay, model.jitter
        self._draws = draws
        self._normal = NormalDist()

    def delay_at(self, t: float) -> float:
        """Draw the delay of a frame that enters at channel time `t`."""
        if self._jitter == 0:
            return self._delay
        # One uniform draw a frame; random() may return exactly 0, which inv_cdf refuses.
        uniform = self._draws.random() or 2.0**-54
        return max(0.0, self._delay + self._jitter * self._normal.inv_cdf(uniform))


class Fate(NamedTuple):
    """What happens to a frame: is it lost, and when is it (or would it have been) due?"""

    lost: bool
    due: float


class Channel:
    """One direction of a link at work.

    `now` may be any clock in seconds; `epoch` is the moment on that clock at which channel time
    is 0, or None while the channel's clock has not started. Before the epoch, and without one,
    frames are delayed but models in time lose nothing; independent loss applies always.

    Frames leave in the order in which they came: one that would overtake waits for the earlier.
    """

    def __init__(
        self, delay: DelayModel, loss: LossModel | None, link: str, direction: str, seed: int = 0
    ) -> None:
        self.link, self.direction = link, direction
        self._delay_model, self._loss_model = delay, loss
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Start all random streams anew, and forget the epoch."""

        def stream(purpose: str) -> random.Random:
            return random.Random(subseed(seed, self.link, self.direction, purpose))

        self.epoch: float | None = None
        self._delays = self._delay_model.process(stream)
        self._losses = self._loss_model.process(stream) if self._loss_model else None
        self._last_due = -math.inf

    def fate(self, now: float) -> Fate:
        """Draw the fate of a frame that enters at `now`."""
        t = -math.inf if self.epoch is None else now - self.epoch
        # The delay is drawn for lost frames too: frame n has the same jitter under every loss.
        due = max(now + self._delays.delay_at(t), self._last_due)
        if self._losses is not None and self._losses.lost(t):
            return Fate(True, due)
        self._last_due = due
        return Fate(False, due)

    def exempt(self, now: float) -> float:
        """When a frame is due that is never lost (ARP): the mean delay, without any draw."""
        self._last_due = max(now + self._delay_model.delay, self._last_due)
        return self._last_due

    def loss_at(self, t: float) -> float:
        """The probability that a frame entering at channel time `t` is lost."""
        return self._losses.loss_at(t) if self._losses else 0.0

    def next_change(self, t: float) -> float:
        """The first channel time after `t` at which `loss_at` changes; inf for never."""
        return self._losses.next_change(t) if self._losses else math.inf

    def outages(self, t0: float, t1: float) -> list[tuple[float, float]]:
        """The bad spells in channel time [t0, t1), each (start, end)."""
        return self._losses.outages(t0, t1) if self._losses else []
