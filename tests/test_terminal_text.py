"""What is printed in encodings that lack it, and where it comes from outside."""

# ruff: noqa: RUF001 - characters that look like others are what this is about

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.progress import progress_bar
from terminal.console import UNBOUNDED, standard_error, standard_output
from terminal.text import one_line, plain, visible

ROOT = Path(__file__).resolve().parent.parent
SAID = "3.0 ± 2.5 → 4 µs ≥ 1 − … ─━┃┌┼█"

PROGRAM = """
import sys
from terminal import message, program
from terminal.console import standard_output
def main():
    print(sys.argv[1])
    standard_output().print(sys.argv[1])
    message.error(sys.argv[1])
    return 3
program.run(main)
"""
ENCODINGS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "C": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
    "utf-8": {"PYTHONIOENCODING": "utf-8"},
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_output_is_readable_in_every_encoding(name: str) -> None:
    # The words reach it as escapes: in a C locale the arguments themselves would be lost.
    program = PROGRAM.replace("sys.argv[1]", ascii(SAID))
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=kept | {"PYTHONPATH": str(ROOT)} | ENCODINGS[name],
        capture_output=True,
        timeout=60,
    )
    encoding = "ascii" if name == "C" else name
    first, second = done.stdout.decode(encoding).splitlines()
    assert first == second
    assert done.stderr.decode(encoding) == f"error: {first}\n"
    assert done.returncode == 3
    expected = {
        "ascii": "3.0 +/- 2.5 -> 4 us >= 1 - ... --|+##"[:-2] + "+#",
        "utf-8": SAID,
    }
    if encoding in expected:
        assert first == expected[encoding]
    assert "?" not in first and "\\" not in first


def test_what_has_no_likeness_is_an_escape_and_not_lost() -> None:
    assert plain("Größe 中", "ascii") == r"Gr\xf6\xdfe \u4e2d"
    assert plain("Größe 中", "latin-1") == r"Größe \u4e2d"
    assert plain("“don’t”", "ascii") == '"don\'t"'


def test_a_name_is_shown_not_obeyed() -> None:
    assert visible("plain name.pcap") == "plain name.pcap"
    assert visible("a\x1b[31m\nb\x9b\u202e\u200b") == r"a\x1b[31m\nb\x9b\u202e\u200b"
    assert visible(os.fsdecode(b"caf\xe9.pcap")) == r"caf\xe9.pcap"
    assert visible("中文 \N{NO-BREAK SPACE}é") == "中文 \N{NO-BREAK SPACE}é"
    assert one_line(ValueError("one\n   two\x07")) == r"one two\x07"


def test_errors_say_something_on_one_line() -> None:
    assert one_line(ValueError("one\n\n two\n")) == "one two"
    assert one_line(TimeoutError()) == "TimeoutError"
    assert one_line(FileNotFoundError(2, "No such file", "a\nb")) == "a b: No such file"
    assert one_line(OSError(28, "No space left on device", b"/x")) == "/x: No space left on device"
    assert one_line(OSError(32, "Broken pipe", 3)) == "Broken pipe"
    assert one_line("") == ""


@pytest.mark.parametrize(
    "name", ["client[lte].pcap", "a[/b].pcap", "[fd00::1]:443", "2001:db8:100:a::2", ":smile:"]
)
def test_consoles_print_names_as_they_are(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    standard_output().print(f"{name}\x1b[2J")
    standard_error().print(f"error: {name}", style="red")
    captured = capsys.readouterr()
    assert captured.out == f"{name}\\x1b[2J\n" and captured.err == f"error: {name}\n"


def test_a_pipe_has_no_width_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert standard_output().width == UNBOUNDED
    monkeypatch.setenv("COLUMNS", "60")
    assert standard_output().width == standard_error().width == 60


@pytest.mark.parametrize("width", ["60", "80"])
def test_a_progress_bar_keeps_its_numbers(
    width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    with progress_bar(standard_error()) as progress:
        task = progress.add_task("run 12/12 [red] duplicate:3", total=1800)
        progress.advance(task, 1800)
    shown = capsys.readouterr().err
    assert "run 12/12 [red] duplicate:3" in shown and "1800/1800 left: 0:00:00" in shown


def test_a_progress_bar_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(raw, "ascii", write_through=True))
    with progress_bar(standard_error()) as progress:
        progress.advance(progress.add_task("run", total=2), 1)
    assert b"----" in raw.getvalue() and b"1/2" in raw.getvalue()
