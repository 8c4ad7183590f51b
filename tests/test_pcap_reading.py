"""Captures of every kind give the packets that were written, and broken ones what is left."""

import gzip
import struct
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop
from scapy.layers.l2 import CookedLinux, CookedLinuxV2, Dot1Q, Ether
from scapy.packet import Raw
from scapy.utils import PcapNgWriter, PcapWriter

from analysis.capture_file import CaptureError, CaptureWarning
from analysis.headers import Packet, Skipped, endpoint
from analysis.headers import parse as parse_one
from analysis.pcap.bulk_headers import parse
from analysis.pcap.frame_index import Index
from analysis.pcap.packet_table import ends, read

MAC = "02:00:00:00:00:01"  # given, or scapy asks the network for it

UDP4 = IP(src="10.0.0.1", dst="10.0.0.2", id=7) / UDP(sport=5000, dport=4433) / Raw(b"hello")
TCP6 = (
    IPv6(src="fd00::1", dst="fd00::2")
    / TCP(sport=6000, dport=443, seq=2**32 - 2, ack=9, flags="PA")
    / Raw(b"abc")
)


def at(time, packet):
    packet.time = time
    return packet


def write(path, packets, linktype=1, **options):
    with PcapWriter(str(path), linktype=linktype, **options) as writer:
        writer.write_header(None)
        for number, packet in enumerate(packets):
            packet.time = getattr(packet, "when", 1_700_000_000.25 + number)
            writer.write_packet(bytes(packet), sec=int(packet.time), usec=250_000)
    return path


def check(capture, start=1_700_000_000.25):
    """That a capture holds UDP4 and TCP6."""
    udp, tcp = capture.packets.to_dict("records")
    assert (udp["protocol"], udp["ip_id"], udp["length"], udp["captured"]) == (17, 7, 5, 5)
    assert (tcp["protocol"], tcp["ip_id"], tcp["length"]) == (6, -1, 3)
    assert (tcp["seq"], tcp["ack"], tcp["flags"]) == (2**32 - 2, 9, 0x18)
    assert (udp["seq"], udp["ack"], udp["flags"]) == (-1, -1, -1)
    assert udp["time"] == pytest.approx(start, abs=1e-6)
    assert tcp["time"] == pytest.approx(start + 1, abs=1e-6)
    assert udp["to_server"] and tcp["to_server"]
    assert ends(capture.connections).to_numpy().tolist() == [
        ["10.0.0.1:5000", "10.0.0.2:4433"],
        ["[fd00::1]:6000", "[fd00::2]:443"],
    ]
    contents = [bytes(content) for _, content in capture.contents(np.arange(2))]
    assert contents == [b"hello", b"abc"]


@pytest.mark.parametrize("options", [{}, {"endianness": ">"}, {"nano": True}])
def test_classic(tmp_path, options):
    path = write(
        tmp_path / "a.pcap",
        [Ether(src=MAC, dst=MAC) / UDP4, Ether(src=MAC, dst=MAC) / TCP6],
        **options,
    )
    # In a nanosecond file the same number is a thousand times less.
    check(read(path), 1_700_000_000.25 if "nano" not in options else 1_700_000_000.00025)


@pytest.mark.parametrize(
    ("linktype", "head"),
    [
        (1, Ether(src=MAC, dst=MAC) / Dot1Q(vlan=3)),
        (1, Ether(src=MAC, dst=MAC, type=0x88A8) / Dot1Q(vlan=3) / Dot1Q(vlan=4)),
        (101, None),
        (113, CookedLinux()),
        (276, CookedLinuxV2()),
    ],
)
def test_link_types(tmp_path, linktype, head):
    packets = [packet if head is None else head / packet for packet in (UDP4, TCP6)]
    check(read(write(tmp_path / "a.pcap", packets, linktype)))


