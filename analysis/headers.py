"""From a captured frame to its UDP datagram or TCP segment: the headers, by struct.

Understands what `analysis.encapsulation` does before IP; IPv4 (RFC 791) and IPv6 (RFC 8200) with
extension headers; IP again within both; UDP (RFC 768) and TCP (RFC 9293), the innermost ones.
"""

from __future__ import annotations

import functools
import socket
import struct
from typing import NamedTuple

from analysis.encapsulation import (
    DAMAGED,
    FRAGMENT,
    IP,
    IP_PROTOCOL,
    IP_TUNNELS,
    IPV4,
    IPV6,
    first_layer,
    in_udp,
    next_layer,
)

_TCP, _UDP = 6, 17
_EXTENSIONS = frozenset({0, 43, 60, 135})  # all of the form: next header, length in 8 bytes - 1
_FRAGMENT, _AUTHENTICATION = 44, 51
_IP_KINDS = frozenset({IP, IPV4, IPV6})

MOST_LAYERS = 24
"""Headers in one frame before its TCP or UDP; more are damage or an attack."""

FIN, SYN, RST, PSH, ACK = 0x01, 0x02, 0x04, 0x08, 0x10
"""TCP flags."""

_u16 = struct.Struct("!H").unpack_from
_ports = struct.Struct("!HH").unpack_from
_tcp = struct.Struct("!HHIIBB").unpack_from


class Skipped(NamedTuple):
    """A frame without a UDP datagram or TCP segment for us: how far it was understood."""

    kind: int
    """As in `encapsulation`; `protocol_names.name` tells it in words."""


class Located(NamedTuple):
    """Where in a frame its innermost UDP datagram or TCP segment stands."""

    version: int
    """4 or 6."""
    protocol: int
    start: int
    """Of the UDP or TCP header."""
    stop: int
    """End of the IP packet, as its header says."""
    addresses: int
    ip: int
    """Start of the IP header."""


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
    found = locate(frame, link, size)
    if isinstance(found, Skipped):
        return found
    try:
        return _transport(frame, found, time, size)
    except struct.error:  # shorter than its own header
        return Skipped(IP_PROTOCOL + found.protocol)


def locate(frame: bytes, link: int, size: int) -> Located | Skipped:
    """The innermost TCP or UDP header in a frame of `size` bytes on the wire, by what is before it.

    The header itself may be cut.
    """
    outer: Located | None = None  # a datagram that looks like a tunnel
    try:
        at, kind = first_layer(frame, link)
        for _ in range(MOST_LAYERS):
            if kind not in _IP_KINDS:
                layer = next_layer(frame, at, kind)
                if layer is None:
                    return outer or Skipped(kind) if kind == DAMAGED else Skipped(kind)
                at, kind = layer
                continue
            found = _ip(frame, at, size)
            if isinstance(found, Skipped):
                return outer or found if found.kind == DAMAGED else found
            at, kind = found.start, IP_TUNNELS.get(found.protocol, 0)
            if found.protocol == _UDP:
                at += 8
                if len(frame) >= at:
                    port, length = _ports(frame, found.start + 2)
                    kind = in_udp(frame, at, length - 8, port)
                outer = found if kind else outer
            if not kind:
                known = found.protocol in (_TCP, _UDP)
                return found if known else Skipped(IP_PROTOCOL + found.protocol)
    except (struct.error, IndexError):  # shorter than its own headers
        pass
    return outer or Skipped(DAMAGED)


def _ip(frame: bytes, at: int, size: int) -> Located | Skipped:
    version = frame[at] >> 4
    if version == 4:
        return _ipv4(frame, at, size)
    return _ipv6(frame, at, size) if version == 6 else Skipped(DAMAGED)


def _ipv4(frame: bytes, at: int, size: int) -> Located | Skipped:
    if len(frame) < at + 20 or frame[at] & 15 < 5:
        return Skipped(DAMAGED)
    if _u16(frame, at + 6)[0] & 0x3FFF:  # more fragments, or an offset
        return Skipped(FRAGMENT)
    # A total length of 0 is what segmentation offload leaves in a local capture.
    stop = at + _u16(frame, at + 2)[0]
    if stop == at:
        stop = size
    start, protocol = at + 4 * (frame[at] & 15), frame[at + 9]
    if protocol == _AUTHENTICATION:
        protocol, start = frame[start], start + 4 * (frame[start + 1] + 2)
    return Located(4, protocol, start, stop, at + 12, at)


def _ipv6(frame: bytes, at: int, size: int) -> Located | Skipped:
    if len(frame) < at + 40:
        return Skipped(DAMAGED)
    stop = at + 40 + _u16(frame, at + 4)[0]
    if stop == at + 40:  # jumbo payload, or offload
        stop = size
    protocol, start = frame[at + 6], at + 40
    for _ in range(MOST_LAYERS):
        if protocol in _EXTENSIONS:
            step = 8 * (frame[start + 1] + 1)
        elif protocol == _AUTHENTICATION:
            step = 4 * (frame[start + 1] + 2)
        elif protocol == _FRAGMENT:
            # An offset of 0 with no more to come is whole: an "atomic" fragment, RFC 6946.
            if _u16(frame, start + 2)[0] & 0xFFF9:
                return Skipped(FRAGMENT)
            step = 8
        else:
            return Located(6, protocol, start, stop, at + 8, at)
        protocol, start = frame[start], start + step
    return Skipped(DAMAGED)


def _transport(frame: bytes, found: Located, time: float, size: int) -> Packet | Skipped:
    start, place = found.start, found.addresses
    width = 4 if found.version == 4 else 16
    source = frame[place : place + width]
    destination = frame[place + width : place + 2 * width]
    if found.protocol == _UDP:
        sport, dport = _ports(frame, start)
        length = _u16(frame, start + 4)[0] - 8
        if length < 0:
            return Skipped(IP_PROTOCOL + _UDP)
        payload = frame[start + 8 : start + 8 + length]
        return Packet(time, size, "udp", (source, sport), (destination, dport), payload, length)
    sport, dport, seq, ack, offset, flags = _tcp(frame, start)
    data = start + 4 * (offset >> 4)
    if data > found.stop:
        return Skipped(IP_PROTOCOL + _TCP)
    return Packet(
        time,
        size,
        "tcp",
        (source, sport),
        (destination, dport),
        frame[data : found.stop],
        found.stop - data,
        seq,
        ack,
        flags,
    )
