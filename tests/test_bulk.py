"""Bulk TCP over the loopback: what is counted, what it costs, what goes wrong."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

BULK = [sys.executable, "-m", "apps.bulk"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def test_a_sender_counts_what_its_sinks_acknowledge() -> None:
    port = str(free_port())
    sender = subprocess.Popen(
        [*BULK, "send", "--port", port], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    commands, answers = sender.stdin, sender.stdout
    assert commands is not None and answers is not None

    def ask(command: str) -> dict:
        commands.write(command + "\n")
        commands.flush()
        return json.loads(answers.readline())

    assert json.loads(answers.readline())["event"] == "ready"
    sinks = [
        subprocess.Popen([*BULK, "receive", "127.0.0.1", "--port", port], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    assert ask("flows 2") == {"event": "flows", "count": 2}
    assert ask("start")["event"] == "started"
    time.sleep(0.6)
    assert "unknown command" in ask("faster")["error"]
    samples = ask("stop")["samples"]
    received = [json.loads(sink.communicate(timeout=30)[0])["bytes"] for sink in sinks]
    sender.communicate(timeout=30)
    assert sender.returncode == 0
    assert len(samples) == 2
    for flow in samples:
        at, acknowledged, _, _ = zip(*flow, strict=True)
        assert len(flow) >= 3
        assert list(at) == sorted(at)
        assert list(acknowledged) == sorted(acknowledged)
        assert acknowledged[-1] > 0
    # What was acknowledged did arrive; a reset may cut off what the sink had not read yet.
    assert sum(received) > 0.5 * sum(flow[-1][1] for flow in samples)


def test_a_sender_without_sinks_costs_no_processor() -> None:
    sender = subprocess.Popen(
        [*BULK, "send", "--port", str(free_port())], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert sender.stdin is not None and sender.stdout is not None
    sender.stdout.readline()

    def ticks() -> int:
        fields = Path(f"/proc/{sender.pid}/stat").read_text().rpartition(") ")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    sender.stdin.write(b"start\n")
    sender.stdin.flush()
    time.sleep(1)
    assert ticks() - before < 20  # of 100 a second
    sender.communicate(timeout=30)
    assert sender.returncode == 0


@pytest.mark.parametrize("words", [["receive", "127.0.0.1"], ["send", "--host", "192.0.2.1"]])
def test_bulk_errors_are_one_line(words: list[str]) -> None:
    done = subprocess.run(
        [*BULK, *words, "--port", str(free_port())],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
