"""QUIC as its headers show it, built byte by byte after RFC 9000 and RFC 9369."""

import itertools
import math
import subprocess

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import wrpcap

from analysis.pcap.datagram_flows import udp_flows
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
    wrpcap(str(path), sorted(packets, key=lambda packet: packet.time))
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


def test_a_capture_that_joined_in_the_middle_is_quic_if_we_say_so(tmp_path):
    path = tmp_path / "a.pcap"
    packets = [datagram(1.0, b"\x40" + REST), datagram(1.0, b"\x40" + REST, server=8443)]
    assert flows(path, packets) == {}
    assert len(udp_flows(read(path))) == 2
    (row,) = quic_flows(read(path), ports=(443,)).to_dict("records")
    assert kinds(row) == [0, 0, 0, 0, 0, 1] and row["server"] == "10.0.0.2:443"
    assert row["version"] == ""


def negotiation(*versions):
    return b"\xaa\0\0\0\0" + b"\x08" + b"c" * 8 + b"\x05" + b"serve" + b"".join(versions)


OTHERS = {
    # The first bytes of each, on UDP port 443; every one was seen there.
    "OpenVPN, data v2": b"\x48\0\0\1" + b"\0\0\0\7" + b"\x9d" * 90,
    "OpenVPN, reset": b"\x38" + b"s" * 8 + b"\0\0\0\0\0",
    "DTLS 1.2": b"\x16\xfe\xfd\0\0\0\0\0\0\0\0\0\x40" + b"\1" * 64,
    "WireGuard, handshake": b"\1\0\0\0" + b"i" * 144,
    "WireGuard, data": b"\4\0\0\0" + b"k" * 60,
    "STUN": b"\0\1\0\0\x21\x12\xa4\x42" + b"t" * 12,
    "TURN channel data": b"\x40\0\0\x20" + b"d" * 32,
    "RTP": b"\x80\x60\x12\x34" + b"\0\0\1\0" + b"ssrc" + b"v" * 160,
    "RTP that begins at 0": b"\x80\0\0\0\0" + b"\0\0\xa0" + b"ssrc" + b"v" * 160,
    "RTCP": b"\x80\xc8\0\6" + b"ssrc" + b"n" * 20,
    "another long header": b"\xc0\0\0\0\7" + REST,
    "ids that do not fit": b"\xc0" + V1 + b"\x15" + b"c" * 21 + b"\0" * 40,
    "an id longer than all": b"\xc0" + V1 + b"\x08" + b"c" * 8 + b"\x14" + b"s" * 19,
    "a negotiation of nothing": negotiation(),
    "a negotiation of odd length": negotiation(V1, b"\0"),
    "a negotiation of nothing known": negotiation(b"\0\0\0\7", b"HTTP"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_protocols_on_the_port_of_http3_are_udp(tmp_path, name):
    packets = [datagram(1 + i, OTHERS[name], to_server=i % 2 == 0) for i in range(4)]
    assert flows(tmp_path / "a.pcap", packets) == {}
    rows = udp_flows(read(tmp_path / "a.pcap")).to_dict("records")
    assert [(row["to"], row["datagrams"]) for row in rows] == [("client", 2), ("server", 2)]
    assert rows[0]["bytes"] == 2 * len(OTHERS[name])


VERSIONS = {
    "v1": V1,
    "v2": V2,
    "draft-29": DRAFT_29,
    "draft-34": b"\xff\0\0\x22",
    "mvfst": b"\xfa\xce\xb0\x02",
    "gQUIC Q050": b"Q050",
    "gQUIC T051": b"T051",
}


@pytest.mark.parametrize("name", VERSIONS)
def test_versions_have_names(tmp_path, name):
    found = flows(tmp_path / "a.pcap", [datagram(1.0, b"\xc0" + VERSIONS[name] + REST)])
    assert found["10.0.0.1:5000", "server"]["version"] == name
    # Both sizes in one byte, 8 of them and none: the header before Q050.
    old = b"\xc0Q046" + b"\x50" + b"c" * 8 + b"\0\0\0\1" + b"\x9d" * 30
    found = flows(tmp_path / "a.pcap", [datagram(1.0, old)])
    assert found["10.0.0.1:5000", "server"]["version"] == "gQUIC Q046"


@pytest.mark.parametrize("offer", [V1, b"\x1a\x2a\x3a\x4a"])
def test_a_negotiation_alone_is_enough(tmp_path, offer):
    answer = datagram(1.0, negotiation(offer, b"\0\0\0\7"), to_server=False, client=40_000)
    row = flows(tmp_path / "a.pcap", [answer])["10.0.0.1:40000", "client"]
    assert row["version"] == "negotiation" and kinds(row) == [0, 0, 0, 0, 1, 0]


def test_the_version_that_was_agreed_on_counts(tmp_path):
    packets = [datagram(1.0, b"\xc0" + V1 + REST), datagram(1.1, b"\xd0" + V2 + REST, False)]
    found = flows(tmp_path / "a.pcap", packets)
    assert {row["version"] for row in found.values()} == {"v2"}


def test_a_greased_fixed_bit(tmp_path):
    # RFC 9287: after the handshake the bit may be anything. RFC 9443: STUN and DTLS beside it.
    packets = [datagram(1.0, b"\xc0" + V1 + REST)]
    packets += [datagram(1.1, first + REST) for first in (b"\x41", b"\x01", b"\x3f", b"\xa0" + V1)]
    packets += [datagram(1.2, OTHERS[name]) for name in ("STUN", "DTLS 1.2")]
    found = flows(tmp_path / "a.pcap", packets)
    assert kinds(found["10.0.0.1:5000", "server"]) == [1, 0, 1, 0, 0, 3]


def test_a_connection_goes_on_from_another_port(tmp_path):
    # The server says which id its client writes: a NAT's new mapping does not change it.
    packets = [
        datagram(1.0, b"\xc0" + V1 + b"\x08" + b"random.." + b"\0" + b"\x9d" * 40),
        datagram(1.1, b"\xe0" + V1 + b"\0" + b"\x08" + b"serverid" + b"\x9d" * 40, False),
        datagram(1.2, b"\x41serverid" + b"\x9d" * 40),
        datagram(2.0, b"\x52serverid" + b"\x77" * 40, client=5001),
        datagram(2.1, b"\x4c" + b"\x77" * 40, False, client=5001),
        datagram(2.0, b"\x52another." + b"\x77" * 40, client=5002),
        datagram(2.0, b"\x52serverid" + b"\x77" * 40, client=5003, server=8443),
    ]
    found = flows(tmp_path / "a.pcap", packets)
    ways = itertools.product(("10.0.0.1:5000", "10.0.0.1:5001"), ("client", "server"))
    assert set(found) == set(ways)
    assert found["10.0.0.1:5001", "server"]["version"] == "v1"


@pytest.mark.tshark
def test_another_program_agrees_on_what_is_quic(tmp_path):
    contents = [OTHERS["OpenVPN, data v2"], OTHERS["STUN"], OTHERS["RTP"]]
    contents += [b"\xc0" + version + REST for version in (V1, V2, DRAFT_29)]
    # A port that nothing is registered for: tshark must tell by what is in the datagrams.
    packets = [
        datagram(1 + i, content + bytes(1200), client=5000 + i, server=9999)
        for i, content in enumerate(contents)
    ]
    path = tmp_path / "a.pcap"
    found = {client for client, _ in flows(path, packets)}
    command = ["tshark", "-r", str(path), "-Y", "quic", "-T", "fields", "-e", "udp.srcport"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert found == {f"10.0.0.1:{port}" for port in done.stdout.split()}
