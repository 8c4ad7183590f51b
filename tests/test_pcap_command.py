"""`python -m analysis.pcap`: tables, JSON, exit status, one line for every mistake, and speed."""

import contextlib
import gzip
import io
import json
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import rdpcap, wrpcap

from analysis.pcap.command import main
from eloquent import wire

MAC = "02:00:00:00:00:01"  # given, or scapy asks the network for it
CLIENT, SERVER = "10.0.0.1", "10.0.0.2"


def at(time, packet, to_client=True):
    ends = (SERVER, CLIENT) if to_client else (CLIENT, SERVER)
    packet = Ether(src=MAC, dst=MAC) / IP(src=ends[0], dst=ends[1]) / packet
    packet.time = time
    return packet


@pytest.fixture
def capture(tmp_path):
    """Eloquent tokens at 2.0, 2.1, 2.6, 2.7; TCP with a hole of 100 ms; a QUIC datagram."""
    packets = []
    for index, when in enumerate((2.0, 2.1, 2.6, 2.7)):
        end = wire.Reason.STOP if index == 3 else None
        data = wire.encode(wire.Data(7, 0, True, index, (b"word",), end))
        packets.append(at(when, UDP(sport=4433, dport=5000) / Raw(data)))
    for when, seq in ((3.0, 1), (3.1, 11), (3.2, 6)):
        packets.append(at(when, TCP(sport=80, dport=6000, seq=seq, flags="PA") / Raw(b"HTTP!")))
    initial = b"\xc0\0\0\0\1" + bytes(60)
    packets.append(at(4.0, UDP(sport=7000, dport=443) / Raw(initial), to_client=False))
    wrpcap(str(tmp_path / "client.pcap"), packets)
    return tmp_path / "client.pcap"


