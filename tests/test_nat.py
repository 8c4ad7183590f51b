"""A NAT whose mapping changes: ports, checksums, and what is dropped."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.nat import Nat
from topologies.profile import LinkProfile, ProfileError, Rebind

TCP, UDP, ICMP = 6, 17, 1
CLIENT, SERVER = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
PORT = st.integers(1024, 65535)
PAYLOAD = st.binary(min_size=0, max_size=60)
BOTH = pytest.mark.parametrize("protocol", [UDP, TCP])


def total(data: bytes) -> int:
    """The Internet checksum (RFC 1071) of the data."""
    if len(data) % 2:
        data += b"\0"
    words = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while words >> 16:
        words = (words & 0xFFFF) + (words >> 16)
    return ~words & 0xFFFF


def frame(
    protocol: int,
    source: int,
    target: int,
    payload: bytes = b"",
    *,
    up: bool = True,
    options: int = 0,
    fragment: int = 0,
    checksum: bool = True,
) -> bytes:
    """An Ethernet frame whose checksums are right."""
    near, far = (CLIENT, SERVER) if up else (SERVER, CLIENT)
    if protocol == TCP:
        head = struct.pack("!HHIIHHHH", source, target, 1, 2, 0x5018, 512, 0, 0)
        place = 16
    else:
        head, place = struct.pack("!HHHH", source, target, 8 + len(payload), 0), 6
    segment = head + payload
    pseudo = near + far + struct.pack("!BBH", 0, protocol, len(segment))
    right = total(pseudo + segment) if checksum else 0
    if checksum and protocol == UDP and right == 0:
        right = 0xFFFF
    segment = segment[:place] + right.to_bytes(2, "big") + segment[place + 2 :]
    length = 20 + options + len(segment)
    version = 0x40 | (20 + options) // 4
    ip = struct.pack("!BBHHHBBH", version, 0, length, 7, fragment, 64, protocol, 0) + near + far
    ip += b"\x01" * options
    ip = ip[:10] + total(ip).to_bytes(2, "big") + ip[12:]
    return b"\2" * 12 + b"\x08\x00" + ip + segment


def ports(data: bytes) -> tuple[int, int]:
    start = 14 + 4 * (data[14] & 15)
    source, target = struct.unpack("!HH", data[start : start + 4])
    return source, target


def right_checksum(data: bytes) -> bool:
    """Over pseudo-header and segment it is 0, whatever the NAT did."""
    start = 14 + 4 * (data[14] & 15)
    segment = data[start:]
    pseudo = data[26:34] + struct.pack("!BBH", 0, data[23], len(segment))
    return total(pseudo + segment) == 0


def sent(nat: Nat, data: bytes, direction: str, t: float) -> bytes:
    passed = nat.translate(data, direction, t)
    assert passed is not None
    return passed


@BOTH
def test_before_the_first_change_nothing_is_touched(protocol: int) -> None:
    nat = Nat(Rebind(10.0))
    for t in (-math.inf, -1.0, 0.0, 9.999):
        for up in (True, False):
            data = frame(protocol, 5000, 4433, b"hello", up=up)
            assert nat.translate(data, "up" if up else "down", t) == data


@BOTH
@given(port=PORT, payload=PAYLOAD, changes=st.integers(1, 500), options=st.sampled_from([0, 4, 40]))
def test_after_a_change_the_server_sees_another_port_and_reaches_the_client(
    protocol: int, port: int, payload: bytes, changes: int, options: int
) -> None:
    nat, t = Nat(Rebind(1.0, 1.0)), changes + 0.5
    inner = frame(protocol, port, 4433, payload, options=options)
    outer = sent(nat, inner, "up", t)
    seen, target = ports(outer)
    assert seen != port and seen >= 1024 and target == 4433
    assert right_checksum(outer)
    assert outer == frame(protocol, seen, 4433, payload, options=options)
    answer = frame(protocol, 4433, seen, payload, up=False)
    back = sent(nat, answer, "down", t)
    assert back == frame(protocol, 4433, port, payload, up=False)
    assert right_checksum(back)


@BOTH
def test_what_is_sent_to_an_earlier_mapping_is_dropped(protocol: int) -> None:
    nat = Nat(Rebind(1.0, 1.0))
    mappings = []
    for change in range(60):
        outer = sent(nat, frame(protocol, 5000, 4433), "up", change + 0.5)
        mappings.append(ports(outer)[0])
        for earlier in mappings[:-1]:
            answer = frame(protocol, 4433, earlier, up=False)
            assert nat.translate(answer, "down", change + 0.5) is None
        assert nat.translate(frame(protocol, 4433, mappings[-1], up=False), "down", change + 0.5)
    assert len(set(mappings)) == 60


def test_a_port_from_which_the_client_never_sent_cannot_be_reached() -> None:
    nat = Nat(Rebind(1.0))
    outer = sent(nat, frame(UDP, 5000, 4433), "up", 2.0)
    assert nat.translate(frame(UDP, 4433, 777, up=False), "down", 2.0) is None
    # The protocols have mappings of their own.
    seen = ports(outer)[0]
    assert nat.translate(frame(TCP, 4433, seen, up=False), "down", 2.0) is None
    assert nat.translate(frame(UDP, 4433, seen, up=False), "down", 2.0) is not None
    nat.reset()
    assert nat.translate(frame(UDP, 4433, seen, up=False), "down", 2.0) is None


@given(st.sets(PORT, min_size=2, max_size=40), st.integers(1, 1000))
def test_no_two_ports_of_the_client_share_a_mapping(inner: set[int], changes: int) -> None:
    nat = Nat(Rebind(0.0, 1.0))
    outer = {ports(sent(nat, frame(UDP, port, 4433), "up", changes - 0.5))[0] for port in inner}
    assert len(outer) == len(inner)


def test_a_udp_datagram_without_a_checksum_stays_without() -> None:
    nat = Nat(Rebind(0.0))
    outer = sent(nat, frame(UDP, 5000, 4433, b"x", checksum=False), "up", 1.0)
    assert outer == frame(UDP, ports(outer)[0], 4433, b"x", checksum=False)


def test_a_udp_checksum_never_becomes_zero() -> None:
    nat = Nat(Rebind(0.0))
    seen = {sent(nat, frame(UDP, 5000, 4433, bytes(2)), "up", 1.0)[40:42]}
    for word in range(65536):
        data = frame(UDP, 5000, 4433, word.to_bytes(2, "big"))
        outer = sent(nat, data, "up", 1.0)
        seen.add(outer[40:42])
    assert b"\0\0" not in seen and b"\xff\xff" in seen
    assert len(seen) == 65535


def test_a_first_fragment_is_translated_and_a_later_one_passes() -> None:
    nat = Nat(Rebind(0.0))
    first = frame(UDP, 5000, 4433, b"x" * 40, fragment=0x2000)
    assert ports(sent(nat, first, "up", 1.0))[0] != 5000
    later = frame(UDP, 5000, 4433, b"x" * 40, fragment=0x2000 | 5)
    assert nat.translate(later, "up", 1.0) == later
    assert nat.translate(later, "down", 1.0) == later


@given(st.binary(max_size=100), st.sampled_from(["up", "down"]))
def test_frames_that_are_no_udp_or_tcp_pass(data: bytes, direction: str) -> None:
    nat = Nat(Rebind(0.0))
    assert nat.translate(data, direction, 1.0) == data or data[12:14] == b"\x08\x00"
    arp = data[:12].ljust(12, b"\0") + b"\x08\x06" + data
    ipv6 = data[:12].ljust(12, b"\0") + b"\x86\xdd" + data
    ping = frame(ICMP, 5000, 4433, data)
    for other in (arp, ipv6, ping):
        assert nat.translate(other, direction, 1.0) == other


@given(st.integers(0, 70), st.sampled_from([TCP, UDP]), st.sampled_from([0, 20, 40]))
def test_a_cut_frame_never_changes_its_length(length: int, protocol: int, options: int) -> None:
    nat = Nat(Rebind(0.0))
    cut = frame(protocol, 5000, 4433, options=options)[:length]
    assert len(sent(nat, cut, "up", 1.0)) == len(cut)


@pytest.mark.parametrize(
    ("rebind", "t", "count"),
    [
        (Rebind(5.0), -math.inf, 0),
        (Rebind(5.0), 4.999, 0),
        (Rebind(5.0), 5.0, 1),
        (Rebind(5.0), 1e6, 1),
        (Rebind(5.0, 10.0), 14.999, 1),
        (Rebind(5.0, 10.0), 15.0, 2),
        (Rebind(0.0, 0.5), 10.25, 21),
    ],
)
def test_how_often_the_address_has_changed(rebind: Rebind, t: float, count: int) -> None:
    assert rebind.count(t) == count


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"at": -1}, "link: rebind: at must be a number at least 0, not -1"),
        ({"at": math.nan}, "link: rebind: at must be a number at least 0, not nan"),
        ({"at": 1, "every": 0}, "link: rebind: every must be a number at least 0.001, not 0"),
        ({"at": 1, "every": math.inf}, "link: rebind: every must be a number at least 0.001"),
        ({"every": 1}, 'link.rebind: "at" is missing'),
        ({"at": 1, "times": 3}, "link.rebind: unknown key 'times'; known are at, every"),
        (5, "link.rebind must be an object, not 5"),
    ],
)
def test_bad_values_are_named_in_one_line(values: Any, line: str) -> None:
    data = {"name": "x", "source": "test", "up": {}, "down": {}, "rebind": values}
    with pytest.raises(ProfileError) as caught:
        LinkProfile.from_dict(data)
    assert str(caught.value).startswith(line)
