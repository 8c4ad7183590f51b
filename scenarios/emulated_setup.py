"""An emulated network, and the processes that live as long as it does."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from eloquent.wire import MAX_DATAGRAM
from scenarios.command import TRANSPORTS, Plan
from scenarios.link_check import prober_words
from scenarios.processes import JsonProcess
from scenarios.stage import Stage
from topologies.backends import choose
from topologies.openvswitch import OpenVSwitch, datapath

#: The server's ports: TCP on this one, each UDP scheme on one of its own from here on.
FIRST_PORT = 4433
#: The other transports have ports at which the analysis expects no records of ours.
FIRST_STACK_PORT = 4450
PROBE_PORT = 4999
CONTROLLER_PORT = 6653


class Testbed:
    """Must be made inside a sandbox; `start` builds it, and it ends with the stack given there.

    `ports` are the server's by scheme, `captures` the processes by host, one for each interface.
    """

    def __init__(self, plan: Plan, stage: Stage, folder: Path, console: Console) -> None:
        self.plan, self.stage, self._folder, self._console = plan, stage, folder, console
        udp = [scheme for scheme in plan.schemes if scheme not in TRANSPORTS]
        self.ports = {scheme: FIRST_PORT + number for number, scheme in enumerate(udp)}
        for number, scheme in enumerate(TRANSPORTS):
            if scheme in plan.schemes:
                self.ports[scheme] = FIRST_PORT if scheme == "tcp" else FIRST_STACK_PORT + number
        self.link = ""
        self.facts: dict[str, Any] = {}
        self.network: Any
        self.captures: dict[str, list[JsonProcess]]
        self.prober: JsonProcess
        self.server: JsonProcess

    def log(self, name: str) -> Path:
        """Where a log of this name lies."""
        return self._folder / "logs" / name

    def start(self, stack: contextlib.ExitStack) -> None:
        """Build the network and start everything on it; `facts` are for the manifest."""
        plan = self.plan
        choice = choose(plan.link, plan.network.access, plan.network.server)
        self.link = choice.name
        stack.enter_context(OpenVSwitch())
        kind = datapath()
        self.stage.say(
            f"Link: {choice.name} ({choice.reason}). Switch: Open vSwitch, {kind} datapath."
        )
        controller = self._process(
            stack,
            functools.partial(subprocess.Popen, start_new_session=True),
            "controller",
            [
                *("apps.controller", "--host", "127.0.0.1", "--port", str(CONTROLLER_PORT)),
                *("--stats", str(self._folder / "switch.csv")),
                *self.stage.controller_options(),
            ],
        )
        self.network = self.stage.build(choice, datapath=kind, controller_port=CONTROLLER_PORT)
        stack.callback(self.network.stop)
        self.network.start()
        # Open vSwitch would tell of its controllers every 5 s; the controller tells at once.
        for _ in self.network.mininet.switches:
            controller.expect("connected", timeout=30)
        self.stage.connected()
        server, client = self.network.server, self.network.client
        for host in (client, server):
            # What TCP learned in one run must not help it in the next.
            host.cmd("sysctl -qw net.ipv4.tcp_no_metrics_save=1")
        self._process(
            stack, server.popen, "echo", ["apps.probe", "echo", "--port", str(PROBE_PORT)]
        )
        self.prober = self._process(
            stack, client.popen, "prober", prober_words(server.IP(), PROBE_PORT)
        )
        self.captures = {
            name: [
                self._process(
                    stack,
                    host.popen,
                    f"capture-{name}{number or ''}",
                    ["apps.capture", "--interface", interface],
                )
                for number, interface in enumerate(self.stage.interfaces()[name])
            ]
            for name, host in (("client", client), ("server", server))
        }
        self.server = self._process(stack, server.popen, "server", self._server_words())
        with self._console.status("Starting the token server (a model takes about 15 s) …"):
            ready = self.server.expect("ready", timeout=300)
        self.facts = {
            "link": choice.name,
            "link_reason": choice.reason,
            "datapath": kind,
            "source": ready["source"],
            "tcp": {"congestion_control": "cubic", "no_metrics_save": True, "nodelay": True},
            "datagram_limit": MAX_DATAGRAM,
        }

    def _process(
        self,
        stack: contextlib.ExitStack,
        popen: Callable[..., Any],
        name: str,
        words: list[str],
    ) -> JsonProcess:
        command = [sys.executable, "-m", *words]
        process = JsonProcess(popen, command, name, self.log(f"{name}.log"))
        stack.callback(process.stop)
        return process

    def _server_words(self) -> list[str]:
        plan = self.plan
        words = ["apps.server", "--commands", "--host", self.network.server.IP()]
        words += ["--tokens", str(plan.tokens)]
        for scheme, port in self.ports.items():
            words += ["--stack" if scheme in TRANSPORTS else "--udp", f"{scheme}:{port}"]
        words += ["--source", plan.source, "--device", plan.device]
        words += ["--log-dir", str(self._folder / "logs")]
        if plan.model is not None:
            words += ["--model", plan.model]
        return words
