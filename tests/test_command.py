"""The command line of a scenario: what is wrong is said in one line, before anything starts."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scenarios" / "wifi_loss.py"


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        **options,  # type: ignore[call-overload]
    )


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--schemes", "eloquent,xyzzy"], ["--schemes", "'xyzzy'", "eloquent", "tcp"]),
        (["--schemes", "eloqent"], ["--schemes", "'eloqent'", "did you mean 'eloquent'?"]),
        (["--schemes", "duplicate:x"], ["--schemes", "duplicate:x", "'x'"]),
        (["--schemes", "tcp,tcp"], ["--schemes", "once"]),
        (["--schemes", "duplicate:9"], ["duplicate", "'9'"]),
        (["--source", "radio"], ["--source", "'radio'", "trace:FILE"]),
        (["--source", "trace:/no/such/file"], ["/no/such/file"]),
        (["--model", "/no/such/model"], ["/no/such/model"]),
        (["--model", str(Path(__file__).parent)], ["not a model folder", "config.json"]),
        (["--prompts", "riddles"], ["'riddles'", "questions", ".toml"]),
        (["--runs", "0"], ["--runs", "'0'"]),
        (["--link", "string"], ["--link", "'string'"]),
        (["--loss", "10"], ["--loss", "did you mean 10%?"]),
        (["--loss", "1.3"], ["--loss", "did you mean 1.3%?"]),
        (["--loss", "100%"], ["--loss", "'100%'", "below 100%"]),
        (["--loss", "0,1"], ["--loss", "did you mean 0.1?"]),
        (["--loss", "nan"], ["--loss", "'nan'"]),
        (["--loss", ""], ["--loss", "''", "10%"]),
        (["--loss"], ["--loss", "expected one argument"]),
        (["--outage", "-1"], ["--outage", "'-1'"]),
        (["--outage", "100"], ["--outage", "did you mean 100ms?", "100s"]),
        (["--outage", "0.1ms"], ["--outage 0.1 ms", "1 ms"]),
        (["--outage", "1e999s"], ["--outage", "'1e999s'"]),
        (["--outage", "5 parsecs"], ["--outage", "'parsecs'"]),
        (["--lsos", "0.1"], ["--lsos", "did you mean '--loss'?"]),
        (["--engine", "simulate"], ["--engine", "did you mean 'simulated'?"]),
        (["--prompts", "cod"], ["'cod'", "did you mean 'code'?"]),
        (["wifi"], ["wifi"]),
        (["--no-such-option"], ["--no-such-option"]),
    ],
)
def test_a_bad_option_is_one_clear_line(arguments: list[str], words: list[str]) -> None:
    line = one_line(run(*arguments))
    assert all(word in line for word in words), line


def test_help_has_examples() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "examples:" in done.stdout
    assert "--quick" in done.stdout


@pytest.mark.nobody
@pytest.mark.skipif(os.geteuid() != 0, reason="drops root's privileges, so it needs them")
def test_without_root_it_says_so(tmp_path: Path) -> None:
    line = one_line(run("--quick", "--out", str(tmp_path / "out"), user=65534))
    assert "root" in line
    assert "sudo" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.emulation
def test_an_existing_folder_is_never_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    line = one_line(run("--quick", "--out", str(tmp_path)))
    assert str(tmp_path) in line
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def without(hidden: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run where an empty folder hides ``hidden``, for this process alone."""
    shell = f'mount -t tmpfs none {hidden} && exec "$0" "$@"'
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", shell, sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.emulation
def test_without_tun_it_says_so(tmp_path: Path) -> None:
    done = without("/dev/net", "--quick", "--link", "user", "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "error: " in done.stderr
    assert "/dev/net/tun" in done.stderr


@pytest.mark.emulation
def test_without_mininet_it_says_so(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("mininet")
    assert spec is not None
    assert spec.origin is not None
    folder = str(Path(spec.origin).parent.resolve())
    done = without(folder, "--quick", "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Mininet" in done.stderr
    assert "setup.sh" in done.stderr
