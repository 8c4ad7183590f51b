"""Check this machine: see --help."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from terminal import message, program, stopping
from terminal.arguments import Parser
from topologies.doctor import report
from topologies.doctor.examination import Examination

_EXAMPLES = """\
examples:
  sudo .venv/bin/python -m topologies.doctor           everything, in under 30 s
  sudo .venv/bin/python -m topologies.doctor --quick   the checks alone, in some seconds
  sudo .venv/bin/python -m topologies.doctor --json | jq .believed.user.max_rate

A line says ok, note (worth knowing) or problem (something needed is missing), what was found, and
what to do about it. Devices and daemons are made inside namespaces of their own: nothing of this
machine is changed, but that the kernel may load modules. The exit status is 0 when all that is
needed is there, and else 1.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = Parser(
        prog="python -m topologies.doctor",
        description="Is this machine fit for the testbed, and what can it be believed to emulate?",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--quick", action="store_true", help="check only, do not measure links")
    parser.add_argument("--json", action="store_true", help="print one JSON object, at the end")
    options = parser.parse_args(argv)
    try:
        return _examine(quick=options.quick, as_json=options.json)
    except KeyboardInterrupt as stop:
        message.note("Interrupted: nothing is left behind.")
        return stopping.status(stop)
    except Exception as error:  # noqa: BLE001 - a doctor with a traceback helps nobody
        message.note(f"problem  doctor: it failed itself ({error or type(error).__name__})")
        return 1


def _examine(*, quick: bool, as_json: bool) -> int:
    examination = Examination()
    for check in examination.checks():
        if not as_json:
            print(report.line(check), flush=True)
    if not quick:
        if not as_json and sys.stderr.isatty():
            message.note("Measuring links, some 20 s ...")
        for check in examination.links():
            if not as_json:
                print(report.line(check), flush=True)
    print(report.as_json(examination) if as_json else "\n".join(report.conclusion(examination)))
    return 0 if examination.ok else 1


if __name__ == "__main__":
    program.run(main)
