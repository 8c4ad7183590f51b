"""How a measure of summary.csv is written for people: its name, its unit, its digits."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pandas as pd

from analysis.summary import LABEL_COLUMNS, Estimate
from analysis.tables import NONE

MINUS = "\N{MINUS SIGN}"


class Measure(NamedTuple):
    """`factor` turns the value of summary.csv (seconds, shares) into that of `unit`."""

    label: str
    unit: str
    factor: float
    digits: int

    @property
    def heading(self) -> str:
        return f"{self.label}, {self.unit}" if self.unit else self.label


_MEASURES = {
    "stall_ratio": Measure("stall ratio", "%", 100, 1),
    "gap_share": Measure("gaps that stall", "%", 100, 1),
    "gap_p50": Measure("gap P50", "ms", 1000, 0),
    "gap_p95": Measure("gap P95", "ms", 1000, 0),
    "gap_p99": Measure("gap P99", "ms", 1000, 0),
    "ttft": Measure("first token", "ms", 1000, 0),
    "delay_p50": Measure("delay P50", "ms", 1000, 0),
    "delay_p95": Measure("delay P95", "ms", 1000, 0),
    "generation_stall_ratio": Measure("stall of the model", "%", 100, 1),
    "tokens": Measure("tokens", "", 1, 0),
    "tokens_lost": Measure("tokens lost", "", 1, 0),
    "datagrams": Measure("datagrams", "", 1, 0),
    "wire_bytes": Measure("wire bytes", "", 1, 0),
    "payload_bytes": Measure("text bytes", "", 1, 0),
    "datagrams_per_token": Measure("datagrams per token", "", 1, 2),
    "bytes_per_token": Measure("wire bytes per token", "", 1, 0),
    "agree_max": Measure("log against capture", "ms", 1000, 2),
    "limit_stall_ratio": Measure("stall ratio of the limit", "%", 100, 1),
    "ratio_to_limit": Measure("ratio to the limit", "", 1, 2),
}


def measure(column: str) -> Measure:
    """How to write a column; one that is not known keeps its name and its unit."""
    return _MEASURES.get(column, Measure(column.replace("_", " "), "", 1, 3))


def measured_columns(summary: pd.DataFrame) -> list[str]:
    """The numeric columns of a summary, in order, those of a newer or older version included."""
    return [
        column
        for column in summary
        if column not in LABEL_COLUMNS and pd.api.types.is_numeric_dtype(summary[column])
    ]


def number(value: Any, digits: int = 0) -> str:
    """A number with a real minus sign; a dash if there is none."""
    try:
        known = float(value)
    except (TypeError, ValueError):
        return NONE
    if not math.isfinite(known):
        return NONE
    text = f"{known:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", MINUS)


def scaled(column: str, value: Any) -> str:
    """A value of a column in the unit of its heading."""
    how = measure(column)
    try:
        return number(how.factor * float(value), how.digits)
    except (TypeError, ValueError):
        return NONE


def with_interval(column: str, found: Estimate, runs: int) -> str:
    """Mean ± half the 95% interval; with the number of runs where it is not that of the row."""
    text = scaled(column, found.mean)
    if math.isfinite(found.ci95):
        text += f" ± {scaled(column, found.ci95)}"
    return text if found.n in (runs, 0) else f"{text} (n = {found.n})"
