"""What a measurement of a link brings home: one sample a probe, and their summary."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One probe; seconds of CLOCK_MONOTONIC, None for what never happened."""

    sent_at: float
    server_arrived_at: float | None
    returned_at: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """What the probes say together; round-trip times in seconds, None if no probe came back."""

    count: int
    lost_up: int
    lost_down: int
    rtt_min: float | None
    rtt_p50: float | None
    rtt_p95: float | None
    rtt_p99: float | None
    rtt_max: float | None


def summarize(samples: Sequence[Sample]) -> Summary:
    """Count losses and take percentiles (nearest rank) of the round-trip time."""
    rtts = sorted(s.returned_at - s.sent_at for s in samples if s.returned_at is not None)
    up = sum(s.server_arrived_at is None for s in samples)
    down = sum(s.server_arrived_at is not None and s.returned_at is None for s in samples)

    def rank(share: float) -> float | None:
        return rtts[max(0, math.ceil(share * len(rtts)) - 1)] if rtts else None

    median = statistics.median(rtts) if rtts else None
    return Summary(len(samples), up, down, rank(0), median, rank(0.95), rank(0.99), rank(1))
