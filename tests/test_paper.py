"""The paper's comparison: its sums by hand, one cell by the command line, a small whole table."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import nobody  # type: ignore[import-not-found, unused-ignore]
import pandas as pd
import pytest
from rich.console import Console

from analysis import paper as sums
from analysis.definitions import KINDS, THETAS, column
from scenarios import agreement, paper, paper_table, sweep
from scenarios.executors import ExecutorError
from topologies.channel import Bernoulli, GilbertElliott
from topologies.guest import kernel

SCRIPT = Path(paper.__file__)


def cell(loss: float, outage: float, group: str = "loss x outage", **stalls: Any) -> pd.DataFrame:
    """Rows of one cell: stall ratios by scheme, for the seeds 1, 2, ..."""
    costs = {"eloquent": 200.0, "retransmit": 100.0, "duplicate": 300.0}
    rows = []
    for scheme, values in stalls.items():
        for seed, stall in enumerate(values, 1):
            row: dict[str, Any] = {
                "group": group,
                "cell": f"loss={loss:g},outage={outage:g}",
                "scheme": scheme,
            }
            row |= {"loss": loss, "outage": outage, "rtt": 0.05, "spacing": 0.045, "step": 1.0}
            row |= {"run": seed, "seed": seed, "stall_ratio": stall, "limit_stall_ratio": 0.05}
            row |= {"bytes_per_token": costs[scheme], "datagrams_per_token": 2.0}
            row |= {column(kind, theta): stall for kind in KINDS for theta in THETAS}
            rows.append(row)
    return pd.DataFrame(rows)


def made_up() -> pd.DataFrame:
    """Reductions of exactly 80% and 50% below retransmit, 75% and 20% below duplicate."""
    short = cell(0.1, 0.05, eloquent=[0.1, 0.1], retransmit=[0.5, 0.5], duplicate=[0.4, 0.4])
    long = cell(0.2, 0.5, eloquent=[0.2, 0.2], retransmit=[0.4, 0.4], duplicate=[0.25, 0.25])
    rare = cell(0.01, 0.05, eloquent=[0, 0], retransmit=[0, 0.1], duplicate=[0, 0])
    return pd.concat([short, long, rare], ignore_index=True)


def test_reductions_by_hand() -> None:
    found = sums.reductions_by_cell(made_up())
    own = found[found["scheme"] == "eloquent"].set_index(["cell", "against"])
    best = own.loc[("loss=0.1,outage=0.05", "retransmit")]
    assert [best[name] for name in ("reduction", "low", "high")] == pytest.approx([0.8] * 3)
    assert (best["stall"], best["base"], best["n"], best["holds"]) == (0.1, 0.5, 2, "yes")
    worst = own.loc[("loss=0.2,outage=0.5", "retransmit")]
    assert worst["reduction"] == pytest.approx(0.5)
    assert worst["holds"] == "no"
    assert own.loc[("loss=0.2,outage=0.5", "duplicate"), "reduction"] == pytest.approx(0.2)
    # 0 and 0.1 are not clearly more than 0; two zeros give no ratio at all.
    assert own.loc[("loss=0.01,outage=0.05", "retransmit"), "holds"] == "open"
    assert math.isnan(own.loc[("loss=0.01,outage=0.05", "duplicate"), "reduction"])
    # Every scheme against every baseline but itself.
    assert len(found) == 3 * (2 + 2)


def test_runs_are_paired_by_seed() -> None:
    rows = cell(0.1, 0.1, eloquent=[0.10, 0.11, 0.12], retransmit=[0.20, 0.22, 0.24])
    for table in (rows, rows.iloc[::-1]):
        (row,) = sums.reductions_by_cell(table).to_dict("records")
        # In each run exactly half of it: paired, that is certain.
        assert [row[name] for name in ("reduction", "low", "high")] == pytest.approx([0.5] * 3)


def test_the_pareto_front_by_hand() -> None:
    found = sums.pareto(
        pd.concat(
            [
                made_up(),
                cell(0.1, 0.05, "RTT x spacing", eloquent=[9.0], retransmit=[0.0]),  # not counted
            ]
        )
    ).set_index("scheme")
    # retransmit is the cheapest, eloquent stalls least, duplicate costs more than eloquent.
    assert found["front"].to_dict() == {"eloquent": True, "retransmit": True, "duplicate": False}
    assert found.loc["eloquent", "stall_ratio"] == pytest.approx(0.1)
    assert found.loc["retransmit", "stall_ratio"] == pytest.approx((0.5 + 0.4 + 0.05) / 3)


def test_equals_are_both_on_the_front() -> None:
    rows = cell(0.1, 0.05, eloquent=[0.1], retransmit=[0.1], duplicate=[0.2])
    rows["bytes_per_token"] = 100.0
    front = sums.pareto(rows).set_index("scheme")["front"].to_dict()
    assert front == {"eloquent": True, "retransmit": True, "duplicate": False}
    figure = sums.pareto_figure(sums.pareto(rows))
    assert {text.get_text() for text in figure.axes[0].texts} == set(front)


def test_the_definitions_are_set_side_by_side() -> None:
    rows = made_up()
    rows.loc[rows["scheme"] == "eloquent", column("share", 0.5)] *= 2
    found = sums.sensitivity(rows).set_index(["against", "kind", "theta"])
    assert len(found) == 2 * len(KINDS) * len(THETAS)
    # Over all runs: 0.6 of 1.9, and 0.6 of 1.3.
    assert found.loc[("retransmit", "excess", 0.2), "reduction"] == pytest.approx(1 - 0.6 / 1.9)
    assert found.loc[("duplicate", "whole", 0.1), "reduction"] == pytest.approx(1 - 0.6 / 1.3)
    assert found.loc[("retransmit", "share", 0.5), "reduction"] == pytest.approx(1 - 1.2 / 1.9)


def test_the_text_names_the_right_cells() -> None:
    lines = sums.text(made_up()).splitlines()
    assert "3 cells, 2 paired runs each" in "\n".join(lines)
    retransmit = lines.index("## 71.0% below retransmit")
    duplicate = lines.index("## 31.6% below duplicate")
    best, worst = "loss 10%, outages of 50 ms", "loss 20%, outages of 500 ms"
    for start, reductions, counts in (
        (retransmit, ("80.0% [80, 80]", "50.0% [50, 50]"), "Holds in 1 cells, not in 1; in 1 "),
        (duplicate, ("75.0% [75, 75]", "20.0% [20, 20]"), "Holds in 1 cells, not in 1; in 0 "),
    ):
        part = lines[start : start + 9]
        assert any(line.startswith(counts) for line in part), part
        assert any(line.startswith(f"- Best: {reductions[0]} at {best}") for line in part), part
        assert any(line.startswith(f"- Worst: {reductions[1]} at {worst}") for line in part), part
    assert "- By ms of mean outage, mean over cells: 80% at 50, 50% at 500." in lines
    assert "- eloquent: 2.000 times the stall of a sender that sends without pause" in lines
    assert len([line for line in lines if line.startswith("| retransmit | ")]) == len(KINDS)


def test_the_table_of_claims() -> None:
    out = io.StringIO()
    Console(file=out, width=124).print(sums.claims_table(sums.reductions_by_cell(made_up())))
    printed = out.getvalue()
    assert "(paper: 71.0)" in printed and "(paper: 31.6)" in printed
    assert "80.0 [80, 80]" in printed and "20.0 [20, 20]" in printed
    assert printed.rstrip().splitlines()[-1].split()[-1] == "-"  # no reduction of nothing


def test_losses_are_independent_without_outages() -> None:
    def loss(*values: float) -> object:
        return paper.network(*values).access.down.loss

    assert loss(0.1, 0.0) == Bernoulli(0.1)
    assert loss(0.0, 0.1) is None
    bursts = loss(0.2, 0.05)
    assert isinstance(bursts, GilbertElliott)
    assert (bursts.mean_good, bursts.mean_bad) == pytest.approx((0.2, 0.05))
    assert paper.network(rtt=0.3).access.up.delay == 0.15
    assert paper.workload(0.02, 3) == "timing:steady:spacing=0.02:per_step=3"


@pytest.mark.parametrize("outage", ["0.05", "0"])
def test_one_cell_by_the_command_line_for_anybody(outage: str) -> None:
    words = ["--loss", "0.1", "--outage", outage, "--rtt", "0.05", "--spacing", "0.045"]
    words += ["--schemes", "eloquent,retransmit", "--runs", "3", "--tokens", "60", "--seed", "1"]
    words += ["--engine", "simulated", "--json"]
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o777)
        own = {"HOME": home, "MPLCONFIGDIR": home, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, str(SCRIPT), *words],
            cwd=home,
            env=os.environ | own,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
            preexec_fn=None if nobody.lacks() else nobody.become,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert list(found) == ["scenario", "out", "link", "schemes"]
        assert (found["scenario"], found["link"]) == ("paper", "model")
        assert list(found["schemes"]) == ["eloquent", "retransmit"]
        for measures in found["schemes"].values():
            assert measures["tokens"] == {"mean": 60.0, "ci95": 0.0, "n": 3}
            assert measures["tokens_lost"] == {"mean": 0.0, "ci95": 0.0, "n": 3}
            assert 0 <= measures["stall_ratio"]["mean"] < 1
        manifest = json.loads((Path(home) / found["out"] / "manifest.json").read_text())
        kind = manifest["network"]["access"]["up"]["loss"]["model"]
        assert kind == ("bernoulli" if outage == "0" else "gilbert-elliott-time")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six cells instead of some seventy, and no other processes."""
    for name, values in (
        ("LOSSES", (0.3,)),
        ("OUTAGES", (0.0, 0.2)),
        ("RTTS", (0.1,)),
        ("SPACINGS", (0.01,)),
        ("FEW_OUTAGES", (0.2,)),
    ):
        monkeypatch.setattr(paper_table, name, values)
    monkeypatch.setattr(sweep, "results_in_order", lambda spec, function, jobs: map(function, jobs))