def test_extension_headers_and_fragments(tmp_path):
    head = IPv6(src="fd00::1", dst="fd00::2") / IPv6ExtHdrHopByHop() / IPv6ExtHdrDestOpt()
    whole = head / IPv6ExtHdrFragment() / UDP(sport=1, dport=2) / b"atomic"
    parts = [head / IPv6ExtHdrFragment(offset=1) / b"part", IP(frag=1) / b"part", IP(proto=1)]
    capture = read(
        write(tmp_path / "a.pcap", [Ether(src=MAC, dst=MAC) / p for p in (whole, *parts)])
    )
    assert capture.packets["length"].tolist() == [6]
    assert (capture.counts.fragments, capture.counts.other) == (2, 1)


def test_pcapng_and_gzip(tmp_path):
    path = tmp_path / "a.pcapng"
    with PcapNgWriter(str(path)) as writer:
        for time, packet in ((1_700_000_000.25, UDP4), (1_700_000_001.25, TCP6)):
            writer.write(at(time, Ether(src=MAC, dst=MAC) / packet))
    check(read(path))
    zipped = tmp_path / "a.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    check(read(zipped))


def block(order, kind, body):
    size = 12 + len(body)
    return struct.pack(order + "II", kind, size) + body + struct.pack(order + "I", size)


def section(order, interfaces, packets):
    """A pcapng section: interfaces are (link, options), packets (interface, ticks, bytes)."""
    out = block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))
    for link, options in interfaces:
        out += block(order, 1, struct.pack(order + "HHI", link, 0, 0) + options)
    for interface, ticks, data in packets:
        head = struct.pack(
            order + "IIIII", interface, ticks >> 32, ticks & 0xFFFFFFFF, len(data), len(data)
        )
        out += block(order, 6, head + data + b"\0" * (-len(data) % 4))
    return out


def test_pcapng_sections_interfaces_resolutions(tmp_path):
    nano = struct.pack("<HHBxxx", 9, 1, 9) + struct.pack("<HH", 0, 0)
    binary = struct.pack(">HHBxxx", 9, 1, 0x80 | 20) + struct.pack(">HHq", 14, 8, 1000)
    plain, raw = bytes(Ether(src=MAC, dst=MAC) / UDP4), bytes(TCP6)
    content = section(
        "<", [(1, b""), (101, nano)], [(0, 5_250_000, plain), (1, 6_000_000_001, raw)]
    ) + section(">", [(101, binary)], [(0, 7 << 20, raw)])
    path = tmp_path / "a.pcapng"
    path.write_bytes(content)
    capture = read(path)
    assert capture.packets["time"].tolist() == [5.25, 6.000000001, 1007.0]
    assert capture.packets["protocol"].tolist() == [17, 6, 6]
    path.write_bytes(content[:-3])
    with pytest.warns(CaptureWarning, match="ends within a packet.*2 packets"):
        assert len(read(path).packets) == 2


@pytest.mark.parametrize("zipped", [False, True])
def test_truncated(tmp_path, zipped):
    whole = write(
        tmp_path / "a.pcap", [Ether(src=MAC, dst=MAC) / UDP4, Ether(src=MAC, dst=MAC) / TCP6]
    ).read_bytes()
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(gzip.compress(whole, 0, mtime=0)[:-20] if zipped else whole[:-5])
    with pytest.warns(CaptureWarning) as caught:
        capture = read(cut)
    assert len(caught) == 1 and "truncated or damaged" in str(caught[0].message)
    assert "1 packets were read" in str(caught[0].message)
    assert len(capture.packets) == 1 and capture.damaged


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty: a pcap or pcapng file is expected"),
        (b"\x1f\x8b", "is empty inside its gzip data"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"just some notes", "it starts with bytes 6a 75 73 74"),
        (gzip.compress(b"just some notes", mtime=0), "it starts with bytes 6a 75 73 74"),
        (b"\xd4\xc3\xb2\xa1", "is no capture"),
        (b"\x0a\x0d\x0d\x0a", "is no capture"),
        (section("<", [(1, b"")], []) + block("<", 3, bytes(8)), "without capture times"),
    ],
)
def test_no_captures(tmp_path, content, said):
    path = tmp_path / "a.pcap"
    path.write_bytes(content)
    with pytest.raises(CaptureError, match=r"a\.pcap") as caught:
        read(path)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_missing(tmp_path):
    with pytest.raises(CaptureError, match="No such file"):
        read(tmp_path / "none")
    with pytest.raises(CaptureError, match="Is a directory"):
        read(tmp_path)


