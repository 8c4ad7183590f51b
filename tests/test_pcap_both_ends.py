"""Two captures with known losses, delays and clocks."""

import math
from typing import Any

import numpy as np
import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import PcapWriter, rdpcap, wrpcap

from analysis.pcap.both_ends import both_ends, loss_runs
from analysis.pcap.packet_table import read

MAC = "02:00:00:00:00:01"  # given, or scapy asks the network for it

CLIENT, SERVER = "10.0.0.1", "10.0.0.2"
SKEW = 3.7  # the server's clock is ahead


def udp(number, to_server=True, content=None):
    ends = (CLIENT, SERVER) if to_server else (SERVER, CLIENT)
    ports = (5000, 4433) if to_server else (4433, 5000)
    head = IP(src=ends[0], dst=ends[1], id=number) / UDP(sport=ports[0], dport=ports[1])
    return Ether(src=MAC, dst=MAC) / head / Raw(content or b"packet %d" % number)


def two_files(tmp_path, journeys, skew=SKEW):
    """(packet, sent at, delay or None) as both hosts captured them; the server's first."""
    client: list[Any] = []
    server: list[Any] = []
    for packet, sent, delay in journeys:
        to_server = packet[IP].src == CLIENT
        for where, time in ((client, sent), (server, sent)):
            mine = (where is client) == to_server
            if mine or delay is not None:
                copy = packet.copy()
                copy.time = 100 + time + (0 if mine else delay) + (skew if where is server else 0)
                where.append(copy)
    for name, packets in (("client", client), ("server", server)):
        packets.sort(key=lambda packet: packet.time)
        wrpcap(str(tmp_path / name), packets)
    return read(tmp_path / "client"), read(tmp_path / "server")


def test_losses_bursts_delays_and_offset(tmp_path):
    lost_up, lost_down = {3, 10, 11, 12, 40, 41}, {7}
    journeys = []
    for i in range(100):
        # 20 ms at best both ways; every tenth packet up takes 50 ms more.
        slow = 0.05 if i % 10 == 5 else 0.0
        journeys.append((udp(i), 0.1 * i, None if i in lost_up else 0.02 + slow))
        down = None if i in lost_down else 0.02
        journeys.append((udp(200 + i, to_server=False), 0.1 * i + 0.03, down))
    client, server = two_files(tmp_path, journeys)
    found = both_ends(client, server)
    assert found.offset == pytest.approx(SKEW, abs=1e-5) and found.symmetric
    assert (found.matched, found.ambiguous) == (193, 0)
    total, up, _, down = found.directions.to_dict("records")
    assert (up["way"], up["source"], up["destination"]) == (
        *("A → B", "10.0.0.1:5000", "10.0.0.2:4433"),
    )
    assert (up["sent"], up["lost"], up["outside"], up["new"]) == (100, 6, 0, 0)
    assert (up["runs"], up["run_max"], up["run_mean"]) == (3, 3, 2.0)
    assert up["run_lengths"] == {1: 1, 2: 1, 3: 1} == total["run_lengths"]
    assert up["delay_p50"] == pytest.approx(0.02, abs=1e-5)
    assert up["delay_p95"] == pytest.approx(0.07, abs=1e-5)
    assert (down["way"], down["sent"], down["lost"]) == ("B → A", 100, 1)
    assert down["delay_p99"] == pytest.approx(0.02, abs=1e-5)
    # The other way round, A is B.
    other = both_ends(server, client)
    assert other.offset == pytest.approx(-SKEW, abs=1e-5)
    assert other.directions["lost"].tolist() == [1, 1, 6, 6]


def test_unequal_ways_share_what_they_take_together(tmp_path):
    journeys = [(udp(i), float(i), 0.03) for i in range(5)]
    journeys += [(udp(100 + i, to_server=False), i + 0.5, 0.01) for i in range(5)]
    found = both_ends(*two_files(tmp_path, journeys))
    assert found.offset == pytest.approx(SKEW + 0.01, abs=1e-5)
    assert found.directions["delay_p50"].tolist() == pytest.approx([0.02] * 4, abs=1e-5)


