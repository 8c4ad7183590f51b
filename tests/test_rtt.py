"""The RTT estimate against values worked by hand from RFC 9002, sections 5.3 and 6.2.1."""

from __future__ import annotations

import pytest

from eloquent.rtt import RttEstimator

close = pytest.approx


def test_before_any_sample_the_timeout_is_three_times_the_initial_rtt() -> None:
    # smoothed = kInitialRtt = 0.1, rttvar = kInitialRtt / 2; PTO = 0.1 + 4 * 0.05
    rtt = RttEstimator()
    assert rtt.samples == 0
    assert rtt.probe_timeout == close(0.3)


def test_the_first_sample_replaces_the_initial_value() -> None:
    rtt = RttEstimator()
    rtt.add(0.04, 0.01)  # the delay is not taken off the first sample
    assert (rtt.smoothed, rtt.variation, rtt.minimum) == close((0.04, 0.02, 0.04))
    assert rtt.probe_timeout == close(0.04 + 4 * 0.02)


def test_further_samples_by_hand() -> None:
    rtt = RttEstimator()
    rtt.add(0.1)
    rtt.add(0.2, 0.02)
    # adjusted = 0.2 - 0.02 = 0.18
    # rttvar = 3/4 * 0.05 + 1/4 * |0.1 - 0.18| = 0.0375 + 0.02
    # smoothed = 7/8 * 0.1 + 1/8 * 0.18 = 0.0875 + 0.0225
    assert (rtt.variation, rtt.smoothed) == close((0.0575, 0.11))
    assert rtt.probe_timeout == close(0.34)
    rtt.add(0.1, 0.05)
    # 0.1 < minimum 0.1 + 0.05, so the delay is not believed: adjusted = 0.1
    # rttvar = 3/4 * 0.0575 + 1/4 * |0.11 - 0.1| = 0.043125 + 0.0025
    # smoothed = 7/8 * 0.11 + 1/8 * 0.1 = 0.09625 + 0.0125
    assert (rtt.variation, rtt.smoothed) == close((0.045625, 0.10875))
    assert rtt.probe_timeout == close(0.29125)
    assert (rtt.samples, rtt.minimum, rtt.latest) == (3, 0.1, 0.1)


def test_the_minimum_includes_the_newest_sample() -> None:
    rtt = RttEstimator()
    rtt.add(0.2)
    rtt.add(0.08, 0.03)
    # minimum becomes 0.08 first; 0.08 < 0.08 + 0.03, so adjusted = 0.08
    assert rtt.minimum == 0.08
    assert rtt.smoothed == close(7 / 8 * 0.2 + 1 / 8 * 0.08)


def test_the_timeout_has_the_granularity_of_a_millisecond() -> None:
    rtt = RttEstimator()
    for _ in range(100):
        rtt.add(0.0)
    assert rtt.probe_timeout == close(0.001)


def test_a_steady_path_converges() -> None:
    rtt = RttEstimator()
    rtt.add(1.0)
    for _ in range(200):
        rtt.add(0.05)
    assert rtt.smoothed == close(0.05, rel=1e-3)
    assert rtt.probe_timeout == close(0.051, rel=0.05)
