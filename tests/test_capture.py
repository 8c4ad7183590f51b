"""The capture process on a veth pair: complete, stamped in time, and readable by others."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from scapy.utils import RawPcapNgReader

from topologies.sandbox import call

pytestmark = pytest.mark.emulation

ROOT = Path(__file__).parents[1]
PORT = 4433
RATE, SECONDS = 5000, 2


class _Process:
    """A running capture and its conversation."""

    def __init__(self, interface: str) -> None:
        command = [sys.executable, "-m", "apps.capture", "--interface", interface]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def end(self) -> int:
        """Close the process's input and return its exit status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(timeout=10)


def _veth() -> subprocess.Popen[bytes]:
    """Make va here, 10.0.0.1, and vb in the namespace of the returned process, 10.0.0.2."""
    other = subprocess.Popen(["unshare", "--net", "sleep", "60"])
    here = Path("/proc/self/ns/net").readlink()
    while Path(f"/proc/{other.pid}/ns/net").readlink() == here:
        time.sleep(0.01)
    inside = f"nsenter --net --target {other.pid}"
    script = f"""
        ip link add va type veth peer name vb
        ip link set vb netns {other.pid}
        ip addr add 10.0.0.1/24 dev va
        ip link set va up
        {inside} ip addr add 10.0.0.2/24 dev vb
        {inside} ip link set vb up
    """
    subprocess.run(["sh", "-ec", script], check=True)
    return other


ECHO = f"""
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)
    s.bind(("", {PORT}))
    print(flush=True)
    while True:
        data, address = s.recvfrom(2048)
        s.sendto(data[:100], address)
"""


