"""The stage of a handover: a client with two access networks, moved by the controller.

client == access-a == s1 -- s3 == server == server, and access-b over s2 beside it. Both access
networks are as the scenario's profile says, without its gap: that comes from the switches here.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scenarios.command import TRANSPORTS, Plan
from scenarios.link_check import LinkCheckError, check_links
from scenarios.measurement import MeasurementError
from scenarios.processes import JsonProcess, ProcessFailed
from scenarios.stage import Action, Stage
from topologies import catalogue, sandbox
from topologies.backends import Choice
from topologies.profile import LinkProfile, NetworkProfile
from topologies.wifi import NetworkError

PATHS = ("access-a", "access-b")
#: The client's address in the second network, after a break.
SECOND_ADDRESS = "10.0.0.101"
#: Seconds between two looks at the counters.
SAMPLING = 0.5
#: How long (ms) Open vSwitch may take to tell a rule about its packets; its default is 500.
_REVALIDATE = 100
_SETTLED = 0.3
#: So many times the links are measured before they are given up.
_CHECKS = 3
#: Seconds after the break in which what was on its way arrives, before the address goes.
_ON_ITS_WAY = 0.02
_COLUMNS = ("scheme", "run", "time", "path", "direction", "packets", "bytes")


class Control:
    """The runner's end of the controller's interface, see ``apps.path_switch``."""

    def __init__(self, path: Path, patience: float = 10.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(patience)
        deadline = time.monotonic() + patience
        while True:
            try:
                self._socket.connect(str(path))
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    self.close()
                    raise ProcessFailed(f"the controller has no {path}: {error}") from None
                time.sleep(0.05)
        self._lines = self._socket.makefile("r", encoding="utf-8")

    def __call__(self, do: str, **more: Any) -> dict[str, Any]:
        """One command and its answer. Raises ProcessFailed."""
        try:
            self._socket.sendall(json.dumps({"do": do, **more}).encode() + b"\n")
            line = self._lines.readline()
        except OSError as error:
            raise ProcessFailed(f"the controller cannot be asked to {do}: {error}") from None
        if not line:
            raise ProcessFailed(f"the controller ended when asked to {do}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ProcessFailed(f"the controller cannot {do}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


class TwoPaths(Stage):
    """A handover from ``access-a`` to ``access-b`` at ``at`` s, with a break of ``gap`` s or none.

    After a break the client is at another address. The transports beside the protocol library's
    schemes keep it: a TCP connection would end, so for them the network behind keeps the address
    alive, as mobile cores do. That is the best that can happen to them.
    """

    def __init__(
        self, plan: Plan, folder: Path, say: Callable[[str], None], *, at: float, gap: float
    ) -> None:
        super().__init__(plan, folder, say)
        self.at, self.gap = at, gap
        self._access = _without_losses(plan.network.access)
        self._scheme, self._run = "", 0
        self._epoch = 0.0
        self._base: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._told: dict[str, Any] = {}
        self._lost_control = ""
        self._at_home = True
        kept = [scheme for scheme in plan.schemes if scheme in TRANSPORTS]
        if gap > 0 and kept:
            self.say(f"Across the break {', '.join(kept)} may keep the client's address.")

    def controller_options(self) -> list[str]:
        return ["--control", str(self._socket)]

    @property
    def _socket(self) -> Path:
        return sandbox.scratch() / "controller.sock"

    def build(self, choice: Choice, *, datapath: str, controller_port: int) -> Any:
        setting = f"other_config:max-revalidator={_REVALIDATE}"
        command = ["ovs-vsctl", "-t", "5", "set", "Open_vSwitch", ".", setting]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NetworkError(f"Open vSwitch takes no {setting}: {' '.join(done.stderr.split())}")
        profiles = dict.fromkeys(PATHS, self._access) | {"server": self.plan.network.server}
        topology = catalogue.named("two_access").with_profiles(profiles)
        self.network = catalogue.build(
            topology, choice, datapath=datapath, controller_port=controller_port
        )
        return self.network

    def connected(self) -> None:
        self._control = Control(self._socket)
        client, server = self.network.client, self.network.server
        paths = {name: self._ports(name) for name in PATHS}
        deadline = time.monotonic() + 10
        while True:
            try:
                self._control("paths", client=client.MAC(), paths=paths)
                break
            except ProcessFailed:
                if time.monotonic() > deadline:  # the switches have not told their ports
                    raise
                time.sleep(0.1)
        neighbour = f"{SECOND_ADDRESS} lladdr {client.MAC()} dev {server.defaultIntf().name}"
        _command(server, f"ip neigh replace {neighbour} nud permanent")
        with (self.folder / "paths.csv").open("w", newline="") as file:
            csv.writer(file).writerow(_COLUMNS)

    def _ports(self, name: str) -> list[list[str]]:
        """The path's ports, of each switch those towards the client and the server."""
        network, mininet = self.network, self.network.mininet
        way = network.topology.path("client", "server", by=name)
        nodes = [wire.second for wire, _ in way[:-1]]
        ends = ["client", *nodes, "server"]
        pairs = []
        for before, node, after in zip(ends, nodes, ends[2:], strict=False):
            switch = network.switches[node]
            sides = (mininet.get(before), mininet.get(after))
            pairs.append([switch.connectionsTo(side)[0][0].name for side in sides])
        return pairs

    def interfaces(self) -> dict[str, list[str]]:
        client, server = self.network.client, self.network.server
        names = [interface.name for interface in client.intfList() if interface.name != "lo"]
        return {"client": names, "server": [server.defaultIntf().name]}

    def check_links(self, seed: int, prober: JsonProcess) -> dict[str, Any]:
        profile = NetworkProfile(access=self._access, server=self.plan.network.server)
        self._go_home()
        seen: dict[str, Any] = {}
        for name in reversed(PATHS):
            self._control("move", path=name, address=self.network.client.IP())
            self.network.use(name)
            seen[name] = _check_patiently(self.network, profile, seed, prober)
        return {**seen["access-a"], "access_b": seen["access-b"]}

    def begin(self, scheme: str, number: int) -> None:
        self._scheme, self._run = scheme, number
        self._told = {}
        time.sleep(_SETTLED)
        self._base = self._last = self._control("counters")["paths"]

    def actions(self, epoch: float) -> Iterator[Action]:
        self._epoch = epoch
        yield 0.0, self._sample
        for number in itertools.count(1):
            time_of_sample = number * SAMPLING
            if time_of_sample - SAMPLING < self.at <= time_of_sample:
                yield self.at, self._hand_over
            yield time_of_sample, self._sample

    def end(self) -> dict[str, Any]:
        if "works" not in self._told:
            raise MeasurementError(
                f"{self._scheme}, run {self._run}: the answer ended before the handover was over; "
                "take more --tokens or an earlier --at"
            )
        time.sleep(_SETTLED)
        self._sample()
        self._told["paths"] = self._since_begin()
        self._told["controller"] = self._lost_control or "running"
        if self._lost_control:
            self.say(
                f"warning: {self._scheme}, run {self._run}: {self._lost_control}; the flows stayed,"
                " the counters end there"
            )
        return {"handover": self._told}

    # -- in the middle of a run ------------------------------------------------------------------

    def _hand_over(self) -> None:
        old, new = self.network.client.IP(), self.network.client.IP()
        self._told["asked"] = self._now()
        if self.gap > 0:
            gone = self._control("move", path=None)["at"]
            self._told["gone"] = gone - self._epoch
            if self._scheme not in TRANSPORTS:
                new = SECOND_ADDRESS
                time.sleep(_ON_ITS_WAY)
                self._leave_home()
            else:
                self.network.use(PATHS[1])
            time.sleep(max(0.0, gone + self.gap - time.monotonic()))
            works = self._control("move", path=PATHS[1], address=new)["at"]
        else:
            works = self._control("move", path=PATHS[1])["at"]
            self.network.use(PATHS[1])
        self._told |= {"works": works - self._epoch, "addresses": [old, new]}

    def _leave_home(self) -> None:
        """The client gets its second address and loses the first."""
        client = self.network.client
        first, second = self.interfaces()["client"]
        _command(
            client,
            f"ip addr add {SECOND_ADDRESS}/32 dev {second} && "
            f"ip route replace 10.0.0.0/8 dev {second} src {SECOND_ADDRESS} && "
            f"ip addr del {client.IP()}/8 dev {first}",
        )
        self._at_home = False

    def _go_home(self) -> None:
        """The client has its first address again, and only that one."""
        if self._at_home:
            return
        client = self.network.client
        first, second = self.interfaces()["client"]
        _command(client, f"ip addr add {client.IP()}/8 dev {first} noprefixroute")
        self.network.use(PATHS[0])
        _command(client, f"ip addr del {SECOND_ADDRESS}/32 dev {second}")
        # An interface that loses its last address forgets all neighbours, the permanent ones too.
        server = self.network.server
        for interface in (first, second):
            neighbour = f"{server.IP()} lladdr {server.MAC()} dev {interface}"
            _command(client, f"ip neigh replace {neighbour} nud permanent")
        self._at_home = True

    def _now(self) -> float:
        return time.monotonic() - self._epoch

    def _sample(self) -> None:
        """Write the counters down. A dead controller does no harm to a stream: the flows stay."""
        if self._lost_control:
            return
        at = self._now()
        try:
            self._last = self._control("counters")["paths"]
        except ProcessFailed as error:
            self._lost_control = str(error)
            return
        with (self.folder / "paths.csv").open("a", newline="") as file:
            for path, ways in self._since_begin().items():
                for way, counts in ways.items():
                    row = (self._scheme, self._run, f"{at:.3f}", path, way, *counts.values())
                    csv.writer(file).writerow(row)

    def _since_begin(self) -> dict[str, Any]:
        return {
            path: {
                way: {key: counts[key] - self._base[path][way][key] for key in counts}
                for way, counts in ways.items()
            }
            for path, ways in self._last.items()
        }


def _check_patiently(
    network: Any, profile: NetworkProfile, seed: int, prober: JsonProcess
) -> dict[str, Any]:
    """Frames cross two switches here, so a busy machine shows earlier: it gets further chances."""
    for number in itertools.count(1):
        try:
            return check_links(network, profile, seed, prober)
        except LinkCheckError:
            if number == _CHECKS:
                raise
            time.sleep(number)
    raise AssertionError


def _without_losses(link: LinkProfile) -> LinkProfile:
    up, down = (dataclasses.replace(way, loss=None) for way in (link.up, link.down))
    return dataclasses.replace(link, up=up, down=down)


def _command(node: Any, command: str) -> None:
    output = node.cmd(f"({command}) 2>&1; echo $?").split()
    if not output or output[-1] != "0":
        raise NetworkError(f"{node.name} cannot do `{command}`: {' '.join(output[:-1])}")
