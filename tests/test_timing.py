"""Timing sources: seeded, sized as a model's tokens, and on average what the closed forms say."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.sources import SourceError, open_source
from apps.timing import TimingSource, names
from apps.timing.profile import FOLDER
from apps.timing.shapes import SHAPES, Preemption, Shape, Speculative, Vllm
from apps.trace import DEFAULT_TRACE, TraceSource


def _open(spec: str, seed: int = 0) -> TimingSource:
    source = open_source(f"timing:{spec}", seed=seed)
    assert isinstance(source, TimingSource)
    return source


def _times(spec: str, tokens: int, seed: int = 0, prompt: str = "why?") -> list[float]:
    return [at for at, _ in _open(spec).schedule(prompt, tokens, seed)[0]]


def _gaps(times: list[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise(times)]


def test_there_is_a_profile_of_each_kind() -> None:
    assert names() == sorted(SHAPES)
    for name in names():
        assert _open(name).profile.shape.kind == name


# -- what holds for all ------------------------------------------------------------------------


@pytest.mark.parametrize("name", names())
def test_same_seed_and_prompt_same_schedule(name: str) -> None:
    first = _open(name).schedule("why?", 300, 5)
    assert _open(name).schedule("why?", 300, 5) == first
    others = [_open(name).schedule("why?", 300, 6), _open(name).schedule("how?", 300, 5)]
    if name in ("vllm", "speculative", "preemption"):
        assert first not in others
        assert others[0] != others[1]
    else:
        assert others == [first, first]


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(names()),
    seed=st.integers(-(2**70), 2**70),
    prompt=st.text(),
    short=st.integers(1, 60),
    more=st.integers(0, 60),
)
def test_times_never_go_back_and_a_shorter_answer_is_a_beginning(
    name: str, seed: int, prompt: str, short: int, more: int
) -> None:
    source = _open(name)
    tokens, finish = source.schedule(prompt, short + more, seed)
    assert len(tokens) == short + more
    assert finish == "length"
    assert source.schedule(prompt, short, seed) == (tokens[:short], "length")
    times = [at for at, _ in tokens]
    assert times == sorted(times)
    assert times[0] >= 0
    assert math.isfinite(times[-1])


def test_bytes_are_those_of_the_shipped_trace_again_and_again() -> None:
    recorded = [data for _, data in TraceSource(DEFAULT_TRACE).tokens]
    tokens, _ = _open("steady").schedule("why?", 2 * len(recorded) + 3)
    assert [data for _, data in tokens] == recorded + recorded + recorded[:3]
    # The trace ends with a whole character, so that it may start again.
    b"".join(recorded).decode("utf-8")


@pytest.mark.parametrize("name", names())
def test_tokens_end_the_answer(name: str) -> None:
    source = _open(f"{name}:tokens=5")
    assert len(source.schedule("", 9)[0]) == 5
    assert [source.schedule("", n)[1] for n in (4, 5, 6)] == ["length", "stop", "stop"]
    with pytest.raises(SourceError, match="at least 1 token"):
        source.schedule("", 0)


@pytest.mark.parametrize("name", names())
def test_description_tells_everything_and_is_json(name: str) -> None:
    source = _open(f"{name}:first=0.5")
    about = json.loads(json.dumps(source.describe()))
    assert (about["source"], about["profile"]) == ("timing", name)
    assert Path(about["path"]) == FOLDER / f"{name}.toml"
    assert about["mean_spacing"] == source.profile.shape.mean_spacing()
    assert about["bytes"]["path"] == str(DEFAULT_TRACE)
    parameters = about["parameters"]
    assert parameters["first"] == {
        "value": 0.5,
        "unit": "s",
        "meaning": parameters["first"]["meaning"],
        "source": "the command line",
    }
    assert set(parameters) == set(source.profile.shape.parameters())
    for key, parameter in parameters.items():
        assert parameter["value"] == getattr(source.profile.shape, key)
        assert ("source" in parameter) + ("assumption" in parameter) == (key != "tokens")


def _mean_spacing(shape: Shape, tokens: int, seed: int) -> float:
    """Seconds per token of one long answer, from its first step to its last."""
    steps = shape.steps(random.Random(seed))
    start, given = next(steps)
    count = 0
    for at, given in steps:
        count += given
        if count >= tokens:
            return (at - start) / count
    raise AssertionError


CASES = [
    *names(),
    "steady:per_step=4",
    "vllm:others=3:length=20",
    "vllm:others=200:length=500:prefill=0",
    "vllm:others=0",
    "vllm:length=1",
    "speculative:alpha=0.5:gamma=3",
    "speculative:alpha=0",
    "speculative:alpha=1:gamma=2",
    "speculative:gamma=0",
    "preemption:pause=5",
    "preemption:pause=0",
    "preemption:levels=1",
    "preemption:ratio=1:first=9",
    "offloading:batch=144:throughput=7.32",
]


@pytest.mark.parametrize("spec", CASES)
def test_long_run_mean_is_the_closed_form(spec: str) -> None:
    """Eight answers of 20,000 tokens: their mean within 5 standard errors, plus rounding."""
    shape = _open(spec).profile.shape
    means = [_mean_spacing(shape, 20_000, seed) for seed in range(8)]
    error = statistics.stdev(means) / math.sqrt(len(means))
    # Preemption's slices are shorter at first: a few hundred of 20,000 tokens are not the long run.
    slack = 2e-3 if spec.startswith("preemption") else 1e-9
    expected = shape.mean_spacing()
    assert statistics.fmean(means) == pytest.approx(expected, abs=5 * error + slack * expected)
    assert error < 0.02 * expected


# -- each shape --------------------------------------------------------------------------------


def test_steady_is_exactly_one_token_per_spacing() -> None:
    source = _open("steady:first=0.2:spacing=0.045:tokens=400")
    tokens, finish = source.schedule("why?", 1000)
    assert finish == "stop"
    assert [at for at, _ in tokens] == [0.2 + i * 0.045 for i in range(400)]
    bursts = _times("steady:first=0:spacing=0.5:per_step=3", 7)
    assert bursts == [0, 0, 0, 0.5, 0.5, 0.5, 1.0]


def test_vllm_follows_the_batch() -> None:
    shape = _open("vllm:others=20:length=50:base=0.03:per_sequence=0.001:prefill=0").profile.shape
    assert isinstance(shape, Vllm)
    steps = shape.steps(random.Random(1))
    times = [next(steps)[0] for _ in range(40_000)]
    batch = [round((gap - 0.03) / 0.001) - 1 for gap in _gaps(times)]
    # Poisson: variance = mean; and the autocorrelation falls by 1 - 1/length with each step.
    mean, variance = statistics.fmean(batch), statistics.pvariance(batch)
    assert mean == pytest.approx(20, rel=0.05)
    assert variance == pytest.approx(20, rel=0.15)
    later = [(a - mean) * (b - mean) for a, b in zip(batch, batch[25:], strict=False)]
    assert statistics.fmean(later) / variance == pytest.approx((1 - 1 / 50) ** 25, abs=0.1)


def test_vllm_s_first_batch_is_that_of_any_moment() -> None:
    spec = "vllm:others=12:length=1000:base=0.03:per_sequence=0.001:prefill=0:first=0"
    second = [_times(spec, 2, seed)[1] for seed in range(1500)]
    assert statistics.fmean(second) == pytest.approx(0.03 + 0.001 * 13, abs=0.0005)


def test_vllm_stalls_when_a_prompt_is_read() -> None:
    quiet = "vllm:others=10:length=100:base=0.03:per_sequence=0"
    gaps = _gaps(_times(f"{quiet}:prefill=1", 20_000))
    arrivals = [round(gap - 0.03, 6) for gap in gaps]
    assert set(arrivals) <= {0.0, 1.0, 2.0, 3.0, 4.0}
    # others / length = 0.1 prompts a step, and a Poisson number: e**-0.1 of the steps without.
    assert statistics.fmean(arrivals) == pytest.approx(0.1, rel=0.1)
    assert arrivals.count(0.0) / len(arrivals) == pytest.approx(math.exp(-0.1), abs=0.01)


def test_speculative_bursts_have_leviathan_s_distribution() -> None:
    alpha, gamma, cost = 0.6, 4, 0.1
    source = _open(f"speculative:alpha={alpha}:gamma={gamma}:cost={cost}:spacing=0.05:first=0")
    shape = source.profile.shape
    assert isinstance(shape, Speculative)
    times = [at for at, _ in source.schedule("why?", 60_000, 2)[0]]
    bursts = [len(list(burst)) for _, burst in itertools.groupby(times)]
    assert bursts[0] == 1  # reading the prompt
    bursts = bursts[1:-1]
    assert statistics.fmean(bursts) == pytest.approx(shape.mean_tokens(), rel=0.01)
    assert shape.mean_tokens() == pytest.approx((1 - alpha**5) / (1 - alpha))
    for tokens in range(1, gamma + 1):
        share = bursts.count(tokens) / len(bursts)
        assert share == pytest.approx(alpha ** (tokens - 1) * (1 - alpha), abs=0.01)
    assert bursts.count(gamma + 1) / len(bursts) == pytest.approx(alpha**gamma, abs=0.01)
    steps = _gaps(sorted(set(times)))
    assert steps == pytest.approx([0.05 * (1 + gamma * cost)] * len(steps))


def test_speculative_profile_has_the_speed_that_its_source_expects() -> None:
    """The expected improvement that the paper states for this row: 3.2 times."""
    shape = _open("speculative").profile.shape
    assert isinstance(shape, Speculative)
    assert shape.spacing / shape.mean_spacing() == pytest.approx(3.2, abs=0.05)


def test_preemption_pauses_at_the_ends_of_slices() -> None:
    spec = "preemption:first=0.01:spacing=0.03:quantum=0.02:ratio=2:levels=4:pause=1:starve=3"
    source = _open(spec)
    shape = source.profile.shape
    assert isinstance(shape, Preemption)
    # Slices of 20, 40, 80, 160 ms are overrun by steps of 30 ms with the 1st, 2nd, 3rd, 6th.
    slices = [shape.slice_steps(level) for level in range(4)]
    assert slices == [1, 2, 3, 6]
    gaps = _gaps([at for at, _ in source.schedule("why?", 40, 1)[0]])
    preempted = [i + 1 for i, gap in enumerate(gaps) if gap > 0.03 + 1e-9]
    assert preempted == [1, 3, 6, 12, 18, 24, 30, 36]
    assert [gap for gap in gaps if gap < 0.03 + 1e-9] == pytest.approx([0.03] * (39 - 8))
    assert max(gaps) <= 3.03 + 1e-9


def test_preemption_joins_where_its_prompt_fits() -> None:
    spec = "preemption:spacing=0.03:quantum=0.02:ratio=2:levels=4:pause=1"
    for first, steps in ((0.02, 1), (0.021, 2), (0.08, 3), (0.1, 6), (99, 6)):
        gaps = _gaps(_times(f"{spec}:first={first}", 20))
        assert next(i for i, gap in enumerate(gaps, start=1) if gap > 0.03 + 1e-9) == steps


def test_no_pause_is_longer_than_starvation_allows() -> None:
    shape = _open("preemption:pause=2:starve=3:levels=1").profile.shape
    assert isinstance(shape, Preemption)
    times = [at for at, _ in itertools.islice(shape.steps(random.Random(1)), 20_000)]
    pauses = [gap - shape.spacing for gap in _gaps(times)]
    assert max(pauses) == pytest.approx(3)
    assert sum(p > 2.999 for p in pauses) / len(pauses) == pytest.approx(math.exp(-1.5), abs=0.02)
    assert statistics.fmean(pauses) == pytest.approx(shape.mean_pause(), rel=0.03)


def test_offloading_takes_seconds_for_each_token() -> None:
    gaps = _gaps(_times("offloading", 50))
    assert gaps == pytest.approx([16 / 9.28] * 49)
    assert min(gaps) > 1


def test_reasoning_is_silent_and_then_steady() -> None:
    times = _times("reasoning:first=0.5:silence=20:spacing=0.03", 50)
    assert times[0] == 20.5
    assert _gaps(times) == pytest.approx([0.03] * 49)
    assert _times("reasoning", 1)[0] > 20
