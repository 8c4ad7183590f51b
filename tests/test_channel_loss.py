"""Independent loss (Bernoulli): means, runs, seeds, directions. Tolerances are 5 standard errors.

The rate itself and the count over many seeds are in test_channel.py.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.channel import (
    Bernoulli,
    Channel,
    ChannelError,
    DelayModel,
    loss_from_dict,
    loss_to_dict,
)
from topologies.profile import Direction, ProfileError

N = 60_000


def pattern(loss: float, seed: int = 1, direction: str = "up", n: int = N) -> list[bool]:
    channel = Channel(DelayModel(), Bernoulli(loss), "access", direction, seed)
    return [channel.fate(0.001 * i).lost for i in range(n)]


def runs(lost: list[bool]) -> list[int]:
    return [len(list(group)) for key, group in itertools.groupby(lost) if key]


def correlation(a: list[bool], b: list[bool]) -> float:
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    both = sum(x and y for x, y in zip(a, b, strict=True)) / len(a)
    return (both - mean_a * mean_b) / math.sqrt(mean_a * (1 - mean_a) * mean_b * (1 - mean_b))


@pytest.mark.parametrize("loss", [0.02, 0.2, 0.6])
def test_bursts_have_the_mean_of_a_geometric_distribution(loss: float) -> None:
    lengths = runs(pattern(loss, seed=4))
    # Geometric with P(stop) = q = 1 - loss: mean 1 / q, variance loss / q^2.
    expected = 1 / (1 - loss)
    error = math.sqrt(loss) / (1 - loss) / math.sqrt(len(lengths))
    assert Bernoulli(loss).mean_burst == pytest.approx(expected)
    assert abs(sum(lengths) / len(lengths) - expected) <= 5 * error


@pytest.mark.parametrize("loss", [0.1, 0.5])
def test_burst_lengths_are_geometric(loss: float) -> None:
    lengths = runs(pattern(loss, seed=5))
    for longer_than in (1, 2, 3):
        expected = loss**longer_than
        share = sum(length > longer_than for length in lengths) / len(lengths)
        assert abs(share - expected) <= 5 * math.sqrt(expected * (1 - expected) / len(lengths))


@pytest.mark.parametrize("lag", [1, 2, 10])
def test_losses_have_no_memory(lag: int) -> None:
    lost = pattern(0.3, seed=6)
    # Of independent draws: standard error 1 / sqrt(n).
    assert abs(correlation(lost[lag:], lost[:-lag])) <= 5 / math.sqrt(N)


@pytest.mark.parametrize("loss", [0.05, 0.3])
def test_up_and_down_are_independent_and_both_have_the_loss(loss: float) -> None:
    up, down = pattern(loss, seed=9), pattern(loss, seed=9, direction="down")
    assert abs(correlation(up, down)) <= 5 / math.sqrt(N)
    for lost in (up, down):
        assert abs(sum(lost) / N - loss) <= 5 * math.sqrt(loss * (1 - loss) / N)


def test_seeds_next_to_each_other_are_independent() -> None:
    patterns = [pattern(0.3, seed=seed, n=20_000) for seed in range(4)]
    for a, b in itertools.combinations(patterns, 2):
        assert abs(correlation(a, b)) <= 5 / math.sqrt(20_000)


def test_the_fate_of_a_frame_depends_on_its_number_and_not_on_its_time() -> None:
    slow = Channel(DelayModel(), Bernoulli(0.3), "access", "up", 2)
    slow.epoch = 0.0
    seen = [slow.fate(10.0 * i).lost for i in range(500)]
    assert seen == pattern(0.3, seed=2, n=500)


def test_a_higher_loss_loses_the_same_frames_and_more() -> None:
    low, high = pattern(0.1, seed=3, n=5000), pattern(0.3, seed=3, n=5000)
    assert all(b for a, b in zip(low, high, strict=True) if a)
    assert sum(high) > sum(low)


def test_none_and_all() -> None:
    assert not any(pattern(0.0, n=1000))
    assert all(pattern(1.0, n=1000))
    assert Bernoulli(1.0).mean_burst == math.inf
    channel = Channel(DelayModel(), Bernoulli(0.3), "access", "up", 2)
    assert channel.loss_at(-math.inf) == channel.loss_at(7.0) == 0.3
    assert channel.outages(0, 100) == []


@given(st.floats(0, 1))
def test_closed_forms_agree_with_the_loss(loss: float) -> None:
    model = Bernoulli(loss)
    assert model.mean_loss == loss
    assert model.mean_outage == 0
    assert model.memoryless and not model.in_time
    assert loss_from_dict(loss_to_dict(model), "x") == model


@pytest.mark.parametrize("value", [1.3, -0.01, math.nan, math.inf, -math.inf, None, "0.1", True])
def test_a_loss_that_is_no_probability_is_refused_with_its_value(value: Any) -> None:
    line = f"loss must be a number from 0 to 1, not {value!r}"
    with pytest.raises(ChannelError) as caught:
        Bernoulli(value)
    assert str(caught.value) == line
    with pytest.raises(ProfileError) as refused:
        Direction.from_dict({"loss": {"model": "bernoulli", "loss": value}}, "access.up")
    assert str(refused.value) == f"access.up.loss: {line}"


def test_a_number_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(ChannelError, match="loss must be a number from 0 to 1, not 1000"):
        Bernoulli(10**400)
