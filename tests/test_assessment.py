"""The judgement of links: intervals against scipy, and lines that name what is wrong."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from apps.assessment import assess, loss_interval
from apps.samples import Sample


@pytest.mark.parametrize("count", [1, 50, 300, 2000])
@pytest.mark.parametrize("p", [0.001, 0.05, 0.1, 0.5, 0.9])
def test_equal_probabilities_give_the_binomial_interval(count: int, p: float) -> None:
    expected = (binom.ppf(0.0005, count, p), binom.isf(0.0005, count, p))
    assert loss_interval([p] * count) == expected


def test_interval_by_hand() -> None:
    # 300 probes at 10%: mean 30, standard deviation 5.2; 99.9% is 3.29 of them, about 13 to 47,
    # with a longer tail above; exact by the binomial.
    low, high = loss_interval([0.1] * 300)
    assert (low, high) == (14, 48)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_unequal_probabilities_against_enumeration(probabilities: list[float]) -> None:
    weights = [0.0] * (len(probabilities) + 1)
    for fates in itertools.product((0, 1), repeat=len(probabilities)):
        weights[sum(fates)] += math.prod(
            p if lost else 1 - p for lost, p in zip(fates, probabilities, strict=True)
        )
    low, high = loss_interval(probabilities, confidence=0.9)
    epsilon = 1e-9
    assert sum(weights[:low]) <= 0.05 + epsilon
    assert sum(weights[: low + 1]) > 0.05 - epsilon
    assert sum(weights[high + 1 :]) <= 0.05 + epsilon
    assert sum(weights[high:]) > 0.05 - epsilon


def test_certain_fates_leave_no_room() -> None:
    assert loss_interval([0.0] * 10 + [1.0] * 5) == (5, 5)
    with pytest.raises(ValueError, match="between 0 and 1"):
        loss_interval([0.5, 1.5])


def _samples(up: set[int], down: set[int], rtt: float = 0.04, count: int = 300) -> list[Sample]:
    return [
        Sample(
            i * 0.004,
            None if i in up else i * 0.004 + rtt / 2,
            None if i in up | down else i * 0.004 + rtt,
        )
        for i in range(count)
    ]


def test_link_as_set_passes() -> None:
    samples = _samples(up=set(range(0, 300, 10)), down=set(range(5, 300, 10)))
    assert assess(samples, 0.04, [0.1] * 300, [0.1] * 300) == []


def test_link_without_its_delay_and_loss_is_caught() -> None:
    # What Mininet's TCLink silently gives on a kernel without netem.
    failures = assess(_samples(set(), set(), rtt=0.0004), 0.04, [0.1] * 300, [0.1] * 300, link="ap")
    assert failures == [
        "ap: set RTT 40.0 ms, seen 0.4 ms (median of 300 probes, tolerance 2.0 ms)",
        "ap, client to server: set loss 10.00%, seen 0.00% "
        "(0 of 300 probes, 14 to 48 are plausible)",
        "ap, server to client: set loss 10.00%, seen 0.00% "
        "(0 of 300 probes, 14 to 48 are plausible)",
    ]


@pytest.mark.parametrize(
    ("expected", "seen", "good"),
    [
        (0.040, 0.0419, True),
        (0.040, 0.0421, False),
        (0.040, 0.0379, False),
        (0.200, 0.2099, True),
        (0.200, 0.2101, False),
        (0.200, 0.1899, False),
    ],
)
def test_rtt_tolerance_is_2_ms_or_5_percent(expected: float, seen: float, good: bool) -> None:
    failures = assess(_samples(set(), set(), rtt=seen), expected, [0] * 300, [0] * 300)
    assert (failures == []) is good


def test_echoes_count_only_for_probes_that_arrived() -> None:
    # All of the first 100 are lost on the way up: their way back is not seen at all.
    samples = _samples(up=set(range(100)), down=set())
    assert assess(samples, 0.04, [1.0] * 100 + [0.0] * 200, [1.0] * 100 + [0.0] * 200) == []


def test_uncertain_probes_may_go_either_way() -> None:
    expected = [0.0] * 299 + [1.0]
    samples = _samples(up={0, 299}, down=set())
    assert len(assess(samples, 0.04, expected, [0.0] * 300)) == 1
    edge = [i in (0, 299) for i in range(300)]
    assert assess(samples, 0.04, expected, [0.0] * 300, uncertain_up=edge) == []
    assert assess(_samples(set(), set()), 0.04, expected, [0.0] * 300, uncertain_up=edge) == []


def test_dead_link() -> None:
    failures = assess(_samples(set(range(300)), set()), 0.04, [0.0] * 300, [0.0] * 300, link="x")
    assert failures[0] == "x: set RTT 40.0 ms, none of 300 probes came back"
    assert "x, client to server: set loss 0.00%, seen 100.00%" in failures[1]
    assert len(failures) == 2


def test_lists_must_fit() -> None:
    with pytest.raises(ValueError, match="as many values"):
        assess(_samples(set(), set()), 0.04, [0.0], [0.0] * 300)
