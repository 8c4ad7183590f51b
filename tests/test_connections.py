"""Ports that are used again: how many connections there are, and that no bytes are invented.

What is expected was written by hand from RFC 9293; where a SYN opens the second connection,
another program must find the same (it does not look for leaps).
"""

import subprocess
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import wrpcap

from analysis.connections import Ports
from analysis.delivery import deliveries
from analysis.pcap.byte_stream import order
from analysis.pcap.holes import Kind
from analysis.pcap.packet_table import read
from analysis.pcap.tcp_flows import tcp_flows
from analysis.pcap.token_streams import read_tokens
from eloquent import records

MAC = "02:00:00:00:00:01"  # given, or scapy asks the network for it
CLIENT, SERVER = ("10.0.0.1", 6000), ("10.0.0.2", 5080)
DATA = b"x" * 100


class Host:
    """One side of a connection: numbers as TCP counts them."""

    def __init__(self, ends, isn):
        self.ends, self.next = ends, isn
        self.peer = None

    def send(self, flags="A", data=b"", back=0, ack=None):
        (source, sport), (destination, dport) = self.ends
        if ack is None:
            ack = self.peer.next if self.peer and "A" in flags else 0
        head = TCP(
            sport=sport, dport=dport, seq=(self.next - back) % 2**32, ack=ack % 2**32, flags=flags
        )
        if not back:
            self.next += len(data) + ("S" in flags) + ("F" in flags)
        return Ether(src=MAC, dst=MAC) / IP(src=source, dst=destination) / head / Raw(data)


def hosts(client_isn, server_isn):
    client, server = Host((CLIENT, SERVER), client_isn), Host((SERVER, CLIENT), server_isn)
    client.peer, server.peer = server, client
    return client, server


def opening(client, server):
    return [client.send("S"), server.send("SA"), client.send()]


def exchange(client, server, count=3):
    """A request, and `count` segments of 100 bytes back."""
    packets = [client.send("PA", b"GET")]
    for _ in range(count):
        packets += [server.send("PA", DATA), client.send()]
    return packets


def closing(client, server):
    return [server.send("FA"), client.send("FA"), server.send()]


def whole(client_isn, server_isn, close=True):
    ends = hosts(client_isn, server_isn)
    return opening(*ends) + exchange(*ends) + (closing(*ends) if close else [])


def middle(client_isn, server_isn):
    return exchange(*hosts(client_isn, server_isn))


def one_way(packets, server=True):
    return [packet for packet in packets if (packet[IP].src == SERVER[0]) == server]


def reset(seq):
    return hosts(seq, 0)[0].send("R")


def syn_late():
    """A SYN that stands in the file after what was sent after it, as from several queues."""
    syn, answer, *rest = whole(10**9, 2 * 10**9)
    return [answer, rest[0], syn, *rest[1:]]


def half_open():
    """The client lost its state: RFC 9293, section 3.5.1. The server's old number comes first."""
    client, server = hosts(1000, 2**31)
    before = opening(client, server) + exchange(client, server)
    again, anew = hosts(3 * 10**9, 700)
    syn = again.send("S")
    challenge = server.send()
    rst = Host((CLIENT, SERVER), server.peer.next).send("R")
    return [*before, syn, challenge, rst, syn.copy(), anew.send("SA"), *exchange(again, anew)]


def stray_syn():
    """Someone else's SYN (RFC 5961, section 4): the connection goes on."""
    ends = hosts(1000, 2**31)
    before = opening(*ends) + exchange(*ends)
    return [*before, hosts(3 * 10**9, 0)[0].send("S"), ends[1].send(), *exchange(*ends)]


def late_segment():
    """The last data of the first connection comes after the second began."""
    client, server = hosts(1000, 2**31)
    before = opening(client, server) + exchange(client, server)
    late = server.send("PA", DATA)
    second = hosts(3 * 10**9, 700)
    return [*before, *opening(*second), late, *exchange(*second)]


def simultaneous():
    client, server = hosts(1000, 2**31)
    packets = [client.send("S"), server.send("S")]
    packets += [client.send("SA", back=1), server.send("SA", back=1)]
    return packets + exchange(client, server)


def syn_cookies():
    """The first answer was lost on its way; the repeated SYN gets another one."""
    client, server = hosts(1000, 123456)
    packets = [client.send("S"), server.send("SA")]
    server.next = 3 * 10**9
    return [*packets, client.send("S", back=1), server.send("SA"), *exchange(client, server)]