def test_tables(capture, capsys):
    assert main([str(capture)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = [line.split() for line in captured.out.splitlines()]
    assert "8 packets, 3 TCP, 5 UDP, 0 IP fragments, 0 other" in captured.out
    # 0.3 s too long in 0.7; one gap of three is longer than 200 ms.
    (row,) = (line for line in lines if "eloquent" in line)
    assert row[4:] == ["4", "yes", "4", "0", "700", "42.9", "33.3", "100/460/492", "-"]
    (row,) = (line for line in lines if line and line[0] == "tcp")
    assert row[3:9] == ["client", "3", "15", "0", "1", "0"] and row[10:12] == ["100", "100/100/100"]
    (row,) = (line for line in lines if f"{CLIENT}:7000" in line)
    assert row[2:6] == ["server", "1", "65", "1"]
    # What a proxy is, and what is hidden, is said.
    told = " ".join(captured.out.split())
    assert "a proxy, as tokens are not visible" in told and "Without keys only headers" in told


def test_json_and_theta(capture, capsys):
    assert main(["--json", "--theta", "0.45", str(capture), str(capture)]) == 0
    first, second = json.loads(capsys.readouterr().out)["captures"]
    assert first == second and first["packets"] == 8 and first["damaged"] is False
    assert first["streams"][0]["stall_ratio"] == pytest.approx(0.05 / 0.7)
    assert first["streams"][0]["ttft"] is None
    assert first["tcp"][0]["blocked"] == pytest.approx(0.1)
    assert first["quic"][0]["initial"] == 1


def test_tcp_alone_and_udp_alone(tmp_path, capsys):
    for name, packet in (("tcp", TCP(sport=80, dport=6000)), ("udp", UDP(sport=53, dport=6000))):
        wrpcap(str(tmp_path / name), [at(1, packet / Raw(b"x")), at(2, packet)])
        assert main([str(tmp_path / name)]) == 0
        out = capsys.readouterr().out
        assert ("TCP and TLS" if name == "tcp" else "No Eloquent, no TCP data") in out
        assert main(["--json", str(tmp_path / name)]) == 0
        (found,) = json.loads(capsys.readouterr().out)["captures"]
        assert len(found["tcp"]) == (name == "tcp") and found["streams"] == found["quic"] == []
        assert len(found["udp"]) == (name == "udp")


def test_udp_that_is_neither_eloquent_nor_quic(capture, capsys):
    # What began before the capture, or is OpenVPN, has the fixed bit at most.
    vpn = [
        at(20 + i, UDP(sport=7000, dport=443) / Raw(b"\x48" + bytes(60)), False) for i in range(12)
    ]
    path = capture.parent / "vpn.pcap"
    wrpcap(str(path), [*rdpcap(str(capture))[:7], *vpn])
    assert main([str(path)]) == 0
    out = capsys.readouterr().out
    (row,) = (line.split() for line in out.splitlines() if f"{CLIENT}:7000" in line)
    assert "Other UDP" in out and row[2:6] == ["server", "12", "732", "61/61"]
    assert main(["--json", str(path)]) == 0
    (found,) = json.loads(capsys.readouterr().out)["captures"]
    assert (len(found["streams"]), len(found["quic"]), len(found["udp"])) == (1, 0, 1)
    assert found["udp"][0]["gap_p50"] == pytest.approx(1.0)
    assert main(["--json", "--quic", "4000", "--quic", "443", str(path)]) == 0
    (found,) = json.loads(capsys.readouterr().out)["captures"]
    assert found["quic"][0]["short"] == 12 and found["udp"] == []


def test_rows(capture, capsys):
    packets = [at(i, TCP(sport=80, dport=6000 + i, seq=1) / Raw(b"x")) for i in range(30)]
    path = capture.parent / "many.pcap"
    wrpcap(str(path), packets)
    assert main([str(path)]) == 0
    assert "the first 20 of 30 rows" in capsys.readouterr().out
    assert main(["--rows", "0", str(path)]) == 0
    assert capsys.readouterr().out.count("10.0.0.2:80") == 30


def test_both_ends(capture, tmp_path, capsys):
    def packets(skew, lost=()):
        for i in range(10):
            datagram = UDP(sport=4433, dport=5000) / Raw(b"down %d" % i)
            if i not in lost:
                yield at(1 + i + skew, datagram)
        for i in range(10):
            yield at(1.5 + i - skew, UDP(sport=5000, dport=4433) / Raw(b"up %d" % i), False)

    for name, skew, lost in (("here", 0.02, (4, 5)), ("there", 0, ())):
        wrpcap(str(tmp_path / name), sorted(packets(skew, lost), key=lambda packet: packet.time))
    paths = [str(tmp_path / "here"), str(tmp_path / "there")]
    assert main(["--both-ends", *paths]) == 0
    out = capsys.readouterr().out
    (row,) = (line.split() for line in out.splitlines() if "10.0.0.2:4433  10.0.0.1:5000" in line)
    assert row[:3] == ["B", "→", "A"] and row[6:11] == ["10", "2", "20.0", "1", "2.0/2"]
    assert "if the fastest packets took equally long both ways" in " ".join(out.split())
    assert main(["--json", "--both-ends", *paths]) == 0
    found = json.loads(capsys.readouterr().out)["both_ends"]
    assert found["matched"] == 18 and found["directions"][2]["run_lengths"] == {"2": 1}
    assert main(["--both-ends", paths[0], str(capture)]) == 2
    captured = capsys.readouterr()
    assert "no packet in common" in captured.err and captured.err.count("\n") == 1
    with pytest.raises(SystemExit) as stopped:
        main(["--both-ends", paths[0]])
    assert stopped.value.code == 2


def test_damage_is_told_and_used(capture, capsys):
    content = capture.read_bytes()
    capture.write_bytes(content[:-10])
    assert main([str(capture)]) == 1
    captured = capsys.readouterr()
    assert "eloquent" in captured.out and captured.err.count("\n") == 1
    assert captured.err.startswith("warning: ") and "7 packets were read" in captured.err


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.lists(st.tuples(st.integers(24, 10_000), st.integers(0, 255)), max_size=30),
    st.integers(0, 3),
)
def test_damaged_bytes_never_end_in_a_traceback(capture, changes, how):
    content = bytearray(capture.read_bytes())
    for place, value in changes:
        content[24 + place % (len(content) - 24)] = value
    broken = capture.with_name("broken")
    broken.write_bytes(gzip.compress(content, 1) if how == 3 else content)
    arguments = [[], ["--json"], ["--both-ends", str(capture)], []][how]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main([*arguments, str(broken)]) in (0, 1, 2)


def test_mistakes_are_one_line_each(capture, tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("just some notes")
    (tmp_path / "empty.pcap").touch()
    (tmp_path / "header.pcap").write_bytes(capture.read_bytes()[:24])
    for name, line in (
        ("notes.txt", "is no capture: it starts with bytes 6a 75 73 74"),
        ("empty.pcap", "is empty"),
        ("none.pcap", "No such file or directory"),
        ("header.pcap", "no TCP or UDP packets found in"),
        (".", "Is a directory"),
    ):
        for arguments in ([], ["--both-ends", str(capture)]):
            assert main([*arguments, str(tmp_path / name)]) == 2
            captured = capsys.readouterr()
            assert line in captured.err and captured.err.startswith("error: ")
            assert captured.err.count("\n") == 1 and captured.out == ""
    # The good ones among several are still shown.
    assert main([str(tmp_path / "none"), str(capture)]) == 2
    assert "eloquent" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--theta=-1", "--theta=nan", "--theta=x", "--rows=-1"])
def test_options_must_be_numbers(capture, option, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([option, str(capture)])
    captured = capsys.readouterr().err
    assert stopped.value.code == 2 and captured.count("\n") == 1
    assert option.split("=")[0] in captured and option.split("=")[1] in captured


def test_theta_is_a_quantity_as_everywhere(capture, capsys):
    assert main(["--json", "--theta=50ms", str(capture)]) == 0
    with_unit = capsys.readouterr().out
    assert main(["--json", "--theta=0.05", str(capture)]) == 0
    assert capsys.readouterr().out == with_unit


def test_a_name_with_a_line_break_stays_on_its_line(capture, capsys):
    odd = capture.with_name("two\nlines\x1b[31m.pcap")
    odd.write_bytes(capture.read_bytes())
    assert main([str(odd)]) == 0
    assert "two\\nlines\\x1b[31m.pcap: " in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize("port", ["0", "65536", "https", "-1", "443,8443"])
def test_a_port_must_be_one(capture, port, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([f"--quic={port}", str(capture)])
    assert stopped.value.code == 2
    assert f"{port!r} is no port from 1 to 65535" in capsys.readouterr().err


def run(*arguments):
    return run_python("-m", "analysis.pcap", *map(str, arguments))


def run_python(*arguments):
    command = [sys.executable, *arguments]
    root = Path(__file__).parents[1]
    return subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)


def test_as_a_command(capture):
    done = run("--help")
    assert done.returncode == 0 and "examples:" in done.stdout
    done = run(capture, capture.parent / "none")
    assert done.returncode == 2 and "eloquent" in done.stdout and "Traceback" not in done.stderr


def million(path, count=1_000_000, size=100, flows=50):
    """TCP segments of `size` bytes, 0.1 ms apart, of which one in 50 is lost and comes later."""
    frame = 14 + 20 + 20 + size
    rows = np.zeros((count, 16 + frame), dtype=np.uint8)
    number = np.arange(count)
    heads = np.empty((count, 4), dtype="<u4")
    heads[:, 0], heads[:, 1] = 1_700_000_000 + number // 10_000, number % 10_000 * 100
    heads[:, 2:] = frame
    rows[:, :16] = heads.view(np.uint8)
    rows[:, 28], rows[:, 30], rows[:, 39] = 8, 0x45, 6
    rows[:, 32:34] = np.frombuffer(struct.pack(">H", frame - 14), np.uint8)
    rows[:, 34:36] = number.astype(">u2")[:, None].view(np.uint8)
    rows[:, 42:46], rows[:, 46:50] = (10, 0, 0, 2), (10, 0, 0, 1)
    rows[:, 50:52] = np.frombuffer(struct.pack(">H", 443), np.uint8)
    rows[:, 52:54] = (20_000 + number % flows).astype(">u2")[:, None].view(np.uint8)
    place, turn = number // flows, number // flows % 50
    place[(turn >= 20) & (turn < 25)] += 1  # the hole is filled five segments later
    place[turn == 25] -= 5
    rows[:, 54:58] = (place * size).astype(">u4")[:, None].view(np.uint8)
    rows[:, 62], rows[:, 63] = 0x50, 0x18
    rows[:, 70:] = np.random.default_rng(1).integers(0, 256, (count, size), dtype=np.uint8)
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        rows.tofile(file)


def test_a_million_packets(tmp_path):
    million(tmp_path / "million.pcap")
    start = time.monotonic()
    script = (
        "from pathlib import Path; from analysis.pcap.command import main;"
        f"main(['--json', {str(tmp_path / 'million.pcap')!r}]);"
        "status = Path('/proc/self/status').read_text();"
        "import sys; print(status.split('VmHWM:')[1].split()[0], file=sys.stderr)"
    )
    done = run_python("-c", script)
    elapsed = time.monotonic() - start
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["captures"]
    assert found["packets"] == found["tcp_packets"] == 1_000_000 and len(found["tcp"]) == 50
    # 20000 segments each, one in fifty fills a hole 25 ms later.
    assert {row["resent"] for row in found["tcp"]} == {400}
    assert {row["bytes"] for row in found["tcp"]} == {2_000_000}
    assert elapsed < 30, f"{elapsed:.1f} s"  # 5 s on two idle cores
    assert int(done.stderr) < 1 << 20, f"{done.stderr} kB"
