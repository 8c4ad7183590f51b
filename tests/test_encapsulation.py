"""Every encapsulation before IP: scapy writes it, both readers and tshark see the same flow."""

import csv
import struct
import subprocess

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scapy.contrib.erspan import ERSPAN_II
from scapy.contrib.geneve import GENEVE
from scapy.contrib.gtp import GTP_U_Header, GTPPDUSessionContainer
from scapy.contrib.mpls import MPLS
from scapy.layers.dot11 import Dot11, Dot11FCS, Dot11QoS, RadioTap
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import (
    ARP,
    GRE,
    GRE_PPTP,
    LLC,
    SNAP,
    STP,
    CookedLinux,
    CookedLinuxV2,
    Dot1AD,
    Dot1Q,
    Dot3,
)
from scapy.layers.l2 import Ether as ScapyEther
from scapy.layers.ppp import HDLC, PPP, PPP_LCP, PPPoE, PPPoED
from scapy.layers.vxlan import VXLAN
from scapy.packet import Raw

from analysis.capture_reader import Counts, transport
from analysis.pcap.command import main
from analysis.pcap.packet_table import ends, read

MAC = "02:00:00:00:00:01"  # given, or scapy asks the network for it
INNER4 = (
    IP(src="10.0.0.1", dst="10.0.0.2", id=7)
    / TCP(sport=5000, dport=443, seq=1, flags="PA")
    / Raw(b"hello")
)
INNER6 = (
    IPv6(src="fd00::1", dst="fd00::2")
    / TCP(sport=5000, dport=443, seq=1, flags="PA")
    / Raw(b"hello")
)
OUTER = IP(src="192.0.2.1", dst="192.0.2.2", id=9)
OUTER6 = IPv6(src="2001:db8::1", dst="2001:db8::2")


def ether(**fields):
    return ScapyEther(src=MAC, dst=MAC, **fields)


def qos(**fields):
    head = Dot11(type=2, subtype=8, addr1=MAC, addr2=MAC, addr3=MAC, **fields)
    return head / Dot11QoS()


SNAPPED = LLC(dsap=0xAA, ssap=0xAA, ctrl=3) / SNAP()
DATA = Dot11(type=2, addr1=MAC, addr2=MAC, addr3=MAC, FCfield="to_DS")
PRISM = struct.pack("<II", 0x44, 144) + bytes(136)
AVS = struct.pack(">II", 0x80211001, 64) + bytes(56)
PPI = struct.pack("<BBHI", 0, 0, 8, 105)
NFLOG = struct.pack("<BBH", 2, 0, 0) + struct.pack("<HHI", 8, 10, 0)
PFLOG = bytes([61, 2, 0, 0]) + bytes(60)

