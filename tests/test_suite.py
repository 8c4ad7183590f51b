"""How the suite runs: on all cores by itself, lonely tests alone, and the same with fewer plugins.

Each test here runs pytest on a few files of its own, with a copy of running.py: the copy's locks
are others than those of the suite around it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import running  # type: ignore[import-not-found, unused-ignore]

HERE = Path(__file__).parent
CORES = len(os.sched_getaffinity(0))
MANY = CORES + 1
INI = """
[tool.pytest.ini_options]
addopts = ["-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:hypothesispytest"]
markers = ["alone: ", "emulation: ", "guest: ", "nobody: "]
"""
SPAN = """
import json, time
from pathlib import Path
import pytest

def span(name, seconds):
    start = time.monotonic()
    time.sleep(seconds)
    Path(name + ".span").write_text(json.dumps([start, time.monotonic()]))
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    shutil.copy(HERE / "running.py", tmp_path / "conftest.py")
    (tmp_path / "pyproject.toml").write_text(INI)
    return tmp_path


def run(suite: Path, *options: str) -> str:
    """What pytest prints for this suite, all of whose tests pass."""
    bare = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=suite,
        env=bare,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_lonely_test_meets_no_other_and_its_timeout_does_not_count_the_waiting(
    suite: Path,
) -> None:
    many = "@pytest.mark.parametrize('n', range(4))\ndef test(n): span(f'{name}{n}', 0.4)\n"
    for name in ("a", "b"):
        (suite / f"test_{name}.py").write_text(f"{SPAN}\nname = '{name}'\n{many}")
    slow = "@pytest.mark.timeout(20)\ndef test_slow(): span('slow', 3)\n"
    (suite / "test_slow.py").write_text(SPAN + slow)
    # Two who wait for each other, and for the slow one, longer than they may run.
    lonely = "@pytest.mark.alone\n@pytest.mark.timeout(2)\ndef test(): span('lonely-{0}', 0.5)\n"
    for name in "xy":
        (suite / f"test_lonely_{name}.py").write_text(SPAN + lonely.format(name))
    run(suite, "-n", "4", "--dist", "loadfile")
    spans = {path.stem: json.loads(path.read_text()) for path in suite.glob("*.span")}
    assert len(spans) == 4 + 4 + 1 + 2
    for lonely in ("lonely-x", "lonely-y"):
        begin, end = spans.pop(lonely)
        assert all(stop <= begin or start >= end for start, stop in spans.values())


@pytest.mark.parametrize(
    ("places", "changed", "workers"),
    [
        ("tests", {}, MANY),
        ("test_1.py test_2.py", {}, 2),
        ("test_1.py tests", {}, MANY),
        ("test_1.py", {}, 1),
        ("test_1.py::test_a test_1.py::test_b[x::y]", {}, 1),
        ("tests", {"capture": "no"}, 1),
        ("tests", {"usepdb": True}, 1),
        ("tests", {"collectonly": True}, 1),
    ],
)
def test_how_many_run_at_once(
    tmp_path: Path, monkeypatch, places: str, changed: dict[str, Any], workers: int
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("test_1.py", "test_2.py"):
        Path(name).touch()
    options = decided(places.split(), **changed)
    assert (options.numprocesses or 1) == workers
    assert options.dist == ("loadfile" if workers > 1 else "no")


@pytest.mark.parametrize("wish", [{"numprocesses": 0}, {"tx": ["3*popen"]}, {"dist": "load"}])
def test_who_says_how_many_gets_them(wish: dict[str, Any]) -> None:
    assert vars(decided(["tests"], **wish)) == vars(decided(["tests"], **wish, changed=False))


def decided(places: list[str], changed: bool = True, **options: Any) -> argparse.Namespace:
    """The options as pytest-xdist will see them; `changed` false: as they came."""
    usual: dict[str, Any] = {
        "numprocesses": None,
        "tx": [],
        "dist": "no",
        "usepdb": False,
        "capture": "fd",
    }
    found = argparse.Namespace(**{**usual, "collectonly": False, **options})
    config: Any = argparse.Namespace(
        option=found, args=places, pluginmanager=argparse.Namespace(hasplugin=lambda _: True)
    )
    if changed:
        running.pytest_cmdline_main(config)
    return found


@pytest.mark.parametrize(("options", "workers"), [((), MANY), (("-p", "no:xdist"), 0)])
def test_it_runs_with_and_without_xdist(suite: Path, options: tuple[str, ...], workers) -> None:
    for name in "12":
        (suite / f"test_{name}.py").write_text("def test_a(): pass\n\ndef test_b(): pass\n")
    out = run(suite, *options)
    assert "4 passed" in out
    found = re.search(r"created: (\d+)/\d+ worker", out)
    assert (int(found[1]) if found else 0) == workers


def test_long_files_come_first_and_lonely_ones_last(suite: Path) -> None:
    marks = {"a": "alone", "b": "nobody", "c": "emulation", "d": "guest"}
    for name, mark in marks.items():
        text = (
            f"import pytest\n\n@pytest.mark.{mark}\ndef test_it(): pass\n\ndef test_its(): pass\n"
        )
        (suite / f"test_{name}.py").write_text(text)
    found = re.findall(r"test_(\w)\.py::test_it\b", run(suite, "--collect-only", "-q"))
    assert found == ["d", "c", "b", "a"]
