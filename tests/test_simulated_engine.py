"""The engine `simulated` by its command line: repeatable to the byte, for anybody, without root."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import nobody  # type: ignore[import-not-found, unused-ignore]
import pandas as pd
import pytest

ROOT = Path(__file__).parent.parent
PAPER = ROOT / "scenarios" / "paper.py"
WIFI = ROOT / "scenarios" / "wifi_loss.py"
#: One cell of the paper's table, with an outage in every run.
CELL = ("--loss", "0.3", "--outage", "0.3", "--runs", "3", "--tokens", "60")


@pytest.fixture(scope="module")
def anywhere() -> Iterator[Path]:
    """A folder that an ordinary user may write to; not pytest's, which is root's."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


def run(folder: Path, *arguments: str, script: Path = PAPER) -> subprocess.CompletedProcess[str]:
    """Run a scenario as an ordinary user if one can, with the home ``folder``."""
    own = {"HOME": str(folder), "MPLCONFIGDIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        env=os.environ | own,
        preexec_fn=None if nobody.lacks() else nobody.become,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def simulated(folder: Path, out: str, *arguments: str) -> Path:
    done = run(folder, *CELL, "--executor", "local:2", *arguments, "--out", str(folder / out))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return folder / out


def files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def first(anywhere: Path) -> Path:
    return simulated(anywhere, "first", "--seed", "5", "--schemes", "eloquent,retransmit")


def test_the_same_seed_gives_the_same_bytes_in_every_file(anywhere: Path, first: Path) -> None:
    second = simulated(anywhere, "second", "--seed", "5", "--schemes", "eloquent,retransmit")
    one, other = files(first), files(second)
    assert sorted(one) == sorted(other)
    assert [name for name in one if one[name] != other[name]] == []
    assert {"manifest.json", "summary.csv", "tokens.parquet", "packets.parquet"} <= set(one)
    assert any(name.endswith(".png") for name in one)


@pytest.mark.nobody
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_it_was_an_ordinary_user_who_ran_it(first: Path) -> None:
    assert {path.stat().st_uid for path in [first, *first.rglob("*")]} == {nobody.UID}


def test_another_seed_gives_other_results(anywhere: Path, first: Path) -> None:
    other = simulated(anywhere, "other", "--seed", "6", "--schemes", "eloquent,retransmit")
    for name in ("summary.csv", "tokens.parquet", "packets.parquet", "manifest.json"):
        assert (first / name).read_bytes() != (other / name).read_bytes()


def test_the_executor_changes_no_result(anywhere: Path, first: Path) -> None:
    other = anywhere / "one process"
    arguments = ["--seed", "5", "--schemes", "eloquent,retransmit", "--executor", "local:1"]
    done = run(anywhere, *CELL, *arguments, "--out", str(other))
    assert done.returncode == 0, done.stderr
    for name in ("summary.csv", "tokens.parquet", "packets.parquet"):
        assert (first / name).read_bytes() == (other / name).read_bytes()


def test_the_tables_hold_every_run(first: Path) -> None:
    summary = pd.read_csv(first / "summary.csv")
    assert list(summary["scheme"]) == ["eloquent", "retransmit"] * 3
    assert list(summary["run"]) == [1, 1, 2, 2, 3, 3]
    assert set(summary["engine"]) == {"simulated"}
    assert set(summary["link"]) == {"model"}
    assert (summary["tokens"] == 60).all()
    assert (summary["tokens_lost"] == 0).all()
    # One channel for all schemes of a run.
    assert (summary.groupby("run")["seed"].nunique() == 1).all()
    assert (summary.groupby("run")["limit_stall_ratio"].nunique() <= 1).all()
    packets = pd.read_parquet(first / "packets.parquet")
    sent = packets[packets["direction"] == "sent"].groupby(["run", "scheme"])["size"]
    rows = summary.set_index(["run", "scheme"]).sort_index()
    assert list(sent.count()) == list(rows["datagrams"])
    assert list(sent.sum()) == list(rows["wire_bytes"])


def test_a_run_by_hand_from_its_token_table(first: Path) -> None:
    """45 ms a token; the stall ratio is what gaps exceed 200 ms by, over the whole time."""
    tokens = pd.read_parquet(first / "tokens.parquet")
    summary = pd.read_csv(first / "summary.csv").set_index(["scheme", "run"])
    for key, table in tokens.groupby(["scheme", "run"]):
        made = list(table["generated_at"])
        assert made == pytest.approx([0.045 * n for n in range(60)], abs=1e-9)
        shown = list(table["rendered_at"])
        gaps = [b - a for a, b in pairwise(shown)]
        stalled = sum(max(0.0, gap - 0.2) for gap in gaps)
        ratio = stalled / (shown[-1] - shown[0])
        assert summary.loc[key, "stall_ratio"] == pytest.approx(ratio, abs=1e-9)
        assert min(b - a for a, b in zip(made, shown, strict=True)) == pytest.approx(0.025)


def number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def test_json_has_the_stall_ratio_its_limit_and_their_ratio(anywhere: Path) -> None:
    names = ["eloquent", "eloquent-deadline", "retransmit"]
    out = anywhere / "json"
    done = run(anywhere, *CELL, "--schemes", ",".join(names), "--json", "--out", str(out))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["scenario"], found["out"], found["link"]) == ("paper", str(out), "model")
    assert list(found["schemes"]) == names
    for measures in found["schemes"].values():
        for name in ("stall_ratio", "limit_stall_ratio", "ratio_to_limit"):
            assert set(measures[name]) == {"mean", "ci95", "n"}
            assert number(measures[name]["mean"])
            assert number(measures[name]["ci95"]) or name == "ratio_to_limit"
            assert measures[name]["n"] == 3
        assert measures["generation_stall_ratio"] == {"mean": 0.0, "ci95": 0.0, "n": 3}
        stall, limit = measures["stall_ratio"]["mean"], measures["limit_stall_ratio"]["mean"]
        assert measures["ratio_to_limit"]["mean"] == pytest.approx(stall / limit)
    assert len({m["limit_stall_ratio"]["mean"] for m in found["schemes"].values()}) == 1


