"""Several readers and bulk TCP flows share one narrow cell, which nearly closes for 5 s.

sudo python scenarios/shared_cell.py
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from terminal import message
from terminal.arguments import Parser

try:
    from scenarios.cell_start import start
    from scenarios.command import Plan, UsageError, plan_of
    from scenarios.scenario import Scenario
    from terminal import program, stopping
    from topologies.channel import Bottleneck
    from topologies.profile import Direction, LinkProfile, NetworkProfile
    from topologies.profile_file import named
    from topologies.quantities import Count, Kilobits, Megabits, Packets
except ModuleNotFoundError as missing:
    sys.exit(f"error: {missing}; run setup.sh, then use the Python in .venv/bin")


def network(
    rate: Megabits = 2.0,
    queue: Packets = 50.0,
    clients: Count = 4.0,
    flows: Count = 2.0,
    overload: Kilobits = 50.0,
    mixed: Count = 0.0,
) -> NetworkProfile:
    """The cell's bottleneck. What does not shape the link shapes the experiment around it.

    rate: 2 Mbit/s down, an assumption: so little that two TCP flows fill it at any time. The
    median of 4G, 27 Mbit/s (profile cell), would take Python's link process too much of a core.
    queue: 50 packets, drop-tail, an assumption: 0.3 s of full frames, between the 240 ms of the
    profile cell and the seconds of a phone's deep buffer (Jiang et al., IMC 2012).
    clients, flows: 4 readers and 2 bulk TCP flows, assumptions.
    overload: 50 kbit/s for 5 s, an assumption: some four full frames a second. 0 leaves it out.
    mixed: 1 adds runs in which the clients speak the schemes in turn.
    """
    radio = named("cell")
    down = Bottleneck(rate=1e6 * rate, queue_packets=int(queue))
    return NetworkProfile(
        access=LinkProfile(
            "shared cell",
            up=radio.up,
            down=Direction(delay=radio.down.delay, bottleneck=down),
            source=f"down: rate and queue assumed, see scenarios/shared_cell.py; {radio.source}",
        ),
        server=named("wired"),
    )


def workload() -> str:
    """The answer that ships: its times are known, so that the overload can be put in its middle."""
    return "trace"


SCENARIO = Scenario(
    name="shared_cell",
    title="Readers and bulk TCP flows on one queue",
    network=network,
    workload=workload,
    prompts=("Why is the sky blue?",),
    runs=4,
    tokens=300,
)
#: Of a quick run: 16 s, of which the overload leaves 9 to measure the sharing.
_QUICK_TOKENS = 250


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--quick" in words and not any(word.startswith("--to") for word in words):
        words += ["--tokens", str(_QUICK_TOKENS)]
    own = Parser(add_help=False, allow_abbrev=False)
    own.add_argument("--out", type=Path)
    own.add_argument("--sweep", nargs="*")
    try:
        with stopping.stoppable():
            options, rest = own.parse_known_args(words)
            plan = plan_of(SCENARIO, rest)
            _check(plan, options.sweep is not None)
            plan = dataclasses.replace(plan, command_line=(sys.argv[0], *words))
            return start(plan, options.out)
    except UsageError as error:
        message.error(error)
        return 2
    except KeyboardInterrupt as stop:
        return stopping.status(stop)


def _check(plan: Plan, sweep: bool) -> None:
    """What this scenario cannot do, said before anything starts."""
    if sweep:
        raise UsageError("--sweep: this scenario cannot be swept yet; loop over its options")
    if plan.engine == "simulated":
        raise UsageError("--engine simulated: bulk TCP needs a kernel; use emulated or virtual")
    if not plan.source.startswith(("trace", "timing:")):
        raise UsageError(
            f"--source {plan.source}: the overload needs answers whose times are known: use trace "
            "or timing:NAME"
        )
    whole = (("clients", 1, 20), ("flows", 1, 20), ("queue", 1, 10_000), ("mixed", 0, 1))
    for name, low, high in whole:
        value = plan.knobs[name]
        if not (low <= value <= high and value == int(value)):
            raise UsageError(f"--{name} must be a whole number from {low} to {high}, not {value:g}")
    reduced, rate = plan.knobs["overload"], 1e3 * plan.knobs["rate"]
    if reduced and not 1 <= reduced <= rate:
        raise UsageError(
            f"--overload must be 0 (none) or from 1 to the cell's {rate:g} kbit/s, not {reduced:g}"
        )
    if reduced and plan.link == "netem":
        raise UsageError(
            "--link netem: it cannot change its rate in time; use user, auto, or --overload 0"
        )


if __name__ == "__main__":
    program.run(main)
