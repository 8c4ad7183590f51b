"""--help of every command: what it does, examples, every option explained, nothing from inside."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("analysis", "apps", "benchmarks", "scenarios", "terminal", "topologies")
#: Processes that a run starts for itself: they take no options from a person.
INTERNAL = {"topologies/user_link.py", "topologies/doctor/traffic.py", "benchmarks/burst.py"}
#: Commands of commands.
PARTS = (
    ("-m", "apps.trace", "record"),
    ("-m", "apps.probe", "send"),
    ("-m", "apps.probe", "echo"),
    ("-m", "apps.bulk", "send"),
    ("-m", "apps.bulk", "receive"),
    ("-m", "scenarios", "run"),
    ("-m", "scenarios", "agree"),
)
#: reStructuredText, and words of the code.
INSIDE = re.compile(
    r"``|:[a-z]+:`|\bargparse\b|__\w+__|Returns:|Args:|Raises:|\bTODO\b|<function|None\b"
)


def commands() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name in INTERNAL or '\nif __name__ == "__main__"' not in path.read_text():
                continue
            if folder in ("scenarios", "benchmarks") and path.name != "__main__.py":
                found.append((name,))
            else:
                module = name.removesuffix(".py").removesuffix("/__main__").replace("/", ".")
                found.append(("-m", module))
    return found + list(PARTS)


def test_all_are_found() -> None:
    assert len(commands()) > 30
    assert {("-m", "analysis"), ("-m", "topologies.doctor")} < set(commands())


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_help_is_for_people(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, *words, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    said = done.stdout
    assert said.startswith("usage: ")
    head, _, _ = said.partition("\noptions:")
    description = head.split("\n\n")[1]
    assert len(description.split()) >= 4, description
    assert re.search(r"^examples?:", said, re.MULTILINE)
    inside = INSIDE.search(said)
    assert inside is None, inside
    # An option without a word: nothing behind its name, and no indented line below.
    bare = re.findall(r"^  -[^\n]*\n(?!   )", said, re.MULTILINE)
    unexplained = [line for line in bare if not re.search(r"\S  +\S", line.strip())]
    assert not unexplained
