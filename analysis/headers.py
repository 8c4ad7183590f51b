"""From a captured frame to its UDP datagram or TCP segment: the headers, by struct.

Understands Ethernet with VLAN tags, Linux cooked capture v1 and v2, BSD loopback and raw IP;
IPv4 (RFC 791) and IPv6 (RFC 8200) with extension headers; UDP (RFC 768) and TCP (RFC 9293).
"""

from __future__ import annotations

import enum
import functools
import socket
import struct
from typing import NamedTuple

# Link types: https://www.ietf.org/archive/id/draft-ietf-opsawg-pcaplinktype
NULL, ETHERNET, LOOP, LINUX_SLL, LINUX_SLL2 = 0, 1, 108, 113, 276
RAW_IP = frozenset({12, 14, 101, 228, 229})
LINK_TYPES = frozenset({NULL, ETHERNET, LOOP, LINUX_SLL, LINUX_SLL2}) | RAW_IP

_VLAN = frozenset({0x8100, 0x88A8, 0x9100})
_IPV4, _IPV6 = 0x0800, 0x86DD
_TCP, _UDP = 6, 17
_EXTENSIONS = frozenset({0, 43, 60, 135})  # all of the form: next header, length in 8 bytes - 1
_FRAGMENT, _AUTHENTICATION = 44, 51

FIN, SYN, RST, PSH, ACK = 0x01, 0x02, 0x04, 0x08, 0x10
"""TCP flags."""

_u16 = struct.Struct("!H").unpack_from
_ports = struct.Struct("!HH").unpack_from
_tcp = struct.Struct("!HHIIBB").unpack_from


class Skipped(enum.Enum):
    """Why a frame holds no UDP datagram or TCP segment for us."""

    FRAGMENT = "IP fragment"
    OTHER = "neither UDP nor TCP over IP"
    LINK = "unknown link type"


class Packet(NamedTuple):
    """One UDP datagram or TCP segment of a capture."""

    time: float
    """Capture time, seconds."""
    size: int
    """Bytes of the frame on the wire, link header included."""
    protocol: str
    """udp or tcp."""
    source: tuple[bytes, int]
    """Packed IP address, port."""
    destination: tuple[bytes, int]
    payload: bytes
    """Payload bytes that were captured."""
    length: int
    """Payload bytes that the headers announce: more than captured if a snap length cut it."""
    seq: int = -1
    ack: int = -1
    flags: int = -1


@functools.lru_cache(maxsize=4096)
def address(packed: bytes) -> str:
    """Text of a packed IPv4 or IPv6 address."""
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def endpoint(end: tuple[bytes, int]) -> str:
    """Text of an address and port: 10.0.0.1:4433 or [fd00::1]:4433."""
    text = address(end[0])
    return f"[{text}]:{end[1]}" if ":" in text else f"{text}:{end[1]}"


def parse(frame: bytes, link: int, time: float, size: int) -> Packet | Skipped:
    """Parse one frame of the given link type. Never raises: what is no packet is `Skipped`."""
    if link not in LINK_TYPES:
        return Skipped.LINK
    try:
        at = _network_offset(frame, link)
        if at < 0:
            return Skipped.OTHER
        version = frame[at] >> 4
        if version == 4:
            return _ipv4(frame, at, time, size)
        if version == 6:
            return _ipv6(frame, at, time, size)
    except (struct.error, IndexError):  # shorter than its own headers
        pass
    return Skipped.OTHER


def _network_offset(frame: bytes, link: int) -> int:
    """Where the IP header starts, or -1 if another protocol follows."""
    if link == ETHERNET:
        at = 12
        kind = _u16(frame, at)[0]
        while kind in _VLAN:
            at += 4
            kind = _u16(frame, at)[0]
        return at + 2 if kind in (_IPV4, _IPV6) else -1
    if link == LINUX_SLL:
        return 16 if _u16(frame, 14)[0] in (_IPV4, _IPV6) else -1
    if link == LINUX_SLL2:
        return 20 if _u16(frame, 0)[0] in (_IPV4, _IPV6) else -1
    return 4 if link in (NULL, LOOP) else 0


def _ipv4(frame: bytes, at: int, time: float, size: int) -> Packet | Skipped:
    if _u16(frame, at + 6)[0] & 0x3FFF:  # more fragments, or an offset
        return Skipped.FRAGMENT
    # A total length of 0 is what segmentation offload leaves in a local capture.
    end = at + _u16(frame, at + 2)[0]
    if end == at:
        end = size
    addresses = frame[at + 12 : at + 16], frame[at + 16 : at + 20]
    start = at + 4 * (frame[at] & 15)
    return _transport(frame, frame[at + 9], start, end, addresses, time, size)


def _ipv6(frame: bytes, at: int, time: float, size: int) -> Packet | Skipped:
    end = at + 40 + _u16(frame, at + 4)[0]
    if end == at + 40:  # jumbo payload, or offload
        end = size
    addresses = frame[at + 8 : at + 24], frame[at + 24 : at + 40]
    protocol, start = frame[at + 6], at + 40
    while protocol not in (_TCP, _UDP):
        if protocol in _EXTENSIONS:
            step = 8 * (frame[start + 1] + 1)
        elif protocol == _AUTHENTICATION:
            step = 4 * (frame[start + 1] + 2)
        elif protocol == _FRAGMENT:
            # An offset of 0 with no more to come is whole: an "atomic" fragment, RFC 6946.
            if _u16(frame, start + 2)[0] & 0xFFF9:
                return Skipped.FRAGMENT
            step = 8
        else:
            return Skipped.OTHER
        protocol, start = frame[start], start + step
    return _transport(frame, protocol, start, end, addresses, time, size)


def _transport(
    frame: bytes,
    protocol: int,
    start: int,
    end: int,
    addresses: tuple[bytes, bytes],
    time: float,
    size: int,
) -> Packet | Skipped:
    source, destination = addresses
    if protocol == _UDP:
        sport, dport = _ports(frame, start)
        length = _u16(frame, start + 4)[0] - 8
        if length < 0:
            return Skipped.OTHER
        payload = frame[start + 8 : start + 8 + length]
        return Packet(time, size, "udp", (source, sport), (destination, dport), payload, length)
    if protocol == _TCP:
        sport, dport, seq, ack, offset, flags = _tcp(frame, start)
        data = start + 4 * (offset >> 4)
        if data > end:
            return Skipped.OTHER
        return Packet(
            time,
            size,
            "tcp",
            (source, sport),
            (destination, dport),
            frame[data:end],
            end - data,
            seq,
            ack,
            flags,
        )
    return Skipped.OTHER
