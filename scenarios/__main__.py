"""All scenarios together: ``python -m scenarios --list``, ``run`` and ``agree``."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import itertools
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import scenarios
from scenarios.scenario import Scenario
from terminal import message, program

_EXAMPLES = """examples:
  python -m scenarios --list
  sudo python -m scenarios run wifi_loss handover --runs 3
  sudo python -m scenarios run --all --quick
  python -m scenarios run --all --quick --engine virtual
  python -m scenarios agree --engines simulated,virtual --runs 10
"""


def catalogue() -> dict[str, Scenario]:
    """Every scenario in this folder, by name: a module with a ``SCENARIO``."""
    found: dict[str, Scenario] = {}
    for module in pkgutil.iter_modules(scenarios.__path__):
        path = Path(scenarios.__path__[0]) / f"{module.name}.py"
        if path.exists() and "\nSCENARIO = " in path.read_text():
            scenario = importlib.import_module(f"scenarios.{module.name}").SCENARIO
            found[scenario.name] = scenario
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m scenarios",
        description="Run several scenarios, or hold the engines against each other.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="name the scenarios")
    commands = parser.add_subparsers(dest="command")
    # No positional for the names: argparse would take the value of a scenario's option for one.
    run = commands.add_parser(
        "run",
        help="run scenarios one after the other, or on the virtual engine side by side",
        usage="python -m scenarios run [NAME ...] [--all] [--out OUT] [options]",
        epilog="names come first; other options go to each scenario",
        allow_abbrev=False,
    )
    run.add_argument("--all", action="store_true", help="every scenario")
    run.add_argument("--out", type=Path, help="folder for the results of all")
    agree = commands.add_parser("agree", help="do the engines agree? same seeds on each")
    agree.add_argument("--engines", default="simulated,virtual", help="(%(default)s)")
    agree.add_argument("--runs", type=int, default=6, help="of each scheme and cell (%(default)s)")
    agree.add_argument("--tokens", type=int, default=200, help="of each answer (%(default)s)")
    agree.add_argument("--seed", type=int, default=1)
    agree.add_argument("--out", type=Path, help="results folder; goes on with one that is there")
    agree.add_argument("--json", action="store_true")
    options, rest = parser.parse_known_args(arguments)
    if options.list:
        _list()
        return 0
    if options.command == "agree" and not rest:
        return _agree(options)
    if options.command != "run":
        parser.error(f"unrecognised: {' '.join(rest)}" if rest else "say --list, run or agree")
    named = list(itertools.takewhile(lambda word: not word.startswith("-"), rest))
    rest = rest[len(named) :]
    names = list(catalogue()) if options.all else named
    unknown = [name for name in names if name not in catalogue()]
    if unknown or not names:
        known = ", ".join(catalogue())
        message.error(f"no scenario {(unknown or ['?'])[0]!r}: use {known}, or --all")
        return 2
    return _run(names, rest, options.out)


def _list() -> None:
    from terminal.console import standard_output
    from terminal.table import Table

    table = Table()
    table.add_column("name", key=True)
    for header in ("what", "parameters"):
        table.add_column(header, prose=True)
    for name, scenario in catalogue().items():
        knobs = ", ".join(f"{key} {value:g}" for key, value in scenario.knobs().items())
        table.add_row(name, scenario.title, knobs)
    standard_output().print(table)


def _run(names: Sequence[str], options: Sequence[str], out: Path | None) -> int:
    """Each scenario in a process of its own: one that fails does not end the others.

    Guests in virtual time do not disturb each other: as many run at once as there are cores.
    """
    folder = out or Path("results/all") / f"{datetime.datetime.now():%Y%m%d-%H%M%S}"
    folder.mkdir(parents=True, exist_ok=True)
    engine = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    engine.add_argument("--engine")
    engine.add_argument("--time")
    known, _ = engine.parse_known_args(options)
    virtual = known.engine == "virtual" and known.time in (None, "virtual")
    workers = min(len(os.sched_getaffinity(0)), len(names)) if virtual else 1
    running: list[subprocess.Popen[bytes]] = []

    def one(name: str) -> tuple[int, float]:
        started = time.monotonic()
        file = Path(__file__).with_name(f"{name}.py")
        command = [sys.executable, str(file), *options, "--out", str(folder / name)]
        with contextlib.ExitStack() as stack:
            words = stack.enter_context(tempfile.TemporaryFile()) if workers > 1 else None
            if words is None:
                message.note(f"== {name}")
            process = subprocess.Popen(command, stdout=words, stderr=words)
            running.append(process)
            status = process.wait()
            running.remove(process)
            if words is not None:  # all that one said together, not mixed with another's
                words.seek(0)
                said = words.read().decode(errors="replace")
                print(f"== {name}\n{said}", end="", file=sys.stderr, flush=True)
        return status, time.monotonic() - started

    with ThreadPoolExecutor(workers) as pool:
        try:
            statuses = dict(zip(names, pool.map(one, names), strict=True))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                try:
                    process.wait(3)  # a terminal tells all of us; a second word would disturb
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGINT)
            return 130
    for name, (status, seconds) in statuses.items():
        word = "ok" if status == 0 else f"FAILED ({status})"
        message.note(f"{name:16} {word:12} {seconds:6.0f} s")
    message.note(f"Results: {folder}")
    # A negative status is that of a process which a signal ended.
    return max((abs(status) for status, _ in statuses.values()), default=0)


def _agree(options: argparse.Namespace) -> int:
    from scenarios import agreement
    from scenarios.command import ENGINES, UsageError
    from terminal.console import standard_error

    engines = options.engines.split(",")
    bad = [engine for engine in engines if engine not in ENGINES]
    if bad:
        message.error(f"no engine {bad[0]!r}: use {', '.join(ENGINES)}")
        return 2
    try:
        return agreement.run(
            engines,
            options.out or Path("results/agree") / f"{datetime.datetime.now():%Y%m%d-%H%M%S}",
            runs=options.runs,
            tokens=options.tokens,
            seed=options.seed,
            as_json=options.json,
            strict=True,
            console=standard_error(),
        )
    except UsageError as error:
        message.error(error)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    program.run(main)
