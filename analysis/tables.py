"""Tables for the terminal: the schemes of a results folder, the streams of a capture."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from analysis.record_stream import LIKELY
from analysis.stalls import THETA
from analysis.summary import SummaryError, means, reductions
from terminal.table import Table

NONE = "-"


def summary_table(summary: pd.DataFrame, baseline: str = "tcp", theta: float = THETA) -> Table:
    """One row per scheme: means over runs, ± half a 95% interval.

    The reduction is that of the stall ratio against `baseline`, with its 95% interval.
    Raises SummaryError if there are no rows, or rows of several scenarios.
    """
    if summary.empty:
        raise SummaryError("the summary has no rows: no run was finished")
    scenarios = summary["scenario"].unique()
    if len(scenarios) > 1:
        raise SummaryError(f"the summary mixes {len(scenarios)} scenarios: give one at a time")
    against = reductions(summary, baseline=baseline).set_index("scheme")
    table = Table(
        title=f"{scenarios[0]}: mean ± 95% interval over runs; times in ms",
    )
    table.add_column("scheme", key=True)
    for header in (
        "stall %\n(runs)",
        f"below {baseline}, %\n[95% int.]",
        f"gaps >\n{1000 * theta:g} ms",
        "gap P50/P95/P99",
        "TTFT",
        "delay\nP50/P95",
        "pkts/\ntoken",
        "bytes/\ntoken",
        "lost",
    ):
        table.add_column(header, justify="right")
    measures = means(summary).set_index(["scheme", "column"])
    every = summary if "tokens_lost" in summary else summary.assign(tokens_lost=math.nan)
    lost = every.groupby("scheme")["tokens_lost"].sum(min_count=1)
    for scheme in summary["scheme"].unique():
        at = measures.loc[scheme]
        table.add_row(
            str(scheme),
            _stall(at.loc["stall_ratio"]),
            "baseline" if scheme == baseline else _reduction(against, scheme),
            _percent(_mean(at, "gap_share")) + "%",
            _join(at, "gap_p50", "gap_p95", "gap_p99"),
            _ms(_mean(at, "ttft")),
            _join(at, "delay_p50", "delay_p95"),
            _plain(_mean(at, "datagrams_per_token"), ".2f"),
            _plain(_mean(at, "bytes_per_token"), ".0f"),
            _plain(lost[scheme], ".0f"),
        )
    return table


def stream_table(rows: list[dict[str, Any]], theta: float = THETA) -> Table:
    """One row per answer found in captures; `rows` as `python -m analysis --json` gives them."""
    caption = "times in ms" + unsure_note(row["sure"] for row in rows)
    table = Table(caption=caption)
    for header in ("file", "scheme", "stream"):
        table.add_column(header, key=True)
    for header in (
        "tokens",
        "complete",
        "length",
        "stall %",
        f"gaps >\n{1000 * theta:g} ms, %",
        "gap P50/P95/P99",
        "TTFT",
    ):
        table.add_column(header, justify="right")
    for row in rows:
        table.add_row(
            row["file"],
            sure_scheme(row),
            row["stream"],
            str(row["tokens"]),
            "yes" if row["complete"] else "no",
            _ms(row["duration"]),
            _percent(row["stall_ratio"]),
            _percent(row["gap_share"]),
            "/".join(_ms(row[gap]) for gap in ("gap_p50", "gap_p95", "gap_p99")),
            _ms(row["ttft"]),
        )
    return table


def sure_scheme(row: dict[str, Any]) -> str:
    """The scheme of a stream in a capture, with a question mark if it is not sure to be one."""
    return f"{row['scheme']}?" if row["sure"] == LIKELY else str(row["scheme"])


def unsure_note(sure: Iterable[str]) -> str:
    """What the question mark means, if there is one."""
    if LIKELY not in sure:
        return ""
    return "; ?: what was captured fits a token stream, but not up to an end that proves it"


def _mean(at: pd.DataFrame, column: str) -> float:
    return float(at.loc[column, "mean"]) if column in at.index else math.nan


def _stall(row: Any) -> str:
    half = f" ± {100 * row['ci95']:.1f}" if math.isfinite(row["ci95"]) else ""
    return f"{_percent(row['mean'])}{half} ({int(row['n'])})"


def _reduction(against: pd.DataFrame, scheme: str) -> str:
    if scheme not in against.index or math.isnan(against.loc[scheme, "reduction"]):
        return NONE
    row = against.loc[scheme]
    text = f"{100 * row['reduction']:.1f}"
    if math.isfinite(row["low"]):
        text += f" [{100 * row['low']:.0f}, {100 * row['high']:.0f}]"
    return text


def _join(at: pd.DataFrame, *columns: str) -> str:
    return "/".join(_ms(_mean(at, column)) for column in columns)


def _percent(share: float | None) -> str:
    return _plain(None if share is None else 100 * share, ".1f")


def _ms(seconds: float | None) -> str:
    return _plain(None if seconds is None else 1000 * seconds, ".0f")


def _plain(value: float | None, form: str) -> str:
    return NONE if value is None or not math.isfinite(value) else format(value, form)
