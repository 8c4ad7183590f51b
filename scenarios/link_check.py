"""No run is believed before its links were measured: probes, held against the profile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from apps.assessment import assess
from apps.samples import Sample, summarize
from scenarios.processes import JsonProcess, ProcessFailed
from topologies.channel import Channel, subseed
from topologies.profile import NetworkProfile

COUNT = 250
INTERVAL = 0.004
#: A probe this close to a change of the channel's state may go either way: timers are late now
#: and then, and frames wait in the links before this one.
UNCERTAIN = 0.003
#: Seconds before each attempt. A busy moment of a shared machine is no fault of the link; a disk
#: that takes in what was just installed keeps a virtual machine busy for some ten seconds.
PAUSES = (0.0, 0.0, 1.0, 3.0, 6.0, 12.0, 24.0)


class LinkCheckError(RuntimeError):
    """A link does not do what its profile says, or cannot be measured."""


def prober_words(address: str, port: int) -> list[str]:
    """The command of the client's `prober`, which must talk to an ``apps.probe echo``."""
    words = ["apps.probe", "send", address, "--port", str(port), "--repeat", "--wait", "0.2"]
    return [*words, "--count", str(COUNT), "--interval", str(INTERVAL)]


def check_links(
    network: Any, profile: NetworkProfile, seed: int, prober: JsonProcess
) -> dict[str, Any]:
    """Probe the way from client to server and back; returns what was seen.

    Raises LinkCheckError naming link, direction, set value and seen value.
    """
    failures: list[str] = []
    for attempt, pause in enumerate(PAUSES, start=1):
        time.sleep(pause)
        probe_seed = subseed(seed, "probe", str(attempt)) % 2**32
        # A NAT that changes the client's address drops what is on its way, as it should: such a
        # link is measured before its time starts for the most part.
        rebinds = profile.access.rebind or profile.server.rebind
        epoch = time.monotonic() + (0.6 if rebinds else 0.1)
        for link in network.links.values():
            link.seed(probe_seed)
            link.start_epoch(epoch)
        samples = _probe(prober)
        for link in network.links.values():
            link.stop_epoch()
        failures = judge(samples, profile, probe_seed, epoch)
        if not failures:
            summary = {name: _rounded(value) for name, value in asdict(summarize(samples)).items()}
            return {"attempts": attempt, **summary}
    raise LinkCheckError("; ".join(failures))


def judge(samples: Sequence[Sample], profile: NetworkProfile, seed: int, epoch: float) -> list[str]:
    """What the samples show against the profile, knowing the schedule of the seed."""
    access, server = profile.access, profile.server
    rtt = sum(link.direction(way).delay for link in (access, server) for way in ("up", "down"))

    def at(sample: Sample, way: str) -> tuple[float, float]:
        """Channel time at which the probe entered the access link and the server link."""
        first = access if way == "up" else server
        start = sample.sent_at if way == "up" else sample.server_arrived_at
        entered = (start or 0.0) - epoch
        times = (entered, entered + first.direction(way).delay)
        return times if way == "up" else (times[1], times[0])

    expected: dict[str, list[float]] = {}
    uncertain: dict[str, list[bool]] = {}
    for way in ("up", "down"):
        channels = (
            access.channel(way, "access", seed),
            server.channel(way, "server", seed),
        )
        entered = [at(sample, way) for sample in samples]
        expected[way] = [
            1 - (1 - channels[0].loss_at(a)) * (1 - channels[1].loss_at(b)) for a, b in entered
        ]
        uncertain[way] = [
            any(_changes(c, t) for c, t in zip(channels, times, strict=True)) for times in entered
        ]
    return assess(
        samples,
        rtt,
        expected["up"],
        expected["down"],
        uncertain["up"],
        uncertain["down"],
        link=f"{access.name} + {server.name}",
    )


def _changes(channel: Channel, time: float) -> bool:
    return channel.next_change(time - UNCERTAIN) <= time + UNCERTAIN


def _probe(prober: JsonProcess) -> list[Sample]:
    try:
        answer = prober.request("measure", timeout=COUNT * INTERVAL + 60)
    except ProcessFailed as error:
        raise LinkCheckError(f"the links cannot be probed: {error}") from None
    return [Sample(**sample) for sample in answer["samples"]]


def _rounded(value: float | None) -> float | None:
    return round(value, 6) if isinstance(value, float) else value
