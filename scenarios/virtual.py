"""The engine `virtual`: the same experiment inside a guest kernel, by default in virtual time.

The guest runs the scenario's own file with the same options, so there is nothing that only this
engine does: Mininet, Open vSwitch's kernel datapath, netem, TCP, Ryu, capture and analysis are
those of the engine `emulated`. A language model makes no sense where computing takes no time: it
answers on the host first, and its recorded answers are replayed.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import signal
import sys
from pathlib import Path

from rich.console import Console

from analysis.results import ResultsError, ResultsFolder, load
from analysis.summary import SummaryError
from apps.sources import SourceError
from scenarios import report
from scenarios.command import Plan, options_of
from scenarios.folders import is_free
from scenarios.recording import recorded
from terminal import message, stopping
from terminal.console import standard_error
from topologies.guest.boot import GuestError, GuestStopped, Result
from topologies.guest.boot import run as run_guest
from topologies.guest.kernel import KernelError

#: Seconds of the host's time after which a guest is given up: to begin with, and for each run. A
#: run takes some seconds; a busy machine with several guests has needed ten times as many.
_PATIENCE, _PATIENCE_A_RUN = 180.0, 60.0


def run(plan: Plan, out: Path, *, show: bool = True) -> int:
    """Run the plan in a guest; returns the exit status. Results lie in `out` as always."""
    console = standard_error()
    if not is_free(out):
        message.error(f"{out} already exists: results are never overwritten, choose another folder")
        return 2
    try:
        with recorded(plan, console) as (source, traces), contextlib.ExitStack() as stack:
            # Of several guests at once each has a log of its own.
            log = None if show else stack.enter_context(out.with_name(f"{out.name}.log").open("wb"))
            result = run_guest(
                _command(plan, out, source),
                out=[out],
                clock=plan.clock,
                seed=plan.seed,
                timeout=_PATIENCE + _PATIENCE_A_RUN * plan.runs * len(plan.schemes),
                environment=_environment(),
                stdout=log,
                stderr=log,
            )
            if traces is not None and out.is_dir():
                shutil.copytree(traces, out / "traces")
    except KeyboardInterrupt as stop:
        console.print("Interrupted.")
        _finish(plan, out, console, show=show)
        return stopping.status(stop)
    except GuestStopped:  # whoever stopped it says so
        return 128 + signal.SIGINT
    except (GuestError, KernelError, SourceError) as error:
        message.error(error)
        return 1
    if show and not plan.json:
        console.print(_speed(plan, result), markup=False, highlight=False)
    return result.status


def _finish(plan: Plan, out: Path, console: Console, *, show: bool) -> None:
    """Merge and show what a guest that is gone has left."""
    if (out / "manifest.json").exists():
        link = str(load(out).manifest.get("link", ""))
        try:
            report.finish(plan, ResultsFolder(out), console, link, pictures=False, show=show)
        except (ResultsError, SummaryError) as error:
            message.error(error)


def _command(plan: Plan, out: Path, source: str) -> list[str]:
    file = inspect.getfile(plan.scenario.network)
    command = [sys.executable, file, "--engine", "emulated", *options_of(plan)]
    return [*command, "--source", source, "--out", str(out.resolve())]


def _environment() -> dict[str, str]:
    names = ("PYTHONPATH",)
    variables = {name: os.environ[name] for name in names if name in os.environ}
    # The guest's output is passed on as it is: it must suit the output out here.
    variables["PYTHONIOENCODING"] = sys.stdout.encoding
    if sys.stderr.isatty():
        # The guest's output passes through a pipe; let its progress bar move all the same.
        size = shutil.get_terminal_size()
        variables |= {"FORCE_COLOR": "1", "COLUMNS": str(size.columns), "LINES": str(size.lines)}
    return variables


def _speed(plan: Plan, result: Result) -> str:
    kind = "virtual" if plan.clock == "virtual" else "real"
    return (
        f"Guest, {kind} time: {result.guest_seconds:.1f} s in {result.wall_seconds:.1f} s "
        f"({result.speed:.1f} times real time)"
    )
