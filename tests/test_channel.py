"""Channel models against their closed forms. All seeds are fixed: no test here is a matter of luck.

Tolerances are 4 standard errors of the estimate, worked out beside each test.
"""

from __future__ import annotations

import itertools
import math
import random

import pytest

from topologies.channel import Bernoulli, Channel, ChannelError, DelayModel, GilbertElliott, subseed

SMOOTH = DelayModel(0.02)


def make(loss=None, delay=SMOOTH, seed=1, link="access", direction="up") -> Channel:
    return Channel(delay, loss, link, direction, seed)


def fates(channel: Channel, n: int, spacing: float, epoch: float | None = 0.0) -> list[bool]:
    channel.epoch = epoch
    return [channel.fate(i * spacing).lost for i in range(n)]


def share_bad(channel: Channel, seconds: float) -> float:
    return sum(end - start for start, end in channel.outages(0, seconds)) / seconds


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.1, 0.5, 1.0])
def test_independent_loss_has_its_rate(loss):
    n = 100_000
    lost = sum(fates(make(Bernoulli(loss)), n, 0.001))
    assert abs(lost / n - loss) <= 4 * math.sqrt(loss * (1 - loss) / n)


def test_over_many_seeds_losses_are_binomial():
    n, seeds = 500, 2000
    scores = []
    for seed in range(seeds):
        lost = sum(fates(make(Bernoulli(0.1), seed=seed), n, 0.001))
        scores.append((lost - 0.1 * n) / math.sqrt(0.1 * 0.9 * n))
    mean = sum(scores) / seeds
    variance = sum(score**2 for score in scores) / seeds
    # Of a standard normal: error of the mean 1 / sqrt(seeds), of the variance sqrt(2 / seeds).
    assert abs(mean) <= 4 / math.sqrt(seeds)
    assert abs(variance - 1) <= 4 * math.sqrt(2 / seeds)
    # 0.27% lie beyond 3 sigma; a bound for the count of 5.4 expected, at 4 sigma.
    assert sum(abs(score) > 3 for score in scores) <= 5.4 + 4 * math.sqrt(5.4)


def test_independent_losses_have_geometric_runs():
    pattern = fates(make(Bernoulli(0.3)), 100_000, 0.001)
    # P(lost | the one before was lost) = 0.3 as well: no memory.
    after_loss = [b for a, b in itertools.pairwise(pattern) if a]
    error = math.sqrt(0.3 * 0.7 / len(after_loss))
    assert abs(sum(after_loss) / len(after_loss) - 0.3) <= 4 * error


@pytest.mark.parametrize(
    "model",
    [
        GilbertElliott(1.8, 0.2),
        GilbertElliott(0.5, 0.05),
        GilbertElliott(3.0, 0.5, 0.01, 0.8),
    ],
)
def test_gilbert_elliott_keeps_its_closed_forms(model):
    seconds = 20_000
    channel = make(model)
    spells = channel.outages(0, seconds)
    lengths = [end - start for start, end in spells]
    # Exponential stays: standard error of the mean = mean / sqrt(n).
    mean = sum(lengths) / len(lengths)
    assert abs(mean - model.mean_outage) <= 4 * model.mean_outage / math.sqrt(len(lengths))
    # Share of time in the bad state of a two-state process over T seconds:
    # variance = 2 g b (g b / (g + b)) / ((g + b)^2 T) for means g and b.
    good, bad = model.mean_good, model.mean_bad
    variance = 2 * (good * bad) ** 2 / (good + bad) ** 3 / seconds
    assert abs(share_bad(channel, seconds) - bad / (good + bad)) <= 4 * math.sqrt(variance)
    # Frames every 10 ms: the states' error and that of the draws within them.
    pattern = fates(channel, seconds * 20, 0.05)
    error = math.sqrt(variance + 0.25 / len(pattern))
    assert abs(sum(pattern) / len(pattern) - model.mean_loss) <= 4 * error


