"""The protocol library stands alone: no dependency, no site-packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import eloquent, eloquent.aio, eloquent.records, eloquent.schemes, eloquent.sealed
assert "eloquent" in eloquent.schemes.names()
foreign = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
print(sorted(foreign - {"__main__", "eloquent"}))
"""


def test_it_imports_with_the_standard_library_only() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROGRAM, str(ROOT)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_core_touches_neither_sockets_nor_clocks() -> None:
    program = PROGRAM.replace("eloquent.aio, ", "") + "\nprint('asyncio' in sys.modules)"
    program += "\nprint('socket' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(ROOT)], capture_output=True, text=True
    )
    assert done.stdout.split("\n")[1:3] == ["False", "False"], done.stderr


def test_sealing_says_what_is_missing() -> None:
    program = (
        PROGRAM
        + """
from eloquent.sealed import TicketBook
try:
    TicketBook(("localhost", 1)).issue().session(server=True)
except ImportError as error:
    print(error)
"""
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(ROOT)], capture_output=True, text=True
    )
    assert done.stdout.split("\n")[1] == (
        "sealed streams need the package cryptography (No module named 'cryptography'): "
        "pip install 'eloquent-testbed[sealed]'"
    ), done.stderr


def test_it_is_typed() -> None:
    assert (ROOT / "eloquent" / "py.typed").exists()