@pytest.mark.parametrize("swap", [False, True])
def test_one_way_only(tmp_path, swap):
    journeys = [(udp(i), 0.1 * i, None if i == 5 else 0.02 + 0.001 * i) for i in range(10)]
    captures = two_files(tmp_path, journeys)
    found = both_ends(*(captures[::-1] if swap else captures))
    assert not found.symmetric
    assert set(found.directions["way"]) == {"B → A" if swap else "A → B"}
    assert found.directions["lost"].tolist() == [1, 1]
    assert found.directions["delay_min"].tolist() == pytest.approx([0, 0], abs=1e-5)
    assert found.directions["delay_max"].tolist() == pytest.approx([0.009] * 2, abs=1e-5)


def test_what_the_other_side_did_not_capture_is_not_lost(tmp_path):
    journeys = [(udp(i), 0.1 * i, 0.02) for i in range(20)]
    journeys += [(udp(100 + i, to_server=False), 0.1 * i, 0.02) for i in range(20)]
    two_files(tmp_path, journeys)
    whole = list(read(tmp_path / "server").packets["time"])
    late = [
        packet
        for packet in rdpcap(str(tmp_path / "server"))
        if whole[8] <= packet.time <= whole[-8]
    ]
    wrpcap(str(tmp_path / "server"), late)
    found = both_ends(read(tmp_path / "client"), read(tmp_path / "server"))
    up = found.directions[found.directions["source"] != ""].iloc[0]
    assert (up["lost"], up["sent"] + up["outside"]) == (0, 20) and up["outside"] > 4


def test_tcp_repetitions_and_exact_copies(tmp_path):
    def tcp(seq, ip_id):
        head = IP(src=SERVER, dst=CLIENT, id=ip_id) / TCP(sport=80, dport=6000, seq=seq, flags="PA")
        return Ether(src=MAC, dst=MAC) / head / Raw(b"data")

    # The first copy of segment 2 is lost; the second has an IP id of its own.
    journeys = [(tcp(1, 1), 0.0, 0.02), (tcp(2, 2), 0.1, None), (tcp(2, 3), 0.4, 0.02)]
    # Two datagrams that nothing tells apart: one is lost, nobody knows which.
    journeys += [(udp(9), 0.2, 0.02), (udp(9), 0.3, None), (udp(10), 0.5, 0.02)]
    journeys += [(tcp(3, 4), 0.6, 0.02)]
    client, server = two_files(tmp_path, journeys)
    found = both_ends(client, server)
    assert found.offset == pytest.approx(SKEW, abs=1e-5) and found.ambiguous == 1
    rows = found.directions[found.directions["source"] != ""].set_index("protocol")
    assert (rows.loc["tcp", "sent"], rows.loc["tcp", "lost"]) == (4, 1)
    assert (rows.loc["udp", "sent"], rows.loc["udp", "lost"]) == (3, 1)
    assert rows["delay_max"].tolist() == pytest.approx([0.02, 0.02], abs=1e-5)


def test_a_snap_length_at_one_end(tmp_path):
    journeys = [(udp(i, content=b"%03d" % i + b"x" * 50), i, 0.02) for i in range(5)]
    two_files(tmp_path, journeys)
    packets = rdpcap(str(tmp_path / "client"))
    with PcapWriter(str(tmp_path / "client"), linktype=1) as writer:
        writer.write_header(None)
        for packet in packets:
            raw, whole = bytes(packet)[:60], len(packet)
            writer.write_packet(raw, sec=int(packet.time), usec=0, caplen=60, wirelen=whole)
    with pytest.warns(UserWarning, match="5 packets were captured only in part"):
        client = read(tmp_path / "client")
    assert both_ends(client, read(tmp_path / "server")).matched == 5


def test_nothing_in_common(tmp_path):
    wrpcap(str(tmp_path / "a"), [udp(1)])
    wrpcap(str(tmp_path / "b"), [udp(2)])
    found = both_ends(read(tmp_path / "a"), read(tmp_path / "b"))
    assert found.matched == 0 and math.isnan(found.offset)


@pytest.mark.parametrize(
    ("lost", "runs"), [("", []), ("110", [2]), ("0110111", [2, 3]), ("000", []), ("1", [1])]
)
def test_loss_runs(lost, runs):
    assert loss_runs(np.array([c == "1" for c in lost], dtype=bool)).tolist() == runs
