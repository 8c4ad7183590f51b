"""What needs netem, or the kernel's own switch, in a guest that has both.

One item a file of tests, as each boots a guest. They are to be found here where this kernel lacks
netem, and in their own files where it has it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.guest
TESTS = Path(__file__).parent
LIMIT = 500
NETEM = [
    path.name for path in sorted(TESTS.glob("test_*.py")) if "pytest.mark.netem" in path.read_text()
]


def guest(*options: str) -> None:
    """Run pytest with these options in a guest; what it says is this test's own output."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "topologies.guest", "--timeout", str(LIMIT), "--"),
            *("env", "CI=true"),  # there, whatever cannot run is an error
            *(sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *options),
        ],
        cwd=TESTS.parent,
        env=os.environ | {"COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    print(done.stdout)
    if done.returncode:
        pytest.fail(f"in the guest, with status {done.returncode}:\n{done.stdout}", pytrace=False)


@pytest.mark.timeout(LIMIT + 100)
@pytest.mark.parametrize("file", [name for name in NETEM if name != Path(__file__).name])
def test_netem(file: str) -> None:
    guest("-m", "netem", f"tests/{file}")


@pytest.mark.timeout(LIMIT + 100)
def test_open_vswitch_on_its_kernel_datapath() -> None:
    guest("tests/test_openvswitch.py")
