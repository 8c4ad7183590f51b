"""The examples in the README do what it says, word for word."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from network import Network, lossy  # type: ignore[import-not-found]

from eloquent.schemes import Scheme
from eloquent.wire import Data, decode

README = (Path(__file__).parent.parent / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def example(word: str) -> str:
    (text,) = [block for block in PYTHON if word in block]
    return str(text)


def test_the_library_example_prints_its_answer() -> None:
    done = subprocess.run(
        [sys.executable, "-c", example("asyncio.run(main())")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "every datagram can be shown at once ", done.stderr


def test_the_scheme_example_delivers_everything() -> None:
    names: dict[str, object] = {"__name__": "eloquent.schemes.last_three"}
    exec(example("class LastThree").replace("from .base", "from eloquent.schemes.base"), names)
    scheme = names["LastThree"]
    assert isinstance(scheme, type)
    assert issubclass(scheme, Scheme)
    tokens = [b"token %d " % n for n in range(200)]
    network = Network(tokens, lossy(seed=3, loss=0.3), scheme="last-three").run()
    del scheme.name  # so that no other test meets it
    assert [token.data for token in network.received] == tokens
    sent = [decode(datagram) for _, way, datagram in network.log if way == "down"]
    carried = [len(message.tokens) for message in sent if isinstance(message, Data)]
    assert max(carried) >= 4 and carried.count(1) < len(carried)  # three more go along


@pytest.mark.emulation
def test_the_scenario_example_runs(tmp_path: Path) -> None:
    script = tmp_path / "satellite.py"
    script.write_text(example("satellite"))
    assert len(example("satellite").splitlines()) < 40
    done = subprocess.run(
        [
            *(sys.executable, str(script), "--source", "trace", "--tokens", "20", "--runs", "1"),
            *("--schemes", "eloquent", "--out", str(tmp_path / "out")),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "satellite" in done.stdout, textwrap.shorten(done.stdout, 200)
