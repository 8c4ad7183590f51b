"""Token times from captures made by hand; the expected times are those of the packets."""

import math
import struct

import pandas as pd
import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from analysis.delivery import compare, deliveries
from eloquent import records, wire

CLIENT, SERVER = "10.0.0.1", "10.0.0.2"


def at(time, packet):
    packet.time = time
    return packet


def down(time, first, tokens, end=None, stream=7, port=4433, client_port=5000):
    data = wire.encode(wire.Data(stream, 0, True, first, tuple(tokens), end))
    ports = UDP(sport=port, dport=client_port)
    return at(time, Ether() / IP(src=SERVER, dst=CLIENT) / ports / data)


def ask(time, stream=7, port=4433):
    data = wire.encode(wire.Data(stream, 0, False, 0, (b"Why?",), wire.Reason.STOP))
    return at(time, Ether() / IP(src=CLIENT, dst=SERVER) / UDP(sport=5000, dport=port) / data)


def read(tmp_path, packets):
    path = tmp_path / "client.pcap"
    wrpcap(str(path), packets)
    return deliveries(path)


def times(found, column="rendered_at", stream=0):
    return found.tokens[found.tokens["stream"] == stream][column].tolist()


def test_eloquent_datagrams(tmp_path):
    found = read(
        tmp_path,
        [
            ask(1.0),
            ask(1.5),  # again: the request time is the first
            down(2.0, 0, [b"a"]),
            down(3.0, 2, [b"ccc"]),  # token 1 was lost
            down(4.0, 1, [b"bb", b"ccc", b"d"]),
            down(5.0, 1, [b"bb", b"ccc", b"d"], wire.Reason.STOP),
        ],
    )
    row = found.streams.iloc[0]
    assert row["scheme"] == "eloquent" and row["id"] == f"{7:016x}" and row["protocol"] == "udp"
    assert (row["client"], row["server"]) == ("10.0.0.1:5000", "10.0.0.2:4433")
    assert (row["requested_at"], row["tokens"], row["total"], row["reason"]) == (1.0, 4, 4, 1)
    assert row["complete"]
    assert found.tokens["index"].tolist() == [0, 1, 2, 3]
    assert found.tokens["n_bytes"].tolist() == [1, 2, 3, 1]
    assert times(found, "received_at") == [2.0, 4.0, 3.0, 4.0]
    assert times(found) == [2.0, 4.0, 4.0, 4.0]


def test_streams_are_apart_and_incomplete_ones_say_so(tmp_path):
    found = read(
        tmp_path,
        [
            down(1.0, 0, [b"a", b"b"], stream=1),
            down(1.1, 1, [b"y"], wire.Reason.STOP, stream=2, port=4434),
            # The client's address changes in mid-stream: still the same answer.
            down(1.2, 2, [b"c"], wire.Reason.LENGTH, stream=1, client_port=6000),
            down(1.3, 0, [b"z"], stream=3, port=4436),
        ],
    )
    assert found.streams["scheme"].tolist() == ["eloquent", "duplicate", "udp-4436"]
    assert found.streams["complete"].tolist() == [True, False, False]
    assert found.streams["tokens"].tolist() == [3, 0, 1]
    assert found.streams["total"].tolist() == [3, 2, -1]
    assert math.isnan(found.streams["requested_at"][0])
    assert math.isnan(times(found, stream=1)[0])


def tcp(time, side, seq, payload=b"", flags="A", ack=0, ports=(5000, 4433), ip=IP):
    addresses = ("fd00::1", "fd00::2") if ip is IPv6 else (CLIENT, SERVER)
    ends = list(zip(addresses, ports, strict=True))
    source, destination = ends if side == "client" else ends[::-1]
    header = TCP(sport=source[1], dport=destination[1], seq=seq % 2**32, ack=ack, flags=flags)
    return at(time, Ether() / ip(src=source[0], dst=destination[0]) / header / payload)


ANSWER = [b"Because", b" it", b" rains"]
STREAM = b"".join(map(records.encode, ANSWER)) + records.encode_end(3, wire.Reason.STOP)
A, B, C, END = (STREAM[:11], STREAM[11:18], STREAM[18:28], STREAM[28:])
ISN = 2**32 - 10  # the sequence numbers wrap within the first token


