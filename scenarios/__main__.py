"""All scenarios together: ``python -m scenarios --list``, ``run`` and ``agree``."""

from __future__ import annotations

import argparse
import contextlib
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
from scenarios.command import positive
from scenarios.folders import FolderError, results_folder
from scenarios.scenario import Scenario
from terminal import message, program, stopping
from terminal.arguments import Parser, did_you_mean
from terminal.console import standard_error

_EXAMPLES = """examples:
  python -m scenarios --list
  sudo python -m scenarios run wifi_loss handover --runs 3
  sudo python -m scenarios run --all --quick
  python -m scenarios run --all --quick --engine virtual
  python -m scenarios agree --engines simulated,virtual --runs 10
"""

_RUN_EXAMPLES = """examples:
  sudo python -m scenarios run wifi_loss handover --runs 3
  python -m scenarios run --all --quick --engine virtual
"""

_AGREE_EXAMPLES = """examples:
  python -m scenarios agree --engines simulated,virtual --runs 10
  sudo python -m scenarios agree --engines virtual,emulated --runs 2 --json
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
    parser = Parser(
        prog="python -m scenarios",
        description="Run several scenarios, or hold the engines against each other.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--list", action="store_true", help="name the scenarios")
    commands = parser.add_subparsers(dest="command")
    # No positional for the names: argparse would take the value of a scenario's option for one.
    run = commands.add_parser(
        "run",
        help="run scenarios one after the other, or on the virtual engine side by side",
        usage="python -m scenarios run [NAME ...] [--all] [--out DIR] [options]",
        description="Run scenarios one after the other, or on the virtual engine side by side. "
        "Names come first; other options go to each scenario.",
        epilog=_RUN_EXAMPLES,
        allow_abbrev=False,
    )
    run.add_argument("--all", action="store_true", help="every scenario")
    run.add_argument("--out", type=Path, metavar="DIR", help="folder for the results of all")
    agree = commands.add_parser(
        "agree",
        help="do the engines agree? same seeds on each",
        description="Run cells of the paper's table on several engines, with the same seeds, and "
        "say where they differ by more than is allowed.",
        epilog=_AGREE_EXAMPLES,
    )
    add = agree.add_argument
    add("--engines", default="simulated,virtual", metavar="A,B", help="(%(default)s)")
    add("--runs", type=positive, default=6, help="of each scheme and cell (%(default)s)")
    add("--tokens", type=positive, default=200, help="of each answer (%(default)s)")
    add("--seed", type=int, default=1, help="of all randomness (%(default)s)")
    add("--out", type=Path, metavar="DIR", help="results folder; goes on with one that is there")
    add("--json", action="store_true", help="print one JSON object, not a table")
    options, rest = parser.parse_known_args(arguments)
    if options.list:
        _list()
        return 0
    if options.command == "agree" and not rest:
        return _agree(options)
    if options.command != "run":
        chosen = agree if options.command == "agree" else parser
        chosen.error(
            f"unrecognized arguments: {' '.join(rest)}" if rest else "say --list, run or agree"
        )
    named = list(itertools.takewhile(lambda word: not word.startswith("-"), rest))
    rest = rest[len(named) :]
    names = list(catalogue()) if options.all else named
    known = list(catalogue())
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        said = f"no scenario {unknown[0]!r}" if unknown else "no scenario is named"
        meant = did_you_mean(unknown[0], known) if unknown else ""
        meant = meant or f": use {', '.join(known)}, or --all"
        message.error(f"{said}{meant}")
        return 2
    if len(set(names)) < len(names):
        message.error("a scenario is named twice")
        return 2
    try:
        with stopping.stoppable(), results_folder(options.out, "all", goes_on=True) as folder:
            return _run(names, rest, folder)
    except FolderError as error:
        message.error(error)
        return 2
    except KeyboardInterrupt as stop:
        return stopping.status(stop)


def _list() -> None:
    from terminal.console import standard_output
    from terminal.table import Table

    table = Table()
    table.add_column("name", key=True)
    for header in ("what", "parameters"):
        table.add_column(header, prose=True)
    for name, scenario in catalogue().items():
        kinds = scenario.kinds()
        knobs = ", ".join(f"{k} {kinds[k].show(v)}" for k, v in scenario.knobs().items())
        table.add_row(name, scenario.title, knobs)
    standard_output().print(table)


def _run(names: Sequence[str], options: Sequence[str], folder: Path) -> int:
    """Each scenario in a process of its own: one that fails does not end the others.

    Guests in virtual time do not disturb each other: as many run at once as there are cores.
    """
    engine = Parser(add_help=False, allow_abbrev=False)
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
        except KeyboardInterrupt as stop:
            pool.shutdown(wait=False, cancel_futures=True)
            _stop(running, stop)
            message.note(f"Interrupted: finished runs are kept in {folder}")
            return stopping.status(stop)
    for name, (status, seconds) in statuses.items():
        word = "ok" if status == 0 else f"FAILED ({status})"
        message.note(f"{name:16} {word:12} {seconds:6.0f} s")
    message.note(f"Results: {folder}")
    # A negative status is that of a process which a signal ended.
    return max((abs(status) for status, _ in statuses.values()), default=0)


def _stop(running: list[subprocess.Popen[bytes]], stop: KeyboardInterrupt) -> None:
    number = stopping.status(stop) - 128
    for process in list(running):
        if number == signal.SIGINT:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(3)  # a terminal tells all of us; a second word would disturb
        if process.poll() is None:
            process.send_signal(number)
    for process in list(running):
        process.wait()


def _agree(options: argparse.Namespace) -> int:
    from scenarios import agreement
    from scenarios.command import ENGINES, UsageError

    engines = options.engines.split(",")
    bad = [engine for engine in engines if engine not in ENGINES]
    if bad:
        meant = did_you_mean(bad[0], ENGINES) or f": use {', '.join(ENGINES)}"
        message.error(f"--engines: no engine {bad[0]!r}{meant}")
        return 2
    if len(set(engines)) < len(engines):
        message.error("--engines: an engine is named twice")
        return 2
    try:
        with stopping.stoppable(), results_folder(options.out, "agree", goes_on=True) as out:
            try:
                return agreement.run(
                    engines,
                    out,
                    runs=options.runs,
                    tokens=options.tokens,
                    seed=options.seed,
                    as_json=options.json,
                    strict=True,
                    console=standard_error(),
                )
            except KeyboardInterrupt as stop:
                message.note(
                    "Interrupted: finished cells are kept; the same command goes on with the "
                    f"rest, with --out {out}"
                )
                return stopping.status(stop)
    except (UsageError, FolderError) as error:
        message.error(error)
        return 2
    except KeyboardInterrupt as stop:
        return stopping.status(stop)


if __name__ == "__main__":
    program.run(main)
