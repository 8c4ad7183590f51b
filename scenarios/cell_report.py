"""What the shared cell showed: a table, verdicts, a picture, and the same as JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console

from analysis.fairness import QUIET_DATAGRAMS
from analysis.plots import scheme_colour
from analysis.results import ResultsFolder, load, write_whole
from analysis.summary import estimate, to_json
from scenarios.cell_network import Timetable
from scenarios.command import Plan
from terminal.console import standard_output
from terminal.table import Table

#: Flows beside Eloquent may share less evenly than flows beside TCP by this much.
TOLERANCE = 0.05
_SUBJECT = "eloquent"
#: Width (s) of the steps in the picture.
_STEP = 0.5


def finish(
    plan: Plan,
    folder: ResultsFolder,
    tables: dict[str, pd.DataFrame],
    console: Console,
    *,
    pictures: bool,
) -> None:
    """Draw and print what was measured, be it all or a part."""
    if "fairness" not in tables:
        console.print(f"No run was finished; logs are in {folder.path}/logs", markup=False)
        return
    results = load(folder.path)
    times = results.manifest["timetable"]
    if pictures:
        overload = times["overload"] and tuple(times["overload"])
        drawn = Timetable(times["asking"], times["measured_from"], times["measured_to"], overload)
        folder.write_figure("sharing", picture(tables, drawn))
    found = checks(tables["fairness"], plan.baseline)
    if plan.json:
        head = {"scenario": plan.scenario.name, "out": str(folder.path)}
        head["link"] = str(results.manifest.get("link"))
        whole = {**head, **to_json(results.summary), "fairness": _fairness_json(tables["fairness"])}
        print(json.dumps(whole | {"checks": found}))
    else:
        standard_output().print(table(tables, results.summary))
        for check in found:
            print(("holds: " if check["holds"] else "DOES NOT HOLD: ") + check["text"])
    console.print(f"Results: {folder.path}", markup=False, soft_wrap=True)


def checks(fairness: pd.DataFrame, baseline: str) -> list[dict[str, Any]]:
    """What must hold, each with its sentence; nothing about schemes that were not run."""
    found = []
    index = {scheme: group["jain"].mean() for scheme, group in fairness.groupby("scheme")}
    if _SUBJECT in index and baseline in index:
        ours, theirs = float(index[_SUBJECT]), float(index[baseline])
        found.append(
            {
                "name": "fairness",
                "holds": bool(ours >= theirs - TOLERANCE),
                "text": f"Jain's index of the bulk flows is {ours:.3f} beside {_SUBJECT} and "
                f"{theirs:.3f} beside {baseline} (at most {TOLERANCE:g} lower)",
            }
        )
    for scheme, group in fairness.groupby("scheme", sort=False):
        bounded = group.dropna(subset=["within_bound"])
        if len(bounded):
            found.append(
                {
                    "name": f"bound of {scheme}",
                    "holds": bool(bounded["within_bound"].all()),
                    "text": _restraint(str(scheme), bounded),
                }
            )
            found.append(_backing_off(str(scheme), bounded))
    return found


def _restraint(scheme: str, runs: pd.DataFrame) -> str:
    text = (
        f"{scheme} sends {runs['sent_rate'].mean():.1f} datagrams/s to a reader while it shares "
        f"the cell, {runs['overload_rate'].mean():.1f} in the overload (busiest second: "
        f"{runs['overload_peak'].max():.0f}); {runs['sent_bits'].mean() / 1e3:.1f} and "
        f"{runs['overload_bits'].mean() / 1e3:.1f} kbit/s"
    )
    if runs["quiet_seconds"].max() > 0:
        return text + (
            f"; once nothing was answered for 3 s at most {runs['quiet_peak'].max():.0f} a "
            f"second, the bound is {QUIET_DATAGRAMS}"
        )
    return text + (
        "; some answer came every 3 s, so only the wide bound of a sender that is answered "
        "applied: 10 datagrams for each token and for each of 50 probes a second"
    )


def _backing_off(scheme: str, runs: pd.DataFrame) -> dict[str, Any]:
    """Within its bound or not: is less sent in the overload than before, in both measures?"""
    pairs = (("sent_rate", "overload_rate"), ("sent_bits", "overload_bits"))
    (rate, rate_then), (bits, bits_then) = (
        (float(runs[before].mean()), float(runs[during].mean())) for before, during in pairs
    )
    return {
        "name": f"backing off of {scheme}",
        "holds": rate_then < rate and bits_then < bits,
        "text": f"{scheme} sends less in the overload than before: datagrams "
        f"{100 * (rate_then / rate - 1):+.0f}%, bits {100 * (bits_then / bits - 1):+.0f}%",
    }


def table(tables: dict[str, pd.DataFrame], summary: pd.DataFrame) -> Table:
    """One row per kind of run: means over runs, ± half a 95% interval where there are several."""
    shown = Table(
        title="shared_cell: means over runs; rates in kbit/s, times in ms; readers per reader",
    )
    shown.add_column("readers speak", key=True)
    headers = ("Jain's index,\nbulk (runs)", "bulk flows", "total", "readers\ntotal", "use\n%")
    more = ("queue\ndrops", "stall\n%", "delay\nP50/P95", "lost\ndown %", "pkts/\ntoken")
    last = ("pkts/s,\noverload", "tokens\nlost")
    for header in (*headers, *more, *last):
        shown.add_column(header, justify="right")
    for scheme, group in tables["fairness"].groupby("scheme", sort=False):
        mine = summary[summary["scheme"] == scheme]
        index = estimate(group["jain"])
        half = f" ± {index.ci95:.3f}" if math.isfinite(index.ci95) else ""
        flows = [group[name].mean() for name in _flow_columns(group)]
        shown.add_row(
            str(scheme),
            f"{index.mean:.3f}{half} ({index.n})",
            "/".join(f"{rate / 1e3:.0f}" for rate in flows),
            f"{group['bulk_total'].mean() / 1e3:.0f}",
            f"{group['readers_total'].mean() / 1e3:.0f}",
            f"{100 * group['utilisation'].mean():.0f}",
            f"{group['queue_drops'].mean():.0f}",
            f"{100 * mine['stall_ratio'].mean():.1f}",
            f"{1e3 * mine['delay_p50'].mean():.0f}/{1e3 * mine['delay_p95'].mean():.0f}",
            f"{100 * group['loss_down'].mean():.1f}",
            f"{mine['datagrams_per_token'].mean():.2f}",
            _rates(group),
            f"{mine['tokens_lost'].sum():.0f}",
        )
    return shown


def _rates(group: pd.DataFrame) -> str:
    during = group["overload_rate"].mean()
    before = f"{group['sent_rate'].mean():.0f}"
    return before if math.isnan(during) else f"{before} → {during:.0f}"


def _flow_columns(table: pd.DataFrame) -> list[str]:
    return [name for name in table if name.startswith("bulk_") and name[5:].isdecimal()]


def _fairness_json(fairness: pd.DataFrame) -> dict[str, Any]:
    measures = [name for name in fairness if name not in ("scenario", "scheme", "run", "seed")]
    found: dict[str, Any] = {}
    for scheme, group in fairness.groupby("scheme", sort=False):
        found[str(scheme)] = {}
        for name in measures:
            value = estimate(group[name].astype("float64"))
            numbers = {"mean": value.mean, "ci95": value.ci95}
            finite = {key: n if math.isfinite(n) else None for key, n in numbers.items()}
            found[str(scheme)][name] = finite | {"n": value.n}
    return found


def write_table(path: Path, rows: pd.DataFrame) -> None:
    """A table as CSV, there as a whole or not at all. Raises ResultsError."""
    write_whole(path, rows.to_csv(index=False).encode())


def picture(tables: dict[str, pd.DataFrame], times: Timetable) -> Figure:
    """The first run of each scheme: the bulk flows' throughput, and what its readers waited."""
    flows, streams = tables["flows"], tables["streams"]
    schemes = list(flows["scheme"].unique())
    height = 1.9 * len(schemes) + 0.8
    figure = Figure(figsize=(9.0, height), dpi=100, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(schemes), 2, sharex=True, sharey="col", squeeze=False)
    for (left, right), scheme in zip(axes, schemes, strict=True):
        colour = scheme_colour(scheme, schemes)
        first = flows[flows["scheme"] == scheme]
        first = first[first["run"] == first["run"].min()]
        for _, samples in first.groupby("flow"):
            at = np.arange(samples["at"].min(), samples["at"].max(), _STEP)
            total = np.interp(at, samples["at"], samples["acknowledged"])
            left.plot(at[1:], 8e-3 * np.diff(total) / _STEP, linewidth=1.2)
        mine = streams[(streams["scheme"] == scheme) & (streams["run"] == first["run"].min())]
        for _, tokens in mine.groupby("client"):
            delay = tokens["rendered_at"] - tokens["generated_at"]
            right.plot(tokens["generated_at"], delay, linewidth=1.0, color=colour, alpha=0.7)
        left.set_ylabel(f"{scheme}\nbulk, kbit/s")
        right.set_ylabel("token delay, s")
        for one in (left, right):
            one.axvspan(times.measured_from, times.measured_to, color="#f2f2f2", zorder=0)
            if times.overload is not None:
                one.axvspan(*times.overload, color="#d9d9d9", zorder=0)
            one.spines[["top", "right"]].set_visible(False)
    for one in axes[-1]:
        one.set_xlabel("seconds")
    axes[0][0].set_title("light: measured, dark: overload", fontsize=9, loc="left")
    return figure