def handshake(**kwargs):
    return [
        tcp(1.0, "client", 500, flags="S", **kwargs),
        tcp(1.1, "server", ISN - 1, flags="SA", ack=501, **kwargs),
        tcp(1.2, "client", 501, flags="A", ack=ISN, **kwargs),
        tcp(1.3, "client", 501, records.encode(b"Why?"), **kwargs),
    ]


@pytest.mark.parametrize("ip", [IP, IPv6])
def test_tcp_records(tmp_path, ip):
    b_at, c_at = ISN + len(A), ISN + len(A) + len(B)
    found = read(
        tmp_path,
        [
            *handshake(ip=ip),
            tcp(2.0, "server", ISN, A[:6], ip=ip),
            tcp(2.5, "server", ISN + 6, A[6:], ip=ip),
            tcp(3.0, "server", c_at, C, ip=ip),  # token 1 was lost
            tcp(3.5, "server", ISN, A[:6], ip=ip),  # retransmitted for nothing
            tcp(4.0, "server", ISN + 6, A[6:] + B + C[:3], ip=ip),  # closes the hole, overlaps
            tcp(5.0, "server", b_at + len(B + C), END, ip=ip),
        ],
    )
    row = found.streams.iloc[0]
    assert (row["scheme"], row["protocol"]) == ("tcp", "tcp")
    assert row["server"] == ("[fd00::2]:4433" if ip is IPv6 else "10.0.0.2:4433")
    assert (row["requested_at"], row["tokens"], row["total"], row["complete"]) == (1.0, 3, 3, True)
    assert times(found) == [2.5, 4.0, 4.0]
    assert times(found, "received_at") == [2.5, 4.0, 3.0]
    assert found.tokens["n_bytes"].tolist() == [7, 3, 6]


def test_tcp_joined_after_the_handshake(tmp_path):
    found = read(tmp_path, [tcp(1.0, "client", 501, ack=ISN), tcp(2.0, "server", ISN + 11, B + C)])
    assert found.streams["tokens"].tolist() == [0]  # the first token never came
    found = read(tmp_path, [tcp(2.0, "server", ISN, STREAM), tcp(3.0, "client", 501)])
    assert times(found) == [2.0] * 3 and found.streams["complete"][0]
    assert found.streams["requested_at"][0] == 3.0


def test_a_port_used_again_is_another_answer(tmp_path):
    again = [tcp(9.0, "client", 900, flags="S"), tcp(9.1, "server", 77, flags="SA", ack=901)]
    found = read(
        tmp_path,
        [*handshake(), tcp(2.0, "server", ISN, STREAM), *again, tcp(9.5, "server", 78, A)],
    )
    assert found.streams["tokens"].tolist() == [3, 1]
    assert times(found, stream=1) == [9.5]


def test_other_ports_and_other_protocols(tmp_path):
    ports = (5000, 8080)
    found = read(tmp_path, [*handshake(ports=ports), tcp(2.0, "server", ISN, STREAM, ports=ports)])
    assert found.streams["complete"].tolist() == [True]
    for foreign in (b"HTTP/1.1 200 OK\r\n\r\n", struct.pack("!I", 3) + b"abc"):
        packets = [*handshake(ports=ports), tcp(2.0, "server", ISN, foreign, ports=ports)]
        assert read(tmp_path, packets).streams.empty
    http = [*handshake(), tcp(2.0, "server", ISN, b"HTTP/1.1 200 OK\r\n\r\n")]
    found = read(tmp_path, http)
    assert found.streams.empty and found.tokens.empty
    assert found.tokens["rendered_at"].dtype == "float64"


def test_compare():
    log = pd.DataFrame({"index": [0, 1, 2, 3], "rendered_at": [0.0, 0.1, 0.2, math.nan]})
    pcap = pd.DataFrame({"index": [2, 1, 0, 4], "rendered_at": [5.2031, 5.099, 5.0, 5.3]})
    result = compare(log, pcap, offset=5.0)
    assert (result["tokens"], result["missing"], result["beyond"]) == (3, 1, 1)
    assert result["max"] == pytest.approx(0.0031)
    # Differences 0, 1 and 3.1 ms: 1 + 0.98 * 2.1.
    assert result["p99"] == pytest.approx(0.003058)
    nothing = compare(log, pcap[:0], offset=5.0)
    assert math.isnan(nothing["max"]) and nothing["missing"] == 3 and nothing["beyond"] == 0