def test_unknown_link_type(tmp_path):
    path = write(tmp_path / "a.pcap", [Raw(b"x" * 40)], linktype=147)
    with pytest.warns(CaptureWarning, match="link type 147"):
        assert read(path).packets.empty


@given(st.binary(max_size=300), st.booleans(), st.booleans())
def test_damage_never_raises_anything_else(tmp_path_factory, noise, new, zipped):
    if new:
        start = section("<", [(1, b"")], [(0, 5, bytes(Ether(src=MAC, dst=MAC) / UDP4))])
    else:
        start = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    path = tmp_path_factory.getbasetemp() / "noise.pcap"
    path.write_bytes(gzip.compress(start + noise, mtime=0) if zipped else start + noise)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            read(path)
        except CaptureError:
            pass


def bulk(frames, link):
    """What the bulk parser makes of frames, as the single one would give it."""
    array = np.frombuffer(b"".join(frames) + b"\0", dtype=np.uint8)
    sizes = np.array([len(frame) for frame in frames])
    offset = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    zeros = np.zeros(len(sizes), dtype=np.int64)
    index = Index(offset, sizes, sizes, zeros.astype(float), np.full(len(sizes), link), zeros)
    found = parse(array, index)
    result = {}
    for i, row in enumerate(found.row.tolist()):
        size = 4 if found.version[i] == 4 else 16
        where = int(found.addresses[i])
        data = array[found.payload[i] : found.payload[i] + found.captured[i]].tobytes()
        result[row] = (
            {6: "tcp", 17: "udp"}[int(found.protocol[i])],
            (array[where : where + size].tobytes(), int(found.sport[i])),
            (array[where + size : where + 2 * size].tobytes(), int(found.dport[i])),
            data,
            int(found.length[i]),
            *(int(x[i]) for x in (found.seq, found.ack, found.flags)),
        )
    return result


SAMPLES = [
    (1, bytes(Ether(src=MAC, dst=MAC) / UDP4)),
    (1, bytes(Ether(src=MAC, dst=MAC) / Dot1Q(vlan=3) / TCP6)),
    (101, bytes(IPv6() / IPv6ExtHdrHopByHop() / IPv6ExtHdrFragment() / UDP() / b"abc")),
    (101, bytes(IP(options=[]) / TCP(options=[("MSS", 1460)]) / b"abc")),
    (113, bytes(CookedLinux() / UDP4)),
    (276, bytes(CookedLinuxV2() / TCP6)),
    (0, b"\x02\0\0\0" + bytes(UDP4)),
]


@given(st.data(), st.sampled_from(SAMPLES))
def test_bulk_parser_agrees_with_the_single_one(data, sample):
    link, good = sample
    frames = []
    for _ in range(data.draw(st.integers(1, 6))):
        whole = data.draw(st.booleans())
        frame = bytearray(good if whole else good[: data.draw(st.integers(0, len(good)))])
        for _ in range(data.draw(st.integers(0, 3)) if frame else 0):
            frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
        frames.append(bytes(frame))
    found = bulk(frames, link)
    for number, each in enumerate(frames):
        one = parse_one(each, link, 0.0, len(each))
        if number in found:
            assert isinstance(one, Packet)
            assert found[number] == (
                *(one.protocol, one.source, one.destination, one.payload, one.length),
                *(one.seq, one.ack, one.flags),
            ), endpoint(one.source)
        else:
            assert isinstance(one, Skipped), each.hex()
