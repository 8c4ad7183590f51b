"""How commands end: every module with a command line, found by its source, on every output."""

from __future__ import annotations

import ast
import json
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
