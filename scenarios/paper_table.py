"""The whole table of the paper: loss, outages, RTT, token spacing and bursts, every scheme.

Simulated; a part of it again with kernel TCP in a guest kernel, where there is one.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from rich.console import Console

from analysis import paper
from analysis.grid import heat_map
from analysis.results import ResultsError, write_whole
from analysis.summary import json_rows
from scenarios import agreement, manifest
from scenarios.command import UsageError, network_for, plan_of, positive
from scenarios.executors import ExecutorError, check, reach
from scenarios.folders import FolderError, results_folder
from scenarios.progress import progress_bar
from scenarios.scenario import Scenario
from scenarios.simulated import EXPECTED_ERRORS
from scenarios.sweep import Cell, simulated_cells
from terminal import message, stopping
from terminal.arguments import Parser
from terminal.console import standard_error, standard_output
from topologies.guest import kernel

LOSSES, OUTAGES = (0.01, 0.02, 0.05, 0.10, 0.15, 0.20), (0.0, 0.05, 0.1, 0.2, 0.5)
RTTS, SPACINGS = (0.02, 0.05, 0.1, 0.3), (0.01, 0.045, 0.1)
FEW_OUTAGES = (0.0, 0.05, 0.2)
BASE = {"loss": 0.1, "outage": 0.1, "rtt": 0.05, "spacing": 0.045, "step": 1.0}

_EXAMPLES = """examples:
  python scenarios/paper.py                       all of it, some minutes on two cores
  python scenarios/paper.py --runs 5 --no-virtual
  python scenarios/paper.py --loss 0.1 --outage 0.05 --rtt 0.05 --spacing 0.045   one cell
  python scenarios/paper.py --executor dask:tcp://head:8786 --runs 200
