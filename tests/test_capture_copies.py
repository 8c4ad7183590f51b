"""What the capture repeated is left out, what was sent or delivered twice is not."""

import json
import struct
import warnings

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import GRE, CookedLinux, CookedLinuxV2, Dot1Q, Ether
from scapy.packet import Raw

from analysis.__main__ import main as stalls
from analysis.capture_errors import CaptureNote
from analysis.delivery import deliveries
from analysis.pcap.byte_stream import order
from analysis.pcap.command import main
from analysis.pcap.packet_table import read
from analysis.pcap.quic_flows import quic_flows
from analysis.pcap.tcp_flows import tcp_flows
from analysis.pcap.token_streams import token_flows
from eloquent import wire

START = 1_700_000_000.0
A, B = "02:00:00:00:00:01", "02:00:00:00:00:02"


def ip(to_client, number, six=False, ttl=64):
    """The IP header; `number` becomes the IP id."""
    ends = (("fd00::2", "fd00::1") if six else ("10.0.0.2", "10.0.0.1"))[:: 1 if to_client else -1]
    if six:
        return IPv6(src=ends[0], dst=ends[1], hlim=ttl)
    return IP(src=ends[0], dst=ends[1], id=number, ttl=ttl, flags="DF")


def plain(packet):
    return Ether(src=A, dst=B) / packet


def write(path, packets, link=1):
    """Packets are (time after the start, bytes), written by time."""
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, link))
        for time, frame in sorted(packets, key=lambda item: item[0]):
            whole, part = divmod(round((START + time) * 1e6), 10**6)
            data = bytes(frame)
            file.write(struct.pack("<IIII", whole, part, len(data), len(data)) + data)
    return path


def download(count=42, six=False, ids=True):
    """An answer over TCP, a segment and its acknowledgement every 20 ms: (time, to_client, IP)."""
    for i in range(count):
        segment = TCP(sport=443, dport=6000, seq=1 + 100 * i, ack=1, flags="PA", window=500)
        number = 1000 + i if ids else 0
        yield 0.02 * i, True, ip(True, number, six) / segment / Raw(b"%04d" % i * 25)
        answer = TCP(sport=6000, dport=443, seq=1, ack=101 + 100 * i, flags="A", window=500)
        yield 0.02 * i + 0.005, False, ip(False, 7000 + i if ids else 0, six) / answer


def lower(packet):
    """One router further."""
    packet = packet.copy()
    if IPv6 in packet:
        packet[IPv6].hlim -= 1
    else:
        packet[IP].ttl -= 1
    return packet


SECOND_SIGHT = {
    "mirror port, all alike": (1, plain, plain),
    "other addresses": (1, plain, lambda packet: Ether(src=B, dst=A) / packet),
    "routed": (1, plain, lambda packet: Ether(src=B, dst=A) / lower(packet)),
    "with and without a tag": (1, plain, lambda p: Ether(src=A, dst=B) / Dot1Q(vlan=5) / p),
    "any, in and out": (
        113,
        lambda packet: CookedLinux(pkttype=0) / packet,
        lambda packet: CookedLinux(pkttype=4) / packet,
    ),
    "any, two interfaces": (
        276,
        lambda packet: CookedLinuxV2(ifindex=2) / packet,
        lambda packet: CookedLinuxV2(ifindex=3) / packet,
    ),
    "tunnel and what is in it": (
        1,
        plain,
        lambda packet: Ether(src=A, dst=B) / IP(src="1.2.3.4", dst="1.2.3.5") / GRE() / packet,
    ),
}


@pytest.mark.parametrize("kind", ["ids", "no ids", "IPv6"])
@pytest.mark.parametrize("sight", SECOND_SIGHT)
def test_each_packet_captured_twice(tmp_path, capsys, sight, kind):
    link, first, second = SECOND_SIGHT[sight]
    packets = list(download(six=kind == "IPv6", ids=kind == "ids"))
    frames = [(time, first(packet)) for time, _, packet in packets]
    frames += [(time + 30e-6, second(packet)) for time, _, packet in packets]
    path = write(tmp_path / "a.pcap", frames, link)
    assert main(["--json", str(path)]) == 0
    captured = capsys.readouterr()
    (found,) = json.loads(captured.out)["captures"]
    assert (found["packets"], found["tcp_packets"], found["copies"]) == (168, 84, 84)
    (flow,) = found["tcp"]
    assert (flow["segments"], flow["repeated"], flow["bytes"]) == (42, 0, 4200)
    assert captured.err.startswith("note: ") and captured.err.count("\n") == 1
    assert "84 packets are left out as copies" in captured.err


