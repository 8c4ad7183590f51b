"""The link probe over loopback, through a relay that loses what the test wants lost."""

from __future__ import annotations

import json
import math
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.probe import MIN_SIZE, Echo, ProbeError, Prober
from apps.samples import Sample, summarize

ROOT = Path(__file__).parents[1]
# The format, written down again: magic, kind, run, number.
HEADER = struct.Struct("!4sBQI")
PROBE, ECHO, QUERY, REPORT = 0, 1, 2, 3


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """A running ``echo`` process; its port."""
    command = [sys.executable, "-m", "apps.probe", "echo", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["port"]
        process.terminate()


class Relay:
    """Passes datagrams on in both directions, except those that ``lose`` picks."""

    def __init__(self, server: int, lose: Callable[[bytes, bool], bool]) -> None:
        self._server, self._lose = ("127.0.0.1", server), lose
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.1)
        self.port: int = self._socket.getsockname()[1]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        client = None
        while not self._ended.is_set():
            try:
                datagram, address = self._socket.recvfrom(2048)
            except TimeoutError:
                continue
            up = address != self._server
            if up:
                client = address
            if not self._lose(datagram, up):
                self._socket.sendto(datagram, self._server if up else client)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()


def test_nothing_is_lost_on_loopback(server: int) -> None:
    cpu = time.process_time()
    samples = Prober("127.0.0.1", server, count=250, interval=0.002).measure()
    assert time.process_time() - cpu < 0.4
    assert len(samples) == 250
    for sample in samples:
        assert sample.server_arrived_at is not None
        assert sample.returned_at is not None
        # Clock readings of two processes: in order, but for a preempted reading.
        assert sample.sent_at - 1e-3 <= sample.server_arrived_at <= sample.returned_at + 1e-3
    # Absolute deadlines: the pace neither drifts nor depends on the echoes.
    duration = samples[-1].sent_at - samples[0].sent_at
    assert 249 * 0.002 - 0.02 < duration < 249 * 0.002 + 0.2
    summary = summarize(samples)
    assert summary.lost_up == summary.lost_down == 0
    assert summary.rtt_p50 is not None
    assert summary.rtt_p50 < 0.02


def test_losses_are_told_apart_by_direction_though_queries_are_lost_too(server: int) -> None:
    queries = {True: 0, False: 0}

    def lose(datagram: bytes, up: bool) -> bool:
        kind, number = datagram[4], HEADER.unpack_from(datagram)[3]
        if kind in (PROBE, ECHO):
            return number % 10 == 3 if up else number % 10 == 7
        queries[up] += 1
        return queries[up] % 3 != 0

    with Relay(server, lose) as relay:
        samples = Prober("127.0.0.1", relay.port, count=230, interval=0.001, wait=0.3).measure()
    assert [i for i, s in enumerate(samples) if s.server_arrived_at is None] == [*range(3, 230, 10)]
    lost = [i for i, s in enumerate(samples) if s.server_arrived_at and s.returned_at is None]
    assert lost == [*range(7, 230, 10)]
    summary = summarize(samples)
    assert (summary.lost_up, summary.lost_down) == (23, 23)


def test_everything_lost_up_is_a_result_not_an_error(server: int) -> None:
    with Relay(server, lambda datagram, up: up and datagram[4] == PROBE) as relay:
        prober = Prober("127.0.0.1", relay.port, count=20, interval=0.001, wait=0.1)
        summary = summarize(prober.measure())
    assert (summary.lost_up, summary.lost_down, summary.rtt_p50) == (20, 0, None)


def test_silent_server_is_one_clear_error() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        with pytest.raises(ProbeError, match=f"127.0.0.1, UDP port {port} within 0.3 s"):
            Prober("127.0.0.1", port, timeout=0.3).measure()
    with pytest.raises(ProbeError, match="no answer"):
        Prober("127.0.0.1", port, timeout=0.3).measure()  # nobody listens: ICMP errors


