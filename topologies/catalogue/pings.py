"""Does a network do what its profiles say? Pings between all pairs of hosts, at the same time."""

from __future__ import annotations

import itertools
import math
import re
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

from topologies.profile import LinkProfile

from .network import Network, NetworkError
from .topology import Topology

COUNT = 20
INTERVAL = 0.2
_WAIT = 2.0
_MOMENTS = 400
#: Open vSwitch looks over its cached flows each half second; one may lead to where a host was.
_SETTLED = 0.6

_REPLY = re.compile(r"icmp_seq=(\d+) .*time=([0-9.]+) ms")


@dataclass(frozen=True)
class Expected:
    """What the profiles say of a pair: round-trip time (s), loss in the long run, loss here.

    `loss_now` is the mean over the time of this measurement, by the schedule that the seed gives
    to models in time; of what counts packets it is the long run's.
    """

    rtt: float
    loss: float
    loss_now: float


@dataclass(frozen=True)
class Seen:
    """What the pings of a pair met: `rtt` is the median in seconds, None if none came back."""

    first: str
    second: str
    sent: int
    received: int
    rtt: float | None

    @property
    def loss(self) -> float:
        """Share of pings without an answer."""
        return 1 - self.received / self.sent


def pairs(topology: Topology) -> list[tuple[str, str]]:
    """Each pair of hosts once."""
    return list(itertools.combinations(topology.hosts, 2))


def expected(
    topology: Topology, first: str, second: str, seed: int, by: str | None = None
) -> Expected:
    """From the profiles of the links between two hosts, both ways, queueing not counted.

    `by` names the link through which the first one sends, if it has several.
    """
    rtt, kept = 0.0, 1.0
    kept_now = [1.0] * _MOMENTS
    for wire, forth in topology.path(first, second, by) or []:
        profile = topology.profile(wire)
        for way in (forth, "down" if forth == "up" else "up"):
            direction = profile.direction(way)
            rtt += direction.mean_delay
            kept *= 1 - direction.mean_loss
            schedule = _schedule(profile, way, wire.name, seed)
            kept_now = [kept * (1 - loss) for kept, loss in zip(kept_now, schedule, strict=True)]
    return Expected(rtt, 1 - kept, 1 - statistics.fmean(kept_now))


def _schedule(profile: LinkProfile, way: str, link: str, seed: int) -> Iterator[float]:
    channel = profile.channel(way, link, seed)
    # Closer than the pings: nobody knows to the millisecond when they will be sent.
    step = COUNT * INTERVAL / _MOMENTS
    return (channel.loss_at(number * step) for number in range(_MOMENTS))


def start_channels(network: Network, seed: int, after: float = 0.0) -> None:
    """Seed all links and let their clocks start `after` seconds from now."""
    epoch = time.monotonic() + after
    for link in network.links.values():
        link.seed(seed)
        link.start_epoch(epoch)


def ping_all(network: Network, seed: int) -> Iterator[Seen]:
    """Let all pairs ping each other over links seeded with `seed`."""
    chosen = pairs(network.topology)
    for first, second in chosen:
        # Switches learn where hosts are, and a controller installs its flows.
        _ping(network, first, second, 1).wait()
    time.sleep(_SETTLED)
    start_channels(network, seed, after=0.05)
    started = [_ping(network, first, second, COUNT) for first, second in chosen]
    for (first, second), process in zip(chosen, started, strict=True):
        output, errors = process.communicate()
        if "packets transmitted" not in output:
            raise NetworkError(f"{first} cannot ping {second}: {' '.join(errors.split())}")
        times: dict[str, float] = {}
        for number, milliseconds in _REPLY.findall(output):
            times.setdefault(number, float(milliseconds) / 1e3)  # a duplicate is no other answer
        rtt = statistics.median(times.values()) if times else None
        yield Seen(first, second, COUNT, len(times), rtt)
    for link in network.links.values():
        link.stop_epoch()


def _ping(network: Network, first: str, second: str, count: int) -> subprocess.Popen[str]:
    command = ["ping", "-n", "-c", str(count), "-i", str(INTERVAL)]
    command += ["-W", str(math.ceil(_WAIT)), network.hosts[second].IP()]
    process: subprocess.Popen[str] = network.hosts[first].popen(
        command, stdin=subprocess.DEVNULL, text=True
    )
    return process
