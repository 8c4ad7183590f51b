"""Delay models: constant, jitter, order, records. Tolerances are 5 standard errors.

That normal jitter is normal and cut at zero is in test_channel.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topologies.channel import Bernoulli, Channel, ChannelError, DelayModel, DelayTrace
from topologies.profile import Direction, ProfileError

N = 60_000
TIMES = st.lists(st.floats(0, 0.05), min_size=1, max_size=60).map(
    lambda gaps: list(itertools.accumulate(gaps))
)
MODELS = st.builds(
    DelayModel,
    st.floats(0, 0.1),
    st.floats(0, 0.2),
    st.sampled_from(["normal", "pareto"]),
    st.booleans(),
    clamp=st.just(True),
)


def make(model: DelayModel, seed: int = 1, direction: str = "up") -> Channel:
    channel = Channel(model, None, "access", direction, seed)
    channel.epoch = 0.0
    return channel


def delays(model: DelayModel, n: int = N, seed: int = 1, direction: str = "up") -> list[float]:
    """Of frames so far apart that none waits for another."""
    channel = make(model, seed, direction)
    return [channel.fate(10.0 * i).due - 10.0 * i for i in range(n)]


def mean_of(values: list[float]) -> tuple[float, float]:
    """Mean and its standard error."""
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    return mean, math.sqrt(variance / len(values))


def pareto_mean(delay: float, jitter: float) -> float:
    """By the midpoint rule over the quantiles of a Pareto distribution of shape 3."""
    n = 100_000
    quantiles = ((1 - (i + 0.5) / n) ** (-1 / 3) for i in range(n))
    return sum(max(0.0, delay + jitter * min(4 / 3 * (x - 1.5), 4.0)) for x in quantiles) / n


def test_normal_jitter_keeps_mean_and_deviation() -> None:
    seen = delays(DelayModel(0.05, 0.01))  # 5 sigma from 0: nothing is cut
    mean, error = mean_of(seen)
    assert abs(mean - 0.05) <= 5 * error
    # Of a normal distribution: standard error of the deviation = sigma / sqrt(2 n).
    assert abs(error * math.sqrt(N) - 0.01) <= 5 * 0.01 / math.sqrt(2 * N)
    later = sum((a - mean) * (b - mean) for a, b in itertools.pairwise(seen)) / N / 1e-4
    assert abs(later) <= 5 / math.sqrt(N)  # no memory


def test_pareto_jitter_has_the_quantiles_of_its_distribution() -> None:
    deviations = [(delay - 0.1) / 0.02 for delay in delays(DelayModel(0.1, 0.02, "pareto"))]
    assert min(deviations) >= -2 / 3 - 1e-6
    assert max(deviations) == pytest.approx(4.0)
    for x in (1.05, 1.2, 1.5, 2.0, 4.0):
        expected = x**-3
        share = sum(deviation > 4 / 3 * (x - 1.5) for deviation in deviations) / N
        assert abs(share - expected) <= 5 * math.sqrt(expected * (1 - expected) / N)
    at_most = sum(deviation > 4 - 1e-6 for deviation in deviations) / N
    assert abs(at_most - 4.5**-3) <= 5 * math.sqrt(4.5**-3 / N)


@pytest.mark.parametrize(("delay", "jitter"), [(0.1, 0.02), (0.02, 0.02), (0.01, 0.05), (0, 0.01)])
def test_the_mean_under_pareto_jitter(delay: float, jitter: float) -> None:
    model = DelayModel(delay, jitter, "pareto", clamp=True)
    assert model.mean_delay == pytest.approx(pareto_mean(delay, jitter), rel=1e-3)
    mean, error = mean_of(delays(model))
    assert abs(mean - model.mean_delay) <= 5 * error


@pytest.mark.parametrize(("delay", "jitter"), [(0.01, 0.02), (0.0, 0.01)])
def test_the_mean_when_normal_draws_are_clamped(delay: float, jitter: float) -> None:
    model = DelayModel(delay, jitter, clamp=True)
    mean, error = mean_of(delays(model))
    assert abs(mean - model.mean_delay) <= 5 * error
    # E max(0, d + j Z), as a sum over the density.
    step = 1e-3
    grid = (i * step for i in range(-8000, 8001))
    density = ((max(0.0, delay + jitter * z), math.exp(-z * z / 2)) for z in grid)
    expected = sum(value * weight for value, weight in density) * step / math.sqrt(2 * math.pi)
    assert model.mean_delay == pytest.approx(expected, rel=1e-4)


@given(MODELS, TIMES, st.integers(0, 1000))
def test_a_delay_is_never_negative(model: DelayModel, times: list[float], seed: int) -> None:
    channel = make(model, seed)
    assert all(channel.fate(now).due >= now for now in times)


@given(MODELS, TIMES, st.integers(0, 1000))
def test_without_reorder_each_frame_waits_for_the_ones_before(
    model: DelayModel, times: list[float], seed: int
) -> None:
    free, ordered = (
        make(DelayModel(model.delay, model.jitter, model.distribution, reorder, True), seed)
        for reorder in (True, False)
    )
    drawn = [free.fate(now).due for now in times]
    assert [ordered.fate(now).due for now in times] == list(itertools.accumulate(drawn, max))


def test_with_reorder_frames_overtake() -> None:
    channel = make(DelayModel(0.02, 0.01, reorder=True))
    dues = [channel.fate(0.001 * i).due for i in range(5000)]
    overtaken = sum(b < a for a, b in itertools.pairwise(dues)) / 4999
    # The difference of two draws is normal with deviation 10 sqrt(2) ms: P(it exceeds 1 ms).
    expected = 0.5 * math.erfc(1 / (10 * math.sqrt(2)) / math.sqrt(2))
    assert abs(overtaken - expected) <= 5 * math.sqrt(0.25 / 4999)


def test_seeds_and_directions_of_the_jitter() -> None:
    model = DelayModel(0.05, 0.01)
    up, down, other = (delays(model, 20_000, s, d) for s, d in ((1, "up"), (1, "down"), (2, "up")))
    assert up == delays(model, 20_000) != other
    for pair in (down, other):
        product = sum((a - 0.05) * (b - 0.05) for a, b in zip(up, pair, strict=True)) / 20_000
        assert abs(product / 1e-4) <= 5 / math.sqrt(20_000)


def test_a_lost_frame_draws_its_delay_too() -> None:
    model = DelayModel(0.02, 0.005)
    lossy = Channel(model, Bernoulli(0.5), "access", "up", 1)
    fates = [lossy.fate(10.0 * i) for i in range(1000)]
    assert 400 < sum(fate.lost for fate in fates) < 600
    assert [fate.due - 10.0 * i for i, fate in enumerate(fates)] == delays(model, 1000)


def record(folder: Path, text: str) -> DelayTrace:
    path = folder / "delay.csv"
    path.write_text(text)
    return DelayTrace(str(path))


def test_a_recorded_delay_is_played_and_starts_again(tmp_path: Path) -> None:
    trace = record(tmp_path, "time,delay\n5,0.01\n6,0.05\n# slow\n8,0.02\n")
    assert trace.length == 5  # the last line holds as long as the one before it
    assert trace.mean_delay == pytest.approx((1 * 0.01 + 2 * 0.05 + 2 * 0.02) / 5)
    channel = make(DelayModel(trace=trace, reorder=True))
    for t, delay in ((0, 0.01), (0.99, 0.01), (1, 0.05), (2.5, 0.05), (3, 0.02), (4.9, 0.02)):
        for rounds in (0, 1, 7):
            assert channel.fate(t + 5 * rounds).due == pytest.approx(t + 5 * rounds + delay)
    channel.epoch = None
    assert channel.fate(3.0).due == pytest.approx(3.01)  # before time 0 the first one
    channel.epoch = 100.0
    assert channel.fate(101.0).due == pytest.approx(101.05)
    assert not DelayModel(trace=trace).constant


def test_a_falling_delay_does_not_reorder(tmp_path: Path) -> None:
    trace = record(tmp_path, "0,0.5\n1,0.01\n9,0.01\n")
    channel = make(DelayModel(trace=trace))
    assert channel.fate(0.9).due == pytest.approx(1.4)
    assert channel.fate(1.1).due == pytest.approx(1.4)
    assert channel.fate(1.5).due == pytest.approx(1.51)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(1, 999), st.floats(0, 2)), min_size=2, max_size=20),
    st.floats(0, 1e4),
)
def test_a_record_gives_the_delay_of_the_last_line_before(
    tmp_path: Path, steps: list[tuple[int, float]], t: float
) -> None:
    times = list(itertools.accumulate(length / 8 for length, _ in steps))  # exact in binary
    lines = (f"{at!r},{delay!r}\n" for at, (_, delay) in zip(times, steps, strict=True))
    trace = record(tmp_path, "".join(lines))
    length = times[-1] - times[0] + times[-1] - times[-2]
    rest = t % length + times[0]
    expected = [delay for at, (_, delay) in zip(times, steps, strict=True) if at <= rest][-1]
    assert trace.delay_at(t) == expected
    assert min(trace.delays) - 1e-12 <= trace.mean_delay <= max(trace.delays) + 1e-12


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: DelayModel(math.nan), "delay must be a number at least 0, not nan"),
        (lambda: DelayModel(math.inf), "delay must be a number at least 0, not inf"),
        (lambda: DelayModel(0.02, -0.001), "jitter must be a number at least 0, not -0.001"),
        (lambda: DelayModel(0.02, math.nan), "jitter must be a number at least 0, not nan"),
        (lambda: DelayModel(0.02, 0.01, "uniform"), "one of normal, pareto, not 'uniform'"),
        (lambda: DelayModel(0.02, 0.03, "pareto"), "jitter (0.03 s) must not exceed delay (0.02 s"),
    ],
)
def test_bad_values_are_named(build: Callable[[], DelayModel], words: str) -> None:
    with pytest.raises(ChannelError) as caught:
        build()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", None, "the trace is empty: it needs at least two lines"),
        ("time,delay\n0,0.01\n", None, "the trace is empty: it needs at least two lines"),
        ("0,0.01\n2,0.02\n1,0.03\n", 3, "time goes back, from 2 to 1 s"),
        ("0,0.01\n0,0.02\n", 2, "time goes back, from 0 to 0 s"),
        ("0,0.01\n1,-0.02\n", 2, "delay must be a number of at least 0, not '-0.02'"),
        ("0,nan\n1,0.02\n", 1, "delay must be a number of at least 0, not 'nan'"),
        ("nan,0.01\n1,0.02\n2,0.02\n", 1, "time must be a number of at least 0, not 'nan'"),
        ("0,inf\n1,0.02\n", 1, "delay must be a number of at least 0, not 'inf'"),
        ("0,0.01\n1\n", 2, "2 fields expected, not '1'"),
        ("0,0.01\n1," + "x" * 140_000 + "\n", 2, ""),
    ],
)
def test_a_bad_record_is_named_with_its_line(
    tmp_path: Path, text: str, line: int | None, words: str
) -> None:
    with pytest.raises(ChannelError) as caught:
        record(tmp_path, text)
    place = tmp_path / "delay.csv"
    assert str(caught.value).startswith(f"{place}:{line}: " if line else f"{place}: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"delay_trace": {"file": 5}}, "5"),
        ({"delay_trace": "delay.csv"}, "delay_trace must be an object, not 'delay.csv'"),
        ({"reorder": "false"}, "'false'"),
        ({"clamp": 1}, "clamp"),
        ({"delay": math.nan}, "delay must be a number at least 0, not nan"),
        ({"delay": 0.01, "jitter": 0.02}, "jitter (0.02 s) must not exceed delay (0.01 s)"),
    ],
)
def test_a_bad_direction_is_named_with_its_place(data: dict[str, Any], words: str) -> None:
    with pytest.raises(ProfileError) as caught:
        Direction.from_dict(data, "access.up")
    assert str(caught.value).startswith("access.up")
    assert words in str(caught.value)


def test_a_record_and_a_delay_exclude_each_other(tmp_path: Path) -> None:
    trace = record(tmp_path, "0,0.01\n1,0.02\n")
    with pytest.raises(ChannelError, match="delay and a delay trace exclude each other"):
        DelayModel(0.01, trace=trace)
    assert Direction.from_dict(Direction(delay_trace=trace).to_dict()).delay_trace == trace
