"""From one row per run to means, intervals and reductions per scheme.

Means come with a 95% interval by Student's t over the runs. Reductions against a baseline use
Fieller's theorem on runs paired by number: as the same run number means the same bad moments for
every scheme, pairing removes what the channel adds to both. Fieller is exact for normal means,
deterministic, and says when a ratio cannot be bounded at all because the baseline may be 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

SUMMARY_COLUMNS = [
    *("scenario", "scheme", "run", "seed"),
    *("stall_ratio", "gap_share", "gap_p50", "gap_p95", "gap_p99"),
    *("ttft", "delay_p50", "delay_p95", "generation_stall_ratio"),
    *("tokens", "tokens_lost", "datagrams", "wire_bytes", "payload_bytes"),
    *("datagrams_per_token", "bytes_per_token"),
    *("link", "engine", "congestion_control", "agree_max"),
    *("limit_stall_ratio", "ratio_to_limit"),
]
"""Columns of summary.csv, one row per scheme and run, in order. Times in seconds."""

LABEL_COLUMNS = ["scenario", "scheme", "run", "seed", "link", "engine", "congestion_control"]
MEASURES = [column for column in SUMMARY_COLUMNS if column not in LABEL_COLUMNS]
CONFIDENCE = 0.95


class SummaryError(ValueError):
    """The summary rows cannot be summed up."""


class Estimate(NamedTuple):
    """A mean over runs. `ci95` is half the width of its 95% interval; NaN below two runs."""

    mean: float
    ci95: float
    n: int


class Reduction(NamedTuple):
    """1 - mean(scheme) / mean(baseline), with a 95% interval; NaN where it is not defined."""

    reduction: float
    low: float
    high: float
    n: int


def estimate(values: Iterable[float]) -> Estimate:
    """Mean and 95% interval (Student's t, n - 1 degrees of freedom). NaN values are left out."""
    sample = np.asarray(list(values), dtype=np.float64)
    sample = sample[~np.isnan(sample)]
    n = len(sample)
    mean = float(sample.mean()) if n else math.nan
    if n < 2:
        return Estimate(mean, math.nan, n)
    half = _t(n) * float(sample.std(ddof=1)) / math.sqrt(n)
    return Estimate(mean, half, n)


def means(summary: pd.DataFrame, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Means per scheme: one row per scheme and column, in the order of their first appearance.

    Columns: scheme, column, mean, ci95, n. Without `columns`, all measures present. For
    `ratio_to_limit` it is the ratio of the means (half of Fieller's interval), not the mean of
    ratios: runs whose limit is next to 0 would decide that one.
    """
    _need(summary, ["scheme", "run"])
    if columns is None:
        columns = [column for column in MEASURES if column in summary]
    _need(summary, columns)
    rows = [
        (scheme, column, *_estimate(group, column))
        for scheme, group in summary.groupby("scheme", sort=False)
        for column in columns
    ]
    return pd.DataFrame(rows, columns=["scheme", "column", *Estimate._fields])


def _estimate(group: pd.DataFrame, column: str) -> Estimate:
    if column != "ratio_to_limit" or "limit_stall_ratio" not in group:
        return estimate(group[column].astype("float64"))
    pairs = group[["stall_ratio", "limit_stall_ratio"]].astype("float64").dropna()
    found = paired_reduction(pairs["stall_ratio"], pairs["limit_stall_ratio"])
    return Estimate(1 - found.reduction, (found.high - found.low) / 2, found.n)


def reductions(
    summary: pd.DataFrame, column: str = "stall_ratio", baseline: str = "tcp"
) -> pd.DataFrame:
    """Reduction of a measure against the baseline, over the runs that both have.

    Columns: scheme, reduction, low, high, n (pairs). Empty if the baseline was not run.
    """
    _need(summary, ["scheme", "run", column])
    twice = summary.duplicated(["scheme", "run"])
    if twice.any():
        row = summary[twice].iloc[0]
        raise SummaryError(
            f"run {row['run']} of {row['scheme']} is there twice: give the rows of one folder only"
        )
    by_run = summary.pivot(index="run", columns="scheme", values=column).astype("float64")
    rows = []
    if baseline in by_run:
        for scheme in summary["scheme"].unique():
            if scheme != baseline:
                pairs = by_run[[scheme, baseline]].dropna()
                rows.append((scheme, *paired_reduction(pairs[scheme], pairs[baseline])))
    return pd.DataFrame(rows, columns=["scheme", *Reduction._fields])


def paired_reduction(values: npt.ArrayLike, base: npt.ArrayLike) -> Reduction:
    """Reduction of the mean of `values` against that of `base`; element i of both is one run.

    The interval is Fieller's: all ratios R for which a paired t-test of values - R * base keeps
    R at the 95% level. A baseline of mean 0 gives NaN; so does, for the interval, a baseline not
    clearly different from 0, or fewer than two runs.
    """
    a = np.asarray(values, dtype=np.float64)
    b = np.asarray(base, dtype=np.float64)
    n = len(a)
    if n == 0 or b.mean() == 0:
        return Reduction(math.nan, math.nan, math.nan, n)
    mean_a, mean_b = float(a.mean()), float(b.mean())
    reduction = 1 - mean_a / mean_b
    if n < 2:
        return Reduction(reduction, math.nan, math.nan, n)
    # Variances of the means, times t^2; the limits solve qa R^2 - 2 qb R + qc = 0.
    spread = np.cov(a, b) * _t(n) ** 2 / n
    qa = mean_b**2 - spread[1, 1]
    qb = mean_a * mean_b - spread[0, 1]
    qc = mean_a**2 - spread[0, 0]
    if qa <= 0:
        return Reduction(reduction, math.nan, math.nan, n)
    root = math.sqrt(max(0.0, qb**2 - qa * qc))
    return Reduction(reduction, 1 - (qb + root) / qa, 1 - (qb - root) / qa, n)


def to_json(summary: pd.DataFrame) -> dict[str, Any]:
    """`{"schemes": {NAME: {COLUMN: {"mean", "ci95", "n"}}}}`; null where a value is not known."""
    schemes: dict[str, dict[str, Any]] = {}
    for row in means(summary).to_dict("records"):
        schemes.setdefault(row["scheme"], {})[row["column"]] = {
            "mean": _number(row["mean"]),
            "ci95": _number(row["ci95"]),
            "n": int(row["n"]),
        }
    return {"schemes": schemes}


def json_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as JSON data: null where a value is not known, as JSON has no NaN."""
    rows: list[dict[str, Any]] = table.astype(object).where(table.notna(), None).to_dict("records")
    return rows


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _t(n: int) -> float:
    from scipy.special import stdtrit  # a third of a second, which captures need not wait for

    return float(stdtrit(n - 1, 0.5 + CONFIDENCE / 2))


def _need(summary: pd.DataFrame, columns: Iterable[str]) -> None:
    missing = [column for column in columns if column not in summary]
    if missing:
        raise SummaryError(f"the summary has no column {missing[0]}: is it a summary.csv of ours?")
