"""Means, intervals and reductions, against hand computation and scipy's paired t-test."""

import io
import json
import math

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy import stats

from analysis.summary import (
    SUMMARY_COLUMNS,
    SummaryError,
    estimate,
    means,
    paired_reduction,
    reductions,
    to_json,
)
from analysis.tables import summary_table


def rows(**stalls: list[float]) -> pd.DataFrame:
    """Summary rows with the given stall ratios per scheme and run."""
    blank = dict.fromkeys(SUMMARY_COLUMNS, 0.05)
    return pd.DataFrame(
        [
            blank
            | {"scenario": "wifi_loss", "scheme": scheme, "run": run, "seed": run, "link": "user"}
            | {"congestion_control": "cubic", "stall_ratio": value, "tokens_lost": 0}
            for scheme, values in stalls.items()
            for run, value in enumerate(values)
        ]
    )


def test_estimate_by_hand():
    # Mean 2, standard deviation 1, t(0.975, 2) = 4.302653 (any table): 4.302653 / sqrt(3).
    assert estimate([1, 2, 3]) == pytest.approx((2.0, 2.484138, 3), rel=1e-5)
    assert estimate([1, math.nan, 3]).n == 2
    one = estimate([7.0])
    assert one.mean == 7 and math.isnan(one.ci95) and one.n == 1
    assert math.isnan(estimate([]).mean)


def test_means_are_per_scheme():
    table = means(rows(tcp=[0.2, 0.4], eloquent=[0.1, 0.1]), ["stall_ratio"])
    assert list(table["scheme"]) == ["tcp", "eloquent"]
    assert list(table["mean"]) == pytest.approx([0.3, 0.1])
    # s = 0.141421, t(0.975, 1) = 12.7062: 12.7062 * 0.141421 / sqrt(2) = 1.27062
    assert list(table["ci95"]) == pytest.approx([1.27062, 0.0], rel=1e-5)


def test_reduction_limits_are_where_the_paired_t_test_turns():
    rng = np.random.default_rng(1)
    base = rng.uniform(0.2, 0.5, 10)
    values = 0.3 * base + rng.normal(0, 0.02, 10)
    found = paired_reduction(values, base)
    assert found.reduction == pytest.approx(1 - values.mean() / base.mean())
    assert found.low < found.reduction < found.high
    for limit in (found.low, found.high):
        test = stats.ttest_1samp(values - (1 - limit) * base, 0)
        assert test.pvalue == pytest.approx(0.05, abs=1e-9)


def test_pairing_removes_what_runs_share():
    base = np.array([0.3, 0.5, 0.2, 0.6])
    found = paired_reduction(base / 2, base)  # always half: no doubt although runs differ a lot
    assert found == pytest.approx((0.5, 0.5, 0.5, 4))


def test_reduction_without_a_usable_baseline():
    assert all(math.isnan(x) for x in paired_reduction([0.1, 0.2], [0.0, 0.0])[:3])
    assert all(math.isnan(x) for x in paired_reduction([], [])[:3])
    one = paired_reduction([0.1], [0.4])
    assert one.reduction == pytest.approx(0.75) and math.isnan(one.low)
    unsure = paired_reduction([0.1, 0.1], [-0.1, 0.4])  # a baseline that may be 0
    assert unsure.reduction == pytest.approx(1 - 0.1 / 0.15) and math.isnan(unsure.low)


def test_reductions_pair_by_run_number():
    summary = rows(tcp=[0.4, 0.2, 0.6], eloquent=[0.1, 0.1])  # run 2 has no partner
    table = reductions(summary)
    assert table["scheme"].tolist() == ["eloquent"] and table["n"].tolist() == [2]
    assert table["reduction"][0] == pytest.approx(1 - 0.1 / 0.3)
    assert reductions(summary, baseline="quic").empty
    with pytest.raises(SummaryError, match="run 0 of tcp is there twice"):
        reductions(pd.concat([summary, summary]))


def test_json_has_null_for_the_unknown():
    result = to_json(rows(tcp=[0.25]))
    assert result["schemes"]["tcp"]["stall_ratio"] == {"mean": 0.25, "ci95": None, "n": 1}
    assert "seed" not in result["schemes"]["tcp"] and "link" not in result["schemes"]["tcp"]
    summary = rows(tcp=[0.2, 0.4])
    summary["ttft"] = math.nan
    assert to_json(summary)["schemes"]["tcp"]["ttft"] == {"mean": None, "ci95": None, "n": 0}
    json.dumps(to_json(summary), allow_nan=False)


def shown(summary: pd.DataFrame, width: int) -> str:
    text = io.StringIO()
    Console(file=text, width=width).print(summary_table(summary))
    return text.getvalue()


def test_table_fits_110_columns():
    summary = rows(tcp=[0.31, 0.52, 0.44], duplicate=[0.13] * 3, eloquent=[0.010, 0.04, 0.03])
    for column, value in (("gap_p99", 12.345), ("gap_p95", 1.2345), ("ttft", 1.5)):
        summary[column] = value
    summary["bytes_per_token"] = 1234.0
    text = shown(summary, 110)
    assert "…" not in text and max(map(len, text.splitlines())) <= 110
    assert "42.3 ± 26.3 (3)" in text  # mean of 31, 52, 44; t * s / sqrt(3) = 4.3027 * 10.60 / 1.732
    assert "50/1234/12345" in text and "baseline" in text
    assert len(text.splitlines()) == len(shown(summary, 200).splitlines())  # nothing wraps


def test_table_with_one_run_and_without_stalls():
    text = shown(rows(tcp=[0.0], eloquent=[0.0]), 110)
    assert "0.0 (1)" in text and "±" not in text.split("lost")[1]
    with pytest.raises(SummaryError, match="no run was finished"):
        summary_table(rows())
    mixed = rows(tcp=[0.1, 0.2])
    mixed.loc[1, "scenario"] = "clean"
    with pytest.raises(SummaryError, match="mixes 2 scenarios"):
        summary_table(mixed)
