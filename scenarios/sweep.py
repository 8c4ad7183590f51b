"""A grid of cells: one scenario with several values of its parameters, on any engine.

The folder of a sweep holds `sweep.json` (what was asked for), a results folder per cell under
`cells/`, and `sweep.csv`, one row per run with the cell's parameters. A sweep that was cut off goes
on where it was when the same command names the same folder again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from analysis.results import ResultsError, ResultsFolder, load
from apps.sources import SourceError, open_source
from scenarios import manifest
from scenarios.command import Plan, UsageError, network_for
from scenarios.executors import results_in_order
from scenarios.folders import is_free
from scenarios.progress import progress_bar
from scenarios.recording import recorded
from scenarios.simulated import EXPECTED_ERRORS, Outcome, jobs_of, run_job
from terminal.arguments import did_you_mean
from terminal.stopping import status as stopped_status
from terminal.stopping import stop_of, was_stopped
from topologies.quantities import Kind, QuantityError

#: Keys of the manifest that may differ when a sweep goes on.
_CHANGING = ("command_line", "started", "machine", "versions", "commit")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One point of the grid."""

    name: str
    plan: Plan


def parse(
    words: Sequence[str], knobs: Mapping[str, float], kinds: Mapping[str, Kind]
) -> dict[str, list[float]]:
    """`loss=5%,0.1 rtt=20ms,100ms` as values by parameter, read as the options are.

    ``knobs`` are the parameters that there are, with usual values. Raises UsageError.
    """
    values: dict[str, list[float]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in knobs:
            known = ", ".join(knobs) or "none: this scenario has no parameters"
            near = did_you_mean(name, knobs) if equals else ""
            raise UsageError(f"--sweep {word!r}: write NAME=V1,V2,... with NAME of {known}{near}")
        if name in values:
            raise UsageError(f"--sweep: {name} is there twice")
        values[name] = [_value(part, word, kinds[name], knobs[name]) for part in text.split(",")]
        seen = [f"{value:g}" for value in values[name]]  # as cells are called
        if len(set(seen)) < len(seen):
            raise UsageError(f"--sweep {word!r}: a value is there twice")
    return values


def _value(text: str, word: str, kind: Kind, usual: float) -> float:
    try:
        return kind.read(text, usual)
    except QuantityError as error:
        raise UsageError(f"--sweep {word!r}: {error}") from None


def cells(plan: Plan, values: dict[str, list[float]]) -> list[Cell]:
    """The grid, in the order of its parameters. Raises UsageError for a value without network."""
    made = []
    for combination in itertools.product(*values.values()):
        chosen = dict(zip(values, combination, strict=True))
        knobs = plan.knobs | chosen
        source = plan.source
        if source == plan.scenario.source_of(plan.knobs):
            source = plan.scenario.source_of(knobs)
            _check_source(source)
        name = ",".join(f"{key}={value:g}" for key, value in chosen.items())
        network = network_for(plan.scenario, knobs)
        made.append(
            Cell(name, dataclasses.replace(plan, network=network, knobs=knobs, source=source))
        )
    return made


def _check_source(source: str) -> None:
    if not source.startswith("model"):
        try:
            open_source(source)
        except SourceError as error:
            raise UsageError(f"--sweep: {error}") from None


def run(plan: Plan, names: list[str], grid: list[Cell], out: Path) -> int:
    """Run the grid that ``cells`` made of the parameters ``names``; returns the exit status."""
    console = Console(stderr=True)
    try:
        _open(plan, grid, out)
    except ResultsError as error:
        console.print(f"error: {error}", style="red", soft_wrap=True, markup=False)
        return 2
    todo = [cell for cell in grid if not finished(out / "cells" / cell.name)]
    if len(todo) < len(grid):
        console.print(f"{len(grid) - len(todo)} of {len(grid)} cells are there already.")
    # A fixed order would give the same cells the same place in any drift of the machine.
    random.Random(plan.seed).shuffle(todo)
    status = 0
    try:
        status = run_cells(todo, plan, out / "cells", console)
    except KeyboardInterrupt as stop:
        console.print(
            "Interrupted: finished cells are kept; the same command goes on with the rest, with "
            f"--out {out}",
            markup=False,
            soft_wrap=True,
        )
        status = stopped_status(stop)
    table = gather(grid, out)
    if table.empty:
        console.print("No cell was finished.")
        return status or 1
    table.to_csv(out / "sweep.csv", index=False)
    _show(plan, table, names, out)
    console.print(f"Results: {out}", markup=False, soft_wrap=True)
    return status


def run_cells(todo: list[Cell], plan: Plan, out: Path, console: Console) -> int:
    """Run cells, each into its folder in ``out``; returns the exit status.

    ``plan`` says where and on which engine; the cells' plans say what.
    """
    out.mkdir(parents=True, exist_ok=True)
    if plan.engine != "simulated":
        return _run_each(todo, plan, out, console)
    try:
        _simulate(todo, plan, out, console)
    except EXPECTED_ERRORS as error:
        console.print(f"error: {error}", style="red", soft_wrap=True, markup=False)
        return 1
    return 0


def finished(folder: Path) -> bool:
    """Did a run in this folder come to its end?"""
    try:
        return bool(json.loads((folder / "manifest.json").read_text()).get("finished"))
    except (OSError, ValueError):
        return False


def _open(plan: Plan, grid: list[Cell], out: Path) -> None:
    asked = manifest.describe(plan)
    asked = {key: value for key, value in asked.items() if key not in _CHANGING}
    asked |= {name: getattr(plan, name) for name in ("source", "model", "link", "clock")}
    asked = json.loads(json.dumps({"plan": asked, "cells": [c.name for c in grid]}, default=str))
    path = out / "sweep.json"
    if not is_free(out):
        try:
            before = json.loads(path.read_text())
        except (OSError, ValueError):
            raise ResultsError(f"{out} already exists and is no sweep of ours") from None
        if before != asked:
            raise ResultsError(f"{out} holds another sweep: choose another folder")
        return
    (out / "cells").mkdir(parents=True)
    path.write_text(json.dumps(asked, indent=2) + "\n")


def _set_aside(folder: Path) -> None:
    """What a cut-off cell has measured is kept under another name."""
    if folder.exists():
        number = next(n for n in itertools.count(1) if not _aside(folder, n).exists())
        folder.rename(_aside(folder, number))


def _aside(folder: Path, number: int) -> Path:
    return folder.with_name(f"{folder.name}.cut-off-{number}")


def _simulate(todo: list[Cell], plan: Plan, out: Path, console: Console) -> None:
    total = sum(cell.plan.runs * len(cell.plan.schemes) for cell in todo)
    with recorded(plan, console) as (source, _), progress_bar(console) as progress:
        task = progress.add_task("simulating", total=total)
        for cell, outcomes in simulated_cells(todo, source, plan.executor):
            folder = out / cell.name
            _set_aside(folder)
            results = ResultsFolder.create(folder)
            for outcome in outcomes:
                results.append_summary(outcome.row)
            results.write_manifest(
                manifest.describe(cell.plan) | {"link": "model", "finished": True}
            )
            progress.advance(task, len(outcomes))


def simulated_cells(
    todo: list[Cell], model_source: str, executor: str, *, definitions: bool = False
) -> Iterator[tuple[Cell, list[Outcome]]]:
    """Each cell with the outcomes of its runs, without tables; cells share the executor."""

    def jobs(cell: Cell) -> list[Any]:
        live = cell.plan.source.startswith("model")
        source = model_source if live else cell.plan.source
        return list(jobs_of(cell.plan, source, tables=False, definitions=definitions))

    owners: list[Cell] = []

    def all_jobs() -> Iterator[Any]:
        for cell in todo:
            for job in jobs(cell):
                owners.append(cell)
                yield job

    gathered: list[Outcome] = []
    for number, outcome in enumerate(results_in_order(executor, run_job, all_jobs())):
        gathered.append(outcome)
        cell = owners[number]
        if len(gathered) == cell.plan.runs * len(cell.plan.schemes):
            yield cell, gathered
            gathered = []


def _run_each(todo: list[Cell], plan: Plan, out: Path, console: Console) -> int:
    """A run per cell. Guests take a core each; an emulation takes the machine."""
    engine: Callable[..., int]
    if plan.engine == "virtual":
        from scenarios.virtual import run as engine
    else:
        from scenarios.command import emulate as engine
    at_once = (os.cpu_count() or 1) if plan.engine == "virtual" else 1
    statuses: list[int] = []

    def one(cell: Cell) -> int:
        folder = out / cell.name
        _set_aside(folder)
        status = engine(cell.plan, folder, show=False)
        if status == 0 and not finished(folder):
            status = 1
        return status

    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(progress_bar(console))
        task = progress.add_task("cells", total=len(todo))
        ended: Iterable[int] = map(one, todo)  # an emulation forks: it stays in the main thread
        if at_once > 1:
            pool = stack.enter_context(ThreadPoolExecutor(at_once))
            started = [pool.submit(one, cell) for cell in todo]
            stack.push(functools.partial(_end_guests, started))
            ended = (future.result() for future in started)
        for cell, status in zip(todo, ended, strict=True):
            statuses.append(status)
            progress.advance(task)
            if status:
                console.print(f"cell {cell.name} ended with status {status}", markup=False)
            if was_stopped(status):
                raise stop_of(status)
    return max(statuses, default=0)


def _end_guests(started: list[Future[int]], kind: type[BaseException] | None, *_: object) -> None:
    """After an error or Ctrl-C nobody waits for guests that have minutes to go."""
    if kind is None:
        return
    from topologies.guest.boot import end_all

    for future in started:
        future.cancel()
    while wait(started, timeout=0.2).not_done:  # one may be about to boot
        end_all()


def gather(grid: list[Cell], out: Path) -> pd.DataFrame:
    """Rows of all cells that are there, each with the parameters of its cell."""
    tables = []
    for cell in grid:
        folder = out / "cells" / cell.name
        if finished(folder):
            table = load(folder).summary
            for name, value in cell.plan.knobs.items():
                table[name] = value
            tables.append(table.assign(cell=cell.name))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _show(plan: Plan, table: pd.DataFrame, names: list[str], out: Path) -> None:
    from analysis.grid import grid_json, grid_table, heat_map

    if plan.json:
        head = {"scenario": plan.scenario.name, "out": str(out), "engine": plan.engine}
        print(json.dumps(head | {"cells": grid_json(table, names)}))
    else:
        Console(width=None if sys.stdout.isatty() else 124).print(
            grid_table(table, names, plan.baseline)
        )
    figure = heat_map(table, names, plan.baseline)
    if figure is not None:
        figure.savefig(out / "sweep.png")
