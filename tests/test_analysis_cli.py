"""`python -m analysis`: tables, JSON, exit status, and one line for every mistake."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from analysis.__main__ import main
from analysis.results import ResultsFolder
from analysis.summary import MEASURES
from eloquent import records, wire

CLIENT, SERVER = "10.0.0.1", "10.0.0.2"


def at(time, packet):
    packet.time = time
    return packet


def answer() -> list:
    """Asked at 1.0; tokens at 2.0, 2.1, 2.6, 2.7: gaps 0.1, 0.5, 0.1, of which 0.3 s in 0.7."""

    def udp(time, source, destination, ports, message):
        addresses = IP(src=source, dst=destination) / UDP(sport=ports[0], dport=ports[1])
        return at(time, Ether() / addresses / wire.encode(message))

    packets = [
        udp(1.0, CLIENT, SERVER, (5000, 4433), wire.Data(7, 0, False, 0, (b"?",), wire.Reason.STOP))
    ]
    for index, time in enumerate((2.0, 2.1, 2.6, 2.7)):
        end = wire.Reason.STOP if index == 3 else None
        data = wire.Data(7, 0, True, index, (b"word",), end)
        packets.append(udp(time, SERVER, CLIENT, (4433, 5000), data))
    return packets


def tcp_answer() -> list:
    head = Ether() / IP(src=SERVER, dst=CLIENT)
    sends = [(3.0, 1, records.encode(b"a")), (4.0, 6, records.encode(b"b"))]
    return [
        at(t, head / TCP(sport=4433, dport=6000, seq=seq, flags="PA") / b) for t, seq, b in sends
    ]


@pytest.fixture
def capture(tmp_path):
    path = tmp_path / "client.pcap"
    wrpcap(str(path), answer() + tcp_answer())
    return path


def test_table(capture, capsys):
    assert main([str(capture)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    row = next(line for line in captured.out.splitlines() if "eloquent" in line)
    # 0.3 / 0.7 = 42.9%; one gap of three; P95 = 0.1 + 0.9 * 0.4; TTFT 1 s.
    assert row.split() == [
        *("client.pcap", "eloquent", f"{7:016x}", "4", "yes", "700", "42.9", "33.3"),
        *("100/460/492", "1000"),
    ]
    row = next(line for line in captured.out.splitlines() if "tcp" in line)
    assert row.split()[3:6] == ["2", "no", "1000"] and row.split()[-1] == "-"


def test_json_and_theta(capture, capsys):
    assert main(["--json", "--theta", "0.45", str(capture)]) == 0
    streams = json.loads(capsys.readouterr().out)["streams"]
    assert [stream["scheme"] for stream in streams] == ["eloquent", "tcp"]
    assert streams[0]["stall_ratio"] == pytest.approx(0.05 / 0.7)
    assert streams[0]["complete"] is True and streams[0]["total"] == 4
    assert streams[1]["ttft"] is None and streams[1]["total"] is None


def test_truncated_capture_is_used_and_told(capture, tmp_path, capsys):
    content = capture.read_bytes()
    capture.write_bytes(content[:-10])
    assert main([str(capture)]) == 1
    captured = capsys.readouterr()
    assert "eloquent" in captured.out
    assert captured.err.startswith("warning: ") and "6 packets were read" in captured.err
    capture.write_bytes(content[:60])
    assert main([str(capture)]) == 2
    assert "0 packets" in capsys.readouterr().err


def test_mistakes_are_one_line_each(capture, tmp_path, capsys):
    web = tmp_path / "web.pcap"
    head = Ether() / IP(src=SERVER, dst=CLIENT)
    dns, http = (
        UDP(sport=53, dport=9) / b"dns",
        TCP(sport=80, dport=9, flags="PA") / b"HTTP/1.1 200",
    )
    more = TCP(sport=80, dport=9, seq=12, flags="PA") / b"\r\n"
    wrpcap(str(web), [head / dns, head / http, head / more])
    text = tmp_path / "notes.txt"
    text.write_text("just some notes")
    empty = tmp_path / "empty.pcap"
    empty.touch()
    for path, line in (
        (web, f"no Eloquent or token-record streams found in {web}: 3 packets, 1 UDP, 2 TCP"),
        (text, "is no capture: it starts with bytes 6a 75 73 74"),
        (empty, "is empty"),
        (tmp_path / "none.pcap", "No such file or directory"),
        (tmp_path, "is no results folder"),
    ):
        assert main([str(path)]) == 2
        captured = capsys.readouterr()
        assert line in captured.err and captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1 and captured.out == ""
    # The good ones among several are still shown.
    assert main([str(web), str(capture)]) == 2
    assert "eloquent" in capsys.readouterr().out


@pytest.mark.parametrize("theta", ["-1", "nan", "inf", "fast", "200"])
def test_theta_must_be_a_time(capture, theta, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([f"--theta={theta}", str(capture)])
    assert stopped.value.code == 2 and "error: --theta: " in capsys.readouterr().err


def test_results_folder(tmp_path, capsys):
    folder = ResultsFolder.create(tmp_path / "a")
    assert main([str(folder.path)]) == 2
    assert "holds no finished run" in capsys.readouterr().err
    for scheme, stall in (("tcp", 0.4), ("eloquent", 0.1)):
        for run in (0, 1):
            labels = {"scenario": "clean", "scheme": scheme, "run": run, "seed": 1, "link": "user"}
            folder.append_summary(labels | dict.fromkeys(MEASURES, 0) | {"stall_ratio": stall})
    assert main([str(folder.path)]) == 0
    assert "75.0 [75, 75]" in capsys.readouterr().out
    assert main(["--json", str(folder.path)]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["schemes"]["tcp"]["stall_ratio"] == {"mean": 0.4, "ci95": 0.0, "n": 2}
    assert main(["--theta", "0.3", str(folder.path)]) == 2
    assert "--theta is for captures" in capsys.readouterr().err


def test_as_a_command(capture):
    def run(*arguments):
        command = [sys.executable, "-m", "analysis", *arguments]
        root = Path(__file__).parents[1]
        return subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)

    done = run("--help")
    assert done.returncode == 0 and "examples:" in done.stdout
    done = run(str(capture), str(capture.parent / "none"))
    assert done.returncode == 2 and "eloquent" in done.stdout and "Traceback" not in done.stderr
