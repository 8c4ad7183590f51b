"""From a link type of libpcap to the first layer of a frame (`analysis.encapsulation`)."""

from __future__ import annotations

import struct
from collections.abc import Callable

from analysis.encapsulation import (
    COOKED,
    DAMAGED,
    IP,
    IPV4,
    IPV6,
    LEAST_TYPE,
    LINK,
    LLC,
    MACS,
    MPLS,
    PPP,
    PPPOE,
    WIFI,
    Layer,
    typed,
)

# Link types: https://www.ietf.org/archive/id/draft-ietf-opsawg-pcaplinktype
NULL, ETHERNET, LOOP, LINUX_SLL, LINUX_SLL2 = 0, 1, 108, 113, 276
RAW_IP = frozenset({12, 14, 101, 228, 229})

_u16 = struct.Struct("!H").unpack_from
_u32 = struct.Struct("!I").unpack_from
_little16 = struct.Struct("<H").unpack_from
_little32 = struct.Struct("<I").unpack_from


def first_layer(frame: bytes, link: int, at: int = 0) -> Layer:
    """What the link type says stands at the start. Raises IndexError, struct.error if it is cut."""
    if link == ETHERNET:
        return at, MACS
    if link in RAW_IP:
        return at, IP
    if link in _FIXED:
        size, kind = _FIXED[link]
        return at + size, kind
    if link in _TYPED:
        size, place = _TYPED[link]
        return at + size, typed(_u16(frame, at + place)[0])
    if link in _COOKED:
        size, place = _COOKED[link]
        return at + size, _cooked(_u16(frame, at + place)[0])
    start = _STARTS.get(link)
    return start(frame, at) if start else (at, LINK + link)


def _cooked(number: int) -> int:
    """The protocol in a Linux cooked header: Linux has numbers of its own below EtherTypes."""
    return number if number >= LEAST_TYPE else LLC if number == 4 else COOKED + number


def _ppp_serial(frame: bytes, at: int) -> Layer:
    if frame[at] in (0x0F, 0x8F):  # Cisco HDLC instead
        return at + 4, typed(_u16(frame, at + 2)[0])
    return at, PPP


def _ppp_pppd(frame: bytes, at: int) -> Layer:
    """The direction, in place of the address or before all of PPP."""
    if frame[at] == 0xFF:
        return at, PPP
    return (at + 2, PPP) if frame[at + 1] == 3 else (at + 1, PPP)


def _frame_relay(frame: bytes, at: int) -> Layer:
    """RFC 2427; or Cisco's: an EtherType after the address."""
    while not frame[at] & 1:
        at += 1
    at += 1
    if frame[at] != 3:
        return at + 2, typed(_u16(frame, at)[0])
    at += 2 if frame[at + 1] == 0 else 1
    if frame[at] == 0x80:
        return at + 6, typed(_u16(frame, at + 4)[0])
    kind = {0xCC: IPV4, 0x8E: IPV6, 0xCF: PPP}.get(frame[at])
    return (at + 1, kind) if kind else (at, LINK + 107)


def _token_ring(frame: bytes, at: int) -> Layer:
    route = frame[at + 14] & 0x1F if frame[at + 8] & 0x80 else 0
    return at + 14 + route, LLC


def _nflog(frame: bytes, at: int) -> Layer:
    """Attributes in the byte order of the machine; number 9 is the packet."""
    at += 4
    number = _little16 if _little16(frame, at)[0] <= len(frame) else _u16
    while True:
        size, name = number(frame, at)[0], number(frame, at + 2)[0]
        if name & 0x7FFF == 9:
            return at + 4, IP
        if size < 4:
            return at, DAMAGED
        at += (size + 3) // 4 * 4


def _pflog(frame: bytes, at: int) -> Layer:
    return at + (frame[at] + 3) // 4 * 4, IP


def _pktap(frame: bytes, at: int) -> Layer:
    inner = _little32(frame, at + 8)[0]
    if inner == 258:
        return at, DAMAGED
    return first_layer(frame, inner, at + _little32(frame, at)[0])


def _prism(frame: bytes, at: int) -> Layer:
    if _u32(frame, at)[0] & 0xFFFFF000 == 0x80211000:
        return _avs(frame, at)
    size = _little32(frame, at + 4)[0]
    return _wifi(frame, at + (size if size < 0x10000 else _u32(frame, at + 4)[0]))


def _avs(frame: bytes, at: int) -> Layer:
    return _wifi(frame, at + _u32(frame, at + 4)[0])


def _ppi(frame: bytes, at: int) -> Layer:
    inner = _little32(frame, at + 4)[0]
    if inner == 192:
        return at, DAMAGED
    return first_layer(frame, inner, at + _little16(frame, at + 2)[0])


def _radiotap(frame: bytes, at: int) -> Layer:
    present, place = _little32(frame, at + 4)[0], 8
    more = present
    while more >> 31:
        more = _little32(frame, at + place)[0]
        place += 4
    if present & 1:  # 8 bytes of time, aligned
        place = (place + 7) // 8 * 8 + 8
    padded = bool(present & 2 and frame[at + place] & 0x20)
    return _wifi(frame, at + _little16(frame, at + 2)[0], padded)


def _wifi(frame: bytes, at: int, padded: bool = False) -> Layer:
    """IEEE 802.11, section 9.2 and 9.3.2."""
    control, flags = frame[at], frame[at + 1]
    kind, subtype = control >> 2 & 3, control >> 4
    if kind != 2:
        return at, WIFI + kind
    if subtype & 4:
        return at, WIFI + 4
    if flags & 0x40:
        return at, WIFI + 5
    if flags & 4 or frame[at + 22] & 15:
        return at, WIFI + 6
    size = 24 + 6 * (flags & 3 == 3)
    if subtype & 8:
        if frame[at + size] & 0x80:
            return at, WIFI + 7
        size += 2 + 4 * (flags >> 7)
    return at + ((size + 3) // 4 * 4 if padded else size), LLC


_FIXED = {
    8: (16, IP),
    51: (0, PPPOE),
    204: (1, PPP),
    100: (0, LLC),
    10: (13, LLC),
    122: (16, LLC),
    109: (12, IP),
    226: (24, IP),
    219: (0, MPLS),
    240: (4, MACS),
    274: (8, MACS),
    NULL: (4, IP),
    LOOP: (4, IP),
    9: (0, PPP),
}
"""Bytes before the layer, and what that is, by link type."""

_TYPED = {104: (4, 2), 205: (5, 3), 138: (18, 16)}
_COOKED = {LINUX_SLL: (16, 14), LINUX_SLL2: (20, 0)}
"""Bytes before the layer, and where its EtherType stands."""

_STARTS: dict[int, Callable[[bytes, int], Layer]] = {
    50: _ppp_serial,
    166: _ppp_pppd,
    107: _frame_relay,
    6: _token_ring,
    239: _nflog,
    117: _pflog,
    258: _pktap,
    105: _wifi,
    119: _prism,
    127: _radiotap,
    163: _avs,
    192: _ppi,
}

LINK_TYPES = frozenset({ETHERNET, *RAW_IP, *_FIXED, *_TYPED, *_COOKED, *_STARTS})
"""Those that are understood."""
