"""Answers that end early, by their server, its clients and the runner that waits for both."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from apps.answers import Answer, AnswerLog, Generation
from apps.sources import Finish, Source
from apps.trace import TraceWriter
from eloquent import Reason
from scenarios.emulated_run import answered
from scenarios.measurement import MeasurementError
from scenarios.processes import Clients, JsonProcess, ProcessFailed

#: Far less than what a runner waits for an answer, far more than it needs.
SOON = 20.0


class Breaking(Source):
    name = "breaking"

    def describe(self) -> dict[str, object]:
        return {"source": "breaking"}

    def answer(self, prompt: str, max_tokens: int) -> Generator[bytes, None, Finish]:
        yield b"a"
        raise RuntimeError("the disk\nis on fire")


def test_any_error_of_a_source_ends_the_answer_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def ask() -> tuple[list[bytes], Answer]:
        log = AnswerLog("eloquent", "why?", 0.0)
        answer = Answer(log, Generation(Breaking(), "why?", 9), lambda *_: None)
        return [token async for token in answer], answer

    tokens, answer = asyncio.run(ask())
    assert (tokens, answer.reason) == ([b"a"], Reason.ERROR)
    assert answer.log.error == "RuntimeError: the disk is on fire"
    said = capsys.readouterr().err
    assert said == (
        "error: the answer broke off after 1 tokens: RuntimeError: the disk is on fire\n"
    )
    path = answer.log.write(tmp_path, 1, Breaking())
    assert json.loads(path.read_text())["error"] == answer.log.error


def _free_ports(count: int) -> list[int]:
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in found]
    for each in found:
        each.close()
    return ports


def test_a_client_says_that_the_server_could_not_answer(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    with TraceWriter(traces / "a.jsonl", model="m", prompt="known", recorded="test") as writer:
        writer.token(0.0, b"a")
        writer.end("stop")
    ports = dict(zip(("eloquent", "tcp"), _free_ports(2), strict=True))
    words = ["--udp", f"eloquent:{ports['eloquent']}", "--stack", f"tcp:{ports['tcp']}"]
    words += ["--source", f"trace:{traces}", "--log-dir", str(tmp_path)]
    command = [sys.executable, "-m", "apps.server", *words]
    server = JsonProcess(subprocess.Popen, command, "server", tmp_path / "server.log")
    try:
        server.expect("ready", timeout=60)
        for scheme, port in ports.items():
            ask = [sys.executable, "-m", "apps.client", "--scheme", scheme, "--port", str(port)]
            done = subprocess.run(
                [*ask, "127.0.0.1", "unknown"],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 1
            assert done.stderr.count("\n") == 1
            assert "after 0 tokens: the server could not generate it" in done.stderr
            told = server.expect("done", timeout=10)
            assert (told["scheme"], told["tokens"]) == (scheme, 0)
            with pytest.raises(MeasurementError, match="answers the prompt 'unknown'"):
                answered(told)
    finally:
        server.stop()


def test_what_is_no_whole_answer_is_refused() -> None:
    done: dict[str, Any] = {"scheme": "tcp", "tokens": 3, "error": None, "log": "/a/b.json"}
    assert answered(done) == Path("/a/b.json")
    with pytest.raises(MeasurementError, match="tcp: no answer after 3 tokens: because"):
        answered(done | {"error": "because"})
    with pytest.raises(MeasurementError, match="tcp: no answer: because"):
        answered(done | {"error": "because", "tokens": 0})
    with pytest.raises(MeasurementError, match="tcp: the server's answer is empty"):
        answered(done | {"tokens": 0})


@pytest.fixture
def silent(tmp_path: Path):
    """A server that says nothing until it is told what to say."""
    code = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    command = [sys.executable, "-c", code]
    process = JsonProcess(subprocess.Popen, command, "server", tmp_path / "server.log")
    yield process
    process.stop()


def _client(folder: Path, code: str) -> tuple[Clients, subprocess.Popen[bytes]]:
    log = folder / "client.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stderr=errors, stdout=subprocess.DEVNULL
        )
    clients = Clients()
    clients.add("client (tcp)", process, log)
    return clients, process


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('error: no way')", "client (tcp): no way"),
        ("import os; os.kill(os.getpid(), 9)", "client (tcp) ended (by SIGKILL); it left no word"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_client_that_dies_ends_the_waiting(
    silent: JsonProcess, tmp_path: Path, code: str, said: str
) -> None:
    clients, process = _client(tmp_path, code)
    start = time.monotonic()
    with pytest.raises(ProcessFailed) as error:
        silent.expect("first_token", "done", timeout=240, meanwhile=clients.check)
    process.wait()
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert time.monotonic() - start < SOON


def test_the_server_has_the_last_word_on_a_client_that_failed(
    silent: JsonProcess, tmp_path: Path
) -> None:
    clients, process = _client(tmp_path, "import sys; sys.exit('error: it broke off')")
    process.wait()
    silent.send('{"event": "other"}')
    silent.send('{"event": "done", "error": "no tokens left"}')
    done = silent.expect("first_token", "done", timeout=60, meanwhile=clients.check)
    assert done["error"] == "no tokens left"


def test_a_client_that_is_content_ends_nothing(silent: JsonProcess, tmp_path: Path) -> None:
    clients, process = _client(tmp_path, "pass")
    process.wait()
    with pytest.raises(ProcessFailed, match="did not answer within"):
        silent.expect("done", timeout=1.5, meanwhile=clients.check)


def test_a_server_that_dies_ends_the_waiting(silent: JsonProcess, tmp_path: Path) -> None:
    clients, process = _client(tmp_path, "import time; time.sleep(60)")
    try:
        silent.process.kill()
        start = time.monotonic()
        with pytest.raises(ProcessFailed, match=r"server ended \(by SIGKILL\)"):
            silent.expect("done", timeout=240, meanwhile=clients.check)
        assert time.monotonic() - start < SOON
    finally:
        process.kill()
        process.wait()


def test_of_a_command_that_ends_with_an_error_that_alone_is_told(tmp_path: Path) -> None:
    code = "import sys; print('loading', file=sys.stderr); sys.exit('error: no such model')"
    child = JsonProcess(subprocess.Popen, [sys.executable, "-c", code], "server", tmp_path / "log")
    with pytest.raises(ProcessFailed, match=r"^server: no such model$"):
        child.expect("ready", timeout=60)
    child.stop()
