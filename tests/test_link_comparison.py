"""Both link back ends carry out one profile, and what comes of it must be told apart by nobody.

Random outcomes are compared by two-sample tests at the level ALPHA, others by the tolerance that
each test names. In a guest's virtual time, both are the same in every run:

python -m topologies.guest -- python -m pytest -m netem tests/test_link_comparison.py

What differs by design: netem also inverts bits of the Ethernet header, and treats ARP like the rest.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from emulated import echo, inside, probe  # type: ignore[import-not-found, unused-ignore]
from scipy import stats

from topologies.channel import Bernoulli, Bottleneck, GilbertElliott, GilbertElliottPackets
from topologies.profile import Direction, LinkProfile
from topologies.wifi import Network

T = TypeVar("T")

ALPHA = 1e-4
SEED = 5
CLEAN = Direction(0.01)
INDEPENDENT = Bernoulli(0.1)
BURSTS = GilbertElliottPackets(p=0.02, r=0.2, loss_bad=0.9, loss_good=0.01)
HEADERS = 42  # bytes: Ethernet, IPv4, UDP

TRAFFIC = """
import json, socket, struct, sys, time
mode, n, interval, size = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
number = struct.Struct("!I")
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
times = []
if mode == "sink":
    sock.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
    sock.bind(("", 5000))
    sock.settimeout(interval)
    print("ready", flush=True)
    for _ in range(4 * n):
        try:
            data = sock.recv(2000)
        except TimeoutError:
            break
        times.append((number.unpack_from(data)[0], time.monotonic()))
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
    """One-way traffic: `sent` times by number, `got` (number, time) in the order of arrival."""

    sent: list[float]
    got: list[tuple[int, float]]
    stats: dict[str, Any]
    epoch: float

    @property
    def lost(self) -> list[bool]:
        arrived = {number for number, _ in self.got}
        return [number not in arrived for number in range(len(self.sent))]

    @property
    def copies(self) -> int:
        return len(self.got) - len({number for number, _ in self.got})

    @property
    def delays(self) -> list[float]:
        return [when - self.sent[number] for number, when in self.got]


def one_way(made: Network, n: int, interval: float, size: int = 100) -> Seen:
    """Send `n` datagrams up a newly seeded link whose channel's clock runs."""

    def start(host: Any, *words: object) -> Any:
        command = [sys.executable, "-c", TRAFFIC, *map(str, words)]
        return host.popen(command, stdin=subprocess.DEVNULL)

    with echo(made):
        probe(made, 5, 0.01)  # the switch learns where the hosts are
    link = made.links["access"]
    sink = start(made.server, "sink", n, 2.0, size)
    assert sink.stdout.readline() == b"ready\n"
    link.seed(SEED)
    epoch = time.monotonic() + 0.05
    link.start_epoch(epoch)
    sent = json.loads(start(made.client, "send", n, interval, size).communicate(timeout=300)[0])
    got = json.loads(sink.communicate(timeout=300)[0])
    link.stop_epoch()
    return Seen(sent, [(number, when) for number, when in got], link.stats(), epoch)


def both(function: Callable[[Network], T], up: Direction, down: Direction = CLEAN) -> list[T]:
    """The result of `function` under the back ends user and netem."""
    return [inside(function, up, down, backend) for backend in ("user", "netem")]


def compared(n: int, interval: float, up: Direction, size: int = 100) -> list[Seen]:
    return both(lambda made: one_way(made, n, interval, size), up)


# The statistics.


def same_share(first: Sequence[bool], second: Sequence[bool], inflation: float = 1.0) -> float:
    """Two-proportion test: the probability of a difference at least that large.

    `inflation`: of the variance of a share, where outcomes are not independent.
    """
    n, m = len(first), len(second)
    pooled = (sum(first) + sum(second)) / (n + m)
    error = math.sqrt(inflation * pooled * (1 - pooled) * (1 / n + 1 / m))
    return float(2 * stats.norm.sf(abs(sum(first) / n - sum(second) / m) / error))