def fast_open():
    """RFC 7413: the SYN has data, its repetition has none, the answer acknowledges all."""
    client, server = hosts(1000, 2**31)
    packets = [client.send("S", b"GET"), client.send("S", back=4), server.send("SA")]
    return [*packets, client.send(), server.send("PA", 3 * DATA), client.send()]


def keep_alives():
    """Without data as Linux sends them, with a byte as others do, first of all in the file."""
    client, server = hosts(1000, 2**31)
    probes = [server.send(back=1), client.send(), client.send(back=1), server.send()]
    talk = exchange(client, server)
    return [*probes, *talk, server.send("A", b"x", back=1), client.send()]


def window_probes():
    """The receiver is full: a byte is offered again and again, and taken with all after it."""
    client, server = hosts(1000, 2**31)
    packets = opening(client, server) + exchange(client, server, 2)
    old = server.next
    for _ in range(3):
        probe = server.send("A", b"x")
        server.next = old
        packets += [probe, client.send(ack=old)]
    return [*packets, server.send("PA", DATA), client.send()]


DOWN, UP = 300, 3
CASES = {
    # name: packets, connections with data, bytes to the client in each
    "no SYN before": (middle(77, 99) + whole(2 * 10**9, 3 * 10**9), [DOWN, DOWN]),
    "no SYN before, 1498998741 away": (middle(77, 99) + whole(78, 1498999140), [DOWN, DOWN]),
    "lower number": (middle(3 * 10**9, 2 * 10**9) + whole(5, 10**9), [DOWN, DOWN]),
    "higher by a little": (middle(1000, 2000) + whole(2000, 3000), [DOWN, DOWN]),
    "both with SYN": (whole(1, 2) + whole(10**9, 2 * 10**9), [DOWN, DOWN]),
    "reset, then again": (
        [*whole(1, 2, close=False), reset(8), *whole(10**9, 2 * 10**9)],
        [DOWN, DOWN],
    ),
    "same number after the end": (whole(6510, 6510) + whole(6510, 6510), [DOWN, DOWN]),
    "three": (whole(1, 2) + middle(10**9, 3 * 10**9) + whole(9, 2**31), [DOWN] * 3),
    "no SYN at all": (middle(1, 2) + middle(2 * 10**9, 3 * 10**9), [DOWN, DOWN]),
    "no SYN, down to a lower number": (middle(10**9, 4 * 10**9) + middle(5, 9), [DOWN, DOWN]),
    "no SYN, both less than a window on": (middle(1, 2) + middle(10**9, 10**9), [DOWN, DOWN]),
    "only to the client": (one_way(whole(1, 2) + whole(10**9, 10**9)), [DOWN, DOWN]),
    "only to the client, no SYN": (
        one_way(middle(1, 2) + middle(10**9, 2 * 10**9)),
        [DOWN, DOWN],
    ),
    "only to the server": (one_way(whole(1, 2) + whole(10**9, 10**9), False), [UP, UP]),
    "half-open": (half_open(), [DOWN, DOWN]),
    "late segment of the first": (late_segment(), [DOWN + 100, DOWN]),
    "stray SYN": (stray_syn(), [2 * DOWN]),
    "SYN captured late": (syn_late(), [DOWN]),
    "SYN repeated": ([whole(1, 2)[0], *whole(1, 2)], [DOWN]),
    "SYN and answer repeated": ([*whole(1, 2)[:2], *whole(1, 2)], [DOWN]),
    "numbers wrap": (whole(2**32 - 2, 2**32 - 150), [DOWN]),
    "numbers wrap, no SYN": (middle(2**32 - 2, 2**32 - 150), [DOWN]),
    "simultaneous open": (simultaneous(), [DOWN]),
    "SYN cookies": (syn_cookies(), [DOWN]),
    "fast open": (fast_open(), [DOWN]),
    "keep-alives": (keep_alives(), [DOWN]),
    "window probes": (window_probes(), [DOWN]),
}


NO_SYN_TELLS = {
    *(name for name in CASES if "no SYN" in name),
    *("three", "only to the client", "late segment of the first", "stray SYN"),
    "same number after the end",
}
"""Where the numbers alone tell, or a SYN misleads."""


def write(path, packets):
    packets = [packet.copy() for packet in packets]
    for number, packet in enumerate(packets):
        packet.time = 1_700_000_000 + 0.1 * number
    wrpcap(str(path), packets)
    return path


