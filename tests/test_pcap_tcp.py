"""TCP and TLS: retransmissions, holes and delays that were built by hand are found again."""

import itertools
import math
import random
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import wrpcap

from analysis.pcap.byte_stream import order
from analysis.pcap.holes import Kind
from analysis.pcap.packet_table import read
from analysis.pcap.tcp_flows import tcp_flows

MAC = "02:00:00:00:00:01"  # given, or scapy asks the network for it

ISN = 2**32 - 150  # sequence numbers wrap within the first segments
START = 1_700_000_000


def down(time, start, data, flags="PA", ack=1, port=6000, server=5080):
    """A segment of the server's; `start` counts its bytes from 0."""
    tcp = TCP(sport=server, dport=port, seq=(ISN + 1 + start) % 2**32, ack=ack, flags=flags)
    packet = Ether(src=MAC, dst=MAC) / IP(src="10.0.0.2", dst="10.0.0.1") / tcp / Raw(data)
    packet.time = START + time
    return packet


def up(time, acked, data=b"", flags="A", seq=1, port=6000, server=5080):
    """A segment of the client's, that acknowledges so many bytes."""
    tcp = TCP(sport=port, dport=server, seq=seq, ack=(ISN + 1 + acked) % 2**32, flags=flags)
    packet = Ether(src=MAC, dst=MAC) / IP(src="10.0.0.1", dst="10.0.0.2") / tcp / Raw(data)
    packet.time = START + time
    return packet


def opening(port=6000):
    syn = up(0.0, 0, flags="S", seq=0, port=port)
    answer = down(0.01, -1, b"", flags="SA", port=port)
    return [syn, answer, up(0.02, 0, port=port), up(0.03, 0, b"GET", "PA", port=port)]


def analysed(path, packets, theta=0.2):
    wrpcap(str(path), packets)
    capture = read(path)
    streams = order(capture.packets)
    table = tcp_flows(capture, streams, theta)
    return streams.segments, {(row["client"], row["to"]): row for row in table.to_dict("records")}


def test_retransmission_reordering_and_waiting(tmp_path):
    a = b"x" * 100
    packets = [
        *opening(),
        down(1.000, 0, a),
        down(1.100, 100, a),
        down(1.200, 100, a),  # seen before
        down(1.300, 300, a),  # 200 is missing
        down(1.310, 400, a),
        down(1.500, 200, a),  # comes 200 ms later: resent
        down(1.600, 600, a),  # 500 is missing
        down(1.601, 500, a),  # and comes 1 ms later: reordered
        down(1.700, 650, a),  # half old, half new
    ]
    segments, flows = analysed(tmp_path / "a.pcap", packets)
    server = flows["10.0.0.1:6000", "client"]
    mine = segments[segments["flow"] % 2 == 0]
    assert mine["kind"].tolist() == [
        *(Kind.NEW, Kind.NEW, Kind.REPEATED, Kind.AHEAD, Kind.AHEAD, Kind.RESENT),
        *(Kind.AHEAD, Kind.REORDERED, Kind.NEW),
    ]
    assert (mine["delivered"] - START).tolist() == pytest.approx(
        [1.0, 1.1, math.nan, 1.5, 1.5, 1.5, 1.601, 1.601, 1.7], nan_ok=True, abs=1e-5
    )
    counts = ("segments", "bytes", "repeated", "resent", "reordered", "unseen", "holes", "waiting")
    assert [server[name] for name in counts] == [9, 750, 1, 1, 1, 0, 2, 3]
    assert server["blocked"] == pytest.approx(0.2 + 0.001, abs=1e-5)
    assert server["wait_max"] == pytest.approx(0.2, abs=1e-5)
    assert server["wait_p50"] == pytest.approx(0.19, abs=1e-5)
    assert (server["unit"], server["units"]) == ("segment", 8)
    assert math.isnan(server["gap_p50"])  # too few for a stream of tokens
    client = flows["10.0.0.1:6000", "server"]
    assert [client[name] for name in counts] == [1, 3, 0, 0, 0, 0, 0, 0]
    assert client["client"] == "10.0.0.1:6000" and client["server"] == "10.0.0.2:5080"


