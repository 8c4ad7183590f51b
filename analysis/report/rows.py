"""The page's tables of results: from summary.csv and packet fates to rows of text."""

from __future__ import annotations

import math
from typing import NamedTuple

import pandas as pd

from analysis.report.measures import (
    MINUS,
    measure,
    measured_columns,
    number,
    scaled,
    with_interval,
)
from analysis.summary import SummaryError, estimate, means, paired_reduction, reductions
from analysis.tables import NONE

_AGAINST = ("stall_ratio", "gap_share", "gap_p99", "delay_p95", "ttft", "bytes_per_token")
#: Not of the schemes but of the model and the measurement: only in the table of every run.
_ASIDE = (
    *("generation_stall_ratio", "tokens", "datagrams", "wire_bytes", "payload_bytes"),
    *("agree_max", "limit_stall_ratio", "ratio_to_limit"),
)
_WORDY = 28


class Table(NamedTuple):
    """A table of texts. The first cell of each row names the row."""

    title: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""

    def wordy(self, column: int) -> bool:
        """Whether a column holds sentences rather than numbers: these may break into lines."""
        return any(len(row[column]) > _WORDY for row in self.rows)


def check(summary: pd.DataFrame) -> None:
    """Raises SummaryError if the rows are not those of one scenario, one per scheme and run."""
    for column in ("scenario", "scheme", "run"):
        if column not in summary:
            raise SummaryError(f"the summary has no column {column}: is it a summary.csv of ours?")
    scenarios = summary["scenario"].nunique()
    if scenarios > 1:
        raise SummaryError(f"the summary mixes {scenarios} scenarios: give one at a time")
    twice = summary[summary.duplicated(["scheme", "run"])]
    if len(twice):
        row = twice.iloc[0]
        raise SummaryError(f"run {row['run']} of {row['scheme']} is in the summary twice")


def scheme_names(summary: pd.DataFrame) -> list[str]:
    """Schemes in the order of their first appearance."""
    return [str(scheme) for scheme in summary["scheme"].unique()]


def summary_rows(summary: pd.DataFrame) -> Table:
    """One row per scheme: the mean of what a reader or a network notices, with its interval."""
    columns = [column for column in measured_columns(summary) if column not in _ASIDE]
    rows = []
    for scheme, mine in summary.groupby("scheme", sort=False):
        cells = [with_interval(column, estimate(mine[column]), len(mine)) for column in columns]
        rows.append([str(scheme), str(len(mine)), *cells])
    return Table(
        "Every scheme",
        ["scheme", "runs", *(measure(column).heading for column in columns)],
        rows,
        "Mean over the runs ± half the 95% interval (Student's t). One run has no interval.",
    )


def reduction_rows(summary: pd.DataFrame, baseline: str) -> Table | None:
    """How far every scheme is below the baseline; None if that was not run."""
    columns = [column for column in _AGAINST if column in summary]
    against = {column: reductions(summary, column, baseline) for column in columns}
    against = {column: found for column, found in against.items() if len(found)}
    if not against:
        return None
    first = next(iter(against.values()))
    rows = []
    for place, scheme in enumerate(first["scheme"]):
        found = [table.iloc[place] for table in against.values()]
        cells = [interval(100 * row.reduction, 100 * row.low, 100 * row.high, 1) for row in found]
        rows.append([str(scheme), str(max(int(row.n) for row in found)), *cells])
    return Table(
        f"Below {baseline}, %",
        ["scheme", "pairs", *(measure(column).label for column in against)],
        rows,
        f"1 {MINUS} mean / mean of {baseline}, over runs of the same number, and so the same "
        "seed, with its 95% interval (Fieller). Negative: above. Without an interval, the runs are "
        f"too few or {baseline} is not clearly different from 0.",
    )


def run_rows(summary: pd.DataFrame) -> Table:
    """Every row of summary.csv, in the units of the other tables."""
    measured = measured_columns(summary)
    labels = [column for column in summary if column not in measured and column != "scheme"]
    rows = []
    for record in summary.to_dict("records"):
        texts = [_text(record[column]) for column in labels]
        values = [scaled(column, record[column]) for column in measured]
        rows.append([str(record["scheme"]), *texts, *values])
    head = ["scheme", *(column.replace("_", " ") for column in labels)]
    return Table("Every run", [*head, *(measure(column).heading for column in measured)], rows)