def inflation(model: GilbertElliottPackets) -> float:
    """1 + 2 times the sum of the autocorrelations of its losses."""
    bad, memory, loss = model.p / (model.p + model.r), 1 - model.p - model.r, model.mean_loss
    between = bad * (1 - bad) * (model.loss_bad - model.loss_good) ** 2
    return 1 + 2 * between / (loss * (1 - loss)) * memory / (1 - memory)


def runs(lost: Sequence[bool]) -> list[int]:
    """Lengths of the runs of losses."""
    return [len(list(group)) for value, group in itertools.groupby(lost) if value]


def same_runs(first: Sequence[bool], second: Sequence[bool]) -> float:
    """Chi-squared test of the counts of runs of 1, 2, 3, ... losses, rare lengths together."""
    counts = [Counter(runs(lost)) for lost in (first, second)]
    table, waiting = [], [0, 0]
    for length in range(1, max(max(count) for count in counts) + 1):
        waiting = [old + count[length] for old, count in zip(waiting, counts, strict=True)]
        if min(waiting) >= 5:
            table.append(waiting)
            waiting = [0, 0]
    table[-1] = [old + rest for old, rest in zip(table[-1], waiting, strict=True)]
    assert len(table) > 1
    return float(stats.chi2_contingency(table).pvalue)


def quantiles(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered[int(q * (len(ordered) - 1))] for q in (0.01, 0.1, 0.5, 0.9, 0.99)]


def spells(seen: Seen) -> list[tuple[float, float]]:
    """Outages in channel time: from the first datagram lost to the first one that arrived."""
    found, lost = [], [*seen.lost, False]
    times = [*(sent - seen.epoch for sent in seen.sent), seen.sent[-1] - seen.epoch]
    start = None
    for t, gone in zip(times, lost, strict=True):
        if gone and start is None:
            start = t
        elif not gone and start is not None:
            found.append((start, t))
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
    # As many losses, in bursts of another length.
    milder = GilbertElliottPackets(p=0.07, r=0.63)
    assert same_runs(usual, drawn(GilbertElliottPackets(p=0.02, r=0.18), n, 2)) < ALPHA
    assert same_share(usual, drawn(milder, n, 2), inflation(milder)) > ALPHA
    # Many samples spread as the formula says.
    shares = [statistics.fmean(drawn(BURSTS, 500, seed)) for seed in range(300)]
    expected = inflation(BURSTS) * BURSTS.mean_loss * (1 - BURSTS.mean_loss) / 500
    assert statistics.variance(shares) == pytest.approx(expected, rel=0.3)


# The profiles.


def trips(n: int, interval: float, up: Direction) -> list[list[float]]:
    """Round-trip times under both back ends; none may be lost."""

    def run(made: Network) -> list[float]:
        with echo(made):
            probe(made, 5, 0.01)
            made.links["access"].seed(SEED)
            return [(back or math.inf) - sent for sent, back in probe(made, n, interval)]

    return both(run, up)


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
    assert stats.ks_2samp(user, netem).pvalue > ALPHA
    for values in (user, netem):
        assert stats.kstest(values, stats.norm(0.03, up.jitter).cdf).pvalue > ALPHA


@pytest.mark.netem
def test_jitter_of_frames_that_wait_for_each_other() -> None:
    """No reordering; quantiles, whose samples depend on each other, within half the jitter."""
    up = Direction(0.02, 0.004)
    user, netem = compared(3000, 0.001, up)
    for seen in (user, netem):
        assert [number for number, _ in seen.got] == list(range(3000))
    assert quantiles(user.delays) == pytest.approx(quantiles(netem.delays), abs=up.jitter / 2)
    # Each frame leaves no sooner than the latest before it: well above the mean of one alone.
    assert statistics.median(user.delays) > up.delay + up.jitter / 2


@pytest.mark.netem
def test_independent_losses() -> None:
    user, netem = compared(5000, 0.001, Direction(0.01, loss=INDEPENDENT))
    assert same_share(user.lost, netem.lost) > ALPHA
    assert same_runs(user.lost, netem.lost) > ALPHA
    for seen in (user, netem):
        assert seen.stats["up"]["lost"] == sum(seen.lost)
        assert statistics.fmean(seen.lost) == pytest.approx(INDEPENDENT.loss, abs=0.02)


