"""The shared cell, built: hosts, links, and the processes that live as long as it does."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scenarios.cell_network import topology
from scenarios.command import TRANSPORTS, Plan
from scenarios.measurement import MeasurementError
from scenarios.processes import JsonProcess
from topologies.backends import choose
from topologies.catalogue import Network, build
from topologies.openvswitch import OpenVSwitch, datapath

BULK_PORT = 5201
#: The round trip over the idle cell may differ by this much (s) from the profiles': each of the
#: two links is a process that wakes up when a frame is due.
_RTT_TOLERANCE = 0.01
_PINGS = 10


class Cell:
    """Must be made inside a sandbox; `start` builds it, and it ends with the stack given there.

    `ports` are the server's by scheme, `trace` that of the bottleneck, if its rate changes.
    """

    def __init__(
        self,
        plan: Plan,
        clients: Sequence[str],
        ports: dict[str, int],
        folder: Path,
        trace: Path | None,
    ) -> None:
        self.plan, self.clients, self.ports = plan, clients, ports
        self._folder = folder
        self._shape = topology(plan.network, len(clients), trace)
        profiles = self._shape.profiles
        choice = choose(plan.link, *profiles.values())
        self.link = choice.name
        self.description = ""
        self.facts: dict[str, Any] = {
            "link": choice.name,
            "link_reason": choice.reason,
            "topology": {name: link.to_dict() for name, link in profiles.items()},
            "tcp": {"congestion_control": "cubic", "no_metrics_save": True, "nodelay": True},
        }
        self._choice = choice
        self.network: Network
        self.captures: dict[str, JsonProcess]
        self.bulk: JsonProcess
        self.server: JsonProcess

    def start(self, stack: contextlib.ExitStack) -> None:
        """Build it and measure the idle way from each client to the server."""
        stack.enter_context(OpenVSwitch())
        choice, kind = self._choice, datapath()
        self.description = (
            f"Link: {choice.name} ({choice.reason}). Switches: Open vSwitch, {kind} datapath."
        )
        self.network = build(self._shape, choice, datapath=kind)
        stack.callback(self.network.stop)
        self.network.start()
        self.network.wait_connected(30)
        for host in self.network.hosts.values():
            # What TCP learned in one run must not help it in the next.
            host.cmd("sysctl -qw net.ipv4.tcp_no_metrics_save=1")
        address = self.network.server.IP()
        self.captures = {
            name: self._process(
                stack,
                *(name, f"capture-{name}", "apps.capture"),
                *("--interface", str(self.network.hosts[name].defaultIntf().name)),
            )
            for name in ("server", *self.clients)
        }
        self.bulk = self._process(
            *(stack, "server", "bulk", "apps.bulk"),
            *("send", "--host", address, "--port", str(BULK_PORT)),
        )
        self.bulk.expect("ready", timeout=30)
        self.server = self._process(stack, "server", "server", *self._server_words(address))
        ready = self.server.expect("ready", timeout=60)
        self.facts |= {
            "datapath": kind,
            "source": ready["source"],
            "idle_rtt": self._check_idle(),
        }

    def _process(
        self, stack: contextlib.ExitStack, host: str, name: str, *words: str
    ) -> JsonProcess:
        log = self._folder / "logs" / f"{name}.log"
        command = [sys.executable, "-m", *words]
        process = JsonProcess(self.network.hosts[host].popen, command, name, log)
        stack.callback(process.stop)
        return process

    def _server_words(self, address: str) -> list[str]:
        plan = self.plan
        words = ["apps.server", "--commands", "--host", address, "--tokens", str(plan.tokens)]
        for scheme, port in self.ports.items():
            words += ["--stack" if scheme in TRANSPORTS else "--udp", f"{scheme}:{port}"]
        return [*words, "--source", plan.source, "--log-dir", str(self._folder / "logs")]

    def _check_idle(self) -> float:
        """The round trip of a client over the idle cell must be what the profiles say."""
        network = self.network
        ends = (self.plan.network.access, self.plan.network.server)
        said = sum(end.direction(way).mean_delay for end in ends for way in ("up", "down"))
        for link in network.links.values():
            link.seed(self.plan.seed)
            link.start_epoch(time.monotonic())  # the trace's first part is the full rate
        seen = min(self._ping(name) for name in self.clients)
        if abs(seen - said) > _RTT_TOLERANCE:
            raise MeasurementError(
                f"link {self.plan.network.access.name}: its round trip is {1e3 * seen:.1f} ms, the "
                f"profiles say {1e3 * said:.1f} ms"
            )
        return seen

    def _ping(self, name: str) -> float:
        words = ["ping", "-n", "-c", str(_PINGS), "-i", "0.05", "-W", "2"]
        ping = self.network.hosts[name].popen(
            [*words, self.network.server.IP()], stdin=subprocess.DEVNULL, text=True
        )
        output, _ = ping.communicate(timeout=60)
        times = [float(found) / 1e3 for found in re.findall(r"time=([0-9.]+) ms", output)]
        if not times:
            raise MeasurementError(f"{name} gets no answer from the server over the idle cell")
        return min(times)