@pytest.mark.parametrize("script", [PAPER, WIFI], ids=["paper", "wifi_loss"])
def test_tcp_needs_a_kernel_and_its_stand_in_is_named(anywhere: Path, script: Path) -> None:
    out = anywhere / "tcp"
    arguments = ["--engine", "simulated", "--schemes", "eloquent,tcp", "--out", str(out)]
    done = run(anywhere, "--loss", "0.1", "--source", "trace", *arguments, script=script)
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: --schemes: tcp needs a kernel")
    assert "retransmit" in lines[0]
    assert not out.exists()


def test_a_scenario_made_for_emulation_runs_with_the_stand_in(anywhere: Path) -> None:
    out = anywhere / "wifi"
    arguments = ["--engine", "simulated", "--source", "trace", "--runs", "1", "--json"]
    done = run(anywhere, *arguments, "--out", str(out), script=WIFI)
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)["schemes"]) == ["eloquent", "duplicate", "retransmit"]


def test_an_unknown_executor_is_one_clear_line(anywhere: Path) -> None:
    done = run(anywhere, *CELL, "--executor", "slurm", "--out", str(anywhere / "none"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: executor 'slurm' is none of local, local:N (processes), dask:ADDRESS\n"
    )


@pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None,
    reason="the package distributed is not installed: pip install 'distributed>=2025'",
)
def test_a_scheduler_that_does_not_answer_is_an_error_without_a_traceback(anywhere: Path) -> None:
    out = anywhere / "unreachable"
    done = run(anywhere, *CELL, "--executor", "dask:127.0.0.1:1", "--out", str(out))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: no Dask scheduler answers at 127.0.0.1:1")
    assert not out.exists()


def test_an_existing_folder_is_never_written_to(anywhere: Path) -> None:
    out = anywhere / "mine"
    out.mkdir()
    (out / "file").touch()
    done = run(anywhere, *CELL, "--out", str(out))
    assert done.returncode == 2
    assert "already exists" in done.stderr
    assert [path.name for path in out.iterdir()] == ["file"]
