"""A clock that was set during the capture: file order is kept; what is merely unsorted is not."""

import json
import struct
import warnings

import numpy as np
import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from analysis.__main__ import main as stalls
from analysis.capture_errors import CaptureWarning
from analysis.delivery import deliveries
from analysis.pcap.clock import on_one_clock
from analysis.pcap.command import main
from analysis.pcap.packet_table import read

MAC = "02:00:00:00:00:01"
SPACING = 0.01


def download(count=84, port=443):
    """Segments of one answer, as frames."""
    for i in range(count):
        record = struct.pack("!I", 96) + b"%04d" % i * 24  # 4 + 96 bytes: a token record
        segment = TCP(sport=port, dport=6000, seq=1 + 100 * i, ack=1, flags="PA")
        ends = IP(src="10.0.0.2", dst="10.0.0.1", id=i + 1)
        yield bytes(Ether(src=MAC, dst=MAC) / ends / segment / Raw(record))


def write(path, times, frames):
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1))
        for time, frame in zip(times, frames, strict=True):
            whole, part = divmod(round(time * 1e6), 10**6)
            file.write(struct.pack("<IIII", whole, part, len(frame), len(frame)) + frame)
    return path


def set_back(times, after, step):
    return [time - step if i >= after else time for i, time in enumerate(times)]


TIMES = [1_700_000_000 + SPACING * i for i in range(84)]


@pytest.mark.parametrize("step", [0.05, 1.0, 7200.0])
def test_the_clock_steps_back(tmp_path, capsys, step):
    path = write(tmp_path / "a.pcap", set_back(TIMES, 42, step), download())
    assert main(["--json", str(path)]) == 1
    captured = capsys.readouterr()
    (flow,) = json.loads(captured.out)["captures"][0]["tcp"]
    assert (flow["repeated"], flow["unseen"], flow["blocked"], flow["bytes"]) == (0, 0, 0, 8400)
    # All but the pause at the step, which nobody knows.
    assert flow["duration"] == pytest.approx(82 * SPACING, abs=1e-5)
    assert captured.err.count("\n") == 1 and captured.err.startswith("warning: ")
    told = step - SPACING
    assert f"the clock was set back after packet 42, by {told:.6g} s or more" in captured.err


def test_the_other_command_says_and_shows_the_same(tmp_path, capsys):
    path = write(tmp_path / "a.pcap", set_back(TIMES, 42, 1.0), download(port=4433))
    assert stalls(["--json", str(path)]) == 1
    captured = capsys.readouterr()
    (answer,) = json.loads(captured.out)["streams"]
    assert answer["tokens"] == 84 and answer["stall_ratio"] == 0
    assert captured.err.count("\n") == 1 and ", by 0.99 s or more" in captured.err
    with pytest.warns(CaptureWarning, match="set back"):
        shown = deliveries(path).tokens["rendered_at"].to_numpy()
    gaps = np.diff(shown)
    assert (gaps >= 0).all() and gaps.max() < SPACING + 1e-5


def test_several_steps(tmp_path):
    times = set_back(set_back(TIMES, 20, 1.0), 60, 0.3)
    with pytest.warns(CaptureWarning, match=r"back 2 times, .* packet 20, most by 0\.99 s or"):
        capture = read(write(tmp_path / "a.pcap", times, download()))
    assert (np.diff(capture.packets["seq"]) > 0).all()


def quiet(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureWarning)
        return read(path)


def test_queues_of_one_card_are_sorted(tmp_path):
    """Microseconds, up to a few milliseconds, are no step of a clock."""
    late = [time - 0.004 * (i % 7 == 3) for i, time in enumerate(TIMES)]
    times = [time - 0.0125 * (i % 9 == 5) for i, time in enumerate(late)]
    capture = quiet(write(tmp_path / "a.pcap", times, download()))
    assert (np.diff(capture.packets["time"]) >= 0).all()
    assert (np.diff(capture.packets["seq"]) < 0).any()  # sorted by time, not by file