def table(out: Path, *words: str) -> int:
    tiny = ["--runs", "2", "--tokens", "12", "--no-virtual", "--out", str(out)]
    return paper_table.main(paper.SCENARIO, [*tiny, *words])


@pytest.mark.usefixtures("small")
def test_a_whole_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert table(out, "--json") == 0

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert (found["scenario"], found["out"]) == ("paper", str(out))
    rows = pd.read_csv(out / "cells.csv")
    counts = rows.groupby("group", sort=False)["cell"].nunique().to_dict()
    assert list(counts.items()) == [
        *(("loss x outage", 3), ("RTT x spacing", 1)),
        *(("three at a time", 1), ("speculative", 1)),
    ]
    schemes = 7
    assert len(rows) == 6 * schemes * 2
    assert (rows["tokens"] == 12).all() and (rows["tokens_lost"] == 0).all()
    assert set(rows.loc[rows["loss"] == 0, "stall_ratio"]) == {0.0}
    assert rows["excess_200"].to_numpy() == pytest.approx(rows["stall_ratio"].to_numpy())
    assert len(found["cells"]) == 6 * 2 * (schemes - 1)
    assert len(pd.read_csv(out / "reductions.csv")) == len(found["cells"])
    assert (out / "paper.md").read_text() == sums.text(rows)
    names = {path.name for path in out.iterdir()}
    assert {"manifest.json", "pareto.png"} <= names
    assert len(json.loads((out / "manifest.json").read_text())["cells"]) == 6


