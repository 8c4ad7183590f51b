"""The paper's claims against our data: reductions per cell, their sensitivity, the Pareto front.

`rows` is a table of runs as `scenarios/paper.py` writes it to cells.csv: the columns of
summary.csv, `group` (which part of the table), `cell`, the cell's parameters (loss, outage, rtt,
spacing, step), and a column for each definition of a stall.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from analysis.definitions import KINDS, THETAS, column
from analysis.plots import scheme_colour
from analysis.summary import Reduction, paired_reduction
from terminal.table import Table

#: What the paper reports for Eloquent (arXiv 2401.12961).
CLAIMS = {"retransmit": 0.710, "duplicate": 0.316}
PARAMETERS = ["loss", "outage", "rtt", "spacing", "step"]
SCHEME = "eloquent"


def reductions_by_cell(rows: pd.DataFrame, measure: str = "stall_ratio") -> pd.DataFrame:
    """One row per cell, scheme and baseline: the paired reduction of a measure.

    Columns: group, cell, the parameters, scheme, against, stall, base (means), reduction, low,
    high, n, holds ("yes": the claim lies in the interval or below it; "no": above it; "open": the
    interval has no bounds, as the baseline hardly stalls).
    """
    found = []
    for (group, cell), part in rows.groupby(["group", "cell"], sort=False):
        by_seed = part.pivot(index="seed", columns="scheme", values=measure)
        where = {name: part[name].iloc[0] for name in PARAMETERS}
        for against, claim in CLAIMS.items():
            for scheme in by_seed:
                if scheme == against or against not in by_seed:
                    continue
                result = paired_reduction(by_seed[scheme], by_seed[against])
                found.append(
                    {
                        "group": group,
                        "cell": cell,
                        **where,
                        "scheme": scheme,
                        "against": against,
                        "stall": float(by_seed[scheme].mean()),
                        "base": float(by_seed[against].mean()),
                        **result._asdict(),
                        "holds": _holds(result, claim),
                    }
                )
    return pd.DataFrame(found)


def _holds(result: Reduction, claim: float) -> str:
    if not math.isfinite(result.low):
        return "open"
    return "yes" if result.high >= claim else "no"


def claims_table(found: pd.DataFrame) -> Table:
    """For the terminal: Eloquent in every cell, against both baselines."""
    table = Table(
        title="eloquent: stall ratio, and how far it is below the baselines, % [95% interval]",
    )
    table.add_column("part", key=True)
    for name in ("loss %", "outage ms", "RTT ms", "spacing ms", "step"):
        table.add_column(name, justify="right", key=True)
    table.add_column("stall %", justify="right")
    for against, claim in CLAIMS.items():
        table.add_column(f"{against}\n(paper: {100 * claim:.1f})", justify="right")
    own = found[found["scheme"] == SCHEME]
    for (group, _), part in own.groupby(["group", "cell"], sort=False):
        row = part.iloc[0]
        by_baseline = part.set_index("against")
        table.add_row(
            str(group),
            f"{100 * row['loss']:g}",
            f"{1000 * row['outage']:g}",
            f"{1000 * row['rtt']:g}",
            f"{1000 * row['spacing']:g}",
            str(row["step"]),
            f"{100 * row['stall']:.2f}",
            *(_cell(by_baseline, against) for against in CLAIMS),
        )
    return table


def _cell(by_baseline: pd.DataFrame, against: str) -> str:
    if against not in by_baseline.index or math.isnan(by_baseline.loc[against, "reduction"]):
        return "-"
    row = by_baseline.loc[against]
    text = f"{100 * row['reduction']:.1f}"
    if math.isfinite(row["low"]):
        text += f" [{100 * row['low']:.0f}, {100 * row['high']:.0f}]"
    return text


def sensitivity(rows: pd.DataFrame) -> pd.DataFrame:
    """Reductions of Eloquent under every definition of a stall, over all cells of the main part.

    Columns: against, kind, theta, reduction, low, high, n. Runs of all cells are taken together.
    """
    main = rows[rows["group"] == "loss x outage"]
    found = []
    for against in CLAIMS:
        for kind in KINDS:
            for theta in THETAS:
                wide = main.pivot(
                    index=["cell", "seed"], columns="scheme", values=column(kind, theta)
                ).dropna()
                if SCHEME in wide and against in wide:
                    result = paired_reduction(wide[SCHEME], wide[against])
                    found.append(
                        {"against": against, "kind": kind, "theta": theta, **result._asdict()}
                    )
    return pd.DataFrame(found)


def pareto(rows: pd.DataFrame) -> pd.DataFrame:
    """Schemes by mean stall ratio and bytes per token over the main part; `front` marks the best.

    A scheme is on the front when no other has both less stall and fewer bytes.
    """
    main = rows[rows["group"] == "loss x outage"]
    table = main.groupby("scheme", sort=False)[
        ["stall_ratio", "bytes_per_token", "datagrams_per_token"]
    ].mean()
    values = table[["stall_ratio", "bytes_per_token"]].to_numpy()
    table["front"] = [
        not any((other <= own).all() and (other < own).any() for other in values) for own in values
    ]
    return table.reset_index()


def pareto_figure(table: pd.DataFrame) -> Figure:
    """Stall against overhead, with the Pareto front as a line."""
    figure = Figure(figsize=(9, 5), dpi=100, layout="constrained")
    axes = figure.subplots()
    schemes = list(table["scheme"])
    front = table[table["front"]].sort_values("bytes_per_token")
    axes.step(
        front["bytes_per_token"], 100 * front["stall_ratio"],
        where="post", color="#999999", linewidth=1, zorder=1,
    )  # fmt: skip
    for row in table.to_dict("records"):
        colour = scheme_colour(row["scheme"], schemes)
        x, y = row["bytes_per_token"], 100 * row["stall_ratio"]
        axes.plot(x, y, "o", color=colour, markersize=9, zorder=2)
        axes.annotate(row["scheme"], (x, y), (8, 5), textcoords="offset points", color=colour)
    axes.set_xlabel("bytes on the wire per token, both directions, headers included")
    axes.set_ylabel("stall ratio, % (mean over the loss x outage cells)")
    axes.set_xlim(0, 1.25 * table["bytes_per_token"].max())
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("Left and low is better; the line is the Pareto front", loc="left", fontsize=10)
    return figure


def text(rows: pd.DataFrame) -> str:
    """What the data say about the paper's two figures, in a few sentences (Markdown)."""
    return "\n".join(_sentences(rows)) + "\n"