@pytest.mark.parametrize(
    "options", [{"count": 0}, {"size": MIN_SIZE - 1}, {"size": 1401}, {"interval": 0.0}]
)
def test_arguments_out_of_range(options: dict[str, float]) -> None:
    with pytest.raises(ProbeError):
        Prober("127.0.0.1", 9, **options)


def test_echo_ignores_foreign_datagrams_and_remembers_the_first_arrival() -> None:
    echo = Echo()
    for foreign in (b"", b"x" * 100, HEADER.pack(b"EqPr", PROBE, 1, 0), b"EqPr\x09" + bytes(30)):
        assert echo.answer(foreign, 1.0) is None
    probe = HEADER.pack(b"EqPr", PROBE, 5, 2) + bytes(20)
    expected = HEADER.pack(b"EqPr", ECHO, 5, 2) + struct.pack("!d", 7.5) + bytes(12)
    assert echo.answer(probe, 7.5) == expected
    assert echo.answer(probe, 8.5) == expected  # a duplicate
    report = echo.answer(HEADER.pack(b"EqPr", QUERY, 5, 1), 9.0)
    assert report is not None
    times = struct.unpack_from("!100d", report, HEADER.size)
    assert math.isnan(times[0])
    assert times[1] == 7.5
    assert all(math.isnan(t) for t in times[2:])


def test_echo_keeps_memory_bounded() -> None:
    echo = Echo()
    for run in range(1000):
        echo.answer(HEADER.pack(b"EqPr", PROBE, run, 0) + bytes(20), 1.0)
    assert len(echo._runs) == 8
    assert echo.answer(HEADER.pack(b"EqPr", PROBE, 1, 2**31) + bytes(20), 1.0) is None


def test_summary_by_hand() -> None:
    # 20 round trips of 1 ms to 20 ms, one probe lost up, two lost down.
    samples = [Sample(i, i + 0.0005, i + k / 1000) for i, k in enumerate(range(20, 0, -1))]
    samples += [Sample(30, None, None), Sample(31, 31.1, None), Sample(32, 32.1, None)]
    summary = summarize(samples)
    assert (summary.count, summary.lost_up, summary.lost_down) == (23, 1, 2)
    assert summary.rtt_min == pytest.approx(0.001)
    assert summary.rtt_p50 == pytest.approx(0.0105)
    assert summary.rtt_p95 == pytest.approx(0.019)
    assert summary.rtt_p99 == pytest.approx(0.020)
    assert summary.rtt_max == pytest.approx(0.020)


def test_command_prints_one_object(server: int) -> None:
    command = [sys.executable, "-m", "apps.probe", "send", "127.0.0.1", "--port", str(server)]
    command += ["--count", "30", "--interval", "0.001", "--size", "100"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    result = json.loads(done.stdout)
    assert result["count"] == len(result["samples"]) == 30
    assert set(result["samples"][0]) == {"sent_at", "server_arrived_at", "returned_at"}


def test_command_measures_once_for_each_line_and_outlives_a_silent_server(server: int) -> None:
    passing = True
    with Relay(server, lambda *_: not passing) as relay:
        command = [sys.executable, "-m", "apps.probe", "send", "127.0.0.1", "--repeat"]
        command += ["--port", str(relay.port), "--count", "20", "--wait", "0.2", "--timeout", "0.5"]
        with subprocess.Popen(
            command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            commands, answers = process.stdin, process.stdout
            assert commands is not None
            assert answers is not None

            def ask() -> Any:
                commands.write("measure\n")
                commands.flush()
                return json.loads(answers.readline())

            assert len(ask()["samples"]) == 20
            passing = False
            assert "no answer" in ask()["error"]
            passing = True
            assert len(ask()["samples"]) == 20
            commands.close()
            assert process.wait(5) == 0


def test_command_reports_a_taken_port(server: int) -> None:
    command = [sys.executable, "-m", "apps.probe", "echo", "--port", str(server)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot listen at UDP port")
    assert len(done.stderr.splitlines()) == 1