@pytest.mark.parametrize("words", [("--runs", "0"), ("--executor", "slurm"), ("--tokens", "x")])
def test_a_bad_option_of_the_table_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    try:
        status: Any = table(out, *words)
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]
    assert not out.exists()
    out.mkdir()
    (out / "mine").touch()
    assert table(out) == 2
    assert "already exists" in capsys.readouterr().err


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), 130), (ExecutorError("no answer"), 1)]
)
def test_what_was_finished_before_an_error_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int
) -> None:
    def some(spec: str, function: Any, jobs: Any) -> Any:
        for number, job in enumerate(jobs):
            if number == 20:
                raise error
            yield function(job)

    monkeypatch.setattr(sweep, "results_in_order", some)
    assert table(tmp_path / "out") == status
    assert len(pd.read_csv(tmp_path / "out" / "cells.csv")) == 14


@pytest.mark.usefixtures("small")
def test_kernel_tcp_is_left_out_without_a_guest_kernel_and_run_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def none() -> None:
        raise kernel.KernelError("there is none")

    def record(engines: Any, out: Path, **options: Any) -> int:
        asked.append((engines, out, options["runs"], options["tokens"], options["strict"]))
        return 0

    monkeypatch.setattr(kernel, "find", none)
    monkeypatch.setattr(agreement, "run", record)
    tiny = ["--runs", "1", "--tokens", "8"]
    first, second = tmp_path / "first", tmp_path / "second"
    assert paper_table.main(paper.SCENARIO, [*tiny, "--out", str(first)]) == 0
    assert "kernel TCP is left out" in capsys.readouterr().err
    assert not asked
    assert paper_table.main(paper.SCENARIO, [*tiny, "--virtual", "--out", str(second)]) == 0
    assert asked == [(["simulated", "virtual"], second / "kernel-tcp", 1, 8, False)]
