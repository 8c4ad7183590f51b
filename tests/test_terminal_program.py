"""How commands end: every module with a command line, found by its source, on every output."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("analysis", "apps", "benchmarks", "scenarios", "terminal", "topologies")
FULL = "error: cannot write standard output: No space left on device\n"
READER_LEFT = 141
"""What a shell reports of a program that SIGPIPE ended: 128 + 13."""


def main_block(path: Path) -> list[ast.stmt] | None:
    """What stands below `if __name__ == "__main__":`, if the module has that."""
    for statement in ast.parse(path.read_text()).body:
        if (
            isinstance(statement, ast.If)
            and ast.unparse(statement.test) == "__name__ == '__main__'"
        ):
            return statement.body
    return None


BLOCKS = {
    path: block
    for room in ROOMS
    for path in sorted((ROOT / room).rglob("*.py"))
    if (block := main_block(path)) is not None
}


def command(path: Path) -> str:
    """As `python` takes it: a script of scenarios and benchmarks by its path, others with -m."""
    words = path.relative_to(ROOT).with_suffix("").parts
    if words[0] in ("scenarios", "benchmarks") and words[-1] != "__main__":
        return str(path.relative_to(ROOT))
    return ".".join(words)


def test_there_are_commands() -> None:
    assert len(BLOCKS) > 30


@pytest.mark.parametrize("path", BLOCKS, ids=command)
def test_a_command_ends_in_the_runner(path: Path) -> None:
    (only,) = BLOCKS[path]
    assert ast.unparse(only).startswith("program.run(")


@pytest.fixture(scope="module")
def helps() -> dict[str, list[dict[str, Any]]]:
    """By kind of output, what `--help` of every command did."""
    done = subprocess.run(
        [sys.executable, "tests/every_command.py", *map(command, BLOCKS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    found: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads(done.stdout):
        found.setdefault(one["kind"], []).append(one)
    return found


@pytest.mark.parametrize("kind", ["left", "left unbuffered"])
def test_a_reader_that_left_is_no_reason_for_words(
    helps: dict[str, list[dict[str, Any]]], kind: str
) -> None:
    assert [one for one in helps[kind] if one["status"] != READER_LEFT or one["err"]] == []


def test_a_full_disk_is_one_line(helps: dict[str, list[dict[str, Any]]]) -> None:
    assert [one for one in helps["full"] if one["status"] != 1 or one["err"] != FULL] == []


def test_every_help_is_readable_in_ascii(helps: dict[str, list[dict[str, Any]]]) -> None:
    for one in helps["ascii"]:
        assert one["status"] == 0 and one["out"] and not one["err"], one
        assert one["out"].isascii() and "\\u" not in one["out"] and "?" not in one["out"][:1], one


PROGRAM = """
import os, sys, threading
from pathlib import Path
from terminal import program

def main(how: str) -> int:
    match how:
        case "fails":
            print("some output")
            return 3
        case "own file":
            try:
                for _ in range(10_000):
                    print("a line of output that is long enough to be written before the end")
            except OSError as error:
                print(f"error: cannot write my file: {error}", file=sys.stderr)
                return 2
        case "other pipe":
            reader, writer = os.pipe()
            os.close(reader)
            os.write(writer, b"x")
        case "thread":
            thread = threading.Thread(target=lambda: print("x", flush=True))
            thread.start()
            thread.join()
            print("never")
            Path(sys.argv[2]).touch()
        case "cleans":
            try:
                print("x", flush=True)
            finally:
                print("cleaning up", flush=True)
                Path(sys.argv[2]).touch()
        case "interrupted":
            raise KeyboardInterrupt
    return 0

program.run(main, sys.argv[1])
"""


def ended(how: str, tmp_path: Path, output: str = "left") -> tuple[int, str, bool]:
    """Status, standard error, and whether the program came to touch its file."""
    descriptor = os.open("/dev/full", os.O_WRONLY)
    if output == "left":
        os.close(descriptor)
        reader, descriptor = os.pipe()
        os.close(reader)
    mark = tmp_path / "mark"
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, how, str(mark)],
            cwd=ROOT,
            stdout=descriptor,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    finally:
        os.close(descriptor)
    return done.returncode, done.stderr, mark.exists()


def test_lost_output_counts_more_than_what_the_command_found(tmp_path: Path) -> None:
    assert ended("fails", tmp_path) == (READER_LEFT, "", False)
    assert ended("fails", tmp_path, "full") == (1, FULL, False)


def test_no_handler_of_its_own_errors_takes_lost_output_for_one(tmp_path: Path) -> None:
    assert ended("own file", tmp_path) == (READER_LEFT, "", False)
    assert ended("own file", tmp_path, "full") == (1, FULL, False)


def test_another_pipe_that_breaks_is_not_the_reader(tmp_path: Path) -> None:
    status, said, _ = ended("other pipe", tmp_path, "full")
    assert status == 1 and said.endswith("BrokenPipeError: [Errno 32] Broken pipe\n")


def test_output_lost_in_a_thread_ends_the_main_one(tmp_path: Path) -> None:
    assert ended("thread", tmp_path) == (READER_LEFT, "", False)


def test_what_cleans_up_may_print_to_nobody(tmp_path: Path) -> None:
    assert ended("cleans", tmp_path) == (READER_LEFT, "", True)


def test_an_interruption_is_130(tmp_path: Path) -> None:
    assert ended("interrupted", tmp_path) == (130, "", False)


def test_closed_outputs_are_no_errors() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m topologies.sandbox --help >&- 2>&-"],
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 0


@pytest.mark.parametrize("package", ["analysis", "apps", "scenarios", "topologies"])
def test_ctrl_c_while_a_command_imports_shows_no_traceback(package: str) -> None:
    code = f"import {package}; raise KeyboardInterrupt"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
