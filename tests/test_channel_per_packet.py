"""Losses that count packets. Tolerances are 5 standard errors, worked out beside each test."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.channel import (
    Bernoulli,
    Blackouts,
    Channel,
    ChannelError,
    Combined,
    DelayModel,
    DropList,
    FateList,
    Gaps,
    GilbertElliott,
    GilbertElliottPackets,
    LossModel,
    loss_from_dict,
    loss_to_dict,
)

# netem's four parameters: p, r, 1-h, 1-k.
FOUR = [(0.02, 0.25, 1.0, 0.0), (0.1, 0.1, 0.7, 0.05), (0.3, 0.9, 1.0, 0.01), (0.01, 0.4, 0.5, 0.0)]
SHARE = st.floats(0.01, 0.99)


def pattern(model: LossModel, n: int, seed: int = 1, direction: str = "up") -> list[bool]:
    channel = Channel(DelayModel(), model, "access", direction, seed)
    return [channel.fate(0.001 * i).lost for i in range(n)]


def runs(lost: list[bool]) -> list[int]:
    return [len(list(group)) for key, group in itertools.groupby(lost) if key]


def burst(p: float, r: float, bad: float, good: float) -> float:
    """Mean number of losses in a row, by the states: with v the states (good, bad) of the first
    loss of a burst and A the step that loses again, v (1 + A + A^2 + ...) 1 = v (1 - A)^-1 1."""
    pass_good, pass_bad = r * (1 - good), p * (1 - bad)  # stationary, times p + r
    first = (
        (pass_good * (1 - p) + pass_bad * r) * good,
        (pass_good * p + pass_bad * (1 - r)) * bad,
    )
    a, b, c, d = 1 - (1 - p) * good, -p * bad, -r * good, 1 - (1 - r) * bad
    det = a * d - b * c
    sums = ((d - b) / det, (a - c) / det)  # (1 - A)^-1 1
    return (first[0] * sums[0] + first[1] * sums[1]) / sum(first)


@pytest.mark.parametrize("four", FOUR)
def test_gilbert_elliott_keeps_its_mean_loss(four: tuple[float, float, float, float]) -> None:
    p, r, bad, good = four
    n = 150_000
    share = p / (p + r)
    mean = share * bad + (1 - share) * good
    # The states of packets k apart have the correlation (1 - p - r)^k.
    rho = 1 - p - r
    variance = mean * (1 - mean)
    variance += 2 * (bad - good) ** 2 * share * (1 - share) * rho / (1 - rho)
    lost = pattern(GilbertElliottPackets(*four), n)
    assert abs(sum(lost) / n - mean) <= 5 * math.sqrt(variance / n)
    assert GilbertElliottPackets(*four).mean_loss == pytest.approx(mean)


@pytest.mark.parametrize("four", FOUR)
def test_gilbert_elliott_keeps_its_mean_burst(four: tuple[float, float, float, float]) -> None:
    seen = runs(pattern(GilbertElliottPackets(*four), 150_000, seed=2))
    mean = sum(seen) / len(seen)
    spread = math.sqrt(sum((length - mean) ** 2 for length in seen) / len(seen))
    expected = burst(*four)
    assert abs(mean - expected) <= 5 * spread / math.sqrt(len(seen))
    assert GilbertElliottPackets(*four).mean_burst == pytest.approx(expected)


@given(SHARE, SHARE, SHARE, SHARE)
def test_the_closed_forms_agree_with_the_states(
    p: float, r: float, bad: float, good: float
) -> None:
    model = GilbertElliottPackets(p, r, bad, good)
    assert model.mean_burst == pytest.approx(burst(p, r, bad, good))
    assert GilbertElliottPackets(p, r).mean_burst == pytest.approx(1 / r)
    assert GilbertElliottPackets(p, 1 - p).mean_burst == pytest.approx(1 / (1 - p))  # no memory
    assert loss_from_dict(loss_to_dict(model), "x") == model


def test_bursts_of_the_simple_model_are_geometric() -> None:
    seen = runs(pattern(GilbertElliottPackets(0.05, 0.3), 150_000, seed=3))
    for longer_than in (1, 3, 6):
        expected = 0.7**longer_than
        share = sum(length > longer_than for length in seen) / len(seen)
        assert abs(share - expected) <= 5 * math.sqrt(expected * (1 - expected) / len(seen))


def test_a_packet_meets_the_state_that_the_one_before_it_left() -> None:
    # As in netem: the first finds it good, and steps take effect on the next packet.
    assert pattern(GilbertElliottPackets(1, 0), 4) == [False, True, True, True]
    assert pattern(GilbertElliottPackets(1, 1), 5) == [False, True, False, True, False]
    assert pattern(GilbertElliottPackets(1, 1, 0, 1), 4) == [True, False, True, False]
    assert pattern(GilbertElliottPackets(0, 0.5), 4) == [False] * 4


def test_without_or_with_nothing_but_losses_the_mean_burst_says_so() -> None:
    assert GilbertElliottPackets(0, 0.5).mean_burst is None  # as of FateList
    assert GilbertElliottPackets(0.3, 0.5, 0.0).mean_burst is None
    assert GilbertElliottPackets(0.1, 0.0).mean_burst == math.inf
    assert GilbertElliottPackets(0.25, 0.5, 1.0, 1.0).mean_burst == math.inf


def test_outages_of_a_packet_model_depend_on_the_traffic() -> None:
    model = GilbertElliottPackets(0.02, 0.1)
    slow = Channel(DelayModel(), model, "access", "up", 1)
    slow.epoch = 0.0
    assert [slow.fate(60.0 * i).lost for i in range(2000)] == pattern(model, 2000)
    assert not model.in_time and not model.memoryless
    assert slow.loss_at(3.0) == pytest.approx(model.mean_loss)
    assert slow.next_change(3.0) == math.inf
    assert slow.outages(0, 100) == []


def test_seeds_and_directions_of_the_states() -> None:
    model, n = GilbertElliottPackets(0.2, 0.3), 60_000
    up, down, other = (pattern(model, n, s, way) for s, way in ((5, "up"), (5, "down"), (6, "up")))
    assert pattern(model, n, 5) == up != other
    share = model.mean_loss
    for a, b in ((up, down), (up, other)):
        found = sum((x - share) * (y - share) for x, y in zip(a, b, strict=True)) / n
        # Correlated by 0.5^k over k packets each, so by 0.25^k their product: a factor of 5/3.
        assert abs(found / (share * (1 - share))) <= 5 * math.sqrt(5 / 3 / n)


@given(st.sets(st.integers(1, 200), max_size=40))
def test_a_drop_list_loses_exactly_its_numbers(numbers: set[int]) -> None:
    model = DropList(tuple(numbers))
    lost = pattern(model, 220)
    assert {i + 1 for i, fate in enumerate(lost) if fate} == numbers
    seen = runs(lost)
    assert model.mean_burst == (pytest.approx(sum(seen) / len(seen)) if seen else None)
    assert model.mean_loss == 0


def test_a_drop_list_counts_from_one_again_after_a_seed() -> None:
    channel = Channel(DelayModel(), DropList((2, 2, 1)), "access", "up", 0)
    assert [channel.fate(0.1 * i).lost for i in range(3)] == [True, True, False]
    channel.seed(9)
    assert [channel.fate(0.1 * i).lost for i in range(3)] == [True, True, False]


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(1, 5))
def test_a_fate_list_repeats_itself(fates: list[bool], rounds: int) -> None:
    model = FateList(tuple(fates))
    assert pattern(model, rounds * len(fates)) == fates * rounds
    assert model.mean_loss == pytest.approx(sum(fates) / len(fates))
    if any(fates) and not all(fates):
        turn = fates.index(False)  # cut where no burst is
        seen = runs(fates[turn:] + fates[:turn])
        assert model.mean_burst == pytest.approx(sum(seen) / len(seen))
    else:
        assert model.mean_burst == (math.inf if all(fates) else None)


def test_combined_losses_are_independent_of_each_other() -> None:
    n = 100_000
    two = Combined((Bernoulli(0.2), Bernoulli(0.2), GilbertElliottPackets(0.5, 0.5)))
    expected = 1 - 0.8 * 0.8 * 0.5
    assert two.mean_loss == pytest.approx(expected)
    assert abs(sum(pattern(two, n)) / n - expected) <= 5 * math.sqrt(0.25 / n)
    assert pattern(two, 1000, 1) == pattern(two, 1000, 1) != pattern(two, 1000, 2)


def test_each_part_of_a_combination_counts_every_packet() -> None:
    model = Combined((DropList((2, 5)), FateList((True, False, False))))
    assert pattern(model, 8) == [True, True, False, True, True, False, True, False]


def test_a_combination_joins_what_its_parts_know_of_time() -> None:
    model = Combined((Blackouts(1.0, 0.5), Gaps(((0.5, 1.25), (2.0, 2.25)))))
    channel = Channel(DelayModel(), model, "access", "up", 0)
    channel.epoch = 0.0
    assert channel.outages(0, 4) == [(0.5, 1.5), (2.0, 2.25), (2.5, 3.0)]
    rng = random.Random(1)
    for t in (rng.uniform(0, 4) for _ in range(200)):
        bad = any(start <= t < end for start, end in channel.outages(0, 4))
        assert channel.loss_at(t) == float(bad) == float(channel.fate(t).lost)
    assert model.in_time and model.memoryless
    assert not Combined((Gaps(((1, 2),)), Bernoulli(0.1))).in_time
    assert Combined((Gaps(((1, 2),)), Bernoulli(0.1))).memoryless
    assert not Combined((Gaps(((1, 2),)), DropList((1,)))).memoryless


def test_the_outages_of_a_part_do_not_depend_on_the_other_part() -> None:
    in_time = GilbertElliott(0.5, 0.1)
    spells = [
        Channel(DelayModel(), Combined((in_time, other)), "access", "up", 3).outages(0, 50)
        for other in (Bernoulli(0.5), DropList((1, 2)))
    ]
    assert spells[0] == spells[1] and len(spells[0]) > 20


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"model": "gilbert-elliott-packets", "p": 1.3, "r": 0.5}, "p must be a number from 0 to"),
        ({"model": "gilbert-elliott-packets", "p": 0, "r": 0}, "p and r must not both be 0"),
        ({"model": "gilbert-elliott-packets", "p": 0.1, "r": math.nan}, "r must be a number from"),
        ({"model": "gilbert-elliott-packets", "p": 0.1, "r": 0.1, "loss_bad": -1}, "not -1"),
        ({"model": "drop-list", "packets": [0]}, "packets must be whole numbers from 1 on, not 0"),
        ({"model": "drop-list", "packets": [1.5]}, "not 1.5"),
        ({"model": "drop-list", "packets": [True]}, "not True"),
        ({"model": "drop-list", "packets": 7}, "not 7"),
        ({"model": "fate-list", "fates": []}, "fates must hold at least one packet, not nothing"),
        ({"model": "fate-list", "fates": "0010"}, "0010"),
        ({"model": "fate-list", "fates": [False, "ok"]}, "'ok'"),
        ({"model": "fate-list", "fates": [0.5]}, "0.5"),
        ({"model": "fate-list", "fates": 7}, "not 7"),
        ({"model": "combined", "models": [{"model": "bernoulli", "loss": 0.1}]}, "at least two"),
        ({"model": "combined", "models": 3}, "x.models must be a list, not 3"),
        (
            {"model": "combined", "models": [{"model": "bernoulli", "loss": 2}] * 2},
            "x.models[0]: loss must be a number from 0 to 1, not 2",
        ),
    ],
)
def test_bad_values_are_named_in_one_line(data: dict[str, Any], line: str) -> None:
    with pytest.raises(ChannelError) as caught:
        loss_from_dict(data, "x")
    assert str(caught.value).startswith("x")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
