"""Many cells side by side: a table, JSON and a picture of a sweep.

`rows` is a table of runs (summary.csv of every cell) with a column for each parameter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.plots import scheme_colour
from analysis.summary import estimate, paired_reduction, to_json
from terminal.table import Table


def reduction_rows(rows: pd.DataFrame, names: Sequence[str], baseline: str) -> pd.DataFrame:
    """One row per cell and scheme: mean stall ratios, and the reduction against the baseline.

    Columns: the parameters, scheme, n, stall, stall_ci95, reduction, low, high (Fieller's 95%
    interval over paired runs; NaN for the baseline), ratio_to_limit, datagrams, bytes (means).
    """
    found = []
    for cell, group in rows.groupby(list(names), sort=True):
        base = group[group["scheme"] == baseline].set_index("seed")["stall_ratio"]
        for scheme, own in group.groupby("scheme", sort=False):
            stall = estimate(own["stall_ratio"])
            pairs = own.set_index("seed")["stall_ratio"].to_frame("own").join(base.rename("base"))
            pairs = pairs.dropna()
            against = paired_reduction(pairs["own"], pairs["base"])
            known = scheme != baseline
            limit = float(own["limit_stall_ratio"].mean())
            found.append(
                {
                    **dict(zip(names, cell, strict=True)),
                    "scheme": scheme,
                    "n": stall.n,
                    "stall": stall.mean,
                    "stall_ci95": stall.ci95,
                    "reduction": against.reduction if known else math.nan,
                    "low": against.low if known else math.nan,
                    "high": against.high if known else math.nan,
                    "ratio_to_limit": stall.mean / limit if limit else math.nan,
                    "datagrams": float(own["datagrams_per_token"].mean()),
                    "bytes": float(own["bytes_per_token"].mean()),
                }
            )
    return pd.DataFrame(found)


def grid_table(rows: pd.DataFrame, names: Sequence[str], baseline: str) -> Table:
    """For the terminal: a row per cell, a column per scheme: stall % and reduction %."""
    found = reduction_rows(rows, names, baseline)
    schemes = list(dict.fromkeys(found["scheme"]))
    table = Table(
        title=f"stall ratio, % ± 95% interval; below: reduction against {baseline}, % [95%]",
    )
    for name in names:
        table.add_column(name, justify="right", key=True)
    for scheme in schemes:
        table.add_column(str(scheme), justify="right")
    for cell, group in found.groupby(list(names), sort=True):
        by_scheme = {row["scheme"]: row for row in group.to_dict("records")}
        texts = [_lines_of(by_scheme[s]) if s in by_scheme else ["-"] for s in schemes]
        table.add_row(*(f"{value:g}" for value in cell), *texts)
    return table


def _lines_of(row: dict[str, Any]) -> list[str]:
    text = f"{100 * row['stall']:.1f}"
    if math.isfinite(row["stall_ci95"]):
        text += f" ± {100 * row['stall_ci95']:.1f}"
    if not math.isfinite(row["reduction"]):
        return [text]
    below = f"{100 * row['reduction']:.0f}"
    if math.isfinite(row["low"]):
        below += f" [{100 * row['low']:.0f}, {100 * row['high']:.0f}]"
    return [text, below]


def grid_json(rows: pd.DataFrame, names: Sequence[str]) -> list[dict[str, Any]]:
    """A list of cells: their parameters, and `schemes` as `summary.to_json` has them."""
    return [
        {**dict(zip(names, map(float, cell), strict=True)), **to_json(group)}
        for cell, group in rows.groupby(list(names), sort=True)
    ]


def heat_map(rows: pd.DataFrame, names: Sequence[str], baseline: str) -> Figure | None:
    """Reduction against the baseline per scheme; lines of stall ratios for one parameter.

    The first parameter goes down, combinations of the others across.
    """
    found = reduction_rows(rows, names, baseline)
    if len(names) == 1:
        return _lines(found, names[0])
    schemes = [s for s in dict.fromkeys(found["scheme"]) if s != baseline]
    found = found[found["scheme"] != baseline]
    if not schemes or found["reduction"].isna().all():
        return None
    down, across = names[0], list(names[1:])
    columns = sorted(set(found[across].itertuples(index=False, name=None)))
    lines = sorted(found[down].unique())
    columns_of_panels = min(3, len(schemes))
    panels = math.ceil(len(schemes) / columns_of_panels)
    figure = Figure(
        figsize=(
            1.2 + columns_of_panels * (0.8 + 0.55 * len(columns)),
            0.9 + panels * (0.9 + 0.42 * len(lines)),
        ),
        dpi=110,
        layout="constrained",
    )
    axes = np.atleast_1d(figure.subplots(panels, columns_of_panels)).ravel()
    for axis, scheme in zip(axes, schemes, strict=False):
        part = found[found["scheme"] == scheme]
        values = np.full((len(lines), len(columns)), np.nan)
        for row in part.to_dict("records"):
            place = columns.index(tuple(row[name] for name in across))
            values[lines.index(row[down]), place] = 100 * row["reduction"]
        image = axis.imshow(values, vmin=-100, vmax=100, cmap="RdBu", aspect="auto")
        for (y, x), value in np.ndenumerate(values):
            if math.isfinite(value):
                dark = abs(value) > 60
                axis.text(
                    x, y, f"{value:.0f}", ha="center", va="center", fontsize=8,
                    color="white" if dark else "black",
                )  # fmt: skip
        axis.set_title(str(scheme), fontsize=10)
        axis.set_yticks(range(len(lines)), [f"{value:g}" for value in lines], fontsize=8)
        ticks = ["\n".join(f"{value:g}" for value in column) for column in columns]
        axis.set_xticks(range(len(columns)), ticks, fontsize=8)
        axis.set_xlabel(", ".join(across), fontsize=9)
        axis.set_ylabel(down, fontsize=9)
    for axis in axes[len(schemes) :]:
        axis.set_visible(False)
    figure.colorbar(image, ax=list(axes), label=f"stall ratio below {baseline}, %", shrink=0.8)
    return figure


def _lines(found: pd.DataFrame, name: str) -> Figure:
    figure = Figure(figsize=(9, 4.5), dpi=100, layout="constrained")
    axis = figure.subplots()
    schemes = list(dict.fromkeys(found["scheme"]))
    for scheme in schemes:
        part = found[found["scheme"] == scheme].sort_values(name)
        axis.errorbar(
            part[name], 100 * part["stall"], 100 * part["stall_ci95"].fillna(0),
            marker="o", markersize=4, capsize=3, label=str(scheme),
            color=scheme_colour(scheme, schemes),
        )  # fmt: skip
    axis.set_xlabel(name)
    axis.set_ylabel("stall ratio, % (mean, 95% interval)")
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return figure
