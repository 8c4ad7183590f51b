"""The end of an experiment: tables merged, pictures drawn, the summary printed."""

from __future__ import annotations

import json

import pandas as pd
from rich.console import Console

from analysis import plots
from analysis.results import Results, ResultsFolder, load
from analysis.summary import to_json
from analysis.tables import summary_table
from scenarios.command import Plan
from terminal.console import standard_output
from topologies.channel import subseed


def run_seed(seed: int, run: int) -> int:
    """The seed of everything random in one run, the same for every scheme."""
    return subseed(seed, "run", str(run)) % 2**32


def finish(
    plan: Plan,
    folder: ResultsFolder,
    console: Console,
    link: str,
    *,
    pictures: bool,
    show: bool = True,
) -> None:
    """Merge, draw and print what was measured, be it all or a part."""
    folder.consolidate()
    if not (folder.path / "summary.csv").exists():
        console.print(f"No run was finished; logs are in {folder.path}/logs", markup=False)
        return
    results = load(folder.path)
    if results.summary.empty:
        console.print(f"No run was finished; logs are in {folder.path}/logs", markup=False)
        return
    if pictures:
        _draw(plan, folder, results)
    if not show:
        return
    if plan.json:
        head = {"scenario": plan.scenario.name, "out": str(folder.path), "link": link}
        print(json.dumps({**head, **to_json(results.summary)}))
    else:
        table = summary_table(results.summary, plan.baseline, plan.scenario.theta)
        standard_output().print(table)
        if plan.scenario.conclude is not None:
            print(plan.scenario.conclude(results, plan.knobs))
    console.print(f"Results: {folder.path}", markup=False, soft_wrap=True)


def _draw(plan: Plan, folder: ResultsFolder, results: Results) -> None:
    tokens, theta = results.tokens, plan.scenario.theta
    first = tokens[tokens["run"] == tokens["run"].min()]
    folder.write_figure("timeline", plots.timeline(first, outages(plan, first), theta))
    if results.summary["stall_ratio"].isna().all():
        return  # answers of one token have no gaps
    folder.write_figure("gaps", plots.gaps(tokens, theta))
    folder.write_figure("stalls", plots.stall_bars(results.summary))


def outages(plan: Plan, tokens: pd.DataFrame) -> pd.DataFrame:
    """The access link's outages while the tokens of one run travelled, for the timeline."""
    end = float(tokens["rendered_at"].max()) + 0.1
    seed = run_seed(plan.seed, int(tokens["run"].iloc[0]))
    rows = [
        (direction, start, stop)
        for direction in ("down", "up")
        for start, stop in plan.network.access.channel(direction, "access", seed).outages(0, end)
    ]
    return pd.DataFrame(rows, columns=["direction", "start", "end"])
