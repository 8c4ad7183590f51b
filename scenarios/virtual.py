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
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from apps.model import ModelSource
from apps.trace import TraceWriter, record
from scenarios.command import Plan, options_of
from topologies.guest.boot import GuestError, Result
from topologies.guest.boot import run as run_guest
from topologies.guest.kernel import KernelError

#: Seconds of the host's time for which a run may keep silent about its end, per guest second.
_PATIENCE = 60.0


def run(plan: Plan, out: Path) -> int:
    """Run the plan in a guest; returns the exit status. Results lie in `out` as always."""
    console = Console(stderr=True)
    if out.exists():
        console.print(
            f"error: {out} already exists: results are never overwritten, choose another folder",
            style="red",
            soft_wrap=True,
            markup=False,
        )
        return 2
    try:
        with _recorded(plan, console) as (source, traces):
            out.parent.mkdir(parents=True, exist_ok=True)
            result = run_guest(
                _command(plan, out, source),
                out=[out.parent],
                clock=plan.clock,
                seed=plan.seed,
                timeout=_PATIENCE + 30.0 * plan.runs * len(plan.schemes),
                environment=_environment(),
            )
            if traces is not None and out.is_dir():
                shutil.copytree(traces, out / "traces")
    except KeyboardInterrupt:
        console.print("Interrupted: finished runs are kept.")
        return 130
    except (GuestError, KernelError) as error:
        console.print(f"error: {error}", style="red", soft_wrap=True, markup=False)
        return 1
    if not plan.json:
        console.print(_speed(plan, result), markup=False, highlight=False)
    return result.status


def _command(plan: Plan, out: Path, source: str) -> list[str]:
    file = inspect.getfile(plan.scenario.network)
    command = [sys.executable, file, "--engine", "emulated", *options_of(plan)]
    return [*command, "--source", source, "--out", str(out.resolve())]


def _environment() -> dict[str, str]:
    names = ("PYTHONPATH",)
    variables = {name: os.environ[name] for name in names if name in os.environ}
    if sys.stderr.isatty():
        # The guest's output passes through a pipe; let its progress bar move all the same.
        size = shutil.get_terminal_size()
        variables |= {"FORCE_COLOR": "1", "COLUMNS": str(size.columns), "LINES": str(size.lines)}
    return variables


@contextlib.contextmanager
def _recorded(plan: Plan, console: Console) -> Iterator[tuple[str, Path | None]]:
    """The source for the guest: a live model's answers are recorded first, in real time."""
    if not plan.source.startswith("model"):
        yield plan.source, None
        return
    with tempfile.TemporaryDirectory(prefix="eloquent-traces-") as name:
        folder = Path(name)
        with console.status("The model answers on the host, to be replayed in the guest …"):
            source = ModelSource(plan.model, device=plan.device)
            list(source.answer("Hello", 4))  # warms caches and thread pools
            prompts = dict.fromkeys(plan.prompts.of_run(n) for n in range(1, plan.runs + 1))
            for number, prompt in enumerate(prompts, 1):
                path = folder / f"prompt-{number:02}.jsonl"
                how = "recorded on the host for the engine virtual"
                with TraceWriter(path, model=source.name, prompt=prompt, recorded=how) as writer:
                    record(source, prompt, plan.tokens, writer)
        yield f"trace:{folder}", folder


def _speed(plan: Plan, result: Result) -> str:
    kind = "virtual" if plan.clock == "virtual" else "real"
    return (
        f"Guest, {kind} time: {result.guest_seconds:.1f} s in {result.wall_seconds:.1f} s "
        f"({result.speed:.1f} times real time)"
    )