def limit_ratios(summary: pd.DataFrame) -> pd.DataFrame | None:
    """Stall ratio over that of the best possible sender: scheme, ratio, low, high, n.

    From the columns ratio_to_limit or limit_stall_ratio; None if the summary has neither.
    """
    known = {name for name in ("limit_stall_ratio", "ratio_to_limit") if name in summary}
    known = {name for name in known if summary[name].notna().any()}
    if "stall_ratio" not in summary:
        known.discard("limit_stall_ratio")
    rows = []
    for scheme, mine in summary.groupby("scheme", sort=False):
        if "limit_stall_ratio" in known:  # a ratio of means, as everywhere
            pairs = mine[["stall_ratio", "limit_stall_ratio"]].dropna()
            found = paired_reduction(pairs["stall_ratio"], pairs["limit_stall_ratio"])
            rows.append((str(scheme), 1 - found.reduction, 1 - found.high, 1 - found.low, found.n))
        elif "ratio_to_limit" in known:
            mean, half, n = estimate(mine["ratio_to_limit"])
            rows.append((str(scheme), mean, mean - half, mean + half, n))
    if not rows:
        return None
    return pd.DataFrame(rows, columns=["scheme", "ratio", "low", "high", "n"])


def limit_cells(ratios: pd.DataFrame) -> dict[str, str]:
    """The ratio to the limit per scheme, with its interval."""
    return {
        row["scheme"]: interval(row["ratio"], row["low"], row["high"], 2)
        for row in ratios.to_dict("records")
    }


def limit_rows(ratios: pd.DataFrame) -> Table:
    """The ratios to the limit as a table."""
    runs = dict(zip(ratios["scheme"], ratios["n"], strict=True))
    rows = [[name, str(runs[name]), text] for name, text in limit_cells(ratios).items()]
    return Table(
        "Ratio to the limit",
        ["scheme", "runs", "stall ratio / limit"],
        rows,
        "The limit is a sender that sends without pause: none shows a token earlier. "
        "1 would be as good as that.",
    )


def fate_rows(fates: dict[str, pd.DataFrame]) -> Table:
    """One row per scheme: its packets of one run, counted."""
    rows = []
    for scheme, table in fates.items():
        server, client = (table[table["side"] == side] for side in ("server", "client"))
        carriers = server[server["low"] >= 0]
        arrived = carriers["fate"] == "arrived"
        news = carriers["unlocked_to"] > carriers["unlocked_from"]
        rows.append(
            [
                scheme,
                *(str(len(carriers)), str(int((~arrived).sum()))),
                *(str(int((arrived & news).sum())), str(int((arrived & ~news).sum()))),
                _most(carriers),
                *(str(len(server) - len(carriers)), _not_arrived(server[server["low"] < 0])),
                *(str(len(client)), _not_arrived(client)),
                " and ".join(sorted(str(name) for name in table["known_by"].unique())),
            ]
        )
    return Table(
        "Packets of this run",
        [
            *("scheme", "server packets with tokens", "lost with tokens"),
            *("unlocked tokens", "unlocked nothing", "most tokens by one"),
            *("server packets without", "lost without", "client packets", "client packets lost"),
            "known by",
        ],
        rows,
    )


def stall_cells(summary: pd.DataFrame) -> dict[str, str]:
    """Stall ratio per scheme with its interval, in percent."""
    if "stall_ratio" not in summary or summary.empty:
        return {}
    found = means(summary, ["stall_ratio"])
    cells = {}
    for row in found.to_dict("records"):
        text = number(100 * row["mean"], 1)
        half = f" ± {number(100 * row['ci95'], 1)}" if math.isfinite(row["ci95"]) else ""
        cells[str(row["scheme"])] = f"{text}{half} ({row['n']})"
    return cells


def interval(middle: float, low: float, high: float, digits: int) -> str:
    """A value and its interval, if it has one."""
    text = number(middle, digits)
    if text != NONE and math.isfinite(low) and math.isfinite(high):
        text += f" [{number(low, digits)}, {number(high, digits)}]"
    return text


def _most(carriers: pd.DataFrame) -> str:
    unlocked = carriers["unlocked_to"] - carriers["unlocked_from"]
    return str(int(unlocked.max())) if len(unlocked) else NONE


def _not_arrived(packets: pd.DataFrame) -> str:
    return str(int((packets["fate"] != "arrived").sum()))


def _text(value: object) -> str:
    if isinstance(value, float):
        if math.isnan(value):
            return NONE
        if value.is_integer():  # a column of whole numbers with a hole in it
            return str(int(value))
    return str(value)
