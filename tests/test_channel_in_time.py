"""Loss models in time: means, seeds, pairing, and the walk along their changes.

Tolerances are 5 standard errors, worked out beside each test. What test_channel.py shows for
GilbertElliott (its closed forms, the window of outages) is not repeated.
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.channel import (
    Blackouts,
    Channel,
    ChannelError,
    DelayModel,
    Gaps,
    GilbertElliott,
    LossModel,
    ParetoOutages,
    loss_from_dict,
    loss_to_dict,
)

MODELS = [
    GilbertElliott(0.5, 0.1),
    GilbertElliott(0.4, 0.2, 0.05, 0.9),
    ParetoOutages(0.5, 0.1, 1.5),
    ParetoOutages(0.5, 0.2, 3.0),
    Blackouts(0.2, 0.1),
    Blackouts(1.0, 0.3),
    Gaps(((0.0, 0.25), (1.0, 1.5), (1.5, 1.7), (9.0, 9.1))),
]
RANDOM = MODELS[:4]


def make(model: LossModel, seed: int = 1, direction: str = "up") -> Channel:
    channel = Channel(DelayModel(0.01), model, "access", direction, seed)
    channel.epoch = 0.0
    return channel


def lengths(model: LossModel, seconds: float, seed: int = 1) -> list[float]:
    """Of the outages that are whole within the time."""
    spells = make(model, seed).outages(0, seconds)
    return [end - start for start, end in spells if start > 0 and end < seconds]


@pytest.mark.parametrize("shape", [2.5, 3.0, 5.0])
def test_pareto_outages_keep_their_means(shape: float) -> None:
    model, seconds = ParetoOutages(0.5, 0.1, shape), 10_000.0
    seen = lengths(model, seconds)
    # By hand: Pareto from m on has mean a m / (a - 1) and variance a m^2 / ((a-1)^2 (a-2)).
    least = 0.1 * (shape - 1) / shape
    deviation = least * math.sqrt(shape / (shape - 2)) / (shape - 1)
    assert model.shortest == pytest.approx(least)
    assert min(seen) >= least * (1 - 1e-9)
    assert abs(sum(seen) / len(seen) - model.mean_outage) <= 5 * deviation / math.sqrt(len(seen))
    # Renewal theory: over T seconds the share of time bad has the variance
    # (good^2 Var(bad) + bad^2 Var(good)) / ((good + bad)^3 T).
    variance = ((0.5 * deviation) ** 2 + (0.1 * 0.5) ** 2) / 0.6**3 / seconds
    share = sum(end - start for start, end in make(model).outages(0, seconds)) / seconds
    assert abs(share - 0.1 / 0.6) <= 5 * math.sqrt(variance)
    assert model.mean_loss == pytest.approx(0.1 / 0.6)


def test_pareto_outages_have_a_heavy_tail() -> None:
    model = ParetoOutages(0.5, 0.1, 1.5)
    seen = lengths(model, 20_000)
    for times in (2, 5, 20):
        expected = times**-1.5
        share = sum(length > times * model.shortest for length in seen) / len(seen)
        assert abs(share - expected) <= 5 * math.sqrt(expected * (1 - expected) / len(seen))


@pytest.mark.parametrize("t", [0.0, 0.13, 2.0])
def test_the_expected_loss_is_the_mean_at_every_moment(t: float) -> None:
    n = 4000
    for model in RANDOM:
        seen = sum(make(model, seed).loss_at(t) for seed in range(n)) / n
        assert abs(seen - model.mean_loss) <= 5 * math.sqrt(0.25 / n)


@pytest.mark.parametrize("shape", [1.5, 3.0])
def test_an_outage_at_the_start_has_the_rest_of_one_before_it(shape: float) -> None:
    model = ParetoOutages(0.1, 0.4, shape)
    rests = []
    for seed in range(2500):
        channel = make(model, seed)
        if channel.loss_at(0.0):
            rests.append(channel.next_change(0.0))
    for x in (0.05, 0.2, 1.0):
        # P(rest > x) = integral from x of P(length > y) dy / mean length, as a sum.
        step = 1e-3
        steps = (i * step + step / 2 for i in range(int(x / step)))
        survives = [min(1.0, (model.shortest / y) ** shape) for y in steps]
        expected = 1 - sum(survives) * step / 0.4
        share = sum(rest > x for rest in rests) / len(rests)
        assert abs(share - expected) <= 5 * math.sqrt(0.25 / len(rests)) + 1e-3


@pytest.mark.parametrize("model", RANDOM)
def test_same_seed_same_outages_other_seed_other_outages(model: LossModel) -> None:
    assert make(model, 3).outages(0, 50) == make(model, 3).outages(0, 50)
    assert make(model, 3).outages(0, 50) != make(model, 4).outages(0, 50)
    assert make(model, 3).outages(0, 50) != make(model, 3, "down").outages(0, 50)


@pytest.mark.parametrize("model", MODELS[4:])
def test_schedules_are_the_same_for_all_seeds_and_directions(model: LossModel) -> None:
    assert make(model, 3).outages(0, 50) == make(model, 4, "down").outages(0, 50)


@pytest.mark.parametrize("model", [GilbertElliott(0.4, 0.2), ParetoOutages(0.4, 0.2, 4.0)])
def test_the_outages_of_the_two_directions_are_independent(model: LossModel) -> None:
    seconds, step = 2000.0, 0.02
    up, down = make(model, 5), make(model, 5, "down")
    times = [i * step for i in range(int(seconds / step))]
    a, b = ([channel.loss_at(t) for t in times] for channel in (up, down))
    m = model.mean_loss
    found = sum((x - m) * (y - m) for x, y in zip(a, b, strict=True)) / len(times) / (m * (1 - m))
    # Each state's autocorrelation falls as exp(-k t), k = 1/0.4 + 1/0.2: variance 1 / (k T). A
    # Pareto stay of shape 4 varies less than an exponential one.
    assert abs(found) <= 5 / math.sqrt(7.5 * seconds)


@pytest.mark.parametrize("model", MODELS)
def test_a_senders_own_traffic_does_not_change_its_outages(model: LossModel) -> None:
    quiet, busy = make(model, 6), make(model, 6)
    rng = random.Random(0)
    for i in range(300):
        t = 0.05 * i
        quiet.fate(t)
        for _ in range(rng.randrange(40)):
            busy.fate(t + 0.04 * rng.random())
    assert quiet.outages(0, 15) == busy.outages(0, 15)
    # Whoever sends at a moment meets the same state, asked in any order.
    moments = [rng.uniform(0, 30) for _ in range(1000)]
    assert [quiet.loss_at(t) for t in moments] == [busy.loss_at(t) for t in reversed(moments)][::-1]


def test_two_senders_lose_the_same_moments() -> None:
    model = ParetoOutages(0.3, 0.1)
    dense, sparse = make(model, 2), make(model, 2)
    lost = {i: dense.fate(i * 0.001).lost for i in range(20_000)}
    assert all(sparse.fate(i * 0.001).lost == lost[i] for i in range(0, 20_000, 7))


@pytest.mark.parametrize("model", MODELS)
def test_next_change_always_moves_on_and_names_the_edges_of_the_outages(model: LossModel) -> None:
    channel = make(model, 7)
    t, edges = 0.0, []
    for _ in range(400):
        last, t = t, channel.next_change(t)
        assert t > last
        if t == math.inf:
            break
        edges.append(t)
        assert channel.loss_at(t) != channel.loss_at(math.nextafter(t, -1))
    spells = channel.outages(0, edges[-1])
    assert {edge for spell in spells for edge in spell} - {0.0} <= set(edges)


@given(st.floats(0.001, 100), st.floats(0.001, 100), st.integers(0, 10_000))
def test_blackouts_come_every_period(on: float, off: float, rounds: int) -> None:
    model, period = Blackouts(on, off), on + off
    channel = make(model)
    assert model.mean_loss == pytest.approx(off / period)
    assert model.mean_outage == off
    assert not channel.fate((rounds + 0.5 * on / period) * period).lost
    assert channel.fate((rounds + (on + 0.5 * off) / period) * period).lost
    t = rounds * period
    for _ in range(6):
        last, t = t, channel.next_change(t)
        assert last < t <= last + max(on, off) * (1 + 1e-6) + 1e-6


def test_blackouts_over_whole_periods_take_exactly_their_share() -> None:
    spells = make(Blackouts(0.2, 0.1)).outages(0, 30)
    assert len(spells) == 100
    assert sum(end - start for start, end in spells) == pytest.approx(10.0)
    for number, (start, end) in enumerate(spells):
        assert (start, end) == pytest.approx((0.3 * number + 0.2, 0.3 * number + 0.3))


SPELLS = st.lists(st.integers(1, 5000), min_size=2, max_size=20, unique=True)


@given(SPELLS)
def test_gaps_lose_exactly_what_they_say(edges: list[int]) -> None:
    ticks = sorted(edges)[: len(edges) // 2 * 2]
    spells = tuple((a / 100, b / 100) for a, b in zip(ticks[::2], ticks[1::2], strict=True))
    channel = make(Gaps(spells))
    for tick in range(0, ticks[-1] + 3, 7):
        t = tick / 100
        assert channel.fate(t).lost == any(start <= t < end for start, end in spells)
    assert channel.outages(0, 1e9) == list(spells)
    assert Gaps(spells).mean_outage == pytest.approx(
        (sum(ticks[1::2]) - sum(ticks[::2])) / 100 / len(spells)
    )
    assert Gaps(spells).mean_loss == 0
    assert channel.next_change(spells[-1][1]) == math.inf


def test_gaps_that_touch_are_one_outage() -> None:
    model = Gaps(((0.0, 0.25), (1.0, 1.5), (1.5, 1.75)))
    assert make(model).outages(0, 10) == [(0.0, 0.25), (1.0, 1.75)]
    assert make(model).outages(0.1, 1.25) == [(0.1, 0.25), (1.0, 1.25)]
    assert make(model).next_change(1.0) == 1.75


@pytest.mark.parametrize("model", MODELS)
def test_models_in_time_go_through_json_and_call_themselves_so(model: LossModel) -> None:
    assert loss_from_dict(loss_to_dict(model), "x") == model
    assert model.in_time and model.memoryless
    assert model.mean_burst is None
    assert make(model).loss_at(-math.inf) == make(model).loss_at(-1e-9) == 0


@pytest.mark.parametrize(
    ("name", "values", "line"),
    [
        ("gilbert-elliott-time", {"mean_good": math.nan, "mean_bad": 1}, "mean_good must be a"),
        ("gilbert-elliott-time", {"mean_good": 1, "mean_bad": -1}, "0.001, not -1"),
        ("pareto-outages", {"mean_good": 1, "mean_bad": 1, "shape": 1}, "from 1.05 to 100, not 1"),
        ("pareto-outages", {"mean_good": 1, "mean_bad": math.inf}, "mean_bad must be a number"),
        ("blackouts", {"on": 0, "off": 1}, "on must be a number at least 0.001, not 0"),
        ("blackouts", {"on": 1, "off": math.nan}, "off must be a number at least 0.001, not nan"),
        ("gaps", {"spells": []}, "spells must hold at least one (start, end), not nothing"),
        ("gaps", {"spells": [[1, 2], [1.5, 3]]}, "start of a spell must be a number at least 2"),
        ("gaps", {"spells": [[2, 1]]}, "end of a spell must be a number at least 2.001, not 1"),
        ("gaps", {"spells": [[-1, 1]]}, "start of a spell must be a number at least 0, not -1"),
        ("gaps", {"spells": [[0, math.nan]]}, "end of a spell must be a number at least 0.001"),
        ("gaps", {"spells": [[1, 2, 3]]}, "each of spells must be (start, end), not [1, 2, 3]"),
        ("gaps", {"spells": 5}, "not 5"),
    ],
)
def test_bad_values_are_named_in_one_line(name: str, values: dict[str, Any], line: str) -> None:
    with pytest.raises(ChannelError) as caught:
        loss_from_dict({"model": name} | values, "access.up.loss")
    assert str(caught.value).startswith("access.up.loss: ")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