def _sentences(rows: pd.DataFrame) -> Iterator[str]:
    found = reductions_by_cell(rows)
    own = found[found["scheme"] == SCHEME]
    runs = int(own["n"].max())
    yield "# The paper's figures and ours\n"
    yield (
        f"{own.groupby(['group', 'cell']).ngroups} cells, {runs} paired runs each, simulated. A "
        "reduction holds in a cell when its 95% interval reaches the paper's figure or lies above "
        "it.\n"
    )
    for against, claim in CLAIMS.items():
        part = own[(own["against"] == against) & (own["base"] > 0)]
        counts = part["holds"].value_counts()
        yield f"## {100 * claim:.1f}% below {against}\n"
        yield (
            f"Holds in {counts.get('yes', 0)} cells, not in {counts.get('no', 0)}; in "
            f"{counts.get('open', 0)} the baseline stalls too seldom to say.\n"
        )
        known = part[part["holds"] != "open"]
        if known.empty:
            continue
        for word, row in (
            ("Best", known.loc[known["reduction"].idxmax()]),
            ("Worst", known.loc[known["reduction"].idxmin()]),
        ):
            yield (
                f"- {word}: {100 * row['reduction']:.1f}% [{100 * row['low']:.0f}, "
                f"{100 * row['high']:.0f}] at loss {100 * row['loss']:g}%, outages of "
                f"{1000 * row['outage']:g} ms, RTT {1000 * row['rtt']:g} ms, a step every "
                f"{1000 * row['spacing']:g} ms."
            )
        yield _trend(known, "outage", 1000, "ms of mean outage")
        yield _trend(known, "rtt", 1000, "ms of RTT")
        yield ""
    yield "## Why\n"
    yield (
        "Any datagram after an outage brings all that is missing, so Eloquent ends a stall about a "
        "token spacing after the channel comes back. Retransmission ends it when a timer fires, "
        "which has doubled meanwhile. The longer the outage, the more of the stall is the outage "
        "itself, which no sender can shorten: the reduction falls towards what the limit allows. "
        "Copies back to back die in the same outage, so duplication lies in between. It is better "
        "than Eloquent where losses are independent and steps slow: its copy is there at once, "
        "while Eloquent's repair waits for the next token or a probe timeout.\n"
    )
    best = rows[rows["group"] == "loss x outage"].groupby("scheme")[
        ["stall_ratio", "limit_stall_ratio"]
    ]
    ratios = best.mean()
    yield "## How far from the limit\n"
    for scheme, row in ratios.sort_values("stall_ratio").iterrows():
        if row["limit_stall_ratio"]:
            yield (
                f"- {scheme}: {row['stall_ratio'] / row['limit_stall_ratio']:.3f} times the stall "
                "of a sender that sends without pause"
            )
    yield "\n## How much hangs on the definition of a stall\n"
    yield (
        "The paper does not say what of a gap counts, nor which loss model, RTT or token spacing "
        "it used; ours are in scenarios/paper.py. Reductions over the loss x outage cells, % "
        "[95% interval], by what counts of a gap longer than theta:\n"
    )
    table = sensitivity(rows)
    yield "| against | counts | " + " | ".join(f"{1000 * t:g} ms" for t in THETAS) + " |"
    yield "|---|---|" + "---|" * len(THETAS)
    for (against, kind), part in table.groupby(["against", "kind"], sort=False):
        cells = [
            f"{100 * row.reduction:.1f} [{100 * row.low:.0f}, {100 * row.high:.0f}]"
            for row in part.sort_values("theta").itertuples()
        ]
        yield f"| {against} | {kind} | " + " | ".join(cells) + " |"


def _trend(known: pd.DataFrame, name: str, factor: float, unit: str) -> str:
    means = known.groupby(name)["reduction"].mean()
    if len(means) < 2:
        return ""
    parts = ", ".join(f"{100 * value:.0f}% at {factor * at:g}" for at, value in means.items())
    return f"- By {unit}, mean over cells: {parts}."
