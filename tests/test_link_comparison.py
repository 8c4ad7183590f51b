"""Both link back ends carry out one profile, and what comes of it must be told apart by nobody.

Random outcomes are compared by two-sample tests, others by the tolerance that each test names.
The draws of `user` are seeded; those of netem need not be, so ALPHA is each test's false alarm.

python -m topologies.guest -- python -m pytest -m netem tests/test_link_comparison.py

Not compared: loss and duplication at once (netem may let the copy of a lost frame through).
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from emulated import echo, inside, probe  # type: ignore[import-not-found, unused-ignore]
from scipy import stats

from topologies.channel import Bernoulli, Bottleneck, GilbertElliott, GilbertElliottPackets
from topologies.profile import Direction, LinkProfile
from topologies.wifi import Network

ALPHA = 1e-4
SEED = 17
BACKENDS = ("user", "netem")
CLEAN = Direction(0.01)
INDEPENDENT = Bernoulli(0.1)
BURSTS = GilbertElliottPackets(p=0.02, r=0.2, loss_bad=0.9, loss_good=0.01)
EDGE = 0.005  # seconds

TRAFFIC = """
import json, select, socket, struct, sys, time
mode, n, interval, size = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
number = struct.Struct("!I")
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
times = []
if mode == "sink":
    sock.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
    sock.bind(("", 5000))
    print("ready", flush=True)
    while len(times) < 4 * n and select.select([sock], [], [], interval)[0]:
        times.append((number.unpack_from(sock.recv(2000))[0], time.monotonic()))
else:
    start = time.monotonic() + 0.1
    for i in range(n):
        time.sleep(max(0.0, start + i * interval - time.monotonic()))
        times.append(time.monotonic())
        sock.sendto(number.pack(i).ljust(size, b"\\0"), ("10.0.0.2", 5000))
print(json.dumps(times), flush=True)
"""


@dataclass(frozen=True)
class Seen:
    sent: list[float]  # times by number
    got: list[tuple[int, float]]  # number and time, in the order of arrival
    stats: dict[str, Any]
    epoch: float

    @property
    def lost(self) -> list[bool]:
        arrived = {number for number, _ in self.got}
        return [number not in arrived for number in range(len(self.sent))]

    @property
    def delays(self) -> list[float]:
        return [when - self.sent[number] for number, when in self.got]


def one_way(made: Network, n: int, interval: float, size: int = 100) -> Seen:
    """Send `n` datagrams up a newly seeded link whose channel's clock runs."""

    with echo(made):
        probe(made, 5, 0.01)  # the switch learns where the hosts are
    link = made.links["access"]
    command = [sys.executable, "-c", TRAFFIC]
    sink = made.server.popen([*command, "sink", str(n), "5", "0"], stdin=subprocess.DEVNULL)
    assert sink.stdout.readline() == b"ready\n"
    link.seed(SEED)
    epoch = time.monotonic() + 0.05
    link.start_epoch(epoch)
    source = [*command, "send", str(n), str(interval), str(size)]
    sent = json.loads(made.client.popen(source, stdin=subprocess.DEVNULL).communicate()[0])
    got = json.loads(sink.communicate()[0])
    link.stop_epoch()
    return Seen(sent, [(number, when) for number, when in got], link.stats(), epoch)


def both(n: int, interval: float, up: Direction, size: int = 100) -> list[Seen]:
    """One-way traffic under the back ends user and netem."""
    return [inside(lambda made: one_way(made, n, interval, size), up, CLEAN, b) for b in BACKENDS]


def same_share(first: Sequence[bool], second: Sequence[bool], inflation: float = 1.0) -> float:
    """Two-proportion test: the probability of a difference at least that large.

    `inflation`: of the variance of a share, where outcomes are not independent.
    """
    n, m = len(first), len(second)
    pooled = (sum(first) + sum(second)) / (n + m)
    error = math.sqrt(inflation * pooled * (1 - pooled) * (1 / n + 1 / m))
    probability = float(2 * stats.norm.sf(abs(sum(first) / n - sum(second) / m) / error))
    print(f"shares {sum(first)}/{n} and {sum(second)}/{m}: p = {probability:.3f}")
    return probability


def inflation(model: GilbertElliottPackets) -> float:
    """1 + 2 times the sum of the autocorrelations of its losses."""
    bad, memory, loss = model.p / (model.p + model.r), 1 - model.p - model.r, model.mean_loss
    between = bad * (1 - bad) * (model.loss_bad - model.loss_good) ** 2
    return 1 + 2 * between / (loss * (1 - loss)) * memory / (1 - memory)


