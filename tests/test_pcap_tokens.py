"""Token streams: the bulk reader finds what packet by packet reading finds, and hand counts."""

import random
import re
import zlib
from pathlib import Path

import pandas as pd
import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import wrpcap

from analysis.delivery import deliveries
from analysis.pcap.eloquent_datagrams import eloquent_connections
from analysis.pcap.packet_table import read
from analysis.pcap.token_streams import read_tokens, token_flows
from eloquent import records, wire

MAC = "02:00:00:00:00:01"  # given, or scapy asks the network for it


def datagram(time, message, client=5000, server=4433, source=None, six=False):
    hosts = ("fd00::1", "fd00::2") if six else ("10.0.0.1", "10.0.0.2")
    ports = (client, server)
    if message.from_server:
        hosts, ports = hosts[::-1], ports[::-1]
    ip = (IPv6 if six else IP)(src=source or hosts[0], dst=hosts[1])
    packet = (
        Ether(src=MAC, dst=MAC)
        / ip
        / UDP(sport=ports[0], dport=ports[1])
        / Raw(wire.encode(message))
    )
    packet.time = time
    return packet


def test_stalls_and_repeated_tokens(tmp_path):
    packets = [datagram(1.0, wire.Data(7, 0, False, 0, (b"?",), wire.Reason.STOP))]
    for first, count, time, end in (
        (0, 1, 2.0, None),
        (0, 2, 2.1, None),
        (3, 1, 2.5, None),  # 2 is missing
        (1, 3, 2.8, wire.Reason.STOP),
    ):
        packets.append(datagram(time, wire.Data(7, 0, True, first, (b"word",) * count, end)))
    wrpcap(str(tmp_path / "a.pcap"), packets)
    (row,) = token_flows(read(tmp_path / "a.pcap")).to_dict("records")
    assert (row["scheme"], row["stream"]) == ("eloquent", f"{7:016x}")
    assert (row["datagrams"], row["tokens"], row["total"], row["repeated"]) == (4, 4, 4, 3)
    assert row["complete"] and row["ttft"] == pytest.approx(1.0)
    # Shown at 2.0, 2.1, 2.8, 2.8: one gap of 0.7 s, 0.5 too long, in 0.8.
    assert row["stall_ratio"] == pytest.approx(0.5 / 0.8)
    (row,) = token_flows(read(tmp_path / "a.pcap"), theta=0.6).to_dict("records")
    assert row["stall_ratio"] == pytest.approx(0.1 / 0.8)


