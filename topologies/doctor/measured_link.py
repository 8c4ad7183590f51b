"""What a link of this machine is worth: two hosts, a switch, 20 ms each way, and traffic."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from topologies import openvswitch, wifi
from topologies.backends import choose
from topologies.doctor.check import Check, in_sandbox
from topologies.doctor.software_checks import ROOT
from topologies.doctor.traffic import quantile
from topologies.profile import Direction, LinkProfile, NetworkProfile

DELAY = 0.020
PROBE_RATE, PROBES = 1000, 1000
RATES = (2000, 5000, 10_000, 20_000, 30_000)
SECONDS = 1.0
TOLERANCE = 0.002
"""Seconds by which the median round trip may be off; an experiment is refused beyond it."""
QUEUEING = 0.005
"""A median delay that much too long means that frames wait for a link that cannot keep up."""
TRIES = 2
"""Of each rate: a busy moment of the machine is not its limit."""

_PORT = 4999
_QUIET = 0.5  # seconds without a datagram, after which no more is expected
_ONE_TRY = 3.5  # seconds that a rate may take, with its processes


@dataclass(frozen=True)
class Flood:
    """One second at one rate. Delays in seconds beyond the set one; `held`: no fault was found."""

    rate: int
    sent: int
    received: int
    achieved: float
    delay_error_p50: float | None
    delay_error_p99: float | None
    fault: str

    @property
    def held(self) -> bool:
        """Everything arrived, and in time."""
        return not self.fault


@dataclass
class Belief:
    """What one link back end can be believed to emulate here. Errors of the round trip in s."""

    backend: str
    datapath: str
    rtt_error_p50: float
    rtt_error_p99: float
    answered: float
    """Share of the probes that came back."""
    max_rate: int = 0
    """The highest rate (packets/s, one way) that held; 0: none."""
    limit: str = ""
    """Why not more, if something was in the way."""
    floods: list[Flood] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self) | {"delay": DELAY, "probe_rate": PROBE_RATE}

    def sentence(self) -> str:
        """For people."""
        rate = "no rate was tried"
        if self.max_rate:
            rate = f"up to {self.max_rate:,} packets/s without loss"
        elif self.floods:
            rate = "no rate without loss"
        text = (
            f"link back end {self.backend}: delay within {1e3 * self.rtt_error_p99:.2f} ms (P99; "
            f"P50 {1e3 * self.rtt_error_p50:.2f} ms) at {PROBE_RATE:,} packets/s; {rate}"
        )
        return f"{text} ({self.limit})" if self.limit else text


def measure(backend: str, until: float) -> Belief:
    """Measure a back end in a sandbox; no new rate is begun that would end after `until`."""
    return in_sandbox(lambda: _measure(backend, until), max(5.0, until + 5 - time.monotonic()))


def judge(belief: Belief) -> Check:
    """Good enough for an experiment?"""
    name, quiet = f"link {belief.backend}", "stop other programs; or --engine virtual"
    shown = f"20 ms each way, the round trip is off by {1e3 * belief.rtt_error_p50:.2f} ms (P50)"
    if belief.answered < 1:
        finding = f"{1 - belief.answered:.1%} of {PROBES} probes were lost at {PROBE_RATE:,}/s"
        return Check(name, "problem", finding, quiet)
    if belief.rtt_error_p50 > TOLERANCE:
        return Check(name, "problem", f"{shown}; 2 ms are allowed", quiet)
    if belief.floods and not belief.max_rate:
        return Check(name, "note", f"{shown}; {belief.limit}", quiet)
    return Check(name, "ok", shown)


def _measure(backend: str, until: float) -> Belief:
    with _network(backend) as (network, datapath):
        trips = _ping(network)
        errors = sorted(abs(trip - 2 * DELAY) for trip in trips)
        p50, p99 = quantile(errors, 0.5), quantile(errors, 0.99)
        if p50 is None or p99 is None:
            raise wifi.NetworkError("no probe came back")
        belief = Belief(backend, datapath, p50, p99, len(trips) / PROBES)
        for rate in RATES:
            for _ in range(TRIES):
                if time.monotonic() + _ONE_TRY > until:
                    belief.limit = belief.limit or f"no time was left for {rate:,}"
                    return belief
                flood = _flood(network, rate)
                belief.floods.append(flood)
                if flood.held:
                    break
            if not flood.held:
                belief.limit = flood.fault
                return belief
            belief.max_rate = rate
    return belief


@contextlib.contextmanager
def _network(backend: str) -> Iterator[tuple[wifi.Network, str]]:
    both = Direction(DELAY)
    cable = LinkProfile("server", Direction(), Direction(), "perfect")
    access = LinkProfile("access", both, both, "set by the doctor")
    with openvswitch.OpenVSwitch():
        kind = openvswitch.datapath()
        choice = choose(backend, access, cable)
        network = wifi.build(NetworkProfile(access, cable), choice, datapath=kind)
        try:
            network.start()
            network.links["access"].seed(1)
            yield network, kind
        finally:
            network.stop()


def _ping(network: wifi.Network) -> list[float]:
    server = _start(network.server.popen, "echo", _PORT)
    try:
        _line(server)
        address = network.server.IP()
        # The switch learns where the hosts are.
        _line(_start(network.client.popen, "ping", address, _PORT, 20, 0.005))
        client = _start(network.client.popen, "ping", address, _PORT, PROBES, 1 / PROBE_RATE)
        trips: list[float] = _line(client)
        return trips
    finally:
        server.kill()
        server.wait()


def _flood(network: wifi.Network, rate: int) -> Flood:
    link = network.links["access"]
    link.seed(1)  # counters at 0
    count = int(rate * SECONDS)
    sink = _start(network.server.popen, "sink", _PORT, count, _QUIET)
    try:
        _line(sink)
        source = _start(network.client.popen, "flood", network.server.IP(), _PORT, rate, SECONDS)
        sent, got = _line(source), _line(sink)
    finally:
        sink.kill()
        sink.wait()
    frames = link.stats()["up"]
    achieved = sent["sent"] / sent["seconds"]
    late = {key: None if got[key] is None else got[key] - DELAY for key in ("p50", "p99")}
    fault = ""
    lost = count - got["received"]
    if lost:
        where = "in the link" if frames["received"] - frames["delivered"] > 0 else "in the switch"
        fault = f"at {rate:,}, {lost:,} of {count:,} were lost {where}"
    elif late["p50"] is None or late["p50"] > QUEUEING:
        fault = f"at {rate:,}, the delay grew by {1e3 * (late['p50'] or 0):.0f} ms"
    elif achieved < 0.9 * rate:
        fault = f"for {rate:,}, this machine cannot send fast enough ({achieved:,.0f})"
    return Flood(rate, sent["sent"], got["received"], achieved, late["p50"], late["p99"], fault)


def _start(popen: Callable[..., Any], *words: object) -> subprocess.Popen[str]:
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    process: subprocess.Popen[str] = popen(
        [sys.executable, "-m", "topologies.doctor.traffic", *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        text=True,
    )
    return process


def _line(process: subprocess.Popen[str]) -> Any:
    """The next line of a process, as JSON data; its own words if it died instead."""
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    if not line:
        last = (process.stderr.read().strip().splitlines() or ["it said nothing"])[-1]
        raise wifi.NetworkError(f"the traffic on a host ended: {last}")
    return json.loads(line)
