"""Build a network of the catalogue and look at it: see --help."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from terminal import message, program, stopping
from terminal.arguments import Parser
from terminal.text import visible
from topologies import catalogue, openvswitch, profile_file, sandbox
from topologies.backends import BACKENDS, choose
from topologies.catalogue import pings
from topologies.drawing import DrawingError, describe, draw
from topologies.links import LinkError
from topologies.profile import ProfileError
from topologies.tap import TapError

_EXAMPLES = """\
examples:
  .venv/bin/python -m topologies --list                      topologies and link profiles
  .venv/bin/python -m topologies two_access --draw two.svg   a picture; needs no root
  sudo .venv/bin/python -m topologies wifi                   build it, ping, take it down
  sudo .venv/bin/python -m topologies lte --profile starlink-driving --seed 7
  sudo .venv/bin/python -m topologies dumbbell --profile my-link.toml --link user
  sudo .venv/bin/python -m topologies cell --cli             look around in it

--profile goes to the access link of a topology, which is red in its picture. Everything runs in
namespaces of its own: whatever happens, nothing is left of it when the command ends.
"""

_ERRORS = (
    DrawingError,
    LinkError,
    ProfileError,
    TapError,
    catalogue.NetworkError,
    catalogue.TopologyError,
    openvswitch.OpenVSwitchError,
    sandbox.SandboxError,
)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    if not options.list and options.name is None:
        parser.error("a NAME is needed, or --list")
    try:
        if options.list:
            _list()
            return 0
        topology = catalogue.named(options.name)
        if options.profile is not None:
            topology = topology.with_access(profile_file.find(options.profile))
        if options.draw is not None:
            draw(topology, options.draw)
            print(f"Picture: {visible(str(options.draw))}")
            if not options.cli:
                return 0
        topology.profiles  # noqa: B018 - it reads them all: errors come before anything is built
        try:
            return sandbox.run(lambda: _run(topology, options))
        finally:
            if options.cli:
                _take_terminal()
    except _ERRORS as error:
        message.error(error)
        return 2
    except KeyboardInterrupt as stop:
        return stopping.status(stop)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m topologies",
        description="Build a network of Mininet hosts, Open vSwitch and lossy links; ping all "
        "pairs of hosts and compare with what the profiles of the links say.",
        epilog=_EXAMPLES,
    )
    known = ", ".join(catalogue.names())
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"one of {known}")
    parser.add_argument(
        "--profile", metavar="FILE|NAME", help="profile of the access link (default: its own)"
    )
    parser.add_argument("--link", choices=BACKENDS, default="auto", help="back end (auto)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the channels (1)")
    parser.add_argument("--cli", action="store_true", help="open Mininet's command line")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="write a picture, .svg or .png")
    parser.add_argument("--list", action="store_true", help="list topologies and link profiles")
    return parser


def _list() -> None:
    from terminal.console import standard_output
    from terminal.table import Table

    console = standard_output()
    table = Table()
    table.add_column("topology", key=True)
    table.add_column("what it is", prose=True)
    for header in ("hosts", "switches", "links"):
        table.add_column(header, justify="right")
    for name in catalogue.names():
        topology = catalogue.named(name)
        counts = (topology.hosts, topology.switches, topology.wires)
        table.add_row(name, topology.title, *(str(len(count)) for count in counts))
    console.print(table)
    console.print()
    table = Table()
    table.add_column("profile", key=True)
    for header in ("what it is", "its numbers"):
        table.add_column(header, prose=True)
    for name in profile_file.names():
        table.add_row(name, profile_file.title(name), describe(profile_file.named(name)))
    console.print(table)
    print(f"Each number has its source in {profile_file.FOLDER}.")


def _run(topology: catalogue.Topology, options: argparse.Namespace) -> int:
    """Inside the sandbox."""
    try:
        choice = choose(options.link, *topology.profiles.values())
        with openvswitch.OpenVSwitch():
            kind = openvswitch.datapath()
            network = catalogue.build(topology, choice, datapath=kind)
            try:
                network.start()
                network.wait_connected(10)
                print(f"{topology.name}: {topology.title}")
                print(f"Links: {choice.name} ({choice.reason}). Switches: {kind} datapath.")
                sys.stdout.flush()
                if options.cli:
                    _open_cli(network, options.seed)
                else:
                    _ping(network, options.seed)
            finally:
                network.stop()
    except _ERRORS as error:
        message.error(error)
        return 1
    return 0


def _open_cli(network: catalogue.Network, seed: int) -> None:
    from mininet.cli import CLI
    from mininet.log import setLogLevel

    print("`exit` or Ctrl-D takes the network down; `help` says what else there is.", flush=True)
    setLogLevel("output")  # or its commands would say nothing
    pings.start_channels(network, seed)
    # Ctrl-C is for what runs at the prompt. The sandbox would take it as the wish to end it all,
    # so it must not hear it: the terminal talks to a process group of our own.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setpgid(0, 0)
    _take_terminal()
    CLI(network.mininet)


def _take_terminal() -> None:
    """Make this process group the one that the terminal talks to, if there is a terminal."""
    if sys.stdin.isatty():
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # sent to who asks from behind
        try:
            os.tcsetpgrp(sys.stdin.fileno(), os.getpgrp())
        finally:
            signal.signal(signal.SIGTTOU, before)


def _ping(network: catalogue.Network, seed: int) -> None:
    topology = network.topology
    print(f"{pings.COUNT} pings for each pair, all pairs at once, {pings.INTERVAL:g} s apart")
    print(f"{'':30}{'RTT, ms':>19}{'loss, %':>31}")
    heads = ("profile", "seen", "profile", f"seed {seed}", "seen")
    print(f"{'':30}" + "".join(f"{head:>10}" for head in heads))
    uplinks = [wire.name for wire in topology.wires_of(topology.client)]
    for uplink in uplinks:
        if len(uplinks) > 1:
            network.use(uplink)
        for seen in pings.ping_all(network, seed):
            by = uplink if topology.client == seen.first else None
            said = pings.expected(topology, seen.first, seen.second, seed, by)
            pair = f"{seen.first} - {seen.second}"
            pair += f" by {uplink}" if by and len(uplinks) > 1 else ""
            rtt = "-" if seen.rtt is None else f"{1e3 * seen.rtt:.1f}"
            losses = (said.loss, said.loss_now, seen.loss)
            numbers = "".join(f"{100 * loss:10.1f}" for loss in losses)
            print(f"{pair:30}{1e3 * said.rtt:10.1f}{rtt:>10}{numbers}", flush=True)


if __name__ == "__main__":
    program.run(main)
