"""Does a link do what its profile says? Judges probes (:mod:`apps.probe`) against set values."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from apps.samples import Sample

#: Tolerance of the median round-trip time: the larger of the two.
RTT_TOLERANCE = 0.002
RTT_TOLERANCE_SHARE = 0.05
#: A link as set is refused in one of a thousand measurements, per direction.
CONFIDENCE = 0.999


def loss_interval(
    probabilities: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[int, int]:
    """Return how many losses are plausible: the central interval of the Poisson-binomial.

    Args:
        probabilities: of each probe to be lost, independently of the others. Where the channel's
            state at each probe is known, the burstiness of the losses is in these numbers.
        confidence: the number of losses is below, and above, the interval with at most
            ``(1 - confidence) / 2`` each.

    Returns:
        The smallest and the largest number, both inside.
    """
    distribution = np.zeros(len(probabilities) + 1)
    distribution[0] = 1.0
    for used, p in enumerate(probabilities, start=1):
        if not 0 <= p <= 1:
            raise ValueError(f"a loss probability must be between 0 and 1, not {p}")
        # P(k losses) after one probe more: it is lost, or it is not (the convolution with 1-p, p).
        distribution[1 : used + 1] = distribution[1 : used + 1] * (1 - p) + distribution[:used] * p
        distribution[0] *= 1 - p
    tail = (1 - confidence) / 2
    # Summed from either end: 1 - (almost 1) would lose the small tail to rounding.
    low = int(np.searchsorted(np.cumsum(distribution), tail, side="right"))
    high = len(probabilities) - int(
        np.searchsorted(np.cumsum(distribution[::-1]), tail, side="right")
    )
    return low, high


def assess(
    samples: Sequence[Sample],
    expected_rtt: float,
    expected_loss_up: Sequence[float],
    expected_loss_down: Sequence[float],
    uncertain_up: Sequence[bool] | None = None,
    uncertain_down: Sequence[bool] | None = None,
    link: str = "link",
) -> list[str]:
    """Compare what the probes met with what the link was set to.

    Args:
        samples: the probes, in order.
        expected_rtt: set round-trip time in seconds, compared with the median.
        expected_loss_up: probability of each probe to be lost on the way to the server.
        expected_loss_down: probability of each echo to be lost on the way back; counts only for
            probes that reached the server.
        uncertain_up: probes whose probability is not known well, because the channel changed its
            state within the timer's accuracy (2 ms, say); they are left out. None: there are none.
        uncertain_down: the same for the way back.
        link: the link's name, for the lines.

    Returns:
        One line a failure, naming link, direction, set value and seen value; empty if the link is
        as it was set.

    Raises:
        ValueError: lists of different length, or a probability outside 0 to 1.
    """
    count = len(samples)
    never = [False] * count
    up_unknown = never if uncertain_up is None else uncertain_up
    down_unknown = never if uncertain_down is None else uncertain_down
    for values in (expected_loss_up, expected_loss_down, up_unknown, down_unknown):
        if len(values) != count:
            raise ValueError(f"{count} samples need as many values, not {len(values)}")
    up = [
        (sample.server_arrived_at is None, p)
        for sample, p, unknown in zip(samples, expected_loss_up, up_unknown, strict=True)
        if not unknown
    ]
    down = [
        (sample.returned_at is None, p)
        for sample, p, unknown in zip(samples, expected_loss_down, down_unknown, strict=True)
        if not unknown and sample.server_arrived_at is not None
    ]
    failures = _rtt(samples, expected_rtt, link)
    failures += _loss(up, f"{link}, client to server")
    failures += _loss(down, f"{link}, server to client")
    return failures


def _rtt(samples: Sequence[Sample], expected: float, link: str) -> list[str]:
    rtts = [s.returned_at - s.sent_at for s in samples if s.returned_at is not None]
    if not rtts:
        return [f"{link}: set RTT {expected * 1e3:.1f} ms, none of {len(samples)} probes came back"]
    seen = statistics.median(rtts)
    tolerance = max(RTT_TOLERANCE, RTT_TOLERANCE_SHARE * expected)
    if abs(seen - expected) <= tolerance:
        return []
    seen_text = f"seen {seen * 1e3:.1f} ms (median of {len(rtts)} probes"
    limit = f"tolerance {tolerance * 1e3:.1f} ms)"
    return [f"{link}: set RTT {expected * 1e3:.1f} ms, {seen_text}, {limit}"]


def _loss(probes: list[tuple[bool, float]], direction: str) -> list[str]:
    if not probes:
        return []
    lost = sum(was_lost for was_lost, _ in probes)
    low, high = loss_interval([p for _, p in probes])
    if low <= lost <= high:
        return []
    total = len(probes)
    expected = statistics.fmean(p for _, p in probes)
    seen = f"seen {lost / total:.2%} ({lost} of {total} probes, {low} to {high} are plausible)"
    return [f"{direction}: set loss {expected:.2%}, {seen}"]