def test_three_interfaces(tmp_path):
    frames = [
        (time + 20e-6 * index, CookedLinuxV2(ifindex=2 + index) / packet)
        for time, _, packet in download()
        for index in range(3)
    ]
    with pytest.warns(CaptureNote, match="168 packets"):
        assert len(read(write(tmp_path / "a.pcap", frames, 276)).packets) == 84


def kept(path):
    """Nothing is said, nothing left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureNote)
        return read(path)


@pytest.mark.parametrize("kind", ["ids", "no ids", "IPv6"])
@pytest.mark.parametrize("delay", [0.0003, 0.0012, 0.2, 0.9])
def test_a_retransmission_stays(tmp_path, kind, delay):
    """Also after a very short round trip, and where nothing but time tells it from a copy."""
    frames = []
    for number, (time, to_client, packet) in enumerate(download(six=kind == "IPv6", ids=False)):
        if kind == "ids":
            packet[IP].id = number + 1
        frames.append((time, plain(packet)))
        if to_client and number % 10 == 0:
            again = packet.copy()
            if kind == "ids":
                again[IP].id = 9000 + number
            frames.append((time + delay, plain(again)))
    capture = kept(write(tmp_path / "a.pcap", frames))
    flows = tcp_flows(capture, order(capture.packets)).set_index("to")
    assert flows.loc["client", "repeated"] == 9 and flows.loc["client", "segments"] == 51


@pytest.mark.parametrize("six", [False, True])
def test_a_retransmission_stays_one_where_all_is_captured_twice(tmp_path, six):
    frames = []
    for number, (time, to_client, packet) in enumerate(download(six=six, ids=False)):
        times = [time, time + 0.002] if to_client and number % 10 == 0 else [time]
        for sent in times:
            frames += [(sent, plain(packet)), (sent + 30e-6, plain(lower(packet)))]
    with pytest.warns(CaptureNote, match="93 packets"):
        capture = read(write(tmp_path / "a.pcap", frames))
    flows = tcp_flows(capture, order(capture.packets)).set_index("to")
    assert flows.loc["client", "repeated"] == 9 and flows.loc["client", "segments"] == 51


def test_what_the_network_duplicates_stays(tmp_path):
    """A link that duplicates hands over both at once, as netem does: same id, same place."""
    frames = []
    for number, (time, _, packet) in enumerate(download()):
        frames.append((time, plain(packet)))
        if number % 6 < 2:
            frames.append((time + 2e-6, plain(packet)))
    capture = kept(write(tmp_path / "a.pcap", frames))
    assert len(capture.packets) == 84 + 28


def tokens(copies=1, spread=0.0, link=plain, number=0):
    """An Eloquent answer of 40 tokens; every DATA leaves `copies` times, IP id 0 as Linux does."""
    for i in range(40):
        end = wire.Reason.STOP if i == 39 else None
        data = wire.encode(wire.Data(7, 1000 * i, True, i, (b"word",), end))
        packet = ip(True, number) / UDP(sport=4434, dport=5000) / Raw(data)
        for copy in range(copies):
            yield 0.05 * i + copy * spread, link(packet)
        ack = wire.encode(wire.Ack(7, 1000 * i + 9, False, i + 1, 0))
        yield 0.05 * i + 0.003, link(ip(False, number) / UDP(sport=5000, dport=4434) / Raw(ack))


@pytest.mark.parametrize("spread", [2e-6, 1e-3, 0.02])
def test_a_sender_that_says_everything_twice_is_left_alone(tmp_path, spread):
    """The scheme `duplicate` sends the same bytes again, and Linux gives both no IP id."""
    capture = kept(write(tmp_path / "a.pcap", tokens(2, spread)))
    (answer,) = token_flows(capture).to_dict("records")
    assert (answer["datagrams"], answer["repeated"]) == (80, 40)


def test_such_a_sender_captured_twice(tmp_path):
    frames = [
        (time + 30e-6 * twice, CookedLinux(pkttype=4 * twice) / packet)
        for time, packet in tokens(2, 5e-6, lambda packet: packet)
        for twice in range(2)
    ]
    with pytest.warns(CaptureNote, match="120 packets"):
        capture = read(write(tmp_path / "a.pcap", frames, 113))
    (answer,) = token_flows(capture).to_dict("records")
    assert (answer["datagrams"], answer["repeated"]) == (80, 40)


def test_eloquent_captured_twice(tmp_path, capsys):
    frames = [(time + 30e-6 * twice, packet) for time, packet in tokens() for twice in range(2)]
    path = write(tmp_path / "a.pcap", frames)
    assert main(["--json", str(path)]) == 0
    (answer,) = json.loads(capsys.readouterr().out)["captures"][0]["streams"]
    assert (answer["datagrams"], answer["repeated"], answer["complete"]) == (40, 0, True)
    assert stalls(["--json", str(path)]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["streams"][0]["tokens"] == 40
    assert "80 packets are left out as copies" in captured.err and captured.err.count("\n") == 1


def test_quic_captured_twice(tmp_path):
    frames = []
    for i in range(30):
        # An Initial of version 1 (RFC 9000, section 17.2.2): ids of 8 and 0 bytes, no token.
        first = b"\xc0\0\0\0\1\x08abcdefgh\0\0\x3c"
        head = first if i == 0 else b"\x40abcd"
        for to_client in (False, True):
            ports = {"sport": 443, "dport": 7000} if to_client else {"sport": 7000, "dport": 443}
            packet = ip(to_client, 0) / UDP(**ports) / Raw(head + b"%060d" % (2 * i + to_client))
            time = 0.02 * i + 0.004 * to_client
            frames += [(time, plain(packet)), (time + 30e-6, plain(packet))]
    with pytest.warns(CaptureNote, match="60 packets"):
        capture = read(write(tmp_path / "a.pcap", frames))
    flows = quic_flows(capture)
    assert flows["datagrams"].tolist() == [30, 30]
    assert flows["gap_p50"].tolist() == pytest.approx([0.02, 0.02], abs=1e-5)


def test_cut_packets_and_filled_in_checksums(tmp_path):
    """The tag takes four bytes of the snap length; cards fill checksums in after the capture."""
    path = tmp_path / "a.pcap"
    frames = []
    for time, _, packet in download():
        other = packet.copy()
        other[TCP].chksum = 0x1234
        frames += [(time, bytes(plain(packet))), (time + 3e-5, bytes(plain(Dot1Q(vlan=3) / other)))]
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 96, 1))
        for time, frame in sorted(frames, key=lambda item: item[0]):
            part = round(1e6 * time)
            size = min(96, len(frame))
            file.write(struct.pack("<IIII", 0, part, size, len(frame)) + frame[:size])
    with pytest.warns(UserWarning, match=r"copies|in part"):
        assert read(path).counts.copies == 84


def test_the_second_sight_after_a_queue(tmp_path):
    """A router with a long queue, seen on both sides of it: the first time counts."""
    frames = []
    for time, _, packet in download():
        frames += [(time, plain(packet)), (time + 0.15, Ether(src=B, dst=A) / lower(packet))]
    with pytest.warns(CaptureNote, match="84 packets"):
        capture = read(write(tmp_path / "a.pcap", frames))
    assert capture.packets["time"].iloc[-1] - START == pytest.approx(0.02 * 41 + 0.005, abs=1e-5)


def test_answers_are_the_same_by_both_readers(tmp_path):
    frames = [(time + 30e-6 * n, packet) for time, packet in tokens() for n in range(2)]
    path = write(tmp_path / "a.pcap", frames)
    with pytest.warns(CaptureNote):
        found = deliveries(path)
    assert found.tokens["rendered_at"].tolist() == pytest.approx(
        [START + 0.05 * i for i in range(40)], abs=1e-5
    )


def test_one_packet_seen_twice_proves_nothing(tmp_path):
    packets = [(time, plain(packet)) for time, _, packet in download(1)]
    assert len(kept(write(tmp_path / "a.pcap", [*packets, *packets])).packets) == 4