def test_gaps_are_between_times_of_reading_in_order(tmp_path):
    # Twelve tokens each 100 ms; the sixth comes 450 ms late, the ones after it wait for it.
    times = [0.1 * i for i in range(12)]
    times[5] += 0.45
    packets = [down(1 + time, 10 * i, b"0123456789") for i, time in enumerate(times)]
    packets.sort(key=lambda packet: packet.time)
    _, flows = analysed(tmp_path / "a.pcap", packets)
    row = flows["10.0.0.1:6000", "client"]
    # Read at 0, .1, .2, .3, .4, .95 (five at once), 1.0, 1.1: one gap of 550 ms, 350 too long.
    assert row["units"] == 12 and row["duration"] == pytest.approx(1.1, abs=1e-5)
    assert row["stall_ratio"] == pytest.approx(0.35 / 1.1, abs=1e-4)
    assert row["gap_max"] == pytest.approx(0.55, abs=1e-5)
    assert row["blocked"] == pytest.approx(0.35, abs=1e-5)


def test_bytes_that_only_the_capture_lost(tmp_path):
    packets = [
        *opening(),
        down(1.0, 0, b"a" * 100),
        down(1.1, 200, b"a" * 100),  # 100 was not captured
        up(1.15, 300),  # but the receiver has it
        down(1.2, 300, b"a" * 100),
        down(1.3, 500, b"a" * 100),  # 400 is lost for good
    ]
    segments, flows = analysed(tmp_path / "a.pcap", packets)
    row = flows["10.0.0.1:6000", "client"]
    assert (row["bytes"], row["unseen"], row["open"], row["holes"]) == (400, 100, 100, 2)
    assert row["blocked"] == pytest.approx(0.05, abs=1e-5)
    read_at = segments[segments["flow"] % 2 == 0]["delivered"] - START
    assert read_at.tolist() == pytest.approx([1.0, 1.15, 1.2, math.nan], nan_ok=True, abs=1e-5)


def test_keep_alives_and_resets_are_no_data(tmp_path):
    packets = [
        down(1.0, 0, b"a" * 100),
        down(1.1, 99, b"a"),
        down(1.2, 99, b""),
        down(1.3, 7, b"", flags="R"),
        down(1.4, 100, b"b"),
    ]
    _, flows = analysed(tmp_path / "a.pcap", packets)
    row = flows["10.0.0.1:6000", "client"]
    assert (row["segments"], row["repeated"], row["bytes"]) == (2, 0, 101)


def test_ports_used_again_are_another_connection(tmp_path):
    again = [packet.copy() for packet in opening()]
    for packet in again:
        packet.time += 10
    again[0][TCP].seq, again[1][TCP].seq = 77, 99
    again[1][TCP].ack = again[2][TCP].seq = again[3][TCP].seq = 78
    wrpcap(str(tmp_path / "a.pcap"), [*opening(), down(1.0, 0, b"abc"), *again])
    capture = read(tmp_path / "a.pcap")
    assert capture.packets["connection"].tolist() == [0] * 5 + [1] * 4
    assert capture.connections["sport"].tolist() == [5080, 5080]


@given(st.randoms(use_true_random=False), st.integers(1, 12), st.integers(0, 6))
def test_any_order_of_segments_against_a_set_of_bytes(tmp_path_factory, rng, count, copies):
    sizes = [rng.randint(1, 20) for _ in range(count)]
    starts = [sum(sizes[:i]) for i in range(count)]
    pieces = list(zip(starts, sizes, strict=True))
    for _ in range(copies):
        first = rng.randrange(sum(sizes))
        pieces.append((first, rng.randint(1, sum(sizes) - first)))
    random.Random(rng.random()).shuffle(pieces)
    # The handshake says where the stream starts.
    packets = [down(0, -1, b"", flags="SA")]
    packets += [down(1 + i, start, b"z" * size) for i, (start, size) in enumerate(pieces)]
    path = tmp_path_factory.getbasetemp() / "order.pcap"
    segments, flows = analysed(path, packets)

    here: set[int] = set()
    fresh: list[int] = []
    read_at: dict[int, int] = {}
    for time, (start, size) in enumerate(pieces, 1):
        new = set(range(start, start + size)) - here
        fresh.append(len(new))
        here |= new
        front = next(i for i in range(10**6) if i not in here)
        for byte in range(front):
            read_at.setdefault(byte, time)
    # A keep-alive looks like the last byte again: it is left out, and must be no news.
    kept = dict(zip((segments["time"] - START).round().astype(int), segments.index, strict=True))
    for time, (start, size) in enumerate(pieces, 1):
        if time not in kept:
            assert size == 1 and fresh[time - 1] == 0
            continue
        row = segments.loc[kept[time]]
        assert row["fresh"] == fresh[time - 1]
        assert (row["kind"] == Kind.REPEATED) == (fresh[time - 1] == 0)
        if fresh[time - 1]:
            assert row["delivered"] - START == pytest.approx(
                max(time, read_at[start + size - 1]), abs=1e-5
            )
    assert flows["10.0.0.1:6000", "client"]["bytes"] == sum(sizes)