SHOWN = {
    "vlan": (1, ether() / Dot1Q(vlan=3)),
    "priority-tag": (1, ether() / Dot1Q(vlan=0, prio=5)),
    "qinq": (1, ether() / Dot1AD(vlan=3) / Dot1Q(vlan=4)),
    "old-qinq": (1, ether(type=0x9100) / Dot1Q(vlan=3, type=0x8100) / Dot1Q(vlan=4)),
    "llc-snap": (1, Dot3(src=MAC, dst=MAC) / SNAPPED),
    "pppoe": (1, ether() / PPPoE(sessionid=5) / PPP()),
    "pppoe-vlan": (1, ether() / Dot1Q(vlan=7) / PPPoE(sessionid=5) / PPP()),
    "mpls": (1, ether(type=0x8847) / MPLS(label=16, s=0) / MPLS(label=17, s=1)),
    "pseudowire": (1, ether(type=0x8847) / MPLS(label=16, s=1) / Raw(bytes(4)) / ether()),
    "gre": (1, ether() / OUTER / GRE()),
    "gre-fields": (
        1,
        ether() / OUTER / GRE(chksum_present=1, key_present=1, seqnum_present=1, chksum=0, key=5),
    ),
    "gre-bridged": (1, ether() / OUTER / GRE(proto=0x6558) / ether()),
    "gre-6": (1, ether() / OUTER6 / GRE()),
    "pptp": (1, ether() / OUTER / GRE_PPTP(seqnum_present=1, sequence_number=1) / HDLC() / PPP()),
    "pptp-ack": (
        1,
        ether() / OUTER / GRE_PPTP(seqnum_present=1, acknum_present=1, payload_len=9) / PPP(),
    ),
    "erspan": (
        1,
        ether() / OUTER / GRE(proto=0x88BE, seqnum_present=1) / ERSPAN_II() / ether(),
    ),
    "ip-in-ip": (1, ether() / OUTER),
    "6in4": (1, ether() / OUTER),
    "in-ipv6": (1, ether() / OUTER6),
    "vxlan": (1, ether() / OUTER / UDP(sport=999, dport=4789) / VXLAN(vni=3) / ether()),
    "vxlan-8472": (1, ether() / OUTER / UDP(sport=999, dport=8472) / VXLAN(vni=3) / ether()),
    "vxlan-vlan": (
        1,
        ether() / OUTER6 / UDP(sport=999, dport=4789) / VXLAN(vni=3) / ether() / Dot1Q(vlan=2),
    ),
    "geneve": (1, ether() / OUTER / UDP(sport=999, dport=6081) / GENEVE(vni=3) / ether()),
    "gtp-u": (1, ether() / OUTER / UDP(sport=2152, dport=2152) / GTP_U_Header(teid=3)),
    "gtp-u-5g": (
        1,
        ether()
        / OUTER
        / UDP(sport=2152, dport=2152)
        / GTP_U_Header(teid=3, E=1, next_ex=0x85)
        / GTPPDUSessionContainer(QFI=1),
    ),
    "ppp": (9, HDLC() / PPP()),
    "ppp-plain": (9, PPP()),
    "ppp-serial": (50, HDLC() / PPP()),
    "ppp-ether": (51, PPPoE(sessionid=5) / PPP()),
    "ppp-pppd": (166, Raw(b"\0") / HDLC() / PPP()),
    "sll-vlan": (113, CookedLinux(proto=0x8100) / Dot1Q(vlan=3)),
    "sll-qinq": (113, CookedLinux(proto=0x88A8) / Dot1AD(vlan=3) / Dot1Q(vlan=4)),
    "sll-pppoe": (113, CookedLinux(proto=0x8864) / PPPoE(sessionid=5) / PPP()),
    "sll2-vlan": (276, CookedLinuxV2(proto=0x8100) / Dot1Q(vlan=3)),
    "sll2-qinq": (276, CookedLinuxV2(proto=0x88A8) / Dot1AD(vlan=3) / Dot1Q(vlan=4)),
    "sll2-pppoe-vlan": (
        276,
        CookedLinuxV2(proto=0x8100) / Dot1Q(vlan=7) / PPPoE(sessionid=5) / PPP(),
    ),
    "wlan": (105, DATA / SNAPPED),
    "wlan-qos": (105, qos() / SNAPPED),
    "radiotap": (127, RadioTap() / qos() / SNAPPED),
    "radiotap-fields": (
        127,
        RadioTap(present="TSFT+Flags+Rate", mac_timestamp=5, Flags="FCS", Rate=12)
        / Dot11FCS(type=2, subtype=8, addr1=MAC, addr2=MAC, addr3=MAC)
        / Dot11QoS()
        / SNAPPED,
    ),
    "prism": (119, Raw(PRISM) / DATA / SNAPPED),
    "avs": (163, Raw(AVS) / DATA / SNAPPED),
    "ppi": (192, Raw(PPI) / DATA / SNAPPED),
    "raw": (101, None),
    "raw-12": (12, None),
    "raw-14": (14, None),
    "null": (0, "null <"),
    "null-big": (0, "null >"),
    "loop": (108, "null >"),
    "mpls-link": (219, MPLS(label=16, s=1)),
    "frame-relay": (107, Raw(b"\x18\x41\x03\xcc")),
    "c-hdlc": (104, Raw(b"\x0f\0\x08\0")),
    "nflog": (239, "nflog"),
    "pflog": (117, Raw(PFLOG)),
    "atm-rfc1483": (100, SNAPPED),
}
ONLY_4 = {"ip-in-ip", "frame-relay", "c-hdlc", "pflog"}
ONLY_6 = {"6in4"}
# A pseudowire is a guess for both programs, by different signs.
UNKNOWN_TO_TSHARK = {"pseudowire", "ppp-pppd", "mpls-link"}


