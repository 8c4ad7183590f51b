"""Ctrl-C, kill and a terminal that closes end every engine alike: finished runs are merged."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.results import load
from terminal.stopping import Stopped, held, stoppable

ROOT = Path(__file__).parent.parent
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
SIMULATED = ("--engine", "simulated", "--executor", "local:1", "--runs", "5000", "--tokens", "40")
EMULATED = ("--source", "trace", "--tokens", "10", "--runs", "50")
VIRTUAL = ("--engine", "virtual", *EMULATED)


@pytest.fixture
def out() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name) / "my results, of today" / "out"


def start(*words: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(  # type: ignore[call-overload]
        [sys.executable, *words],
        cwd=ROOT,
        text=True,
        env=os.environ | {"PYTHONFAULTHANDLER": "1"},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options,
    )


def end(child: subprocess.Popen[str]) -> tuple[str, str]:
    """What it printed until its end; one that does not end says where it is."""
    try:
        return child.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"it goes on: {child.communicate(timeout=10)}") from None
        raise


def wait_for_a_run(out: Path, child: subprocess.Popen[str], patience: float = 120) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and child.poll() is None:
        for path in out.rglob("summary.csv"):
            if path.read_text().count("\n") > 1:
                return
        time.sleep(0.05)
    raise AssertionError("no run was finished")


def check(out: Path) -> None:
    assert (out / "tokens.parquet").exists()
    assert not (out / "parts").exists()
    assert load(out).manifest.get("finished") is not True
    assert len(load(out).summary) >= 1


def stop(number: int, out: Path, *words: str) -> None:
    child = start("scenarios/inflight.py", *words, "--schemes", "eloquent", "--out", str(out))
    try:
        wait_for_a_run(out, child)
        child.send_signal(number)
        child.send_signal(number)  # a service manager and a closing terminal tell it twice
        printed, said = end(child)
    finally:
        child.kill()
    assert child.returncode == 128 + number, said
    assert "Interrupted." in said
    assert "Traceback" not in said
    assert "eloquent" in printed
    check(out)


@pytest.mark.parametrize("number", SIGNALS)
def test_simulated(out: Path, number: int) -> None:
    stop(number, out, *SIMULATED, "--source", "trace")


@pytest.mark.emulation
@pytest.mark.parametrize("number", SIGNALS[1:])
def test_emulated(out: Path, number: int) -> None:
    stop(number, out, *EMULATED)


@pytest.mark.guest
@pytest.mark.parametrize("number", SIGNALS[1:])
def test_virtual(out: Path, number: int) -> None:
    stop(number, out, *VIRTUAL)
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("number", SIGNALS)
def test_several_scenarios(out: Path, number: int) -> None:
    child = start(
        *("-m", "scenarios", "run", "inflight", "clean", *SIMULATED, "--source", "trace"),
        *("--schemes", "eloquent", "--out", str(out)),
    )
    try:
        wait_for_a_run(out, child)
        child.send_signal(number)
        _, said = end(child)
    finally:
        child.kill()
    assert child.returncode == 128 + number, said
    assert "Traceback" not in said
    check(out / "inflight")


def test_a_terminal_that_closes(out: Path) -> None:
    """Nobody reads any more, and what was measured is kept all the same."""
    ours, theirs = pty.openpty()
    child = start(
        *("scenarios/inflight.py", *SIMULATED, "--source", "trace", "--schemes", "eloquent"),
        *("--out", str(out)),
        stdout=theirs,
        stderr=theirs,
        stdin=theirs,
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    try:
        wait_for_a_run(out, child)
        os.close(ours)
        child.send_signal(signal.SIGHUP)
        assert child.wait(timeout=60) == 128 + signal.SIGHUP
    finally:
        child.kill()
    check(out)


def test_what_must_not_be_cut_in_two_is_not() -> None:
    done = []

    def work() -> None:
        with held():
            with held():
                os.kill(os.getpid(), signal.SIGTERM)
                done.append("inner")
            done.append("outer")
        done.append("never")

    with pytest.raises(Stopped), stoppable():
        work()
    assert done == ["inner", "outer"]


def test_nohup_is_obeyed(tmp_path: Path) -> None:
    code = """
import os, signal
from terminal.stopping import stoppable
with stoppable():
    os.kill(os.getpid(), signal.SIGHUP)
    print("goes on")
"""
    nohup = shutil.which("nohup")
    assert nohup is not None
    done = subprocess.run(
        [nohup, sys.executable, "-c", code],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("goes on\n", 0)
