"""Sweeps: the grid, its folder, and going on where a sweep was cut off."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import scenarios.virtual
from analysis.results import ResultsFolder
from scenarios import paper, simulated, sweep
from scenarios.command import Plan, UsageError, main, plan_of
from scenarios.executors import ExecutorError
from topologies.channel import Bernoulli, GilbertElliott

KNOBS = {"loss": 0.1, "outage": 0.1}
KINDS = paper.SCENARIO.kinds()
GRID = ("loss=0.1,0.3", "outage=50ms,200ms")
NAMES = [f"loss={loss},outage={outage}" for loss in ("0.1", "0.3") for outage in ("0.05", "0.2")]
TINY = ("--engine", "simulated", "--runs", "2", "--tokens", "12")
SCHEMES = ("--schemes", "eloquent,retransmit")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated runs take less time than the processes for them."""
    monkeypatch.setattr(sweep, "results_in_order", lambda spec, function, jobs: map(function, jobs))


def run(out: Path, *words: str, grid: tuple[str, ...] = GRID) -> int:
    return main(paper.SCENARIO, [*TINY, *SCHEMES, *words, "--out", str(out), "--sweep", *grid])


def plan(*words: str) -> Plan:
    return plan_of(paper.SCENARIO, [*TINY, *words])


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file of the cells: its bytes, and when it was written."""
    paths = [path for path in (folder / "cells").rglob("*") if path.is_file()]
    return {str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in paths}


def test_values_are_written_as_those_of_options() -> None:
    found = sweep.parse(["loss=5%,0.1", "outage=50ms,1e-1,0"], KNOBS, KINDS)
    assert list(found) == ["loss", "outage"]
    assert found["loss"] == [0.05, 0.1]
    assert found["outage"] == pytest.approx([0.05, 0.1, 0.0])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["colour=1"], "--sweep 'colour=1': write NAME=V1,V2,... with NAME of loss, outage"),
        (["loss"], "--sweep 'loss': write NAME=V1,V2,... with NAME of loss, outage"),
        (["loss=red"], "--sweep 'loss=red': 'red' is no share: write it as 10% or 0.1"),
        (
            ["los=0.1"],
            "--sweep 'los=0.1': write NAME=V1,V2,... with NAME of loss, outage: "
            "did you mean 'loss'?",
        ),
        (["loss=10,20"], "--sweep 'loss=10,20': 10 is 1000%: did you mean 10%?"),
        (
            ["outage=1,100"],
            "--sweep 'outage=1,100': 100 is 100 s: did you mean 100ms? If not, write 100s",
        ),
        (["loss=0.1,,0.2"], "--sweep 'loss=0.1,,0.2': '' is no share: write it as 10% or 0.1"),
        (["outage=ms"], "--sweep 'outage=ms': 'ms' is no time: write it as 20ms or 0.5"),
        (["loss=0.1", "loss=0.2"], "--sweep: loss is there twice"),
    ],
)
def test_what_is_no_grid_is_one_clear_line(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        sweep.parse(words, KNOBS, KINDS)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "words",
    [("loss=red",), ("loss=0.1", "loss=0.2"), ("loss=1.5",), ("loss=0.1,0.1",), ("spacing=-1",)],
)
def test_the_command_says_so_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert run(tmp_path / "out", grid=words) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert len(seen.err.splitlines()) == 1 and seen.err.startswith("error: ")
    assert not (tmp_path / "out").exists()


def test_cells_are_the_product_in_order() -> None:
    found = sweep.cells(plan(), sweep.parse(GRID, plan().knobs, KINDS))
    assert [cell.name for cell in found] == NAMES
    last = found[-1].plan
    loss = last.network.access.up.loss
    assert isinstance(loss, GilbertElliott)
    assert (loss.mean_good, loss.mean_bad) == pytest.approx((0.2 * 0.7 / 0.3, 0.2))
    assert (last.knobs["loss"], last.knobs["rtt"]) == (0.3, 0.05)
    assert dataclasses.replace(last, network=plan().network, knobs=plan().knobs) == plan()


def test_a_cell_of_outage_0_has_independent_losses() -> None:
    (cell,) = sweep.cells(plan(), {"outage": [0.0]})
    assert cell.plan.network.access.up.loss == Bernoulli(0.1)


def test_the_source_follows_its_parameter_unless_it_was_chosen() -> None:
    own, chosen = plan(), plan("--source", "trace")
    values = {"spacing": [0.02]}
    assert sweep.cells(own, values)[0].plan.source == "timing:steady:spacing=0.02:per_step=1"
    assert sweep.cells(chosen, values)[0].plan.source == "trace"


def test_a_grid_of_four_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(out) == 0
    assert sorted(path.name for path in (out / "cells").iterdir()) == NAMES
    assert sorted(path.name for path in out.iterdir()) == [
        *("cells", "sweep.csv", "sweep.json", "sweep.png")
    ]
    assert json.loads((out / "sweep.json").read_text())["cells"] == NAMES
    table = pd.read_csv(out / "sweep.csv")
    assert list(table["cell"].unique()) == NAMES
    assert len(table) == 4 * 2 * 2
    assert (table["tokens"] == 12).all() and (table["tokens_lost"] == 0).all()
    assert (table.groupby("run")["seed"].nunique() == 1).all()  # every cell meets the same seeds
    assert set(zip(table["loss"], table["outage"], strict=True)) == {
        *((0.1, 0.05), (0.1, 0.2), (0.3, 0.05), (0.3, 0.2))
    }
    printed = capsys.readouterr().out
    assert "reduction against retransmit" in printed
    assert "loss" in printed and "outage" in printed


def test_the_same_command_does_nothing_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(out) == 0
    before = files(out)
    table = (out / "sweep.csv").read_bytes()
    capsys.readouterr()
    assert run(out) == 0
    assert "4 of 4 cells are there already." in capsys.readouterr().err
    assert files(out) == before
    assert (out / "sweep.csv").read_bytes() == table


def test_a_cell_without_its_end_is_kept_aside_and_done_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(out) == 0
    path = out / "cells" / NAMES[1] / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest.pop("finished") is True
    before = files(out)
    for number in (1, 2):
        path.write_text(json.dumps(manifest))
        assert run(out) == 0
        assert "3 of 4 cells are there already." in capsys.readouterr().err
        aside = out / "cells" / f"{NAMES[1]}.cut-off-{number}"
        assert json.loads((aside / "manifest.json").read_text()) == manifest
        assert (aside / "summary.csv").exists()
        after = files(out)
        assert {name: after[name][0] for name in before} == {n: b for n, (b, _) in before.items()}
    assert len(pd.read_csv(out / "sweep.csv")) == 16


@pytest.mark.parametrize(
    ("words", "grid"),
    [
        (("--seed", "2"), GRID),
        (("--tokens", "13"), GRID),
        (("--source", "trace"), GRID),
        (("--rtt", "0.1"), GRID),
        ((), ("loss=0.1,0.2", "outage=50ms,200ms")),
    ],
    ids=["seed", "tokens", "source", "parameter", "grid"],
)
def test_another_sweep_in_the_same_folder_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    grid: tuple[str, ...],
) -> None:
    out = tmp_path / "out"
    assert run(out) == 0
    before = files(out)
    capsys.readouterr()
    assert run(out, *words, grid=grid) == 2
    error = capsys.readouterr().err
    assert error == f"error: {out} holds another sweep: choose another folder\n"
    assert files(out) == before


def test_a_folder_of_somebody_else_is_not_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    assert run(tmp_path) == 2
    assert "already exists and is no sweep of ours" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_json_is_one_object_with_every_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(out, "--json", grid=("loss=0.1,0.3",)) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["scenario", "out", "engine", "cells"]
    assert (found["scenario"], found["out"], found["engine"]) == ("paper", str(out), "simulated")
    assert [cell["loss"] for cell in found["cells"]] == [0.1, 0.3]
    for cell in found["cells"]:
        assert set(cell["schemes"]) == {"eloquent", "retransmit"}
        assert cell["schemes"]["eloquent"]["tokens_lost"] == {"mean": 0.0, "ci95": 0.0, "n": 2}


def stopping_after(count: int, error: BaseException) -> Callable[..., Any]:
    def some(spec: str, function: Callable[[Any], Any], jobs: Any) -> Any:
        for number, job in enumerate(jobs):
            if number == count:
                raise error
            yield function(job)

    return some


def test_after_ctrl_c_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert run(whole) == 0
    with monkeypatch.context() as patched:
        patched.setattr(sweep, "results_in_order", stopping_after(6, KeyboardInterrupt()))
        assert run(out) == 130
    assert len(list((out / "cells").iterdir())) == 1  # the second has two of its four runs
    capsys.readouterr()
    assert run(out) == 0
    assert "1 of 4 cells are there already." in capsys.readouterr().err
    assert (out / "sweep.csv").read_bytes() == (whole / "sweep.csv").read_bytes()


def test_what_fails_is_one_line_and_keeps_finished_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = stopping_after(5, ExecutorError("no Dask scheduler answers at head:1"))
    monkeypatch.setattr(sweep, "results_in_order", broken)
    assert run(tmp_path / "out") == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert errors == ["error: no Dask scheduler answers at head:1"]
    assert len(pd.read_csv(tmp_path / "out" / "sweep.csv")) == 4


def test_guests_run_cell_by_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine that boots guests is replaced: one cell fails, one ends without its end."""
    asked = []

    def guest(cell: Plan, folder: Path, *, show: bool) -> int:
        asked.append((cell.knobs["loss"], folder.name, show))
        if cell.knobs["loss"] == 0.2:
            return 1
        made = ResultsFolder.create(folder)
        for job in simulated.jobs_of(cell, cell.source, tables=False):
            made.append_summary(simulated.run_job(job).row)
        made.write_manifest({"finished": cell.knobs["loss"] == 0.1})
        return 0

    monkeypatch.setattr(scenarios.virtual, "run", guest)
    out = tmp_path / "out"
    words = ("--engine", "virtual", "--schemes", "eloquent,retransmit", "--runs", "1")
    assert run(out, *words, grid=("loss=0.1,0.2,0.3",)) == 1
    assert sorted(asked) == [(loss, f"loss={loss}", False) for loss in (0.1, 0.2, 0.3)]
    assert set(pd.read_csv(out / "sweep.csv")["cell"]) == {"loss=0.1"}
    assert sorted(path.name for path in (out / "cells").iterdir()) == ["loss=0.1", "loss=0.3"]
