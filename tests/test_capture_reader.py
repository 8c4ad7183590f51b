"""Captures written by scapy, read back: formats, links, protocols, damage."""

import gzip
import struct
import warnings

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment
from scapy.layers.l2 import ARP, CookedLinux, CookedLinuxV2, Dot1Q, Ether
from scapy.packet import Raw
from scapy.utils import RawPcapWriter, wrpcap, wrpcapng

from analysis.capture_reader import (
    PACKET_COLUMNS,
    CaptureError,
    CaptureWarning,
    Counts,
    frames,
    host_packets,
    packets,
    transport,
)
from eloquent import wire

CLIENT, SERVER = "10.0.0.1", "10.0.0.2"
DATA = wire.encode(wire.Data(0xAB, 1, True, 3, (b"Hi", b" you"), wire.Reason.LENGTH))
ACK = wire.encode(wire.Ack(0xAB, 1, False, 6, 1))
PING = wire.encode(wire.Ack(0xAB, 1, True, 1, 0, asks=True))


def down(payload=DATA, link=None):
    return (link or Ether()) / IP(src=SERVER, dst=CLIENT) / UDP(sport=4433, dport=5000) / payload


def up(payload=ACK):
    return Ether() / IP(src=CLIENT, dst=SERVER) / UDP(sport=5000, dport=4433) / payload


def at(time, packet):
    packet.time = time
    return packet