@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_reading_packet_by_packet(tmp_path, seed):
    rng = random.Random(seed)
    packets = []
    for stream in range(4):
        port = rng.choice((4433, 4434, 9000))
        count, made = rng.randint(1, 20), []
        for index in range(count):
            first = rng.randint(0, index)
            tokens = tuple(rng.randbytes(rng.randint(0, 9)) for _ in range(first, index + 1))
            end = wire.Reason.LENGTH if index == count - 1 else None
            made.append(wire.Data(stream, index, True, first, tokens, end))
            made.append(wire.Ack(stream, index, False, index + 1, 0))
        prompt = wire.Data(stream, 0, False, 0, (b"?",), wire.Reason.STOP)
        made = rng.sample(made, len(made) * 3 // 4)
        if rng.random() < 0.7:
            made.insert(0, prompt)
        for message in made:
            time = 1 + rng.random() * 9
            packets.append(datagram(time, message, 5000 + stream, port, six=stream == 3))
    noise = datagram(3.3, wire.Cancel(99, 0, False, wire.CancelReason.READER))
    noise[Raw].load = noise[Raw].load[:-1] + b"\0"  # a wrong checksum
    packets += [noise, *malformed(), *token_records(rng)]
    packets.sort(key=lambda packet: packet.time)
    path = tmp_path / "a.pcap"
    wrpcap(str(path), packets)
    expected = deliveries(path)
    found, _ = read_tokens(read(path))
    pd.testing.assert_frame_equal(found.streams, expected.streams)
    pd.testing.assert_frame_equal(found.tokens, expected.tokens)
    assert len(found.streams) >= 5 and len(found.tokens) > 10


def malformed():
    """Datagrams with one fault each, and good ones in all sizes of numbers."""
    text = (Path(__file__).parents[1] / "docs" / "protocol.md").read_text()
    block = re.search(r"```malformed\n(.*?)```", text, re.DOTALL)
    assert block is not None
    contents = [bytes.fromhex(line.split(" : ")[0]) for line in block[1].splitlines()]
    # As if a server had sent them, with a checksum that fits.
    contents += [x[:1] + bytes([x[1] | 0x80]) + x[2:] for x in contents]
    contents = [x[:-4] + zlib.crc32(x[:-4]).to_bytes(4, "big") for x in contents]
    for stream, first in enumerate((0, 63, 64, 16383, 16384, 2**40), 50):
        for count in (1, 63, 64, 100):
            end = wire.Reason.STOP if count == 100 else None
            contents.append(wire.encode(wire.Data(stream, 0, True, first, (b"t",) * count, end)))
        contents.append(wire.encode(wire.Data(stream, 0, True, first, (b"t" * 64, b""), None)))
        contents.append(wire.encode(wire.Data(stream, 0, True, first + 100, (), wire.Reason.STOP)))
    for number, content in enumerate(contents):
        packet = Ether(src=MAC, dst=MAC) / IP(src="10.0.0.2", dst="10.0.0.1")
        packet = packet / UDP(sport=4433, dport=7000) / Raw(content)
        packet.time = 5 + 0.001 * number
        yield packet


def token_records(rng):
    """Two connections with records, in segments out of order; one with another protocol."""
    for port, server in ((6000, 4433), (6001, 8000), (6002, 8000)):
        stream = b"".join(records.encode(b"token") for _ in range(20)) + records.encode_end(20, 1)
        if port == 6002:
            stream = b"HTTP/1.1 200 OK\r\n\r\n" * 10
        low, time = 0, 2.0
        while low < len(stream):
            high = low + rng.randint(1, 30)
            tcp = TCP(sport=server, dport=port, seq=1 + low, ack=1, flags="PA")
            packet = (
                Ether(src=MAC, dst=MAC)
                / IP(src="10.0.0.2", dst="10.0.0.1")
                / tcp
                / Raw(stream[low:high])
            )
            packet.time = time + rng.choice((0, 0, 0, 0.35)) * (low > 0)
            yield packet
            low, time = high, time + 0.1


def test_zeros_are_no_records_of_nothing(tmp_path):
    tcp = TCP(sport=80, dport=6000, seq=1, flags="PA") / Raw(bytes(1000))
    wrpcap(str(tmp_path / "a.pcap"), [Ether(src=MAC, dst=MAC) / IP() / tcp])
    assert token_flows(read(tmp_path / "a.pcap")).empty


def test_random_datagrams_that_begin_like_eloquent(tmp_path):
    # Version, kind and size fit; what cannot fit by chance is the checksum of 32 bits.
    rng = random.Random(3)
    packets = []
    for i in range(300):
        head = bytes(
            [wire.VERSION, rng.choice(list(wire.Kind)) | rng.choice((0, wire.FROM_SERVER))]
        )
        content = head + rng.randbytes(rng.randint(20, 200))
        udp = UDP(sport=443, dport=50_000 + i % 7) / Raw(content)
        packets.append(Ether(src=MAC, dst=MAC) / IP(src="10.0.0.2", dst="10.0.0.1") / udp)
    wrpcap(str(tmp_path / "a.pcap"), packets)
    capture = read(tmp_path / "a.pcap")
    assert token_flows(capture).empty and not len(eloquent_connections(capture))
    assert deliveries(tmp_path / "a.pcap").streams.empty


def test_eloquent_is_found_in_a_capture_that_starts_with_the_server(tmp_path):
    # On a foreign port, the capture alone would take the lower port for the server's.
    message = wire.Data(7, 0, True, 0, (b"a",), wire.Reason.STOP)
    wrpcap(str(tmp_path / "a.pcap"), [datagram(1.0, message, client=5000, server=9000)])
    (row,) = token_flows(read(tmp_path / "a.pcap")).to_dict("records")
    assert (row["client"], row["server"]) == ("10.0.0.1:5000", "10.0.0.2:9000")
    assert row["scheme"] == "udp-9000"