def framed(head, inner):
    """The bytes of a frame with this head."""
    if head is None:
        return bytes(inner)
    if isinstance(head, str):
        if head == "nflog":
            return NFLOG + struct.pack("<HH", 4 + len(inner), 9) + bytes(inner)
        family = {4: 2, 6: 30}[inner.version]
        return struct.pack(head[-1] + "I", family) + bytes(inner)
    whole = head.copy() / inner.copy()
    return bytes(whole)


def write(path, link, frames, start=1_700_000_000.0, step=0.01):
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, link))
        for number, frame in enumerate(frames):
            whole, part = divmod(round((start + number * step) * 1e6), 10**6)
            file.write(struct.pack("<IIII", whole, part, len(frame), len(frame)) + frame)
    return path


def inners(name):
    both = [] if name in ONLY_6 else [INNER4]
    return both if name in ONLY_4 else [*both, INNER6]


@pytest.mark.parametrize("name", SHOWN)
def test_the_flow_is_shown(tmp_path, name):
    link, head = SHOWN[name]
    frames = [framed(head, inner) for inner in inners(name)]
    path = write(tmp_path / "a.pcap", link, frames)
    capture = read(path)
    expected = [
        ("10.0.0.1:5000", "10.0.0.2:443")
        if inner.version == 4
        else ("[fd00::1]:5000", "[fd00::2]:443")
        for inner in inners(name)
    ]
    assert [tuple(row) for row in ends(capture.connections).to_numpy()] == expected
    found = [bytes(content) for _, content in capture.contents(np.arange(len(frames)))]
    assert found == [b"hello"] * len(frames)
    assert capture.packets["to_server"].all() and capture.counts.others == ""
    counts = Counts()
    assert [packet.payload for packet in transport(path, counts)] == found
    assert counts.tcp == len(frames)


@pytest.mark.tshark
def test_another_program_sees_the_same(tmp_path):
    """tshark's innermost TCP header of each frame, of one file with an interface for each link."""
    frames = [
        (link, framed(head, inner), name)
        for name, (link, head) in SHOWN.items()
        for inner in inners(name)
        if name not in UNKNOWN_TO_TSHARK
    ]
    path = tmp_path / "all.pcapng"
    path.write_bytes(pcapng([(link, frame) for link, frame, _ in frames]))
    command = ["tshark", "-r", str(path), "-T", "fields", "-E", "separator=;", "-E", "occurrence=l"]
    command += ["-d", "udp.port==8472,vxlan"]
    fields = ["-e", "tcp.srcport", "-e", "tcp.dstport", "-e", "tcp.payload"]
    done = subprocess.run(
        [*command, *fields], capture_output=True, text=True, check=True, timeout=60
    )
    seen = list(csv.reader(done.stdout.splitlines(), delimiter=";"))
    wrong = [
        (name, row)
        for (_, _, name), row in zip(frames, seen, strict=True)
        if row != ["5000", "443", b"hello".hex()]
    ]
    assert not wrong
    assert read(path).counts.tcp + read(path).counts.copies == len(frames)


def pcapng(frames):
    """Frames of several link types in one file: (link, bytes)."""

    def block(kind, body):
        return struct.pack("<II", kind, 12 + len(body)) + body + struct.pack("<I", 12 + len(body))

    links = sorted({link for link, _ in frames})
    out = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    for link in links:
        out += block(1, struct.pack("<HHI", link, 0, 0))
    for number, (link, frame) in enumerate(frames):
        ticks = 1_700_000_000_000_000 + number * 2_000_000
        head = struct.pack(
            "<IIIII", links.index(link), ticks >> 32, ticks & 0xFFFFFFFF, len(frame), len(frame)
        )
        out += block(6, head + frame + bytes(-len(frame) % 4))
    return out


