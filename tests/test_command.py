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
    line = done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert "error: " in line
    return line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--schemes", "eloquent,morse"], ["--schemes", "'morse'", "eloquent", "tcp"]),
        (["--schemes", "tcp,tcp"], ["--schemes", "once"]),
        (["--schemes", "duplicate:9"], ["duplicate", "'9'"]),
        (["--source", "radio"], ["--source", "'radio'", "trace:FILE"]),
        (["--source", "trace:/no/such/file"], ["/no/such/file"]),
        (["--model", "/no/such/model"], ["/no/such/model"]),
        (["--model", str(Path(__file__).parent)], ["not a model folder", "config.json"]),
        (["--prompts", "riddles"], ["'riddles'", "questions", ".toml"]),
        (["--runs", "0"], ["--runs", "'0'"]),
        (["--link", "string"], ["--link", "'string'"]),
        (["--loss", "1.3"], ["--loss 1.3"]),
        (["--outage", "-1"], ["--outage -1"]),
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
