"""Do simulation and emulation agree? Cells of the paper's table on several engines, same seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from analysis.agree import agreement, table
from analysis.results import load, write_whole
from analysis.summary import json_rows
from scenarios import paper
from scenarios.command import network_for, plan_of
from scenarios.folders import is_free
from scenarios.sweep import Cell, finished, run_cells
from terminal import message
from terminal.console import standard_output

#: Independent losses, short, medium and long outages; a long path; a fast model.
CONDITIONS = (
    {"loss": 0.10, "outage": 0.0},
    {"loss": 0.10, "outage": 0.05},
    {"loss": 0.10, "outage": 0.2},
    {"loss": 0.20, "outage": 0.1},
    {"loss": 0.05, "outage": 0.5},
    {"loss": 0.10, "outage": 0.1, "rtt": 0.2},
    {"loss": 0.10, "outage": 0.1, "spacing": 0.02},
)
#: Without a kernel `tcp` is `retransmit`.
SCHEMES = ("eloquent", "eloquent-deadline", "duplicate", "tcp")


def run(
    engines: Sequence[str],
    out: Path,
    *,
    runs: int,
    tokens: int,
    seed: int,
    as_json: bool,
    strict: bool,
    console: Console,
) -> int:
    """Run every condition on every engine into ``out``, print the table; returns the exit status.

    With ``strict`` a difference beyond what is allowed is a failure.
    """
    asked = {"runs": runs, "tokens": tokens, "seed": seed}
    path = out / "agree.json"
    out.mkdir(parents=True, exist_ok=True)
    if not is_free(out) and _asked_before(path) != asked:
        message.error(f"{out} holds something else: choose another folder")
        return 2
    write_whole(path, json.dumps(asked).encode() + b"\n")
    folders: list[Path] = []
    for engine in engines:
        schemes = [s if engine != "simulated" or s != "tcp" else "retransmit" for s in SCHEMES]
        words = ["--engine", engine, "--runs", str(runs), "--tokens", str(tokens)]
        words += ["--seed", str(seed), "--schemes", ",".join(schemes)]
        plan = plan_of(paper.SCENARIO, words)
        cells = []
        for condition in CONDITIONS:
            knobs = plan.knobs | condition
            network = network_for(paper.SCENARIO, knobs)
            source = paper.SCENARIO.source_of(knobs)
            name = ",".join(f"{key}={value:g}" for key, value in condition.items())
            cells.append(Cell(name, replace(plan, network=network, knobs=knobs, source=source)))
        console.print(f"Engine {engine}:", markup=False)
        todo = [cell for cell in cells if not finished(out / engine / cell.name)]
        if len(todo) < len(cells):
            console.print(f"{len(cells) - len(todo)} of {len(cells)} cells are there already.")
        status = run_cells(todo, plan, out / engine, console)
        folders += [out / engine / cell.name for cell in cells]
        if status:
            return status
    found = agreement(load(folder) for folder in folders if folder.is_dir())
    if found.empty:  # one engine alone
        console.print(f"Results: {out}", markup=False, soft_wrap=True)
        return 0
    write_whole(out / "agreement.csv", found.to_csv(index=False).encode())
    if as_json:
        print(json.dumps({"rows": json_rows(found)}))
    else:
        standard_output().print(table(found))
    return int(strict and bool((found["verdict"] == "differs").any()))


def _asked_before(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