NAMED = {
    "ARP": (1, ether() / ARP(hwsrc=MAC, psrc="10.0.0.1", pdst="10.0.0.2")),
    "PPPoE discovery": (1, ether() / PPPoED()),
    "PPP LCP": (1, ether() / PPPoE(sessionid=5) / PPP() / PPP_LCP()),
    "spanning tree": (1, Dot3(src=MAC, dst=MAC) / LLC() / STP()),
    "LLDP": (1, ether(type=0x88CC) / Raw(bytes(40))),
    "EtherType 0x1234": (1, ether(type=0x1234) / Raw(bytes(40))),
    "ICMP": (1, ether() / Dot1Q() / OUTER / ICMP()),
    "ESP (IPsec)": (1, ether() / IP(proto=50) / Raw(bytes(40))),
    "IP protocol 200": (1, ether() / IP(proto=200) / Raw(bytes(40))),
    "802.11 management": (127, RadioTap() / Dot11(type=0, subtype=8, addr1=MAC) / Raw(bytes(40))),
    "802.11 encrypted data": (105, qos(FCfield="protected") / Raw(bytes(40))),
    "USB": (220, Raw(bytes(80))),
    "link type 147": (147, Raw(bytes(80))),
    "Linux protocol 0x000c": (113, CookedLinux(proto=0x0C) / Raw(bytes(40))),
    "damaged or cut headers": (1, Raw(bytes(ether())[:13])),
}


@pytest.mark.filterwarnings("ignore:.*link type:UserWarning")
@pytest.mark.parametrize("name", NAMED)
def test_what_is_not_shown_is_named_and_counted(tmp_path, capsys, name):
    link, frame = NAMED[name]
    path = write(tmp_path / "a.pcap", link, [bytes(frame)] * 84)
    counts = Counts()
    assert list(transport(path, counts)) == []
    assert counts.others == read(path).counts.others == f"84 frames of {name}"
    assert main([str(path)]) == 2
    assert f"84 packets: 84 frames of {name}\n" in capsys.readouterr().err


def test_several_kinds_stand_in_one_line(tmp_path, capsys):
    frames = [bytes(NAMED["ARP"][1])] * 3 + [bytes(NAMED["LLDP"][1])] + [bytes(ether() / INNER4)]
    path = write(tmp_path / "a.pcap", 1, frames)
    assert main([str(path)]) == 0
    assert "4 other: 3 frames of ARP, 1 of LLDP" in capsys.readouterr().out


@pytest.mark.parametrize("port", [4789, 6081, 2152, 1701, 8472])
def test_a_port_of_a_tunnel_is_no_tunnel(tmp_path, port):
    """Clients take any port: what comes back to it is what it is."""
    noise = bytes(np.random.default_rng(port).integers(0, 256, 400, dtype=np.uint8))
    frames = [
        bytes(ether() / OUTER / UDP(sport=443, dport=port) / Raw(noise[i : i + 40]))
        for i in range(0, 400, 8)
    ]
    # As bad: a header that fits, and nonsense in it.
    frames.append(
        bytes(ether() / OUTER / UDP(sport=443, dport=2152) / Raw(b"\x30\xff\0\x04abcdzzzz"))
    )
    path = write(tmp_path / "a.pcap", 1, frames)
    assert read(path).counts.udp == len(frames) == len(list(transport(path)))


SAMPLES = [(link, framed(head, INNER4)) for name, (link, head) in SHOWN.items()]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.filterwarnings("ignore::analysis.capture_errors.CaptureWarning")
@given(st.data())
def test_both_readers_agree_on_damaged_frames(tmp_path, data):
    frames = []
    for link, good in data.draw(st.lists(st.sampled_from(SAMPLES), min_size=1, max_size=8)):
        frame = bytearray(good[: data.draw(st.integers(1, len(good)))])
        if data.draw(st.booleans()):
            frame = bytearray(good)
        for _ in range(data.draw(st.integers(0, 3))):
            frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
        frames.append((link, bytes(frame)))
    path = tmp_path / "a.pcapng"
    path.write_bytes(pcapng(frames))
    capture, counts = read(path), Counts()
    singly = list(transport(path, counts))
    table = capture.packets
    assert [{"tcp": 6, "udp": 17}[packet.protocol] for packet in singly] == list(table["protocol"])
    for name in ("length", "seq", "ack", "flags"):
        assert [getattr(packet, name) for packet in singly] == list(table[name])
    rows = np.arange(len(table))
    assert [p.payload for p in singly] == [bytes(found) for _, found in capture.contents(rows)]
    assert counts.kinds == capture.counts.kinds and counts.fragments == capture.counts.fragments