@pytest.fixture(autouse=True)
def no_warnings():
    """What reads without damage says nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureWarning)
        yield


def test_table_of_packets(tmp_path):
    path = tmp_path / "a.pcap"
    segment = TCP(sport=4433, dport=6000, seq=7, ack=9, flags="PA")
    wrpcap(
        str(path),
        [
            at(10.25, down()),
            at(10.5, up()),
            at(10.75, down(PING)),
            at(11.0, Ether() / IP(src=SERVER, dst=CLIENT) / segment / b"1234"),
            at(11.5, Ether() / ARP()),
            at(12.0, down(b"\xe1 is not all it takes")),
        ],
    )
    counts = Counts()
    table = packets(path, counts)
    assert counts == Counts(packets=6, udp=4, tcp=1, other=1, kinds={0x0806: 1})
    assert counts.others == "1 frame of ARP"
    assert table["time"].tolist() == [10.25, 10.5, 10.75, 11.0, 12.0]
    assert table["kind"].tolist() == ["data", "ack", "ping", "", ""]
    assert table["stream"][0] == f"{0xAB:016x}"
    assert table["from_server"].tolist() == [True, False, True, False, False]
    assert table.loc[0, ["first", "count", "end", "next"]].tolist() == [3, 2, 2, -1]
    assert table["next"].tolist() == [-1, 6, 1, -1, -1]
    assert table["payload"].tolist()[:4] == [len(DATA), len(ACK), len(PING), 4]
    assert table["size"].tolist()[0] == 14 + 20 + 8 + len(DATA)
    assert table.loc[3, ["protocol", "seq", "ack", "flags"]].tolist() == ["tcp", 7, 9, 0x18]
    assert table.loc[0, ["source", "sport", "destination", "dport"]].tolist() == [
        *(SERVER, 4433, CLIENT, 5000)
    ]


def test_one_host_of_a_results_folder(tmp_path):
    path = tmp_path / "a.pcapng"
    probe = Ether() / IP(src=CLIENT, dst=SERVER) / UDP(sport=9, dport=4999) / b"probe"
    wrpcapng(str(path), [at(100.0, up()), at(100.1, probe), at(100.5, down())])
    about = {"scenario": "wifi_loss", "scheme": "eloquent", "run": 3, "port": 4433, "zero": 100.0}
    table = host_packets(path, host="client", **about)
    assert list(table) == PACKET_COLUMNS
    assert table["direction"].tolist() == ["sent", "received"]
    assert table["time"].tolist() == pytest.approx([0.0, 0.5])
    assert set(table["run"]) == {3} and set(table["host"]) == {"client"}
    table = host_packets(path, host="server", **about)
    assert table["direction"].tolist() == ["received", "sent"]


@pytest.mark.parametrize(
    "packet",
    [
        Ether() / Dot1Q(vlan=5) / IP() / UDP(sport=1, dport=2) / b"x",
        Ether() / Dot1Q(vlan=5) / Dot1Q(vlan=6) / IPv6() / UDP(sport=1, dport=2) / b"x",
        CookedLinux() / IP() / UDP(sport=1, dport=2) / b"x",
        CookedLinuxV2(proto=0x0800) / IP() / UDP(sport=1, dport=2) / b"x",
        IP() / UDP(sport=1, dport=2) / b"x",
        IPv6(src="fd00::1") / UDP(sport=1, dport=2) / b"x",
        Ether() / IPv6() / IPv6ExtHdrDestOpt() / UDP(sport=1, dport=2) / b"x",
        Ether() / IPv6() / IPv6ExtHdrFragment(offset=0, m=0) / UDP(sport=1, dport=2) / b"x",
        Ether() / IP(options=[b"\x01" * 4]) / UDP(sport=1, dport=2) / b"x",
        Ether() / (IP(bytes(IP() / UDP(sport=1, dport=2) / b"x"))) / Raw(b"\0" * 17),  # padding
    ],
    ids=["vlan", "qinq6", "sll", "sll2", "raw4", "raw6", "destopt", "atomic", "options", "padded"],
)
def test_links_and_headers(tmp_path, packet):
    path = tmp_path / "a.pcap"
    wrpcap(str(path), [packet])
    (found,) = transport(path)
    assert (found.protocol, found.source[1], found.destination[1]) == ("udp", 1, 2)
    assert found.payload == b"x"


def test_fragments_are_counted_not_read(tmp_path):
    path = tmp_path / "a.pcap"
    v6 = Ether() / IPv6() / IPv6ExtHdrFragment(offset=0, m=1, nh=17) / UDP(sport=1, dport=2)
    more = Ether() / IP(flags="MF") / UDP(sport=1, dport=2) / (b"x" * 8)
    rest = Ether() / IP(frag=1, proto=17) / (b"y" * 8)
    wrpcap(str(path), [more, rest, v6 / b"x", down()])
    counts = Counts()
    assert len(list(transport(path, counts))) == 1
    assert counts.fragments == 3 and counts.udp == 1


def test_nanoseconds_and_gzip(tmp_path):
    wrpcap(str(tmp_path / "ns.pcap"), [at(5.000000125, down())], nano=True)
    frame = bytes(down())
    # A pcapng section by hand: 10^-9 s resolution (option 9), seconds since 1970 beyond 32 bits.
    ticks = 1_700_000_000_123_456_789
    idb = struct.pack("<HHIHHB3xHH", 1, 0, 0, 9, 1, 9, 0, 0)
    head = struct.pack("<5I", 0, ticks >> 32, ticks & 0xFFFFFFFF, len(frame), len(frame))
    epb = head + frame + bytes(-len(frame) % 4)
    shb = struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)

    def block(kind, body):
        return struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)

    content = block(0x0A0D0D0A, shb) + block(1, idb) + block(6, epb)
    (tmp_path / "ns.pcapng.gz").write_bytes(gzip.compress(content))
    assert next(frames(tmp_path / "ns.pcap")).time == pytest.approx(5.000000125, abs=1e-12)
    read = next(frames(tmp_path / "ns.pcapng.gz"))
    assert read.time == pytest.approx(1_700_000_000.123456789, abs=3e-7)  # a float's resolution
    assert read.data == frame


@pytest.mark.parametrize("form", ["pcap", "pcapng", "pcap.gz"])
def test_truncated_files_give_what_is_readable(tmp_path, form):
    whole = tmp_path / "whole"
    write = wrpcapng if form == "pcapng" else wrpcap
    write(str(whole), [at(float(second), down()) for second in range(5)])
    content = whole.read_bytes()
    start = 24 if form != "pcapng" else content.index(struct.pack("<I", 6), 40)
    size = (len(content) - start) // 5
    path = tmp_path / f"cut.{form}"
    for lost in (1, 10, size - 17, size - 5, size + 3):
        cut = content[: len(content) - lost]
        if form.endswith("gz"):
            # Stored, not compressed, so that the cut falls where it is meant to.
            path.write_bytes(gzip.compress(content, 0)[: -8 - lost])
        else:
            path.write_bytes(cut)
        expected = 4 if lost < size else 3
        with pytest.warns(CaptureWarning, match=f"{expected} packets were read") as caught:
            assert len(list(frames(path))) == expected
        assert len(caught) == 1
    if not form.endswith("gz"):  # ends between two packets: nothing is known to be missing
        path.write_bytes(content[:-size])
        assert len(list(frames(path))) == 4


def test_damage_in_the_middle(tmp_path):
    path = tmp_path / "a.pcapng"
    wrpcapng(str(path), [down()] * 3)
    content = bytearray(path.read_bytes())
    second = content.index(struct.pack("<I", 6), content.index(struct.pack("<I", 6), 40) + 60)
    for length in (3, 0xFFFFFFF0, 0x00010000, 40):
        struct.pack_into("<I", content, second + 4, length)
        path.write_bytes(content)
        with pytest.warns(CaptureWarning, match=r"1 packets were read|2 packets were read"):
            assert 1 <= len(list(frames(path))) <= 2


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "is empty"),
        (b"hello world, I am text", "no capture: it starts with bytes 68 65 6c 6c 6f 20 77 6f"),
        (b"\xd4\xc3", "no capture"),
        (b"\xd4\xc3\xb2\xa1\x02\x00", "no capture"),
        (b"\x0a\x0d\x0d\x0a\x1c\x00", "no capture"),
        (gzip.compress(b"hello", mtime=0), "no capture"),
        (gzip.compress(b"hello" * 9, mtime=0)[:12], "no capture"),
    ],
)
def test_no_capture_is_one_line(tmp_path, content, line):
    path = tmp_path / "a.pcap"
    path.write_bytes(content)
    with pytest.raises(CaptureError, match=line) as error:
        list(frames(path))
    assert "\n" not in str(error.value) and str(path) in str(error.value)


def test_missing_files_and_folders(tmp_path):
    for path in (tmp_path / "none.pcap", tmp_path):
        with pytest.raises(CaptureError, match="cannot read"):
            list(frames(path))


def test_snap_length_and_unknown_links_are_told(tmp_path):
    path = tmp_path / "a.pcap"
    frame = bytes(down())
    with RawPcapWriter(str(path), linktype=1) as writer:
        writer.write_header(None)
        writer.write_packet(frame[:50], sec=1, usec=0, caplen=50, wirelen=len(frame))
    with pytest.warns(CaptureWarning, match="1 packets were captured only in part"):
        table = packets(path)
    assert table["payload"][0] == len(DATA) and table["kind"][0] == ""
    other = tmp_path / "b.pcap"
    with RawPcapWriter(str(other), linktype=147) as writer:
        writer.write_header(None)
        writer.write_packet(frame, sec=1, usec=0)
        writer.write_packet(frame, sec=1, usec=0)
    with pytest.warns(CaptureWarning, match="link type 147 are left out") as caught:
        assert packets(other).empty
    assert len(caught) == 1


def test_garbage_frames_are_skipped(tmp_path):
    path = tmp_path / "a.pcap"
    frame = bytes(down())
    with RawPcapWriter(str(path), linktype=1) as writer:
        writer.write_header(None)
        for cut in range(1, 43):
            writer.write_packet(frame[:cut], sec=1, usec=0)
    counts = Counts()
    with pytest.warns(CaptureWarning, match="in part"):
        found = list(transport(path, counts))
    assert counts.packets == 42 and len(found) + counts.other == 42
    assert [len(packet.payload) for packet in found] == [0] * len(found)
