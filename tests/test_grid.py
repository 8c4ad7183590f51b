"""Tables and pictures of a sweep, from a few rows with values by hand."""

from __future__ import annotations

import io
import math
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from analysis.grid import grid_json, grid_table, heat_map, reduction_rows

#: Stall ratios by loss and scheme, for the seeds 1 and 2.
STALLS = {
    (0.1, "eloquent"): (0.10, 0.10),
    (0.1, "tcp"): (0.40, 0.40),
    (0.2, "eloquent"): (0.20, 0.30),
    (0.2, "tcp"): (0.40, 0.60),
}


def rows(**columns: Any) -> pd.DataFrame:
    found = []
    for (loss, scheme), values in STALLS.items():
        for seed, stall in enumerate(values, 1):
            found.append(
                {
                    "scenario": "paper",
                    "scheme": scheme,
                    "run": seed,
                    "seed": seed,
                    "loss": loss,
                    "stall_ratio": stall,
                    "limit_stall_ratio": 0.05,
                    "datagrams_per_token": 2.0,
                    "bytes_per_token": 150.0 if scheme == "tcp" else 200.0,
                    **columns,
                }
            )
    return pd.DataFrame(found)


def with_rtt() -> pd.DataFrame:
    return pd.concat([rows(rtt=0.02), rows(rtt=0.1)], ignore_index=True)


def text(table: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=124).print(table)
    return out.getvalue()


def test_reductions_by_hand() -> None:
    found = reduction_rows(rows(), ["loss"], "tcp").set_index(["loss", "scheme"])
    assert list(found["n"]) == [2, 2, 2, 2]
    first, second = found.loc[(0.1, "eloquent")], found.loc[(0.2, "eloquent")]
    assert (first["stall"], first["stall_ci95"]) == pytest.approx((0.1, 0.0))
    assert [first[name] for name in ("reduction", "low", "high")] == pytest.approx([0.75] * 3)
    assert first["ratio_to_limit"] == pytest.approx(2.0)
    assert (first["datagrams"], first["bytes"]) == (2.0, 200.0)
    # 0.2 and 0.3: s = 0.0707107, 12.7062 * 0.0707107 / sqrt(2) = 0.63531.
    assert second["stall_ci95"] == pytest.approx(0.63531, rel=1e-5)
    assert second["reduction"] == pytest.approx(0.5)
    assert found["reduction"].isna().tolist() == [False, True, False, True]


def test_only_seeds_that_the_baseline_has_are_paired() -> None:
    table = rows()
    table = table[~((table["scheme"] == "tcp") & (table["loss"] == 0.2) & (table["seed"] == 2))]
    found = reduction_rows(table, ["loss"], "tcp").set_index(["loss", "scheme"])
    row = found.loc[(0.2, "eloquent")]
    assert row["stall"] == pytest.approx(0.25)  # over both of its own
    assert row["reduction"] == pytest.approx(0.5)  # 1 - 0.2 / 0.4, the one pair
    assert math.isnan(row["low"])


def test_without_a_baseline_or_a_limit_nothing_is_claimed() -> None:
    found = reduction_rows(rows(limit_stall_ratio=0.0), ["loss"], "quic")
    assert found["reduction"].isna().all()
    assert found["ratio_to_limit"].isna().all()


def test_the_table_has_a_row_per_cell() -> None:
    printed = text(grid_table(rows(), ["loss"], "tcp"))
    assert "below: reduction against tcp" in printed
    (first,) = [line for line in printed.splitlines() if line.strip().startswith("0.1")]
    assert first.split() == ["0.1", "10.0", "±", "0.0", "40.0", "±", "0.0"]
    assert "75 [75, 75]" in printed


def test_a_scheme_that_a_cell_lacks_is_a_dash() -> None:
    table = rows()
    table = table[~((table["scheme"] == "eloquent") & (table["loss"] == 0.2))]
    printed = text(grid_table(table, ["loss"], "tcp"))
    (second,) = [line for line in printed.splitlines() if line.strip().startswith("0.2")]
    assert second.split()[:2] == ["0.2", "-"]


def test_json_is_a_list_of_cells() -> None:
    cells = grid_json(with_rtt(), ["loss", "rtt"])
    assert [(cell["loss"], cell["rtt"]) for cell in cells] == [
        *((0.1, 0.02), (0.1, 0.1), (0.2, 0.02), (0.2, 0.1))
    ]
    assert list(cells[0]["schemes"]) == ["eloquent", "tcp"]
    stall = cells[2]["schemes"]["tcp"]["stall_ratio"]
    assert (stall["mean"], stall["n"]) == (pytest.approx(0.5), 2)


def test_one_parameter_is_drawn_as_lines() -> None:
    figure = heat_map(rows(), ["loss"], "tcp")
    assert isinstance(figure, Figure)
    (axes,) = figure.axes
    assert axes.get_xlabel() == "loss"
    (eloquent, tcp) = [container[0].get_ydata() for container in axes.containers]
    assert list(eloquent) == pytest.approx([10, 25])
    assert list(tcp) == pytest.approx([40, 50])


def test_two_parameters_are_a_panel_per_scheme_without_the_baseline() -> None:
    figure = heat_map(with_rtt(), ["loss", "rtt"], "tcp")
    assert figure is not None
    panel = figure.axes[0]
    assert panel.get_title() == "eloquent"
    assert [item.get_text() for item in panel.texts] == ["75", "75", "50", "50"]
    assert (panel.get_ylabel(), panel.get_xlabel()) == ("loss", "rtt")
    assert [label.get_text() for label in panel.get_yticklabels()] == ["0.1", "0.2"]
    figure.canvas.draw()


def test_without_a_reduction_there_is_no_picture() -> None:
    table = with_rtt()
    assert heat_map(table[table["scheme"] == "tcp"], ["loss", "rtt"], "tcp") is None
    assert heat_map(table, ["loss", "rtt"], "quic") is None
