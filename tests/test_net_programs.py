"""`apps.server` and `apps.client` as careless people start and leave them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

import apps.client
import apps.server
from apps import stacks

ROOT = Path(__file__).parent.parent
#: The default trace gives its tokens over some seconds.
LONG = "400"
STACKS = [name for name in stacks.names() if name != "tcp-bbr"]


def free_port() -> int:
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        port: int = tcp.getsockname()[1]
        udp.bind(("127.0.0.1", port))
        return port


def bare() -> dict[str, str]:
    """The programs must not depend on what else is set; they run in other folders than this."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}


@contextmanager
def server(
    *arguments: object, cwd: Path, stdin: int | IO[Any] = subprocess.DEVNULL, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "apps.server", "--congestion-control", "reno"]
    child = subprocess.Popen(
        [*words, *map(str, arguments)],
        **{"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        text=True,
        cwd=cwd,
        env=bare(),
    )
    try:
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


def client_words(port: int, *options: str, host: str = "127.0.0.1") -> list[str]:
    words = [sys.executable, "-m", "apps.client", "--congestion-control", "reno", "--timeout", "20"]
    return [*words, "--port", str(port), *options, "--", host, "Why?"]


def ask(port: int, *options: str, host: str = "127.0.0.1") -> subprocess.CompletedProcess[bytes]:
    words = client_words(port, *options, host=host)
    return subprocess.run(words, capture_output=True, timeout=60, env=bare())


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_server_without_input_serves_until_it_is_told_to_stop(
    stop: signal.Signals, tmp_path: Path
) -> None:
    port = free_port()
    with server("--udp", f"eloquent:{port}", "--tokens", 3, cwd=tmp_path) as child:
        event(child, "ready")
        if stop is signal.SIGTERM:
            assert ask(port).returncode == 0
            assert event(child, "done")["log"] is None
        child.send_signal(stop)
        _, stderr = child.communicate(timeout=20)
    assert stderr == ""
    assert child.returncode == {signal.SIGTERM: 0, signal.SIGINT: 130, signal.SIGHUP: 129}[stop]
    assert list(tmp_path.iterdir()) == []  # nothing is written that nobody asked for


def test_with_commands_a_server_ends_with_its_input(tmp_path: Path) -> None:
    with server("--commands", "--tcp", free_port(), cwd=tmp_path, stdin=subprocess.PIPE) as child:
        event(child, "ready")
        stdout, stderr = child.communicate("\nstats\nfly\n" + "x" * 100_000 + "\nend\n", timeout=20)
    assert child.returncode == 0
    assert stderr == ""
    told = [json.loads(line)["event"] for line in stdout.splitlines()]
    assert told == ["stats", "error", "error", "end"]  # an empty line is no command


def test_the_tail_of_an_overlong_line_is_no_command(tmp_path: Path) -> None:
    with server("--commands", "--tcp", free_port(), cwd=tmp_path, stdin=subprocess.PIPE) as child:
        event(child, "ready")
        assert child.stdin is not None
        for part in ("x" * 70_000, "y" * 70_000, "end\n"):  # as a slow writer sends it
            child.stdin.write(part)
            child.stdin.flush()
            time.sleep(0.2)
        stdout, _ = child.communicate("stats\nend\n", timeout=20)
    assert [json.loads(line)["event"] for line in stdout.splitlines()] == ["error", "stats", "end"]


def test_a_server_that_is_stopped_in_an_answer_tells_its_readers(tmp_path: Path) -> None:
    port = free_port()
    with server("--udp", f"eloquent:{port}", "--tokens", LONG, cwd=tmp_path) as child:
        event(child, "ready")
        client = subprocess.Popen(
            client_words(port), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=bare()
        )
        event(child, "first_token")
        child.terminate()
        _, stderr = client.communicate(timeout=10)  # and not 60 s later
        assert child.wait(20) == 0
    assert client.returncode == 1
    assert b"refused by the server: busy" in stderr


def test_one_reader_more_than_there_are_places_is_told_to_come_again(tmp_path: Path) -> None:
    port = free_port()
    options = ("--udp", f"eloquent:{port}", "--tokens", LONG, "--max-streams", 1)
    with server(*options, cwd=tmp_path) as child:
        event(child, "ready")
        with subprocess.Popen(client_words(port), stdout=subprocess.PIPE, env=bare()) as client:
            assert client.stdout is not None and client.stdout.read(30)
            second = ask(port)
            client.send_signal(signal.SIGINT)
            assert event(child, "done")["how"] == "cancelled"
        assert (second.returncode, second.stdout) == (1, b"\n")
        assert b"after 0 tokens: refused by the server: busy" in second.stderr


@pytest.mark.parametrize("scheme", ["eloquent", "tcp"])
def test_the_reader_of_the_output_leaves(scheme: str, tmp_path: Path) -> None:
    """As `| head -c 5` does: quiet, with SIGPIPE's status, and the answer is cancelled."""
    port = free_port()
    option = "--stack" if scheme in STACKS else "--udp"
    with server(option, f"{scheme}:{port}", "--tokens", LONG, cwd=tmp_path) as child:
        event(child, "ready")
        client = subprocess.Popen(
            client_words(port, "--scheme", scheme),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=bare(),
        )
        assert client.stdout is not None and client.stderr is not None
        assert client.stdout.read(5)
        client.stdout.close()
        assert client.wait(20) == 128 + signal.SIGPIPE
        assert client.stderr.read() == b""
        client.stderr.close()
        done = event(child, "done")
    assert done["how"] in ("cancelled", "lost")
    assert done["tokens"] < 200


@pytest.mark.parametrize("scheme", ["eloquent", "tcp"])
def test_a_reader_that_does_not_read_yet_loses_nothing(scheme: str, tmp_path: Path) -> None:
    """As `| less` does: the pipe is full, and the answer arrives all the same."""
    port = free_port()
    option = "--stack" if scheme in STACKS else "--udp"
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    filled = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            filled += os.write(write_end, bytes(4096))
    os.set_blocking(write_end, True)
    with server(option, f"{scheme}:{port}", "--tokens", 20, cwd=tmp_path) as child:
        event(child, "ready")
        client = subprocess.Popen(
            client_words(port, "--scheme", scheme, "--log", str(tmp_path / "log.json")),
            stdout=write_end,
            stderr=subprocess.PIPE,
            env=bare(),
        )
        os.close(write_end)
        assert event(child, "done")["tokens"] == 20
        time.sleep(0.5)
        reads_from = time.monotonic()
        with open(read_end, "rb") as reader:
            shown = reader.read()[filled:]
        _, stderr = client.communicate(timeout=20)
    assert (client.returncode, stderr) == (0, b"")
    log = json.loads((tmp_path / "log.json").read_text())
    assert max(log["received_at"]) < reads_from
    assert len(shown) == sum(log["n_bytes"]) + 1  # and the newline at its end


@pytest.mark.parametrize(
    ("stop", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_client_that_is_stopped_cancels_its_answer(
    stop: signal.Signals, status: int, tmp_path: Path
) -> None:
    port = free_port()
    with server("--udp", f"eloquent:{port}", "--tokens", LONG, cwd=tmp_path) as child:
        event(child, "ready")
        log = tmp_path / "log.json"
        client = subprocess.Popen(
            client_words(port, "--log", str(log)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=bare(),
        )
        event(child, "first_token")
        client.send_signal(stop)
        _, stderr = client.communicate(timeout=20)
        assert (client.returncode, stderr) == (status, b"")
        assert event(child, "done")["how"] == "cancelled"
    assert json.loads(log.read_text())["error"] == "interrupted"


@pytest.mark.parametrize("scheme", ["eloquent", "quic"])
def test_a_closed_port_is_named_and_tried_again(scheme: str, tmp_path: Path) -> None:
    port = free_port()
    client = subprocess.Popen(
        client_words(port, "--scheme", scheme),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=bare(),
    )
    assert client.stderr is not None
    line = client.stderr.readline()
    assert "no answer from 127.0.0.1" in line and str(port) in line
    if sys.platform == "linux":
        assert "the port seems closed" in line
    option = "--stack" if scheme in STACKS else "--udp"
    with server(option, f"{scheme}:{port}", "--tokens", 3, cwd=tmp_path):
        stdout, rest = client.communicate(timeout=40)
    assert (client.returncode, rest) == (0, "")
    assert stdout.strip()


def test_logs_have_a_folder_and_are_never_overwritten(tmp_path: Path) -> None:
    folder, port = tmp_path / "new" / "logs", free_port()
    for _ in range(2):  # the second server finds what the first has written
        with server(
            *("--udp", f"eloquent:{port}", "--tokens", 3, "--log-dir", folder), cwd=tmp_path
        ) as child:
            event(child, "ready")
            assert ask(port).returncode == 0
            event(child, "done")
            child.terminate()
            assert child.wait(20) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["answer-001.json", "answer-002.json"]


def ended(
    main: Callable[[], int],
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> tuple[int | str | None, str, str]:
    """Status, standard output and the last line of standard error of a program that must fail."""
    monkeypatch.setattr(sys, "argv", ["program", *arguments])
    status: int | str | None
    try:
        status = main()
    except SystemExit as end:
        status = end.code
    stdout, stderr = capfd.readouterr()
    line = stderr.strip().splitlines()[-1]
    assert "error: " in line and "Traceback" not in stderr
    return status, stdout, line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--udp", "eloquent:PORT", "--log-dir", "file"], ["file", "there is a file of that name"]),
        (["--udp", "eloquent:PORT", "--log-dir", "file/logs"], ["file/logs", "Not a directory"]),
        (["--udp", "eloquent:PORT", "--log-dir", "/proc/logs"], ["/proc/logs", "cannot write"]),
        ([], ["nothing to serve", "--udp eloquent:4433"]),
        (["--udp", "eloquent:PORT", "--udp", "eloquent:9"], ["eloquent", "twice"]),
        (["--udp", "eloquent:PORT", "--host", "nosuch.invalid"], ["nosuch.invalid"]),
        (["--tcp", "PORT", "--host", "nosuch.invalid"], ["nosuch.invalid"]),
        (["--udp", "eloquent:PORT", "--host", "192.0.2.99"], ["192.0.2.99", "assign"]),
        (["--udp", "eloquent:0"], ["'0'", "1 to 65535"]),
        (["--udp", "eloquent:PORT", "--tokens", "-5"], ["'-5'", "1 or more"]),
        (["--udp", "eloquent:PORT", "--max-streams", "0"], ["'0'", "1 or more"]),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(
    arguments: list[str],
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.chdir(tmp_path)
    port = str(free_port())
    status, stdout, line = ended(
        apps.server.main, [word.replace("PORT", port) for word in arguments], monkeypatch, capfd
    )
    assert (status, stdout) == (2, "")
    assert all(word in line for word in words), line
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nosuch.invalid", "x"], ["cannot find nosuch.invalid"]),
        (["127.0.0.1:4433", "x"], ["127.0.0.1:4433", "--port"]),
        (["a..b", "x"], ["a..b"]),
        (["", "x"], ["empty"]),
        (["--port", "70000", "::1", "x"], ["'70000'", "65535"]),
        (["--timeout", "nan", "::1", "x"], ["'nan'"]),
        (["--log", "/nosuch/log", "127.0.0.1", "x"], ["/nosuch/log", "No such file"]),
        (["127.0.0.1", "-"], ["250000 bytes", "245760"]),
        (["--scheme", "tcp", "127.0.0.1", "-"], ["250000 bytes", "245760"]),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(
    arguments: list[str],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(bytes(250_000))))
    status, stdout, line = ended(apps.client.main, arguments, monkeypatch, capfd)
    assert (status, stdout) == (2, "")
    assert all(word in line for word in words), line


def closed(number: int) -> Callable[[], None]:
    return lambda: os.close(number)


def test_odd_prompts_and_outputs(tmp_path: Path) -> None:
    """Bytes that are no UTF-8, NUL, nothing; outputs that are closed or full; two at once."""
    port = free_port()
    folder = tmp_path / "logs"
    words = client_words(port)[:-3]
    with server(
        *("--udp", f"eloquent:{port}", "--tokens", 3, "--log-dir", folder), cwd=tmp_path
    ) as child:
        event(child, "ready")

        def prompt(*arguments: Any, data: bytes = b"") -> str:
            done = subprocess.run(
                [*words, *arguments], input=data, capture_output=True, timeout=60, env=bare()
            )
            assert (done.returncode, done.stderr) == (0, b"")
            found: str = json.loads(Path(event(child, "done")["log"]).read_text())["prompt"]
            return found

        assert prompt("127.0.0.1", b"caf\xe9") == "caf\N{REPLACEMENT CHARACTER}"
        assert prompt("127.0.0.1", "-", data=b"a\0b") == "a\0b"
        assert prompt("127.0.0.1", "") == ""
        for descriptor in (1, 2):
            done = subprocess.run(
                [*words, "127.0.0.1", "x"],
                capture_output=True,
                timeout=60,
                env=bare(),
                preexec_fn=closed(descriptor),
            )
            assert done.returncode == 0 and b"Traceback" not in done.stderr
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [*words, "127.0.0.1", "x"],
                stdout=full,
                stderr=subprocess.PIPE,
                timeout=60,
                env=bare(),
            )
        assert done.returncode == 1
        assert done.stderr.count(b"\n") == 1 and b"No space left on device" in done.stderr
        two = [
            subprocess.Popen([*words, "127.0.0.1", "x"], stdout=subprocess.PIPE, env=bare())
            for _ in range(2)
        ]
        outputs = [process.communicate(timeout=60)[0] for process in two]
        assert outputs[0] == outputs[1] != b""


def test_a_server_whose_events_nobody_reads_serves_on(tmp_path: Path) -> None:
    port = free_port()
    with server("--udp", f"eloquent:{port}", "--tokens", 3, cwd=tmp_path) as child:
        event(child, "ready")
        assert child.stdout is not None
        child.stdout.close()
        child.stdout = None
        assert ask(port).returncode == 0
        child.terminate()
        _, stderr = child.communicate(timeout=20)
    assert (child.returncode, stderr) == (0, "")


def test_few_file_descriptors_are_one_line(tmp_path: Path) -> None:
    """A server that cannot accept says so on one line, and serves again afterwards."""
    port = free_port()
    words = [sys.executable, "-m", "apps.server", "--congestion-control", "reno"]
    script = f"ulimit -n 24; exec {' '.join(words)} --tcp {port} --tokens 3"
    child = subprocess.Popen(
        ["sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=bare(),
    )
    try:
        event(child, "ready")
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(24)]
        assert child.stderr is not None
        assert "Too many open files" in child.stderr.readline()
        for connection in held:
            connection.close()
        time.sleep(1.5)  # asyncio accepts again after a second
        assert ask(port, "--scheme", "tcp").returncode == 0
        child.terminate()
        _, stderr = child.communicate(timeout=20)
        assert "Traceback" not in stderr
    finally:
        child.kill()
        child.communicate()
