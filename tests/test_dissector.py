"""The Wireshark dissector shows what was encoded: tshark reads it, our own encoder wrote it."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import PcapWriter, wrpcap

from eloquent import wire

MAC = "02:00:00:00:00:01"  # given, or scapy asks the network for it

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "analysis" / "wireshark" / "eloquent.lua"
STREAM = 0x0123456789ABCDEF


pytestmark = pytest.mark.tshark


def frame(content, sport=5000, dport=4433):
    return (
        Ether(src=MAC, dst=MAC)
        / IP(src="10.0.0.1", dst="10.0.0.2")
        / UDP(sport=sport, dport=dport)
        / content
    )


def tshark(path, *arguments):
    command = ["tshark", "-X", f"lua_script:{SCRIPT}", "-r", str(path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "Lua" not in done.stderr and "rror" not in done.stderr, done.stderr
    return done.stdout


def fields(path, *names):
    """The values of fields per packet, several of one name joined by "|"."""
    select = [part for name in names for part in ("-e", f"eloquent.{name}")]
    text = tshark(path, "-T", "fields", "-E", "aggregator=|", *select)
    return [tuple(line.split("\t")) for line in text.splitlines()]


def write(path, *packets):
    wrpcap(str(path), [packet if hasattr(packet, "time") else frame(packet) for packet in packets])
    return path


def test_data(tmp_path):
    path = write(
        tmp_path / "data.pcap",
        wire.encode(wire.Data(STREAM, 7, False, 0, (b"Why?",), wire.Reason.STOP)),
        frame(
            wire.encode(
                wire.Data(STREAM, 2**32 - 1, True, 20000, ("grün".encode(), b"", b"\n"), None, 77)
            ),
            sport=4433,
            dport=5000,
        ),
        wire.encode(wire.Data(STREAM, 0, True, 2**47, (b"x" * 1024,), wire.Reason.CANCELLED)),
    )
    names = ("version", "from_server", "reserved", "kind", "stream_id", "sent_at", "first", "count")
    head = ("0xe2", "0", "0x00", "1", "0x0123456789abcdef")
    first, second, third = fields(path, *names)
    assert first[:1] + first[2:] == (head[0], *head[2:], "7", "0", "1")
    assert second[-3:] == ("4294967295", "20000", "3") and third[-2:] == (str(2**47), "1")
    assert [row[1] in ("1", "True") for row in (first, second, third)] == [False, True, True]
    assert fields(path, "instance") == [("",), ("0x0000004d",), ("0x00000000",)]
    rest = fields(path, "token.index", "token.length", "token", "token.text", "end", "total")
    assert rest[0] == ("0", "4", b"Why?".hex(), "Why?", "1", "1")
    assert rest[1][:3] == ("20000|20001|20002", "5|0|1", "grün".encode().hex() + "|0a")
    assert rest[1][3].startswith("grün|") and rest[1][4:] == ("0", "")
    assert rest[2][1] == "1024" and rest[2][4:] == ("4", str(2**47 + 1))


def test_ack_ping_and_cancel(tmp_path):
    path = write(
        tmp_path / "state.pcap",
        wire.encode(wire.Ack(STREAM, 1, False, 3, 0x80000C80, 120, ((5, 7), (300, 301)))),
        wire.encode(wire.Ack(STREAM, 1, True, 2**48, 5, 2**30, (), True, 0xFF)),
        wire.encode(wire.Cancel(STREAM, 1, True, wire.CancelReason.COMPLETE)),
    )
    instances = fields(path, "instance")
    assert instances == [("",), ("0x000000ff",), ("",)]
    names = ("kind", "next", "echo", "delay", "ranges", "range.gap", "range.length")
    ack, ping, cancel = fields(path, *names, "range.first", "range.last", "reason")
    assert ack == ("2", "3", str(0x80000C80), "120", "2", "2|293", "2|1", "5|300", "6|300", "")
    assert ping == ("3", str(2**48), "5", str(2**30), "0", "", "", "", "", "")
    assert cancel == ("4", *[""] * 8, "4")


def test_examples_of_the_protocol_document(tmp_path):
    text = (ROOT / "docs" / "protocol.md").read_text()
    blocks = re.findall(r"```hex\n(.*?)```", text, re.DOTALL)
    examples = [
        bytes.fromhex("".join(line[:28].strip() + " " for line in block.splitlines()))
        for block in blocks
    ]
    path = write(tmp_path / "examples.pcap", *examples)
    out = fields(path, "kind", "checksum.correct", "malformed", "checksum.wrong")
    assert len(out) == len(blocks) >= 7
    for content, (kind, correct, malformed, wrong) in zip(examples, out, strict=True):
        assert int(kind) == content[1] & 15
        assert correct in ("1", "True") and malformed == wrong == ""


def test_malformed_datagrams_of_the_protocol_document(tmp_path):
    text = (ROOT / "docs" / "protocol.md").read_text()
    block = re.search(r"```malformed\n(.*?)```", text, re.DOTALL)
    assert block is not None
    rows = [line.split(" : ") for line in block[1].splitlines()]
    path = write(tmp_path / "malformed.pcap", *[bytes.fromhex(row[0]) for row in rows])
    layers = [
        packet["_source"]["layers"].get("eloquent")
        for packet in json.loads(tshark(path, "-T", "json"))
    ]
    assert len(layers) == len(rows) > 10
    for (_, reason), layer in zip(rows, layers, strict=True):
        if "not the size" in reason or reason.startswith("version byte"):
            assert layer is None
        elif reason == "the checksum does not match":
            assert "eloquent.checksum.wrong" in json.dumps(layer)
        else:
            said = json.dumps(layer)
            assert "eloquent.malformed" in said and "checksum.wrong" not in said
            assert reason in said


def test_recognised_on_any_port_by_its_checksum(tmp_path):
    good = wire.encode(wire.Cancel(STREAM, 1, True, wire.CancelReason.BUSY))
    broken = good[:-1] + bytes([good[-1] ^ 1])
    path = write(
        tmp_path / "ports.pcap", *[frame(Raw(x), sport=9000, dport=9001) for x in (good, broken)]
    )
    assert [row[0] for row in fields(path, "kind")] == ["4", ""]
    text = tshark(path, "-d", "udp.port==9001,eloquent", "-Y", "eloquent.checksum.wrong")
    assert len(text.splitlines()) == 1


def test_a_snap_length_is_no_fault_of_the_sender(tmp_path):
    content = wire.encode(wire.Data(STREAM, 7, True, 0, (b"a" * 40, b"b" * 40)))
    whole = bytes(frame(Raw(content)))
    path = tmp_path / "cut.pcap"
    for size in range(42 + 14, len(whole)):
        writer = PcapWriter(str(path), linktype=1, append=size > 56)
        writer.write_header(None)
        writer.write_packet(whole[:size], sec=1, usec=0, wirelen=len(whole), caplen=size)
        writer.close()
    out = fields(path, "stream_id", "malformed", "checksum")
    assert len(out) == len(whole) - 56
    assert set(out) == {("0x0123456789abcdef", "", "")}