def pcapng(path, packets, interfaces=2):
    """(interface, time, frame) in file order."""

    def block(kind, body):
        return struct.pack("<II", kind, 12 + len(body)) + body + struct.pack("<I", 12 + len(body))

    out = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    out += block(1, struct.pack("<HHI", 1, 0, 0)) * interfaces
    for interface, time, frame in packets:
        ticks = round(time * 1e6)
        head = struct.pack("<IIIII", interface, ticks >> 32, ticks & 0xFFFFFFFF, *[len(frame)] * 2)
        out += block(6, head + frame + bytes(-len(frame) % 4))
    path.write_bytes(out)
    return path


def test_interfaces_of_one_file_are_sorted(tmp_path):
    """dumpcap writes what each interface's buffer holds: up to a second, each in order."""
    frames = list(download())
    packets = []
    for first in range(0, 84, 21):
        for interface in (1, 0):
            packets += [
                (interface, TIMES[i], frames[i])
                for i in range(first, first + 21)
                if i % 2 == interface
            ]
    capture = quiet(pcapng(tmp_path / "a.pcapng", packets))
    assert (np.diff(capture.packets["seq"]) > 0).all()


def test_a_step_that_two_interfaces_show(tmp_path):
    times = set_back(TIMES, 42, 1.0)
    both = zip(times, download(), strict=True)
    packets = [(i % 2, time, frame) for i, (time, frame) in enumerate(both)]
    with pytest.warns(CaptureWarning, match=r"set back after packet 42, by 0\.98 s or more"):
        capture = read(pcapng(tmp_path / "a.pcapng", packets))
    assert (np.diff(capture.packets["seq"]) > 0).all()


def test_merged_files_are_sorted(tmp_path):
    """Two sections, the later one first: each has its own interface, and one clock."""
    frames = list(download())
    packets = list(zip([0] * 84, TIMES, frames, strict=True))
    late = pcapng(tmp_path / "late", packets[42:], 1).read_bytes()
    early = pcapng(tmp_path / "early", packets[:42], 1).read_bytes()
    path = tmp_path / "a.pcapng"
    path.write_bytes(late + early)
    assert (np.diff(quiet(path).packets["seq"]) > 0).all()


def test_a_file_in_no_order_is_sorted_and_told(tmp_path):
    rng = np.random.default_rng(1)
    frames, order = list(download()), rng.permutation(84)
    path = write(tmp_path / "a.pcap", [TIMES[i] for i in order], [frames[i] for i in order])
    with pytest.warns(CaptureWarning, match="are in no order, and were sorted") as caught:
        capture = read(path)
    assert len(caught) == 1 and (np.diff(capture.packets["seq"]) > 0).all()


def test_a_single_wrong_stamp_moves_nothing_else():
    """A card that has no time yet writes 0, or an old one; the next packet is right again."""
    time = np.array([1e9, 1e9 + 1, 0.0, 1e9 + 1.2, 1e9 + 2])
    fixed, steps = on_one_clock(time, np.zeros(5, dtype=np.int64))
    assert steps is not None and steps.number == 1 and steps.frames.tolist() == [2]
    assert fixed.tolist() == pytest.approx([1e9, 1e9 + 1, 1e9 + 1, 1e9 + 1.2, 1e9 + 2])


def test_a_clock_set_back_and_forth():
    time = np.array([100.0, 100.1, 99.2, 99.3, 100.25, 100.4])
    fixed, _ = on_one_clock(time, np.zeros(6, dtype=np.int64))
    assert (np.diff(fixed) >= 0).all() and fixed[-1] - fixed[0] == pytest.approx(0.4, abs=0.11)


def test_pauses_are_no_steps():
    time = np.array([0.0, 1.0, 5000.0, 5001.0])
    fixed, steps = on_one_clock(time, np.zeros(4, dtype=np.int64))
    assert fixed is time and steps is None


def test_an_appended_file_is_sorted(tmp_path):
    """Each part has connections of its own."""
    frames = [*download(), *download(port=444)]
    capture = quiet(write(tmp_path / "a.pcap", [*TIMES, *(time - 5 for time in TIMES)], frames))
    assert capture.packets["connection"].tolist() == [0] * 84 + [1] * 84
    assert capture.connections["sport"].tolist() == [444, 443]