def test_closed_forms():
    # By hand: bad for 0.5 of 3.5 s, so (3 * 0.01 + 0.5 * 0.8) / 3.5.
    assert GilbertElliott(3.0, 0.5, 0.01, 0.8).mean_loss == pytest.approx(0.43 / 3.5)
    assert GilbertElliott(1.8, 0.2).mean_outage == 0.2
    assert Bernoulli(0.1).mean_loss == 0.1
    assert Bernoulli(0.1).mean_outage == 0


def test_stays_are_exponential():
    stays = [end - start for start, end in make(GilbertElliott(1.0, 0.2)).outages(0, 10_000)]
    for multiple in (0.5, 1, 2, 3):
        expected = math.exp(-multiple)
        share = sum(stay > multiple * 0.2 for stay in stays) / len(stays)
        assert abs(share - expected) <= 4 * math.sqrt(expected * (1 - expected) / len(stays))


def test_the_first_state_is_stationary():
    n = 4000
    bad = sum(make(GilbertElliott(0.7, 0.3), seed=seed).loss_at(0) for seed in range(n))
    assert abs(bad / n - 0.3) <= 4 * math.sqrt(0.3 * 0.7 / n)


def test_frames_are_lost_exactly_in_the_outages():
    channel = make(GilbertElliott(0.5, 0.1))
    spells = channel.outages(0, 100)
    assert len(spells) > 50
    lost = fates(channel, 100_000, 0.001)
    for i, fate in enumerate(lost):
        assert fate == any(start <= i * 0.001 < end for start, end in spells)


def test_the_schedule_does_not_depend_on_the_traffic():
    model = GilbertElliott(0.5, 0.1, 0.05, 0.9)
    busy, idle = make(model), make(model)
    busy.epoch = 0.0
    rng = random.Random(0)
    for _ in range(20_000):
        busy.fate(rng.uniform(0, 60))
    assert busy.outages(0, 60) == idle.outages(0, 60)
    assert busy.outages(10, 20) == idle.outages(10, 20)


def test_next_change_walks_along_the_outages():
    channel = make(GilbertElliott(0.5, 0.1))
    t, edges = -1.0, []
    while t < 20:
        t = channel.next_change(t)
        edges.append(t)
        assert channel.loss_at(t) != channel.loss_at(math.nextafter(t, -1)) or t == 0
    spells = channel.outages(0, edges[-1])
    assert set(edges) >= {edge for spell in spells for edge in spell}
    assert make(Bernoulli(0.1)).next_change(3.0) == math.inf


def test_outages_are_cut_to_the_window():
    channel = make(GilbertElliott(0.5, 0.5))
    whole = channel.outages(0, 30)
    start, end = whole[3]
    middle = (start + end) / 2
    assert channel.outages(middle, 30)[0] == (middle, end)
    assert channel.outages(0, middle)[-1] == (start, middle)
    assert channel.outages(-5, 0) == []
    assert channel.outages(5, 5) == []


@pytest.mark.parametrize("model", [Bernoulli(0.2), GilbertElliott(0.5, 0.1, 0.1, 0.9)])
def test_same_seed_same_fates_other_seed_other_fates(model):
    jittery = DelayModel(0.02, 0.005)
    first = make(model, jittery, seed=7)
    first.epoch = 100.0
    times = [100 + i * 0.01 for i in range(2000)]
    expected = [first.fate(now) for now in times]
    again = make(model, jittery, seed=7)
    again.epoch = 100.0
    assert [again.fate(now) for now in times] == expected
    first.seed(7)
    first.epoch = 100.0
    assert [first.fate(now) for now in times] == expected
    first.seed(8)
    first.epoch = 100.0
    assert [first.fate(now) for now in times] != expected


def test_directions_and_links_are_independent():
    n = 40_000
    patterns = [
        fates(make(Bernoulli(0.5), link=link, direction=direction), n, 0.001)
        for link in ("access", "server")
        for direction in ("up", "down")
    ]
    for i, a in enumerate(patterns):
        for b in patterns[i + 1 :]:
            # The number of agreements of two independent fair patterns is binomial(n, 1/2).
            agree = sum(x == y for x, y in zip(a, b, strict=True))
            assert abs(agree / n - 0.5) <= 4 * 0.5 / math.sqrt(n)