@pytest.mark.tshark
def test_counts_agree_with_another_program(tmp_path):
    # Wireshark's own limits between its three counts differ a little; their sum does not.
    rng = random.Random(5)
    arrivals = []
    for i in range(500):
        late = rng.choices((0, 0.0551, 0.0105), (92, 4, 4))[0]
        arrivals.append((1 + 0.01 * i + late, i))
        if rng.random() < 0.03:
            arrivals.append((1 + 0.01 * i + late + 0.2003, i))
    arrivals.sort()
    packets, here, front = [*opening()], set(), 0
    for time, i in arrivals:
        packets.append(down(time, 100 * i, b"\x99" * 100, ack=4))
        here.add(i)
        front = next(n for n in range(front, 501) if n not in here)
        packets.append(up(time + 0.00002, 100 * front, seq=4))
    path = tmp_path / "a.pcap"
    _, flows = analysed(path, packets)
    row = flows["10.0.0.1:6000", "client"]

    def count(name):
        command = ["tshark", "-r", str(path), "-Y", f"tcp.analysis.{name}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return len(done.stdout.splitlines())

    assert row["repeated"] == count("spurious_retransmission") > 5
    again = count("retransmission") + count("out_of_order")
    assert row["repeated"] + row["resent"] + row["reordered"] == again > 30


def record(size, kind=23):
    return bytes([kind, 3, 3]) + size.to_bytes(2, "big") + b"\x9d" * size


def test_tls_records(tmp_path):
    stream = record(90, kind=22) + b"".join(record(50) for _ in range(12))
    cuts = [0, 95, 150, 205, 208, 260, 315, 425, 480, 535, 590, 645, 700, len(stream)]
    packets = [
        down(1 + 0.1 * i, low, stream[low:high], server=443)
        for i, (low, high) in enumerate(itertools.pairwise(cuts))
    ]
    # The third record (ends at 260) lies in three segments, the middle of which comes last.
    packets[4].time = START + 1.65
    packets.sort(key=lambda packet: packet.time)
    _, flows = analysed(tmp_path / "a.pcap", packets)
    row = flows["10.0.0.1:6000", "client"]
    assert (row["protocol"], row["unit"], row["units"]) == ("tls", "record", 12)
    assert row["lost_records"] == 0 and row["server"] == "10.0.0.2:443"
    # Ends: 150 at .1, 205 at .2, 260 to 425 at .65, 480 at .7, then each .1 until 1.2.
    assert row["duration"] == pytest.approx(1.1, abs=1e-5)
    assert row["gap_max"] == pytest.approx(0.45, abs=1e-5)
    assert row["stall_ratio"] == pytest.approx(0.25 / 1.1, abs=1e-4)
    assert row["blocked"] == pytest.approx(0.15, abs=1e-5)


def test_tls_goes_on_after_a_record_header_was_not_captured(tmp_path):
    stream = b"".join(record(50) for _ in range(20))
    packets = [
        down(1 + 0.1 * i, 55 * i, stream[55 * i : 55 * i + 55], server=443)
        for i in range(20)
        if i not in (4, 5)
    ]
    packets.insert(8, up(1.65, 55 * 7, server=443))
    packets.sort(key=lambda packet: packet.time)
    _, flows = analysed(tmp_path / "a.pcap", packets)
    row = flows["10.0.0.1:6000", "client"]
    assert (row["units"], row["lost_records"], row["unseen"]) == (18, 1, 110)


def test_many_directions_at_once(tmp_path):
    packets = []
    for port in range(7000, 7050):
        packets += [*opening(port), down(1.0, 0, b"a" * 10, port=port)]
        packets += [down(1.1, 10 + (port % 2), b"b" * 10, port=port)]
    packets.sort(key=lambda packet: packet.time)
    _, flows = analysed(tmp_path / "a.pcap", packets)
    for port in range(7000, 7050):
        row = flows[f"10.0.0.1:{port}", "client"]
        assert row["bytes"] == 20 and row["open"] == (10 if port % 2 else 0)
