"""Delay models: constant, jitter from two distributions, recorded."""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass, field
from statistics import NormalDist

from . import trace_file
from .randomness import ChannelError, Stream, check_number

DISTRIBUTIONS = ("normal", "pareto")
_PARETO_SHAPE = 3.0
_PARETO_MOST = 4.0


@dataclass(frozen=True)
class DelayTrace:
    """A recorded one-way delay: CSV with the columns time and delay, both in seconds.

    A delay holds from its time to that of the next line; after the last line, which holds as long
    as the one before it, the trace starts again. Times count from the first line.
    """

    file: str
    sha256: str = ""
    times: tuple[float, ...] = field(init=False, repr=False, compare=False)
    delays: tuple[float, ...] = field(init=False, repr=False, compare=False)
    length: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        path = trace_file.named(self.file)
        times: list[float] = []
        delays: list[float] = []
        for where, (time, delay) in trace_file.rows(path, 2):
            at = trace_file.number(where, "time", time)
            if times and at <= times[-1]:
                raise ChannelError(f"{where}: time goes back, from {times[-1]:g} to {at:g} s")
            times.append(at)
            delays.append(trace_file.number(where, "delay", delay))
        if len(times) < 2:
            raise ChannelError(f"{path}: the trace is empty: it needs at least two lines")
        length = 2 * times[-1] - times[-2] - times[0]
        object.__setattr__(self, "times", tuple(time - times[0] for time in times))
        object.__setattr__(self, "delays", tuple(delays))
        object.__setattr__(self, "length", length)
        object.__setattr__(self, "sha256", trace_file.check_fingerprint(path, self.sha256))

    def delay_at(self, t: float) -> float:
        """The delay at channel time `t`; before time 0 the first one."""
        rest = t % self.length if t >= 0 else 0.0
        return self.delays[bisect_right(self.times, rest) - 1]

    @property
    def mean_delay(self) -> float:
        """Mean over the trace's time."""
        ends = (*self.times[1:], self.length)
        spans = zip(self.times, ends, self.delays, strict=True)
        return sum((end - start) * delay for start, end, delay in spans) / self.length


@dataclass(frozen=True)
class DelayModel:
    """A one-way delay of `delay` seconds with a random `jitter`, or a recorded one plus jitter.

    `distribution` of the jitter, as in netem: `normal` with standard deviation `jitter`, or
    `pareto`: jitter (4/3) (X - 3/2) with X Pareto of shape 3, at most 4 jitter (iproute2's
    pareto.dist). A draw below 0 counts as 0, as in netem, which cannot send before a frame came;
    where that would happen often (jitter above the delay), `clamp` must say that it is wanted.

    Without `reorder`, frames leave in the order in which they came: one that would overtake waits.
    """

    delay: float = 0.0
    jitter: float = 0.0
    distribution: str = "normal"
    reorder: bool = False
    clamp: bool = False
    trace: DelayTrace | None = None

    def __post_init__(self) -> None:
        check_number("delay", self.delay, 0)
        check_number("jitter", self.jitter, 0)
        if self.distribution not in DISTRIBUTIONS:
            known = ", ".join(DISTRIBUTIONS)
            raise ChannelError(f"distribution must be one of {known}, not {self.distribution!r}")
        if self.trace and self.delay:
            raise ChannelError("delay and a delay trace exclude each other")
        if self.jitter > self.delay and not self.clamp and not self.trace:
            raise ChannelError(
                f"jitter ({self.jitter:g} s) must not exceed delay ({self.delay:g} s): more than "
                "16% of the draws would be negative; say clamp = true to have them count as 0"
            )

    @property
    def mean_delay(self) -> float:
        """Mean, negative draws as 0, for frames too far apart to wait for each other."""
        if self.trace:
            return self.trace.mean_delay  # exact without jitter, and where jitter is small
        if self.jitter == 0:
            return self.delay
        if self.distribution == "normal":
            ratio, normal = self.delay / self.jitter, NormalDist()
            return self.delay * normal.cdf(ratio) + self.jitter * normal.pdf(ratio)
        # E max(X - 9/2, 0) = (9/2)^-2 / 2: what the upper limit takes away. The lower one only
        # matters for delay < 2/3 jitter: then X < x0 counts as x0, E max(x0 - X, 0).
        mean = self.delay - self.jitter * (4 / 3) * (4.5**-2) / 2
        x0 = 1.5 - 0.75 * self.delay / self.jitter
        if x0 > 1:
            mean += self.jitter * (4 / 3) * (x0 - 1.5 + x0**-2 / 2)
        return mean

    @property
    def constant(self) -> bool:
        """No jitter and no trace."""
        return self.jitter == 0 and self.trace is None

    def process(self, stream: Stream) -> DelayProcess:
        """The model at work."""
        return DelayProcess(self, stream("delay"))


class DelayProcess:
    """A delay model at work in one direction."""

    def __init__(self, model: DelayModel, draws: random.Random) -> None:
        self._delay, self._jitter = model.delay, model.jitter
        self._pareto = model.distribution == "pareto"
        self._trace = model.trace
        self._draws = draws
        self._normal = NormalDist()

    def delay_at(self, t: float) -> float:
        """Draw the delay of a frame that enters at channel time `t`."""
        delay = self._trace.delay_at(t) if self._trace else self._delay
        if self._jitter == 0:
            return delay
        # One uniform draw a frame; random() may return exactly 0, which inv_cdf refuses.
        uniform = self._draws.random() or 2.0**-54
        if self._pareto:
            x = float((1 - uniform) ** (-1 / _PARETO_SHAPE))
            deviation = min((4 / 3) * (x - 1.5), _PARETO_MOST)
        else:
            deviation = self._normal.inv_cdf(uniform)
        return max(0.0, delay + self._jitter * deviation)
