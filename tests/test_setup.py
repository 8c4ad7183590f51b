"""setup.sh: which Python it takes, and what it says on systems that nobody tried."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parent.parent / "setup.sh"
# The functions without the last line, which calls main.
FUNCTIONS = SETUP.read_text().rpartition("\nmain ")[0].replace("${BASH_SOURCE[0]}", str(SETUP))


def shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"{FUNCTIONS}\n{script}"],
        env={"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=30,
    )


def interpreter(folder: Path, name: str, version: str | None) -> Path:
    """A program that says it is this Python; None: a wrapper that knows no such version."""
    path = folder / name
    told = "exit 127" if version is None else f"echo {version.replace('.', ' ')}"
    path.write_text(f"#!/bin/sh\n{told}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("present", "taken"),
    [
        ({"python3": "3.11"}, "python3"),  # Debian 12
        ({"python3": "3.13", "python3.11": "3.11"}, "python3"),  # Debian 13
        ({"python3": "3.10", "python3.11": "3.11"}, "python3.11"),  # Ubuntu 22.04 with one added
        ({"python3": "3.10", "python3.11": None, "python3.12": "3.12"}, "python3.12"),
        ({"python3": "3.15", "python3.13": "3.13"}, "python3.13"),
    ],
)
def test_it_takes_the_systems_python_or_one_beside_it(tmp_path, present, taken):
    paths = [interpreter(tmp_path, name, version) for name, version in present.items()]
    names = " ".join(map(str, paths))
    done = shell(f'PYTHONS=({names}); choose_python; echo "$PYTHON"', tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / taken}\n"), done.stderr


@pytest.mark.parametrize("version", ["2.7", "3.10", "3.15"])
def test_no_python_that_will_do_is_one_line(tmp_path, version):
    path = interpreter(tmp_path, "python3", version)
    done = shell(f"PYTHONS=({path}); choose_python; echo went on", tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"{path} is {version};" in done.stderr


def test_no_python_at_all_is_what_apt_brings(tmp_path):
    done = shell("PYTHONS=(no-such-python); choose_python; echo went on", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on\n", "")


@pytest.mark.parametrize(
    ("system", "told"),
    [
        ('ID=debian\nVERSION_ID="13"\nPRETTY_NAME="Debian GNU/Linux 13 (trixie)"', ""),
        ('ID=debian\nVERSION_ID="12"', ""),
        ('ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"', "Ubuntu 24.04.3 LTS: "),
        ('ID=debian\nPRETTY_NAME="Debian GNU/Linux forky/sid"', "Debian GNU/Linux forky/sid: "),
    ],
)
def test_it_says_where_nobody_tried_it(tmp_path, system, told):
    (tmp_path / "os-release").write_text(system)
    done = shell(f"OS_RELEASE={tmp_path}/os-release; note_untested_system", tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith(told)
    assert done.stdout.count("not tested here") == bool(told)
