"""Who gets how much of a shared bottleneck, and does a sender hold back when it is full?

All times are seconds on one clock, rates bits per second unless a name says datagrams.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

#: docs/protocol.md, section 12: nothing was answered for max(1 s, 3 PTO), and a PTO is 1 s at
#: most (sender.MAX_PROBE_INTERVAL). So after this long without an answer every sender is quiet.
SURELY_QUIET = 3.0
#: The same section, for a quiet sender whose client's PINGs still arrive: 4 PINGs a second, two
#: probes for each of 2 datagrams. Without PINGs it is 2 datagrams each 0.2 s, which is less.
QUIET_DATAGRAMS = 16
#: The same section, while answers come: flights and probes of at most this many datagrams. A
#: flight needs a new token; probes are at most this many a second.
FLIGHT_DATAGRAMS, PROBES = 10, 50

Times = npt.ArrayLike


class FairnessError(ValueError):
    """The numbers cannot be those of flows; the message is one line."""


def jain(rates: Times) -> float:
    """Jain's fairness index: (sum x)^2 / (n sum x^2), from 1/n (one takes all) to 1 (all equal).

    Jain, Chiu and Hawe, A Quantitative Measure of Fairness, DEC-TR-301, 1984. NaN if nobody got
    anything. Raises FairnessError without flows, or for a rate below 0.
    """
    x = np.asarray(rates, dtype=np.float64)
    if x.size == 0:
        raise FairnessError("an index of fairness needs at least one flow")
    if not (np.isfinite(x).all() and (x >= 0).all()):
        raise FairnessError(f"rates must be numbers of at least 0, not {x.tolist()}")
    most = float(x.max())
    if most == 0:
        return math.nan
    x = x / most  # squares of very small or large rates would not fit into a float
    return float(x.sum() ** 2 / (x.size * (x**2).sum()))


def throughput(at: Times, total: Times, start: float, end: float) -> float:
    """Bits per second between two moments, from samples of a counter of bytes.

    The counter runs evenly between samples. Raises FairnessError if they do not cover the time.
    """
    times = np.asarray(at, dtype=np.float64)
    counts = np.asarray(total, dtype=np.float64)
    if not end > start:
        raise FairnessError(f"the measuring time ends at {end:g} s, where it starts")
    if len(times) < 2 or times[0] > start or times[-1] < end:
        raise FairnessError(f"the samples do not cover the time from {start:g} to {end:g} s")
    first, last = np.interp([start, end], times, counts)
    return float(8 * (last - first) / (end - start))


def per_second(times: Times, start: float, end: float) -> float:
    """How many of these events there were between two moments, per second."""
    at = np.asarray(times, dtype=np.float64)
    if not end > start:
        return math.nan
    return float(np.count_nonzero((at >= start) & (at < end)) / (end - start))


@dataclass(frozen=True)
class Restraint:
    """What one stream's sender did while the bottleneck was overloaded.

    `rate` and `peak`: datagrams in the mean and in the busiest second. `quiet_peak`: in the
    busiest second of those that began when nothing had been answered for `SURELY_QUIET`, NaN
    without any; `quiet_seconds`: how long that was. `within`: no second was beyond its bound.
    """

    rate: float
    peak: int
    quiet_peak: float
    quiet_seconds: float
    within: bool


def restraint(
    sent: Times, generated: Times, answered: Times, start: float, end: float, step: float = 0.05
) -> Restraint:
    """Hold a sender's datagrams against the bound of docs/protocol.md, section 12.

    sent, generated, answered
        When datagrams left, when tokens came out of the model, and when the client's
        acknowledgements arrived at the server.
    start, end
        Of the overload. Every second that lies in it is looked at, in steps of `step`.

    Raises FairnessError if the overload is shorter than a second.
    """
    if end - start < 1:
        raise FairnessError(f"an overload of {end - start:g} s has no second to look at")
    left, made, heard = (
        np.sort(np.asarray(t, dtype=np.float64)) for t in (sent, generated, answered)
    )
    starts: Sequence[float] = [*np.arange(start, end - 1, step), end - 1]
    peak, quiet_peak, quiet, within = 0, math.nan, 0, True
    for at in starts:
        count = _count(left, at, at + 1)
        peak = max(peak, count)
        bound = FLIGHT_DATAGRAMS * (min(200, _count(made, at, at + 1)) + PROBES)
        if not _count(heard, at - SURELY_QUIET, at + 1):
            bound = QUIET_DATAGRAMS
            quiet += 1
            quiet_peak = count if math.isnan(quiet_peak) else max(quiet_peak, count)
        within = within and count <= bound
    return Restraint(
        rate=per_second(left, start, end),
        peak=peak,
        quiet_peak=quiet_peak,
        quiet_seconds=quiet * step,
        within=within,
    )


def _count(times: npt.NDArray[np.float64], start: float, end: float) -> int:
    return int(np.searchsorted(times, end) - np.searchsorted(times, start))