"""


def main(scenario: Scenario, argv: Sequence[str] | None = None) -> int:
    """Run the table; returns the exit status."""
    options = _parser().parse_args(argv)
    console = standard_error()
    try:
        check(options.executor)
        grid = list(_cells(scenario, options))
        reach(options.executor)
        with stopping.stoppable(), results_folder(options.out, "paper") as out:
            return _run(scenario, options, grid, out, console)
    except (UsageError, ExecutorError, FolderError) as error:
        message.error(error)
        return 2
    except (ResultsError, OSError) as error:
        message.error(error)
        return 1
    except KeyboardInterrupt as stop:
        return stopping.status(stop)


def _run(
    scenario: Scenario,
    options: argparse.Namespace,
    grid: list[tuple[str, Cell]],
    out: Path,
    console: Console,
) -> int:
    plan = grid[0][1].plan
    described = manifest.describe(plan) | {"cells": [cell.name for _, cell in grid]}
    text = json.dumps(described, indent=2, default=str) + "\n"
    write_whole(out / "manifest.json", text.encode())
    try:
        rows = _simulate(grid, options.executor, out, console)
    except KeyboardInterrupt as stop:
        console.print(f"Interrupted: finished cells are in {out}/cells.csv", markup=False)
        return stopping.status(stop)
    except EXPECTED_ERRORS as error:
        message.error(error)
        return 1
    _conclude(rows, out, as_json=options.json)
    status = 0
    if options.virtual is not False:
        status = _virtual(scenario, options, out, console)
    console.print(f"Results: {out}", markup=False, soft_wrap=True)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="scenarios/paper.py", description=__doc__, epilog=_EXAMPLES)
    add = parser.add_argument
    add(
        "--runs",
        type=positive,
        default=30,
        help="paired runs of each scheme and cell (%(default)s)",
    )
    add("--tokens", type=positive, default=400, help="of each answer (%(default)s)")
    add("--seed", type=int, default=1, help="of all randomness (%(default)s)")
    add("--schemes", metavar="A,B", help="instead of all")
    add("--engine", choices=["simulated"], help="the table's; another one takes a cell")
    add("--executor", default="local", metavar="WHERE", help="local, local:N or dask:ADDRESS")
    add("--out", type=Path, metavar="DIR", help="results folder; must not exist")
    add("--json", action="store_true", help="print the reductions as one JSON object")
    add(
        "--virtual",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="kernel TCP in a guest for a part of the table (if a guest kernel is there)",
    )
    return parser


def _cells(scenario: Scenario, options: argparse.Namespace) -> Iterator[tuple[str, Cell]]:
    words = ["--runs", str(options.runs), "--tokens", str(options.tokens)]
    words += ["--seed", str(options.seed), "--executor", options.executor]
    if options.schemes:
        words += ["--schemes", options.schemes]
    plan = plan_of(scenario, words)
    seen: set[str] = set()
    for group, values in _points():
        knobs = BASE | values
        name = ",".join(f"{key}={value:g}" for key, value in knobs.items())
        if f"{group}{name}" not in seen:
            seen.add(f"{group}{name}")
            network = network_for(scenario, knobs)
            source = scenario.source_of(knobs)
            if group == "speculative":
                source = "timing:speculative"
            yield group, Cell(name, replace(plan, network=network, knobs=knobs, source=source))


def _points() -> Iterator[tuple[str, dict[str, float]]]:
    yield "loss x outage", {"loss": 0.0}
    for loss, outage in itertools.product(LOSSES, OUTAGES):
        yield "loss x outage", {"loss": loss, "outage": outage}
    for rtt, spacing, outage in itertools.product(RTTS, SPACINGS, FEW_OUTAGES):
        yield "RTT x spacing", {"rtt": rtt, "spacing": spacing, "outage": outage}
    for outage in FEW_OUTAGES:  # ChatGPT's datagrams held three tokens
        yield "three at a time", {"step": 3.0, "spacing": 0.135, "outage": outage}
    for outage in FEW_OUTAGES:
        yield "speculative", {"outage": outage}


def _simulate(
    grid: list[tuple[str, Cell]], executor: str, out: Path, console: Console
) -> pd.DataFrame:
    groups = {id(cell): group for group, cell in grid}
    path, tables = out / "cells.csv", []
    todo = [cell for _, cell in grid]
    with progress_bar(console) as progress:
        total = sum(cell.plan.runs * len(cell.plan.schemes) for cell in todo)
        task = progress.add_task("simulating", total=total)
        for cell, outcomes in simulated_cells(todo, "", executor, definitions=True):
            where = {"group": groups[id(cell)], "cell": cell.name, **cell.plan.knobs}
            table = pd.DataFrame([{**where, **o.row, **o.stalls} for o in outcomes])
            # As they come, so that nothing finished is lost.
            table.to_csv(path, mode="a", header=not path.exists(), index=False)
            tables.append(table)
            progress.advance(task, len(outcomes))
    return pd.concat(tables, ignore_index=True)


def _conclude(rows: pd.DataFrame, out: Path, *, as_json: bool) -> None:
    found = paper.reductions_by_cell(rows)
    found.to_csv(out / "reductions.csv", index=False)
    (out / "paper.md").write_text(paper.text(rows))
    paper.pareto_figure(paper.pareto(rows)).savefig(out / "pareto.png")
    main_part = rows[(rows["group"] == "loss x outage") & (rows["loss"] > 0)]
    for baseline in paper.CLAIMS:
        figure = heat_map(main_part, ["loss", "outage"], baseline)
        if figure is not None:
            figure.savefig(out / f"below-{baseline}.png")
    if as_json:
        print(json.dumps({"scenario": "paper", "out": str(out), "cells": json_rows(found)}))
        return
    standard_output().print(paper.claims_table(found))
    print(paper.text(rows))


def _virtual(scenario: Scenario, options: argparse.Namespace, out: Path, console: Console) -> int:
    """A part again with kernel TCP. Without a guest kernel only if it was asked for."""
    if options.virtual is None:
        try:
            kernel.find()
        except kernel.KernelError:
            console.print("No guest kernel: kernel TCP is left out (./setup.sh --virtual).")
            return 0
    return agreement.run(
        ["simulated", "virtual"],
        out / "kernel-tcp",
        runs=max(1, options.runs // 3),
        tokens=min(options.tokens, 200),
        seed=options.seed,
        as_json=False,
        strict=False,
        console=console,
    )