def same_runs(first: Sequence[bool], second: Sequence[bool]) -> float:
    """Chi-squared test of the counts of runs of 1, 2, 3, ... losses, rare lengths together."""
    groups = [itertools.groupby(lost) for lost in (first, second)]
    ours, theirs = (Counter(len(list(each)) for gone, each in group if gone) for group in groups)
    table, a, b = [], 0, 0
    for length in range(1, max(*ours, *theirs) + 1):
        a, b = a + ours[length], b + theirs[length]
        if min(a, b) >= 5:
            table.append((a, b))
            a = b = 0
    table[-1] = (table[-1][0] + a, table[-1][1] + b)
    probability = float(stats.chi2_contingency(table).pvalue)
    print(f"runs of losses {table}: p = {probability:.3f}")
    return probability


def quantiles(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    found = [ordered[int(q * (len(ordered) - 1))] for q in (0.01, 0.1, 0.5, 0.9, 0.99)]
    print("P1, P10, P50, P90, P99 in ms:", *(f"{1e3 * value:.3f}" for value in found))
    return found


def spells(seen: Seen) -> list[tuple[float, float]]:
    """Outages in channel time: from the first datagram lost to the first one that arrived."""
    found, start = [], None
    for sent, lost in zip(seen.sent, seen.lost, strict=True):
        if lost and start is None:
            start = sent - seen.epoch
        elif not lost and start is not None:
            found.append((start, sent - seen.epoch))
            start = None
    return found


def drawn(model: Bernoulli | GilbertElliottPackets, n: int, seed: int) -> list[bool]:
    up = Direction(0.01, loss=model)
    channel = LinkProfile("access", up, up, "test").channel("up", "access", seed)
    return [channel.fate(float(number)).lost for number in range(n)]


def test_the_comparison_has_teeth() -> None:
    n = 4000
    usual = drawn(INDEPENDENT, n, 1)
    assert same_share(usual, drawn(INDEPENDENT, n, 2)) > ALPHA
    assert same_runs(usual, drawn(INDEPENDENT, n, 2)) > ALPHA
    assert same_share(usual, drawn(Bernoulli(0.14), n, 2)) < ALPHA
    milder = GilbertElliottPackets(p=0.07, r=0.63)
    assert same_runs(usual, drawn(GilbertElliottPackets(p=0.02, r=0.18), n, 2)) < ALPHA
    assert same_share(usual, drawn(milder, n, 2), inflation(milder)) > ALPHA
    shares = [statistics.fmean(drawn(BURSTS, 500, seed)) for seed in range(300)]
    variance = inflation(BURSTS) * BURSTS.mean_loss * (1 - BURSTS.mean_loss) / 500
    assert statistics.variance(shares) == pytest.approx(variance, rel=0.3)


def trips(n: int, interval: float, up: Direction) -> list[list[float]]:
    """Round-trip times under both back ends; none may be lost."""

    def run(made: Network) -> list[float]:
        with echo(made):
            probe(made, 5, 0.01)
            made.links["access"].seed(SEED)
            return [(back or math.inf) - sent for sent, back in probe(made, n, interval)]

    return [inside(run, up, CLEAN, backend) for backend in BACKENDS]


@pytest.mark.netem
def test_constant_delay() -> None:
    """All quantiles within 0.5 ms of the profile, and within 0.1 ms of each other."""
    user, netem = (quantiles(values) for values in trips(500, 0.01, Direction(0.02)))
    assert user == pytest.approx([0.03] * 5, abs=0.0005)
    assert user == pytest.approx(netem, abs=0.0001)


@pytest.mark.netem
def test_jitter() -> None:
    """Kolmogorov-Smirnov, of each other and of the normal distribution."""
    up = Direction(0.02, 0.003)
    user, netem = trips(1000, 0.025, up)  # too far apart to wait for each other
    normal = stats.norm(0.03, up.jitter).cdf
    found = [stats.ks_2samp(user, netem), *(stats.kstest(each, normal) for each in (user, netem))]
    print("Kolmogorov-Smirnov: p =", *(f"{result.pvalue:.3f}" for result in found))
    assert min(result.pvalue for result in found) > ALPHA


@pytest.mark.netem
def test_jitter_of_frames_that_wait_for_each_other() -> None:
    """No reordering; quantiles of samples that depend on each other, within half the jitter."""
    up = Direction(0.02, 0.004)
    user, netem = both(3000, 0.001, up)
    for seen in (user, netem):
        assert [number for number, _ in seen.got] == list(range(3000))
    assert quantiles(user.delays) == pytest.approx(quantiles(netem.delays), abs=up.jitter / 2)
    # Each frame leaves no sooner than the latest before it: well above the mean of one alone.
    assert statistics.median(user.delays) > up.delay + up.jitter / 2


@pytest.mark.netem
def test_independent_losses() -> None:
    user, netem = both(5000, 0.001, Direction(0.01, loss=INDEPENDENT))
    assert same_share(user.lost, netem.lost) > ALPHA
    assert same_runs(user.lost, netem.lost) > ALPHA
    for seen in (user, netem):
        assert seen.stats["up"]["lost"] == sum(seen.lost)
        assert statistics.fmean(seen.lost) == pytest.approx(INDEPENDENT.loss, abs=0.02)


@pytest.mark.netem
def test_gilbert_elliott_per_packet() -> None:
    user, netem = both(10_000, 0.001, Direction(0.01, loss=BURSTS))
    assert same_share(user.lost, netem.lost, inflation(BURSTS)) > ALPHA
    assert same_runs(user.lost, netem.lost) > ALPHA
    for seen in (user, netem):
        assert seen.stats["up"]["lost"] == sum(seen.lost)
        assert statistics.fmean(seen.lost) == pytest.approx(BURSTS.mean_loss, abs=0.03)


@pytest.mark.netem
def test_gilbert_elliott_in_time() -> None:
    """The same seed, the same outages: their edges within EDGE; datagrams are 2.5 ms apart."""
    up = Direction(0.01, loss=GilbertElliott(mean_good=0.9, mean_bad=0.1))
    user, netem = both(8000, 0.0025, up)
    channel = LinkProfile("access", up, CLEAN, "test").channel("up", "access", SEED)
    schedule = channel.outages(user.sent[0] - user.epoch, user.sent[-1] - user.epoch)
    kinds = [spells(user), spells(netem), schedule]
    print("outages (user, netem, schedule):", [len(kind) for kind in kinds])
    for ours, others in itertools.permutations(kinds, 2):
        long = [spell for spell in ours if spell[1] - spell[0] > 0.01]
        assert len(long) > 10
        for spell in long:
            assert any(spell == pytest.approx(other, abs=EDGE) for other in others), spell
    apart = (abs(x - y) for a, b in zip(*kinds[:2], strict=True) for x, y in zip(a, b, strict=True))
    print(f"edges at most {1e3 * max(apart):.3f} ms apart")
    assert sum(user.lost) == pytest.approx(sum(netem.lost), rel=0.05)


@pytest.mark.netem
def test_rate() -> None:
    """10 Mbit/s, 25 packets: rate within 1 %, losses within 2 %, queueing delays within 1 ms."""
    rate, size, n = 10e6, 1000, 6000
    frame = 8 * (size + 42) / rate  # seconds; Ethernet, IPv4 and UDP have 42 bytes
    up = Direction(0.01, bottleneck=Bottleneck(rate=rate, queue_packets=25))
    user, netem = seens = both(n, frame / 1.5, up, size)
    rates = [(len(x.got) - 1) * frame * rate / (x.got[-1][1] - x.got[0][1]) for x in seens]
    print(*(f"{each / 1e6:.4f}" for each in rates), "Mbit/s")
    assert rates == pytest.approx([rate, rate], rel=0.01)
    for seen in seens:
        assert sum(seen.lost) == seen.stats["up"]["queue"] == pytest.approx(n / 3, rel=0.02)
        assert max(seen.delays) == pytest.approx(up.delay + 26 * frame, abs=0.001)
    assert quantiles(user.delays) == pytest.approx(quantiles(netem.delays), abs=0.001)


@pytest.mark.netem
def test_duplication() -> None:
    n, up = 5000, Direction(0.01, duplicate=0.05)
    user, netem = both(n, 0.001, up)
    copies = [len(seen.got) - n for seen in (user, netem)]
    assert same_share(*([True] * k + [False] * (n - k) for k in copies)) > ALPHA
    assert [k / n for k in copies] == pytest.approx([up.duplicate] * 2, abs=0.015)
    for seen in (user, netem):
        assert not any(seen.lost)
        assert max(seen.delays) < up.delay + 0.001


@pytest.mark.netem
def test_corruption() -> None:
    """A datagram that was changed does not arrive: its checksum is wrong.

    netem may hit the sender's Ethernet address, which harms nothing: 6 bytes of 1042, 0.6 %.
    """
    n, up = 5000, Direction(0.01, corrupt=0.05)
    user, netem = both(n, 0.001, up, size=1000)
    assert same_share(user.lost, netem.lost) > ALPHA
    for seen in (user, netem):
        assert statistics.fmean(seen.lost) == pytest.approx(up.corrupt, abs=0.015)
    assert user.stats["up"]["corrupt"] == sum(user.lost)
