"""Run a command as root in a guest kernel: see --help."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from terminal import message, program, stopping
from terminal.arguments import Parser
from topologies.guest.boot import MEMORY, TIMES, GuestError, run
from topologies.guest.kernel import KernelError
from topologies.quantities import MEBIBYTES, TIME

_EXAMPLES = """\
examples:
  python -m topologies.guest -- tc qdisc add dev lo root netem delay 20ms
  python -m topologies.guest -- sh -c 'sleep 3600; date'
  python -m topologies.guest --out results -- .venv/bin/python scenarios/wifi_loss.py --quick
  python -m topologies.guest --time real -- .venv/bin/python -m pytest tests/test_netem.py

The command sees the host's files; what it writes vanishes, except in the folders of --out.
Nobody has to be root. In virtual time, idle time is skipped and computing takes no time.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the command's exit status."""
    parser = Parser(
        prog="python -m topologies.guest",
        description="Run a command as root in a guest kernel with netem and Open vSwitch.",
        epilog=_EXAMPLES,
    )
    add = parser.add_argument
    add("--time", choices=TIMES, default="virtual", help="the guest's clock (%(default)s)")
    add("--seed", type=int, default=1, help="of the guest's random numbers (%(default)s)")
    add(
        "--memory",
        type=MEBIBYTES.option(),
        default=MEMORY,
        metavar="SIZE",
        help="of the guest, as 2GiB or in MiB (%(default)s)",
    )
    add(
        "--timeout",
        type=TIME.option(),
        metavar="TIME",
        help="end it after this much of the host's time, as 5min or in s",
    )
    add("--out", type=Path, action="append", default=[], metavar="DIR", help="keep what is here")
    add("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run")
    options = parser.parse_args(argv)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("there is no command; put it behind --")
    if options.memory < 128:
        parser.error(f"--memory must be at least 128 MiB, not {options.memory:g}")
    if options.timeout is not None and not options.timeout > 0:
        parser.error(f"--timeout must be above 0 s, not {options.timeout:g}")
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "COLUMNS") if name in os.environ}
    try:
        result = run(
            command,
            out=options.out,
            clock=options.time,
            seed=options.seed,
            memory=int(options.memory),
            timeout=options.timeout,
            environment=kept,
        )
    except (GuestError, KernelError) as error:
        message.error(error)
        return 125
    except KeyboardInterrupt as stop:
        message.note("Interrupted: the guest is ended.")
        return stopping.status(stop)
    return result.status


if __name__ == "__main__":
    program.run(main)