@pytest.mark.netem
def test_gilbert_elliott_per_packet() -> None:
    user, netem = compared(10_000, 0.001, Direction(0.01, loss=BURSTS))
    assert same_share(user.lost, netem.lost, inflation(BURSTS)) > ALPHA
    assert same_runs(user.lost, netem.lost) > ALPHA
    for seen in (user, netem):
        assert seen.stats["up"]["lost"] == sum(seen.lost)
        assert statistics.fmean(seen.lost) == pytest.approx(BURSTS.mean_loss, abs=0.03)


@pytest.mark.netem
def test_gilbert_elliott_in_time() -> None:
    """The same seed, the same outages: their edges within 5 ms; datagrams are 2.5 ms apart."""
    up = Direction(0.01, loss=GilbertElliott(mean_good=0.9, mean_bad=0.1))
    user, netem = compared(8000, 0.0025, up)
    channel = LinkProfile("access", up, CLEAN, "test").channel("up", "access", SEED)
    window = (user.sent[0] - user.epoch, user.sent[-1] - user.epoch)
    schedule = channel.outages(*window)
    kinds = [spells(user), spells(netem), schedule]
    print("outages (user, netem, schedule):", [len(kind) for kind in kinds])
    for ours, others in itertools.permutations(kinds, 2):
        long = [spell for spell in ours if spell[1] - spell[0] > 0.01]
        assert len(long) > 10
        for spell in long:
            assert any(spell == pytest.approx(other, abs=0.005) for other in others), spell
    assert sum(user.lost) == pytest.approx(sum(netem.lost), rel=0.05)


@pytest.mark.netem
def test_rate() -> None:
    """10 Mbit/s and 25 packets: rate and losses within 2 %, queueing delays within 1 ms."""
    rate, size, n = 10e6, 1000, 6000
    frame = 8 * (size + HEADERS) / rate  # seconds
    up = Direction(0.01, bottleneck=Bottleneck(rate=rate, queue_packets=25))
    seens = compared(n, frame / 1.5, up, size)
    rates = []
    for seen in seens:
        times = [when for _, when in seen.got]
        rates.append((len(times) - 1) * frame * rate / (times[-1] - times[0]))
        assert rates[-1] == pytest.approx(rate, rel=0.02)
        assert sum(seen.lost) == seen.stats["up"]["queue"] == pytest.approx(n / 3, rel=0.02)
        assert max(seen.delays) == pytest.approx(up.delay + 26 * frame, abs=0.001)
    user, netem = seens
    assert rates[0] == pytest.approx(rates[1], rel=0.02)
    assert quantiles(user.delays) == pytest.approx(quantiles(netem.delays), abs=0.001)


@pytest.mark.netem
def test_duplication() -> None:
    n, up = 5000, Direction(0.01, duplicate=0.05)
    user, netem = compared(n, 0.001, up)
    counts = [[True] * seen.copies + [False] * (n - seen.copies) for seen in (user, netem)]
    assert same_share(*counts) > ALPHA
    for seen in (user, netem):
        assert not any(seen.lost)
        assert seen.copies / n == pytest.approx(up.duplicate, abs=0.015)
        assert max(seen.delays) < up.delay + 0.001


@pytest.mark.netem
def test_corruption() -> None:
    """A datagram that was changed does not arrive: its checksum is wrong.

    netem may hit the sender's Ethernet address, which harms nothing: 6 bytes of 1042, 0.6 %.
    """
    n, up = 5000, Direction(0.01, corrupt=0.05)
    user, netem = compared(n, 0.001, up, size=1000)
    assert same_share(user.lost, netem.lost) > ALPHA
    for seen in (user, netem):
        assert statistics.fmean(seen.lost) == pytest.approx(up.corrupt, abs=0.015)
    assert user.stats["up"]["corrupt"] == sum(user.lost)
