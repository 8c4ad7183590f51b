"""Networks for emulation tests: Mininet and Open vSwitch in a sandbox, and UDP probes over them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from scipy.stats import binom

from topologies import openvswitch, sandbox
from topologies.backends import Choice
from topologies.profile import Direction, LinkProfile, NetworkProfile
from topologies.wifi import Network, build

T = TypeVar("T")
PROBE = str(Path(__file__).with_name("udp_probe.py"))
CABLE = LinkProfile("cable", Direction(), Direction(), "test")
Probes = list[tuple[float, float | None]]


@contextmanager
def network(
    up: Direction, down: Direction, server: LinkProfile = CABLE, backend: str = "user"
) -> Iterator[Network]:
    profile = NetworkProfile(LinkProfile("access", up, down, "test"), server)
    with openvswitch.OpenVSwitch():
        made = build(profile, Choice(backend, "test"), datapath=openvswitch.datapath())
        try:
            made.start()
            made.wait_connected(10)
            yield made
        finally:
            made.stop()


def inside(
    function: Callable[[Network], T],
    up: Direction,
    down: Direction | None = None,
    backend: str = "user",
) -> T:
    """The result of `function` on a network with this access link, in a sandbox of its own."""

    def main() -> T:
        with network(up, down or up, backend=backend) as made:
            return function(made)

    return sandbox.call(main)


@contextmanager
def echo(made: Network) -> Iterator[None]:
    server = made.server.popen([sys.executable, PROBE, "echo", "4999"], stdin=subprocess.DEVNULL)
    assert server.stdout.readline() == b"ready\n"
    try:
        yield
    finally:
        server.kill()
        server.wait()


def probe(made: Network, n: int, interval: float) -> Probes:
    command = [sys.executable, PROBE, "send", "10.0.0.2", "4999", str(n), str(interval), "100"]
    client = made.client.popen(command, stdin=subprocess.DEVNULL)
    out, err = client.communicate()
    assert client.returncode == 0, err
    return [(sent, returned) for sent, returned in json.loads(out)]


def interval_999(n: int, p: float) -> tuple[float, float]:
    low, high = binom.interval(0.999, n, p)
    return float(low), float(high)