def test_subseeds_never_change():
    # printf '5/access/up/loss' | sha256sum, the first 8 bytes
    assert subseed(5, "access", "up", "loss") == EXPECTED_SUBSEED


EXPECTED_SUBSEED = 0x4B096C2B0CB68A92


def test_before_the_epoch_models_in_time_lose_nothing():
    channel = make(GilbertElliott(0.001, 1000.0))
    assert not any(fates(channel, 100, 0.01, epoch=None))
    channel.seed(1)
    assert not any(fates(channel, 100, 0.01, epoch=1.0))
    assert all(channel.fate(2.0 + i).lost for i in range(100))
    assert sum(fates(make(Bernoulli(0.5)), 1000, 0.01, epoch=None)) > 400


def test_constant_delay():
    channel = make()
    assert [channel.fate(t).due for t in (0.0, 1.0, 1.5)] == [0.02, 1.02, 1.52]


def test_jitter_is_normal_and_cut_at_zero():
    model = DelayModel(0.01, 0.01)
    channel = make(delay=model)
    # One frame a second: nobody waits for an earlier one.
    delays = sorted(channel.fate(float(i)).due - i for i in range(50_000))
    assert delays[0] == 0
    # P(N(d, d) <= 0) = P(Z <= -1) = 0.15866; the mean of what remains by hand:
    # d (cdf(1) + pdf(1)) = 0.01 (0.84134 + 0.24197).
    at_zero = sum(delay <= 1e-9 for delay in delays) / len(delays)
    assert at_zero == pytest.approx(0.15866, abs=4 * math.sqrt(0.16 * 0.84 / 50_000))
    assert model.mean_delay == pytest.approx(0.0108331, rel=1e-4)
    assert sum(delays) / len(delays) == pytest.approx(model.mean_delay, abs=4 * 0.01 / 223)
    # Quantiles of the normal distribution: 84.134% lie below mean + sigma.
    assert delays[int(0.84134 * len(delays))] == pytest.approx(0.02, abs=4e-4)


def test_jitter_never_reorders():
    channel = make(Bernoulli(0.3), DelayModel(0.02, 0.02))
    dues = [channel.fate(i * 1e-4) for i in range(10_000)]
    arrivals = [fate.due for fate in dues if not fate.lost]
    assert arrivals == sorted(arrivals)


def test_exempt_frames_leave_the_streams_alone():
    plain, mixed = (make(Bernoulli(0.3), DelayModel(0.02, 0.001)) for _ in range(2))
    expected = [plain.fate(float(i)) for i in range(500)]
    seen = []
    for i in range(500):
        assert mixed.exempt(i - 0.5) == pytest.approx(i - 0.48)
        seen.append(mixed.fate(float(i)))
    assert seen == expected


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Bernoulli(1.3), "loss must be a number from 0 to 1, not 1.3"),
        (lambda: Bernoulli(-0.1), "not -0.1"),
        (lambda: Bernoulli(math.nan), "not nan"),
        (lambda: Bernoulli("10%"), "not '10%'"),
        (lambda: Bernoulli(True), "not True"),
        (lambda: GilbertElliott(0, 1), "mean_good must be a number at least 0.001, not 0"),
        (lambda: GilbertElliott(1, math.inf), "mean_bad"),
        (lambda: GilbertElliott(1, 1, 0.9, 0.5), "loss_good (0.9) must not exceed loss_bad (0.5)"),
        (lambda: DelayModel(-0.02), "delay must be a number at least 0, not -0.02"),
        (lambda: DelayModel(0.02, 0.03), "jitter (0.03 s) must not exceed delay (0.02 s)"),
    ],
)
def test_nonsense_is_refused(build, words):
    with pytest.raises(ChannelError) as caught:
        build()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
