"""Shares of a bottleneck: Jain's index by hand and by its bounds, rates, restraint."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.fairness import (
    QUIET_DATAGRAMS,
    FairnessError,
    jain,
    per_second,
    restraint,
    throughput,
)

RATES = st.lists(st.floats(0, 1e12), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("rates", "index"),
    [
        ([5.0], 1.0),
        ([1.0, 1.0, 1.0], 1.0),
        ([1.0, 0.0, 0.0, 0.0], 0.25),
        ([1.0, 3.0], 16 / 20),
        ([1129.1, 740.2], 0.95851),
        # Jain's own example: who serves k of n alike and the rest not at all gets k/n.
        ([7.0] * 3 + [0.0] * 7, 0.3),
        ([1e-200, 3e-200], 0.8),
        ([1e200, 3e200], 0.8),
    ],
)
def test_jains_index_by_hand(rates: list[float], index: float) -> None:
    assert jain(rates) == pytest.approx(index, abs=1e-5)


def test_nobody_got_anything() -> None:
    assert math.isnan(jain([0.0, 0.0]))


@pytest.mark.parametrize("rates", [[], [-1.0], [1.0, math.nan], [math.inf]])
def test_what_are_no_rates(rates: list[float]) -> None:
    with pytest.raises(FairnessError):
        jain(rates)


@given(RATES.filter(any))
def test_jains_index_lies_between_one_nth_and_one(rates: list[float]) -> None:
    assert 1 / len(rates) - 1e-9 <= jain(rates) <= 1 + 1e-9


@given(RATES.filter(any), st.floats(1e-3, 1e3), st.randoms())
def test_jains_index_knows_no_unit_and_no_order(
    rates: list[float], unit: float, any_: object
) -> None:
    shuffled = [unit * rate for rate in rates]
    any_.shuffle(shuffled)  # type: ignore[attr-defined]
    if any(shuffled):  # the least of floats may vanish
        assert jain(shuffled) == pytest.approx(jain(rates), rel=1e-6, abs=1e-6)


@given(st.floats(1e-3, 1e9), st.integers(1, 20))
def test_equal_shares_are_fair(rate: float, count: int) -> None:
    assert jain([rate] * count) == pytest.approx(1)


def test_throughput_between_samples() -> None:
    at, total = [0.0, 1.0, 2.0, 4.0], [0, 1000, 1000, 5000]
    assert throughput(at, total, 0, 4) == pytest.approx(8 * 5000 / 4)
    assert throughput(at, total, 0.5, 1.5) == pytest.approx(8 * 500)
    assert throughput(at, total, 2, 3) == pytest.approx(8 * 2000)
    assert throughput(at, total, 1, 2) == 0


@pytest.mark.parametrize(("start", "end"), [(-1, 1), (1, 5), (1, 1), (2, 1)])
def test_throughput_needs_samples_around_its_time(start: float, end: float) -> None:
    with pytest.raises(FairnessError):
        throughput([0.0, 4.0], [0, 10], start, end)


def test_events_per_second() -> None:
    assert per_second([0, 0.5, 1, 1.5, 2], 0, 2) == 2
    assert math.isnan(per_second([1], 2, 2))


def test_a_sender_that_falls_silent_is_within_its_bound() -> None:
    generated = np.arange(0, 10, 0.05)
    sent = np.concatenate((np.arange(0, 7, 0.05), np.arange(7, 10, 0.25)))
    found = restraint(sent, generated, np.arange(0, 4, 0.05), 4, 10)
    assert found.within
    assert found.peak in (20, 21)
    assert found.quiet_peak <= 5
    assert found.quiet_seconds == pytest.approx(2, abs=0.15)
    assert found.rate == pytest.approx((60 + 12) / 6, abs=0.5)


def test_a_sender_that_never_slows_down_is_not() -> None:
    always = np.arange(0, 10, 1 / (QUIET_DATAGRAMS + 5))
    found = restraint(always, always, np.arange(0, 4, 0.05), 4, 10)
    assert not found.within
    assert found.quiet_peak >= QUIET_DATAGRAMS + 4


def test_a_sender_that_is_answered_may_go_on() -> None:
    always = np.arange(0, 10, 0.02)
    found = restraint(always, always, [3.0, 5.0, 7.0, 9.0], 4, 10)
    assert found.within
    assert found.quiet_seconds == 0
    assert math.isnan(found.quiet_peak)


def test_even_then_there_is_a_bound() -> None:
    flood = np.arange(0, 10, 0.0001)
    assert not restraint(flood, [], [3.0, 5.0, 7.0, 9.0], 4, 10).within


def test_an_overload_of_less_than_a_second() -> None:
    with pytest.raises(FairnessError, match="no second"):
        restraint([], [], [], 1, 1.5)