def _captured_load(folder: Path) -> dict[str, Any]:
    """Send 1 kB datagrams at RATE, have each answered, and capture both directions."""
    other = _veth()
    inside = ["nsenter", "--net", f"--target={other.pid}"]
    echo = subprocess.Popen([*inside, sys.executable, "-c", ECHO], stdout=subprocess.PIPE)
    assert echo.stdout is not None
    echo.stdout.readline()
    capture = _Process("va")
    started = capture.ask(f"start {folder / 'load.pcapng'}")
    times = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)
        sender.connect(("10.0.0.2", PORT))
        start = time.monotonic()
        for number in range(RATE * SECONDS):
            times.append(time.monotonic())
            sender.send(number.to_bytes(4, "big") + bytes(1020))
            time.sleep(max(0.0, start + number / RATE - time.monotonic()))
        received = 0
        sender.settimeout(1)
        try:
            while True:
                sender.recv(2048)
                received += 1
        except TimeoutError:
            pass
    stopped = capture.ask("stop")
    # A second file by the same process; nothing of the first may be in it.
    capture.ask(f"start {folder / 'second.pcapng'}")
    second = capture.ask("stop")
    status = capture.end()
    for process in (echo, other):
        process.kill()
    return {
        "started": started,
        "stopped": stopped,
        "second": second,
        "status": status,
        "times": times,
        "received": received,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("capture")


@pytest.fixture(scope="module")
def load(folder: Path) -> dict[str, Any]:
    return call(lambda: _captured_load(folder))


def _udp(folder: Path) -> list[tuple[bytes, float, int]]:
    """The frames with our port: bytes, time stamp, direction; read by scapy."""
    reader: Any  # scapy declares less than it returns
    with RawPcapNgReader(str(folder / "load.pcapng")) as reader:
        packets = [
            (frame, ((meta.tshigh << 32) | meta.tslow) / meta.tsresol, meta.direction)
            for frame, meta in reader
        ]
    port = PORT.to_bytes(2, "big")
    # Ethernet 14 bytes, IPv4 20 bytes (protocol at 23), then the ports.
    return [p for p in packets if p[0][23:24] == b"\x11" and port in (p[0][34:36], p[0][36:38])]


def test_5000_packets_a_second_are_captured_without_loss(
    load: dict[str, Any], folder: Path
) -> None:
    count = RATE * SECONDS
    packets = _udp(folder)
    assert load["stopped"]["dropped"] == 0
    assert load["stopped"]["packets"] >= 2 * count
    sent = [frame for frame, _, direction in packets if direction == 2]
    answers = [frame for frame, _, direction in packets if direction == 1]
    # Each direction once, in full length, every single datagram.
    assert [int.from_bytes(frame[42:46], "big") for frame in sent] == [*range(count)]
    assert {len(frame) for frame in sent} == {14 + 20 + 8 + 1024}
    assert len(answers) == count
    assert load["received"] <= count


def test_time_stamps_are_those_of_the_sender(load: dict[str, Any], folder: Path) -> None:
    offset = load["started"]["offset"]
    stamps = [stamp - offset for _, stamp, direction in _udp(folder) if direction == 2]
    late = sorted(stamp - sent for stamp, sent in zip(stamps, load["times"], strict=True))
    assert late[0] > -0.0005
    assert late[len(late) // 2] < 0.001
    assert abs(load["stopped"]["drift"]) < 0.001
    assert load["stopped"]["offset"] == offset


def test_process_takes_further_captures_and_ends_with_its_input(load: dict[str, Any]) -> None:
    assert load["second"]["packets"] == load["second"]["dropped"] == 0
    assert load["status"] == 0


@pytest.mark.tshark
def test_wireshark_reads_the_file(load: dict[str, Any], folder: Path) -> None:
    fields = ["-T", "fields", "-e", "frame.time_epoch", "-e", "frame.interface_name"]
    command = ["tshark", "-r", str(folder / "load.pcapng"), "-c", "20", *fields]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    lines = done.stdout.split("\n")[:-1]
    assert len(lines) == 20
    time_text, name = lines[0].split("\t")
    assert name == "va"
    # Nanoseconds, and not a microsecond padded with zeros, in one at least.
    assert any(not line.split("\t")[0].endswith("000") for line in lines)
    assert abs(float(time_text) - load["started"]["offset"] - load["times"][0]) < 5


def _errors(folder: Path) -> list[dict[str, Any]]:
    other = _veth()
    capture = _Process("va")
    taken = folder / "taken"
    taken.write_text("mine")
    answers = [
        capture.ask("stop"),
        capture.ask("sniff"),
        capture.ask("start"),
        capture.ask(f"start {taken}"),
        capture.ask(f"start {folder / 'no' / 'x'}"),
        capture.ask(f"start {folder / 'running'}"),
        capture.ask(f"start {folder / 'another'}"),
        capture.ask("stop"),
    ]
    capture.end()
    other.kill()
    return answers


def test_wrong_commands_are_answered_and_do_no_harm(tmp_path: Path) -> None:
    answers = call(lambda: _errors(tmp_path))
    wanted = ["no capture is running", "unknown command", "unknown command"]
    wanted += ["exists already", "cannot write", None, "running already", None]
    for answer, text in zip(answers, wanted, strict=True):
        if text is None:
            assert "error" not in answer
        else:
            assert text in answer["error"]
    assert (tmp_path / "taken").read_text() == "mine"


def _full_disk(folder: Path) -> list[dict[str, Any]]:
    other = _veth()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=True)
    capture = _Process("va")
    capture.ask(f"start {folder / 'x'}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(300):
            sender.sendto(bytes(1000), ("10.0.0.2", 9))
            time.sleep(0.001)
    answers = [capture.ask("stop"), capture.ask("stop")]
    answers.append({"status": capture.end()})
    other.kill()
    return answers


def test_full_disk_is_told_at_the_stop(tmp_path: Path) -> None:
    stopped, again, end = call(lambda: _full_disk(tmp_path))
    assert "No space left on device" in stopped["error"]
    assert "no capture is running" in again["error"]
    assert end["status"] == 0


def test_unknown_interface_is_one_clear_line() -> None:
    command = [sys.executable, "-m", "apps.capture", "--interface", "nowhere0"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: no interface 'nowhere0' here: there are lo")
    assert len(done.stderr.splitlines()) == 1
