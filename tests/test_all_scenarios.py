"""All scenarios: named, run together, and every one that needs no kernel simulated."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import scenarios
from scenarios import __main__ as together
from scenarios import simulated

FOLDER = Path(scenarios.__path__[0])
SIMULATED = (
    *("clean", "lte_walk", "lte_drive", "starlink_drive", "train_tunnels"),
    *("mesh_vpn", "inflight", "disruption", "wifi_loss", "paper"),
)

SCENARIO = '''
"""A way over the moon, 384,400 km up and down again."""
import sys

import slow_copy  # the scheme of the file beside this one
from scenarios.command import main
from scenarios.scenario import Scenario
from topologies.channel import Bernoulli
from topologies.profile import Direction, LinkProfile, NetworkProfile

assert slow_copy.SlowCopy.name == "slow-copy"


def network(loss: float = 0.02, seconds: float = 1.28) -> NetworkProfile:
    hop = Direction(delay=seconds, loss=Bernoulli(loss))
    wired = Direction(delay=0.01)
    return NetworkProfile(
        access=LinkProfile("moon", up=hop, down=hop, source="delay: geometry; loss: assumed"),
        server=LinkProfile("server", up=wired, down=wired, source="assumed"),
    )


SCENARIO = Scenario(
    name="moon",
    title="By way of the moon",
    network=network,
    prompts=("Why is the sky dark at night?",),
)

if __name__ == "__main__":
    sys.exit(main(SCENARIO))
'''

SCHEME = '''
from eloquent.schemes import Scheme


class SlowCopy(Scheme):
    """New tokens with the last five before them, whatever is acknowledged."""

    name = "slow-copy"

    def on_token(self, window, now):
        return range(max(window.base, window.unsent - 5), window.next_index)
'''


def scenario_files() -> list[str]:
    return sorted(p.stem for p in FOLDER.glob("*.py") if "\nSCENARIO = " in p.read_text())


def test_list_names_every_scenario_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert together.main(["--list"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    firsts = [words[0] for words in lines if words]
    assert [name for name in firsts if name in scenario_files()] == scenario_files()
    assert set(SIMULATED) <= set(firsts)


def test_every_scenario_is_called_as_its_file() -> None:
    for name in scenario_files():
        assert importlib.import_module(f"scenarios.{name}").SCENARIO.name == name
    assert sorted(together.catalogue()) == scenario_files()


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["run", "radio"], "error: no scenario 'radio': use clean, "),
        (["run", "clean", "radio"], "error: no scenario 'radio': use clean, "),
        (["run", "--quick"], "error: no scenario is named: use clean, "),
    ],
)
def test_an_unknown_name_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], words: list[str], start: str
) -> None:
    assert together.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(start)
    assert line.endswith("or --all")


def test_without_a_command_it_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        together.main([])
    assert end.value.code == 2
    assert "say --list, run or agree" in capsys.readouterr().err


ALL = scenario_files()


@pytest.mark.parametrize(
    ("words", "names", "options"),
    [
        ("run wifi_loss clean --runs 3", ["wifi_loss", "clean"], ["--runs", "3"]),
        ("run --all --quick", ALL, ["--quick"]),
        ("run --all --quick --engine virtual", ALL, ["--quick", "--engine", "virtual"]),
        ("run --all --engine simulated --json", ALL, ["--engine", "simulated", "--json"]),
        ("run clean --engine=simulated", ["clean"], ["--engine=simulated"]),
    ],
)
def test_other_options_go_to_each_scenario(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    names: list[str],
    options: list[str],
) -> None:
    ran: list[list[str]] = []

    def record(command: list[str], **_: Any) -> Any:
        ran.append(command)
        return SimpleNamespace(wait=lambda: 0)

    monkeypatch.setattr(subprocess, "Popen", record)
    out = tmp_path / "out"
    assert together.main([*words.split(), "--out", str(out)]) == 0
    if "virtual" not in words:
        assert [command[1] for command in ran] == [str(FOLDER / f"{name}.py") for name in names]
    assert sorted(ran) == sorted(
        [sys.executable, str(FOLDER / f"{name}.py"), *options, "--out", str(out / name)]
        for name in names
    )


@pytest.mark.parametrize(
    ("words", "most"),
    [
        ("run --all --engine virtual", len(os.sched_getaffinity(0))),
        ("run --all --engine=virtual --time real", 1),
        ("run --all", 1),
    ],
)
def test_only_guests_in_virtual_time_run_side_by_side(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    most: int,
) -> None:
    running: list[int] = [0]
    seen: list[int] = []

    class Process:
        def __init__(self, command: list[str], stdout: Any, stderr: Any) -> None:
            running[0] += 1
            if stdout is not None:
                stdout.write(f"words of {Path(command[1]).stem}\n".encode())

        def wait(self) -> int:
            time.sleep(0.05)
            seen.append(running[0])
            running[0] -= 1
            return 0

    monkeypatch.setattr(subprocess, "Popen", Process)
    assert together.main([*words.split(), "--out", str(tmp_path / "out")]) == 0
    assert max(seen) == most
    said = capsys.readouterr().err
    for name in ALL:
        assert f"== {name}\n" + (f"words of {name}\n" if most > 1 else "") in said


@pytest.mark.parametrize("bad", [1, 2, -9])
def test_one_that_fails_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bad: int
) -> None:
    statuses = iter((0, bad, 0))
    monkeypatch.setattr(
        subprocess, "Popen", lambda *_, **__: SimpleNamespace(wait=lambda: next(statuses))
    )
    words = ["run", "clean", "lte_walk", "inflight", "--out", str(tmp_path)]
    assert together.main(words) == abs(bad)
    lines = capsys.readouterr().err.splitlines()
    ends = [line.split()[:2] for line in lines if line.endswith(" s")]
    assert ends == [["clean", "ok"], ["lte_walk", "FAILED"], ["inflight", "ok"]]


def test_one_scenario_run_as_the_readme_says(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["run", "clean", "--engine", "simulated", "--quick", "--out", str(out)]
    assert together.main(words) == 0
    seen = capfd.readouterr()
    assert "== clean" in seen.err
    assert any(line.split()[:2] == ["clean", "ok"] for line in seen.err.splitlines())
    assert f"Results: {out}" in seen.err.splitlines()
    assert "clean: mean ± 95% interval over runs" in seen.out
    summary = pd.read_csv(out / "clean" / "summary.csv")
    assert list(summary["scheme"]) == ["eloquent", "duplicate", "retransmit"]
    assert (summary["tokens_lost"] == 0).all() and (summary["stall_ratio"] == 0).all()


@pytest.mark.parametrize("name", SIMULATED)
def test_every_scenario_can_be_simulated_and_loses_no_token(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    """The script itself, in this process: starting another takes longer than the simulation."""
    file, out = str(FOLDER / f"{name}.py"), tmp_path / "out"
    words = ["--engine", "simulated", "--quick", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [file, *words])
    monkeypatch.setattr(
        simulated, "results_in_order", lambda spec, function, jobs: map(function, jobs)
    )
    with pytest.raises(SystemExit) as end:
        runpy.run_path(file, run_name="__main__")
    seen = capsys.readouterr()
    assert end.value.code == 0, seen.err
    summary = pd.read_csv(out / "summary.csv")
    assert {"eloquent", "duplicate", "retransmit"} <= set(summary["scheme"])
    assert (summary["tokens"] >= 80).all() and (summary["tokens_lost"] == 0).all()
    assert set(summary["engine"]) == {"simulated"}
    assert set(summary["scenario"]) == {name}
    assert json.loads((out / "manifest.json").read_text())["finished"] is True
    assert f"{name}: mean ± 95% interval over runs" in seen.out
    if name == "disruption":
        assert "After 30 s without a network, seconds until the reader had it all" in seen.out


def test_a_new_scenario_and_a_new_scheme_of_ones_own(tmp_path: Path) -> None:
    for name, text in (("moon.py", SCENARIO), ("slow_copy.py", SCHEME)):
        assert len(text.splitlines()) < 40
        (tmp_path / name).write_text(text)
    words = ["--engine", "simulated", "--source", "trace", "--runs", "2", "--tokens", "20"]
    words += ["--schemes", "slow-copy,eloquent,retransmit", "--loss", "0.2", "--json"]
    done = subprocess.run(
        [sys.executable, str(tmp_path / "moon.py"), *words, "--out", str(tmp_path / "out")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(FOLDER.parent)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["scenario"] == "moon"
    assert list(found["schemes"]) == ["slow-copy", "eloquent", "retransmit"]
    for measures in found["schemes"].values():
        assert measures["tokens"]["mean"] == 20
        assert measures["tokens_lost"]["mean"] == 0
        assert measures["ttft"]["mean"] > 2 * 1.28  # there and back
