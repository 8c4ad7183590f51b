"""The shared cell, as a user runs it: readers and bulk TCP on one queue, and the overload."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from analysis.results import load
from scenarios import cell_network
from scenarios.__main__ import catalogue
from scenarios.cell_report import checks
from scenarios.shared_cell import SCENARIO
from topologies.channel import Bottleneck, DeliveryTrace

SCRIPT = Path(__file__).parent.parent / "scenarios" / "shared_cell.py"
TOKENS, CLIENTS = 120, 3
SCHEMES = {"eloquent", "tcp", "mixed"}


def cell(*arguments: str, timeout: float = 250) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


# The network.


def test_it_is_in_the_catalogue() -> None:
    assert catalogue()["shared_cell"].name == SCENARIO.name == "shared_cell"


def test_the_trace_gives_the_rates(tmp_path: Path) -> None:
    path = tmp_path / "cell.trace"
    cell_network.write_trace(path, 2e6, 5e4, (10.0, 15.0))
    neck = Bottleneck(trace=DeliveryTrace(str(path)), queue_packets=50).process()
    passed = {"before": 0, "during": 0, "after": 0}
    now = 0.0
    while now < 25:
        left = neck.enter(now, 0.0, 1504)
        if left is not None:
            if 1 <= left < 10:
                passed["before"] += 1
            elif 10 < left < 15:
                passed["during"] += 1
            elif 16 <= left < 25:
                passed["after"] += 1
        now += 0.002
    assert passed["before"] * 8 * 1504 / 9 == pytest.approx(2e6, rel=0.02)
    assert passed["after"] * 8 * 1504 / 9 == pytest.approx(2e6, rel=0.02)
    assert 19 <= passed["during"] <= 21  # 5 s at 50 kbit/s


def test_the_overload_comes_in_the_middle_of_the_answers() -> None:
    times = cell_network.timetable(20.0, overload=True)
    assert times.overload is not None
    assert times.measured_from < times.measured_to == times.overload[0]
    assert times.overload[1] < times.asking + 20 + cell_network.ARRIVALS
    assert cell_network.timetable(20.0, overload=False).overload is None


# What is said before anything starts.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "simulated", "--schemes", "eloquent"], "bulk TCP needs a kernel"),
        (["--source", "model"], "answers whose times are known"),
        (["--source", "trace:/nowhere.jsonl"], "/nowhere.jsonl"),
        (["--clients", "2.5"], "--clients: '2.5' is no whole number"),
        (["--flows", "0"], "--flows must be a whole number"),
        (["--overload", "9999"], "--overload must be 0"),
        (["--rate", "0"], "make no network"),
        (["--link", "netem"], "cannot change its rate in time"),
        (["--schemes", "carrier-pigeon"], "carrier-pigeon"),
        (["--sweep", "rate=1,2"], "cannot be swept"),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(words: list[str], said: str) -> None:
    if "model" in words and importlib.util.find_spec("torch") is None:
        pytest.skip("no live model is installed, which is said first")
    done = cell(*words, timeout=60)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line


def test_results_are_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    for engine in ("emulated", "virtual"):
        done = cell("--quick", "--out", str(tmp_path), "--engine", engine, timeout=60)
        assert done.returncode in (1, 2)
        assert "error: " in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.emulation
@pytest.mark.alone
@pytest.mark.parametrize("delay", [2.0, 12.0])
def test_ctrl_c_is_one_line(tmp_path: Path, delay: float) -> None:
    child = subprocess.Popen(
        [sys.executable, str(SCRIPT), "--quick", "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(delay)
    child.send_signal(signal.SIGINT)
    pressed = time.monotonic()
    _, said = child.communicate(timeout=60)
    assert time.monotonic() - pressed < 8
    assert child.returncode == 130
    assert "Traceback" not in said


# The verdicts.


def rows(ours: float, theirs: float, within: object = True) -> pd.DataFrame:
    shared = {"sent_rate": 20.0, "overload_rate": 5.0, "overload_peak": 20.0, "sent_bits": 1e4}
    shared |= {"overload_bits": 2e3, "quiet_peak": 4.0, "quiet_seconds": 1.0}
    return pd.DataFrame(
        [
            {"scheme": "eloquent", "jain": ours, "within_bound": within, **shared},
            {"scheme": "tcp", "jain": theirs, "within_bound": None, **shared},
        ]
    )


def test_the_verdicts() -> None:
    fair, kept, less = checks(rows(0.96, 1.0), "tcp")
    assert fair["holds"] and kept["holds"] and less["holds"]
    assert "datagrams -75%, bits -80%" in less["text"]
    assert "0.960 beside eloquent and 1.000 beside tcp" in fair["text"]
    assert "at most 4 a second, the bound is 16" in kept["text"]
    unfair, broken, _ = checks(rows(0.9, 1.0, within=False), "tcp")
    assert not unfair["holds"] and not broken["holds"]
    alone, _ = checks(rows(0.9, 1.0)[:1], "tcp")
    more = checks(rows(1.0, 1.0).assign(overload_bits=2e4), "tcp")[-1]
    assert not more["holds"]  # fewer datagrams, but each with all that is not acknowledged
    assert alone["name"] == "bound of eloquent"


# The whole, by its command.


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    out = tmp_path_factory.mktemp("shared_cell") / "out"
    options = ["--quick", "--tokens", str(TOKENS), "--clients", str(CLIENTS), "--mixed", "1"]
    # 5 kbit/s: hardly a frame passes, so that nothing is answered for long enough.
    done = cell(
        *options, "--overload", "5", "--schemes", "eloquent,tcp", "--json", "--out", str(out)
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), out


@pytest.mark.emulation
def test_the_flows_share_the_bottleneck(quick: tuple[dict, Path]) -> None:
    summary, _ = quick
    assert set(summary["fairness"]) == SCHEMES
    for measures in summary["fairness"].values():
        value = {name: numbers["mean"] for name, numbers in measures.items()}
        assert 0.5 <= value["jain"] <= 1
        assert value["bulk_total"] == pytest.approx(value["bulk_1"] + value["bulk_2"])
        # Two flows keep the bottleneck busy, and nothing is faster than it.
        assert 0.7 < value["utilisation"] < 1.05
        assert 5e3 < value["readers_total"] < 2e5
        assert value["queue_drops"] > 0
        assert 0.08 < value["bulk_rtt"] < 0.6


@pytest.mark.emulation
def test_every_reader_gets_every_token(quick: tuple[dict, Path]) -> None:
    summary, out = quick
    for measures in summary["schemes"].values():
        assert measures["tokens"]["mean"] == CLIENTS * TOKENS
        assert measures["tokens_lost"]["mean"] == 0
    tokens = pd.read_csv(out / "streams.csv")
    assert len(tokens) == len(SCHEMES) * CLIENTS * TOKENS
    assert tokens["rendered_at"].notna().all()
    assert (tokens["rendered_at"] - tokens["generated_at"]).min() > 0.03  # one way is 42.5 ms
    texts = {path.read_bytes() for path in (out / "logs").glob("*-client*.txt")}
    assert len(texts) == 1


@pytest.mark.emulation
def test_eloquent_holds_back_when_nothing_is_answered(quick: tuple[dict, Path]) -> None:
    summary, out = quick
    found = {check["name"]: check for check in summary["checks"]}
    assert found["bound of eloquent"]["holds"], found["bound of eloquent"]["text"]
    fairness = pd.read_csv(out / "fairness.csv").set_index("scheme")
    ours = fairness.loc["eloquent"]
    assert ours["overload_rate"] < 0.8 * ours["sent_rate"]
    assert ours["quiet_seconds"] > 0
    assert ours["quiet_peak"] <= 16


@pytest.mark.emulation
def test_the_folder(quick: tuple[dict, Path]) -> None:
    _, out = quick
    names = {path.name for path in out.iterdir()}
    tables = {"summary.csv", "fairness.csv", "clients.csv", "flows.csv", "streams.csv"}
    assert tables | {"manifest.json", "packets.parquet", "sharing.png", "cell.trace"} <= names
    results = load(out)
    assert set(results.summary["scheme"]) == SCHEMES
    assert results.manifest["finished"] is True
    assert "assumed" in results.manifest["network"]["access"]["source"]
    assert len({detail["seed"] for detail in results.manifest["run_details"]}) == 1
    clients = pd.read_csv(out / "clients.csv")
    assert len(clients) == len(SCHEMES) * CLIENTS
    mixed = clients[clients["scheme"] == "mixed"]
    assert mixed["speaks"].tolist() == ["eloquent", "tcp", "eloquent"]
    # What the queue refused is what the readers and the flows lost on the way down.
    assert (clients["lost_up"] == 0).all()
    assert clients["lost_down"].sum() <= pd.read_csv(out / "fairness.csv")["queue_drops"].sum()
