"""Child processes that speak JSON lines: answers, deaths, silence."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from scenarios.processes import JsonProcess, ProcessFailed

ECHO = """
    import json, sys
    print("not JSON: goes to the log", flush=True)
    for line in sys.stdin:
        word = line.strip()
        if word == "die":
            sys.exit("I was told to die")
        if word == "bad":
            print(json.dumps({"error": "no such thing"}), flush=True)
        elif word != "silence":
            print(json.dumps({"event": "said", "word": word}), flush=True)
"""


@pytest.fixture
def child(tmp_path: Path):
    command = [sys.executable, "-c", textwrap.dedent(ECHO)]
    process = JsonProcess(subprocess.Popen, command, "child", tmp_path / "child.log")
    yield process
    process.stop()


def test_a_request_gets_its_answer(child: JsonProcess) -> None:
    assert child.request("hello")["word"] == "hello"
    child.send("one")
    child.send("two")
    assert child.expect("said", timeout=10)["word"] == "one"


def test_what_is_not_json_is_logged(child: JsonProcess) -> None:
    child.request("hello")
    assert "not JSON" in child.log.read_text()


def test_an_error_is_raised(child: JsonProcess) -> None:
    with pytest.raises(ProcessFailed, match="child: no such thing"):
        child.request("bad")


def test_a_death_is_reported_with_the_last_words(child: JsonProcess) -> None:
    with pytest.raises(ProcessFailed, match=r"child ended; last words .*I was told to die"):
        child.request("die")
    with pytest.raises(ProcessFailed, match="ended"):  # and again, at once
        child.receive(timeout=10)


def test_silence_is_reported(child: JsonProcess) -> None:
    with pytest.raises(ProcessFailed, match=r"did not answer within 0\.2 s"):
        child.request("silence", timeout=0.2)


def test_stop_ends_it(child: JsonProcess) -> None:
    child.request("hello")
    child.stop()
    assert child.process.poll() == 0


def test_the_one_line_of_a_command_is_what_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('error: there is no tokenizer')"]
    process = JsonProcess(subprocess.Popen, command, "server", tmp_path / "server.log")
    with pytest.raises(ProcessFailed, match=r"^server: there is no tokenizer$"):
        process.receive(30)
    process.stop()
