"""QUIC as its headers show it, built byte by byte after RFC 9000 and RFC 9369."""

import math

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import wrpcap

from analysis.pcap.packet_table import read
from analysis.pcap.quic_flows import quic_flows
from eloquent import wire

MAC = "02:00:00:00:00:01"  # given, or scapy asks the network for it

V1, V2, DRAFT_29 = b"\0\0\0\1", b"\x6b\x33\x43\xcf", b"\xff\0\0\x1d"
REST = b"\x08" + b"c" * 8 + b"\x08" + b"s" * 8 + b"\x9d" * 40


def datagram(time, content, to_server=True, client=5000, server=443):
    ends = [("10.0.0.1", client), ("10.0.0.2", server)]
    (source, sport), (destination, dport) = ends if to_server else ends[::-1]
    packet = (
        Ether(src=MAC, dst=MAC) / IP(src=source, dst=destination) / UDP(sport=sport, dport=dport)
    )
    packet /= Raw(content)
    packet.time = time
    return packet


def flows(path, packets, theta=0.2):
    wrpcap(str(path), packets)
    return {
        (row["client"], row["to"]): row for row in quic_flows(read(path), theta).to_dict("records")
    }


def kinds(row):
    names = ("initial", "zero_rtt", "handshake", "retry", "negotiation", "short")
    return [row[name] for name in names]


def test_packet_types_of_both_versions(tmp_path):
    heads = [b"\xc0" + V1, b"\xd1" + V1, b"\xe2" + V1, b"\xf0" + V1, b"\x80\0\0\0\0"]
    packets = [datagram(1.0, head + REST) for head in heads]
    packets += [
        datagram(1.0, head + V2 + REST, client=5001) for head in (b"\xd0", b"\xe0", b"\xc0")
    ]
    packets += [datagram(1.0, b"\xc0" + DRAFT_29 + REST, client=5002, server=9000)]
    packets += [datagram(1.1, b"\x41" + REST, False, client=5002, server=9000)]
    found = flows(tmp_path / "a.pcap", packets)
    assert kinds(found["10.0.0.1:5000", "server"]) == [1, 1, 1, 1, 1, 0]
    assert kinds(found["10.0.0.1:5001", "server"]) == [1, 1, 0, 1, 0, 0]
    assert kinds(found["10.0.0.1:5002", "server"]) == [1, 0, 0, 0, 0, 0]
    assert kinds(found["10.0.0.1:5002", "client"]) == [0, 0, 0, 0, 0, 1]
    assert len(found) == 4


def test_gaps_and_sizes(tmp_path):
    times = [1.0 + 0.1 * i for i in range(10)] + [2.4]
    packets = [datagram(0.9, b"\xc0" + V1 + REST)]
    packets += [datagram(time, b"\x40" + b"\x77" * 99, False) for time in times]
    row = flows(tmp_path / "a.pcap", packets)["10.0.0.1:5000", "client"]
    assert (row["datagrams"], row["bytes"], row["size_p50"], row["size_max"]) == (
        11,
        1100,
        100,
        100,
    )
    assert row["gap_max"] == pytest.approx(0.5) and row["gap_p50"] == pytest.approx(0.1)
    assert row["stall_ratio"] == pytest.approx(0.3 / 1.4)
    assert math.isnan(flows(tmp_path / "a.pcap", packets)["10.0.0.1:5000", "server"]["gap_p50"])


def test_what_is_no_quic(tmp_path):
    eloquent = wire.encode(wire.Cancel(1, 2, False, wire.CancelReason.READER)) + bytes(9)
    packets = [
        datagram(1.0, eloquent, client=5000),
        datagram(1.0, b"\x40" + REST, client=5001, server=53),
        datagram(1.0, b"\x40" + REST, client=5002),
        datagram(1.1, b"\x01" + REST, client=5002),  # no fixed bit
        datagram(1.0, b"\xc0\0\0\0\7" + REST, client=5003, server=9000),  # no such version
        datagram(1.0, b"", client=5004),
    ]
    assert flows(tmp_path / "a.pcap", packets) == {}
    # Joined in the middle, at the port of HTTP/3.
    found = flows(tmp_path / "a.pcap", [datagram(1.0, b"\x40" + REST)])
    assert kinds(found["10.0.0.1:5000", "server"]) == [0, 0, 0, 0, 0, 1]
