"""Server and client as programs, over every stack: times, logs, and mistakes on one line."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from apps import stacks
from apps.sources import ScheduledSource, open_source
from apps.trace import DEFAULT_TRACE, TraceSource, TraceWriter

COUNT = 12
#: Names of stacks, and one scheme of our own beside them.
NAMES = [name for name in stacks.names() if name != "tcp-bbr"]


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [sock.getsockname()[1] for sock in held]
    finally:
        for sock in held:
            sock.close()


def command(*arguments: object) -> list[str]:
    # reno: also those who are not root may set it.
    words = [sys.executable, "-m", "apps.server", "--commands", "--congestion-control", "reno"]
    return [*words, *map(str, arguments)]


@contextmanager
def server(log_dir: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        command("--log-dir", log_dir, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert event(child, "ready")
        yield child
    finally:
        child.kill()
        child.communicate()


def event(child: subprocess.Popen[str], name: str) -> dict[str, Any]:
    assert child.stdout is not None
    for line in child.stdout:
        found: dict[str, Any] = json.loads(line)
        if found["event"] == name:
            return found
    raise AssertionError(f"no {name}: {child.stderr and child.stderr.read()}")


def quit_server(child: subprocess.Popen[str]) -> str:
    _, stderr = child.communicate("end\nquit\n", timeout=20)
    assert child.returncode == 0
    return stderr


def ask(name: str, port: int, log: Path) -> subprocess.CompletedProcess[bytes]:
    words = [sys.executable, "-m", "apps.client", "--scheme", name, "--port", str(port)]
    words += ["--congestion-control", "reno", "--log", str(log), "--timeout", "20"]
    words += ["--", "127.0.0.1", "Why?"]
    return subprocess.run(words, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict, dict, bytes]]:
    """Every stack asked once at one server: the client's log, the server's, and the text."""
    folder = tmp_path_factory.mktemp("stacks")
    ports = dict(zip(["eloquent", *NAMES], free_ports(len(NAMES) + 1), strict=True))
    listen = [word for name in NAMES for word in ("--stack", f"{name}:{ports[name]}")]
    found = {}
    with server(
        folder, *listen, "--udp", f"eloquent:{ports['eloquent']}", "--tokens", COUNT
    ) as child:
        for name, port in ports.items():
            done = ask(name, port, folder / f"{name}.json")
            assert done.returncode == 0, done.stderr
            assert done.stderr == b""
            told = event(child, "done")
            assert (told["scheme"], told["tokens"], told["reason"]) == (name, COUNT, "length")
            client = json.loads((folder / f"{name}.json").read_text())
            found[name] = client, json.loads(Path(told["log"]).read_text()), done.stdout
        assert quit_server(child) == ""
    return found


@pytest.mark.parametrize("name", ["eloquent", *NAMES])
def test_the_text_is_the_trace(asked: dict[str, Any], name: str) -> None:
    client, log, text = asked[name]
    whole = b"".join(data for _, data in TraceSource(DEFAULT_TRACE).tokens[:COUNT])
    assert text == whole + b"\n"
    assert client["sha256"] == log["sha256"]
    assert client["n_bytes"] == log["n_bytes"]
    assert client["error"] is None
    assert client["reason"] == "length"


@pytest.mark.parametrize("name", ["eloquent", *NAMES])
def test_every_token_passes_all_measuring_points_in_order(asked: dict[str, Any], name: str) -> None:
    client, log, _ = asked[name]
    made, sent = log["generated_at"], log["sent_at"]
    received, rendered = client["received_at"], client["rendered_at"]
    assert [len(times) for times in (made, sent, received, rendered)] == [COUNT] * 4
    for index in range(COUNT):
        assert made[index] <= min(sent[index], received[index])
        assert received[index] <= rendered[index]
        # The server notes the time when the call has returned; over the loopback interface the
        # client may be faster than that.
        assert sent[index] - received[index] < 0.5
        assert rendered[index] - made[index] < 2
    assert client["asked_at"] < log["generated_at"][0]


@pytest.mark.parametrize("name", NAMES)
def test_the_logs_name_the_congestion_control(asked: dict[str, Any], name: str) -> None:
    client, log, _ = asked[name]
    wanted = "cubic (aioquic)" if name == "quic" else "reno"
    assert client["congestion_control"] == log["congestion_control"] == wanted


def bursts(times: list[float]) -> list[int]:
    """Numbers of tokens that came together: less than 50 ms after the one before."""
    starts = [n for n, at in enumerate(times) if n == 0 or at - times[n - 1] > 0.05]
    return [stop - start for start, stop in pairwise([*starts, len(times)])]


def test_the_answers_of_a_timing_profile_follow_the_seed(tmp_path: Path) -> None:
    source = "timing:speculative:spacing=0.15:first=0.2"
    schedules = open_source(source)
    assert isinstance(schedules, ScheduledSource)
    (port,) = free_ports(1)
    made = []
    with server(tmp_path, "--udp", f"eloquent:{port}", "--source", source, "--tokens", 30) as child:
        assert child.stdin is not None
        for seed in (7, 8, 7):
            child.stdin.write(f"seed {seed}\n")
            child.stdin.flush()
            assert event(child, "seed")["seed"] == seed
            assert ask("eloquent", port, tmp_path / "client.json").returncode == 0
            log = json.loads(Path(event(child, "done")["log"]).read_text())
            planned = [at for at, _ in schedules.schedule("Why?", 30, seed)[0]]
            assert bursts(log["generated_at"]) == bursts(planned)
            made.append(bursts(planned))
    assert made[0] != made[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_server_that_dies_is_one_line_at_the_client(name: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with server(tmp_path, "--stack", f"{name}:{port}", "--tokens", 400) as child:
        words = [sys.executable, "-m", "apps.client", "--scheme", name, "--port", str(port)]
        words += ["--timeout", "5", "127.0.0.1", "Why?"]
        client = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        event(child, "first_token")
        child.kill()
        _, stderr = client.communicate(timeout=30)
    assert client.returncode == 1
    assert stderr.startswith("error: the answer ended after ")
    assert stderr.count("\n") == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_that_the_source_cannot_answer_ends_at_once(name: str, tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "a.jsonl", model="m", prompt="another", recorded="") as trace:
        trace.token(0.0, b"x")
        trace.end("stop")
    (port,) = free_ports(1)
    with server(tmp_path, "--stack", f"{name}:{port}", "--source", f"trace:{tmp_path}") as child:
        done = ask(name, port, tmp_path / "log.json")
        assert done.returncode == 1
        assert done.stderr.count(b"\n") == 1 and b"could not generate it" in done.stderr
        assert json.loads((tmp_path / "log.json").read_text())["reason"] == "error"
        assert event(child, "done")["tokens"] == 0
        stderr = quit_server(child)
    assert stderr.count("\n") == 1
    assert "error: no answer: no trace in" in stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--stack", "gopher:70"], ["'gopher'", *stacks.names()]),
        (["--stack", "sse"], ["'sse'", "NAME:PORT"]),
        (["--stack", "sse:70000"], ["'70000'", "not a port"]),
        (["--tcp", "x"], ["'x'", "not a port"]),
        (["--stack", "tcp:PORT", "--tcp", "PORT"], ["tcp", "twice"]),
        (["--stack", "tcp:PORT", "--congestion-control", "hybris"], ["'hybris'", "reno"]),
        *((["--stack", f"{name}:TAKEN"], ["TAKEN", name, "in use"]) for name in NAMES),
        (["--tcp", "TAKEN"], ["TAKEN", "tcp", "in use"]),
        (["--udp", "eloquent:TAKEN"], ["TAKEN", "UDP", "in use"]),
        (["--host", "192.0.2.1", "--stack", "quic:PORT"], ["192.0.2.1", "assign"]),
    ],
)
def test_a_mistake_is_one_clear_line(arguments: list[str], words: list[str]) -> None:
    (free,) = free_ports(1)
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        taken = tcp.getsockname()[1]
        udp.bind(("127.0.0.1", taken))

        def filled(text: str) -> str:
            return text.replace("PORT", str(free)).replace("TAKEN", str(taken))

        done = subprocess.run(
            command(*map(filled, arguments)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    line = done.stderr.strip().splitlines()[-1]
    assert "error: " in line
    assert all(word == "NAME:PORT" or filled(word) in line for word in words), line


def test_the_end_of_the_input_ends_the_server() -> None:
    (port,) = free_ports(1)
    done = subprocess.run(
        command("--stack", f"sse:{port}"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_client_without_a_package_says_what_to_install() -> None:
    code = "import sys; sys.modules['httpx'] = None; from apps.client import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "--scheme", "sse", "127.0.0.1", "Why?"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: sse needs a package")
    assert ".[stacks]" in done.stderr
    assert done.stderr.count("\n") == 1
