"""Do engines agree? The rule, by hand, and the command that runs the cells."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from analysis import agree
from analysis.agree import agreement, table
from analysis.results import Results, ResultsFolder
from scenarios import agreement as cells
from scenarios import sweep
from scenarios.__main__ import main as scenarios_main


def results(engine: str, parameters: dict[str, float] | None = None, **stalls: Any) -> Results:
    """A folder of one engine: stall ratios by scheme, a list for the seeds 1, 2, ... or a dict."""
    rows = []
    for scheme, values in stalls.items():
        by_seed = values if isinstance(values, dict) else dict(enumerate(values, 1))
        for seed, stall in by_seed.items():
            row = {"scenario": "paper", "scheme": scheme, "run": seed, "seed": seed}
            rows.append(row | {"engine": engine, "stall_ratio": stall})
    nothing = pd.DataFrame()
    return Results(
        Path(engine), {"parameters": parameters or {}}, pd.DataFrame(rows), nothing, nothing
    )


def one(*found: Results) -> dict[str, Any]:
    (row,) = agreement(found).to_dict("records")
    return row


@pytest.mark.parametrize(
    ("first", "second", "allowed", "verdict"),
    [
        (0.020, 0.029, 0.01, "agrees"),  # 15% would be 0.004
        (0.020, 0.031, 0.01, "differs"),
        (0.031, 0.020, 0.01, "differs"),
        (0.400, 0.450, 0.0675, "agrees"),  # 15% of the larger
        (0.450, 0.400, 0.0675, "agrees"),
        (0.400, 0.480, 0.072, "differs"),
        (0.0, 0.0, 0.01, "agrees"),
    ],
)
def test_the_larger_of_a_hundredth_and_15_percent(
    first: float, second: float, allowed: float, verdict: str
) -> None:
    row = one(results("virtual", eloquent=[first]), results("simulated", eloquent=[second]))
    assert row["allowed"] == pytest.approx(allowed)
    assert row["verdict"] == verdict
    assert row["difference"] == pytest.approx(second - first)
    assert (row["first"], row["second"], row["runs"]) == ("virtual", "simulated", 1)
    assert math.isnan(row["ci95"])


def test_seeds_are_paired_and_the_interval_is_that_of_the_differences() -> None:
    row = one(
        results("simulated", eloquent={2: 0.33, 1: 0.11, 9: 0.9}),
        results("virtual", eloquent={1: 0.10, 2: 0.30, 3: 0.9}),
    )
    assert row["runs"] == 2
    assert (row["first_stall"], row["second_stall"]) == pytest.approx((0.20, 0.22))
    # 0.01 and 0.03: s = 0.0141421, 12.7062 * 0.0141421 / sqrt(2) = 0.127062.
    assert row["difference"] == pytest.approx(0.02)
    assert row["ci95"] == pytest.approx(0.127062, rel=1e-5)
    assert row["verdict"] == "agrees"


def test_tcp_against_its_stand_in_has_no_verdict() -> None:
    row = one(results("virtual", tcp=[0.1]), results("simulated", retransmit=[0.9]))
    assert (row["scheme"], row["verdict"]) == ("tcp/retransmit", "model")


def test_the_same_scheme_on_both_engines_keeps_its_name_and_gets_a_verdict() -> None:
    row = one(results("virtual", retransmit=[0.1]), results("simulated", retransmit=[0.9]))
    assert (row["scheme"], row["verdict"]) == ("retransmit", "differs")


def test_tcp_and_retransmit_on_one_engine_are_not_mixed() -> None:
    both = results("virtual", tcp=[0.1], retransmit=[0.5])
    for found in (
        agreement([both, results("simulated", retransmit=[0.5])]),
        agreement([results("emulated", retransmit=[0.5]), both]),
    ):
        by_scheme = found.set_index("scheme")["verdict"].to_dict()
        assert by_scheme["retransmit"] == "agrees"
        assert sorted(by_scheme.values()) == ["agrees", "model"]


def test_conditions_and_pairs_of_engines() -> None:
    engines = ("simulated", "emulated", "virtual")
    found = agreement(
        results(engine, {"loss": loss, "rtt": 0.05}, eloquent=[loss])
        for loss in (0.1, 0.2)
        for engine in engines
    )
    assert list(found["condition"].unique()) == ["paper, loss 0.1", "paper, loss 0.2"]
    pairs = list(zip(found["first"], found["second"], strict=True))[:3]
    assert pairs == [("emulated", "virtual"), ("emulated", "simulated"), ("virtual", "simulated")]
    assert len(found) == 6
    assert set(found["verdict"]) == {"agrees"}


def test_nothing_in_common_is_no_row() -> None:
    assert agreement([]).empty
    one_engine = [results("virtual", tcp=[0.1]), results("virtual", eloquent=[0.1])]
    assert agreement(one_engine).empty
    other_seeds = [results("virtual", tcp={1: 0.1}), results("simulated", tcp={2: 0.1})]
    assert agreement(other_seeds).empty


def test_the_table_is_in_percent() -> None:
    found = agreement([results("virtual", tcp=[0.02]), results("simulated", retransmit=[0.03])])
    out = io.StringIO()
    Console(file=out, width=124, highlight=False).print(table(found))
    for words in ("tcp/retransmit", "virtual/simulated", "2.00/3.00", "+1.00", "model"):
        assert words in out.getvalue()
    assert "nan" not in out.getvalue()  # one pair has no interval


def folder(path: Path, engine: str, stall: float) -> str:
    made = ResultsFolder.create(path)
    row = {"scenario": "clean", "scheme": "eloquent", "run": 1, "seed": 7}
    made.append_summary(row | {"engine": engine, "stall_ratio": stall})
    made.write_manifest({"parameters": {}, "finished": True})
    return str(path)


def strict(text: str) -> Any:
    """JSON as everybody reads it: NaN is none."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_the_command_and_its_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = folder(tmp_path / "a", "virtual", 0.1), folder(tmp_path / "b", "simulated", 0.1)
    c = folder(tmp_path / "c", "emulated", 0.3)
    assert agree.main([a, b, "--json"]) == 0
    assert strict(capsys.readouterr().out)["rows"][0]["verdict"] == "agrees"
    assert agree.main([a, b, c]) == 1
    assert "differs" in capsys.readouterr().out
    for arguments in ([a], [a, str(tmp_path / "none")]):
        assert agree.main(arguments) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: ")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One condition, two schemes, no other processes."""
    monkeypatch.setattr(cells, "CONDITIONS", ({"loss": 0.3, "outage": 0.2},))
    monkeypatch.setattr(cells, "SCHEMES", ("eloquent", "tcp"))
    monkeypatch.setattr(sweep, "results_in_order", lambda spec, function, jobs: map(function, jobs))


@pytest.mark.usefixtures("small")
def test_one_engine_alone_is_run_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "agree"
    words = ["agree", "--engines", "simulated", "--runs", "2", "--tokens", "10"]
    words += ["--out", str(out)]
    for _ in range(2):
        assert scenarios_main(words) == 0
        assert [path.name for path in (out / "simulated").iterdir()] == ["loss=0.3,outage=0.2"]
    summary = pd.read_csv(out / "simulated" / "loss=0.3,outage=0.2" / "summary.csv")
    assert list(summary["scheme"]) == ["eloquent", "retransmit"] * 2


def test_an_unknown_engine_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert scenarios_main(["agree", "--engines", "simulated,steam"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: --engines: no engine 'steam': use emulated, virtual"
    )


@pytest.mark.parametrize("content", ["{", '{"runs": 2}', None])
def test_a_folder_of_something_else_is_left_alone(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("x")
    if content is not None:
        (tmp_path / "agree.json").write_text(content)
    assert scenarios_main(["agree", "--engines", "simulated", "--out", str(tmp_path)]) == 2
    line = f"error: {tmp_path} holds something else: choose another folder\n"
    assert capsys.readouterr().err == line
    assert len(list(tmp_path.iterdir())) == (1 if content is None else 2)