@pytest.mark.parametrize("name", CASES)
def test_connections_and_their_bytes(tmp_path, name):
    packets, expected = CASES[name]
    capture = read(write(tmp_path / "a.pcap", packets))
    streams = order(capture.packets)
    flows = tcp_flows(capture, streams).sort_values("flow")
    assert set(flows["client"]) == {"10.0.0.1:6000"}
    way = "10.0.0.1" if expected[0] != UP else "10.0.0.2"
    receiver = flows["client"].where(flows["to"] == "client", flows["server"])
    mine = flows[receiver.str.startswith(way + ":")]
    assert mine["bytes"].tolist() == expected
    assert mine[["repeated", "unseen", "open", "resent", "reordered"]].to_numpy().sum() == 0
    assert set(streams.segments["kind"]) == {Kind.NEW}


@pytest.mark.tshark
def test_another_program_sees_as_many(tmp_path):
    # It splits where a SYN with another number comes, and never joins again.
    names = [name for name in CASES if name not in NO_SYN_TELLS]
    packets = []
    for port, name in enumerate(names, 6000):
        for packet in (packet.copy() for packet in CASES[name][0]):
            for field in ("sport", "dport"):
                if getattr(packet[TCP], field) == CLIENT[1]:
                    setattr(packet[TCP], field, port)
            packets.append(packet)
    fields = [word for field in ("tcp.port", "tcp.stream") for word in ("-e", field)]
    command = ["tshark", "-r", str(write(tmp_path / "a.pcap", packets)), "-Y", "tcp.len>0"]
    command += ["-T", "fields", "-E", "aggregator=/s", *fields]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    seen = {
        (max(map(int, ports)), stream)
        for *ports, stream in map(str.split, done.stdout.splitlines())
    }
    for port, name in enumerate(names, 6000):
        assert sum(which == port for which, _ in seen) == len(CASES[name][1]), name


ANSWER = [b"Because", b" it", b" rains"]


def test_answers_in_records_on_ports_used_again(tmp_path):
    packets: list[Any] = []
    for isns, syn in (((77, 99), False), ((10**9, 5), True), ((2 * 10**9, 2 * 10**9), False)):
        client, server = hosts(*isns)
        for host in (client, server):
            host.ends = tuple((ip, 4433 if port == 5080 else port) for ip, port in host.ends)
        packets += opening(client, server) if syn else []
        packets.append(client.send("PA", records.encode(b"Why?")))
        packets += [server.send("PA", records.encode(token)) for token in ANSWER]
        packets.append(server.send("FPA", records.encode_end(3, 1)))
    path = write(tmp_path / "a.pcap", packets)
    one, bulk = deliveries(path), read_tokens(read(path))[0]
    for found in (one, bulk):
        assert found.streams["complete"].tolist() == [True] * 3
        assert found.tokens["n_bytes"].tolist() == [7, 3, 6] * 3


def test_who_is_the_server_is_known_from_a_later_connection(tmp_path):
    packets = [packet.copy() for packet in middle(77, 99) + whole(10**9, 5)]
    for packet in packets:
        for field in ("sport", "dport"):
            if getattr(packet[TCP], field) == SERVER[1]:
                setattr(packet[TCP], field, 50_000)  # above the client's
    capture = read(write(tmp_path / "a.pcap", packets))
    assert capture.connections["client"].tolist() == ["10.0.0.1"] * 2
    assert capture.connections["sport"].tolist() == [50_000] * 2


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 4))
def test_any_numbers_and_any_part_of_the_packets(tmp_path_factory, rng, count):
    packets: list[Any] = []
    truth: list[int] = []
    for connection in range(count):
        some = whole(rng.getrandbits(32), rng.getrandbits(32), close=rng.random() < 0.5)
        kept = [some[0]] + [packet for packet in some[1:] if rng.random() < 0.8]
        packets += kept
        truth += [connection] * len(kept)
    path = write(tmp_path_factory.getbasetemp() / "any.pcap", packets)
    assert read(path).packets["connection"].tolist() == truth


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False))
def test_bulk_and_one_by_one_agree(tmp_path_factory, rng):
    packets: list[Any] = []
    for case in rng.choices(list(CASES.values()), k=3):
        packets += [packet for packet in case[0] if rng.random() < 0.8]
    path = write(tmp_path_factory.getbasetemp() / "agree.pcap", packets)
    ports = Ports()
    placed = [
        ports.place(int(packet[IP].src < packet[IP].dst), int(tcp.flags), tcp.seq, tcp.ack)
        for packet in packets
        for tcp in (packet[TCP],)
    ]
    expected, _ = pd.factorize(np.array(placed))
    assert read(path).packets["connection"].tolist() == expected.tolist()
