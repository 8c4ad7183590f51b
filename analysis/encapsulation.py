"""What stands between the start of a frame and its IP header, one layer after the other.

A layer is (at, kind): where its content starts in the frame, and what that is. A kind is an
EtherType, or one of the numbers below it or above it that are made here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

# Link types: https://www.ietf.org/archive/id/draft-ietf-opsawg-pcaplinktype
NULL, ETHERNET, LOOP, LINUX_SLL, LINUX_SLL2 = 0, 1, 108, 113, 276
RAW_IP = frozenset({12, 14, 101, 228, 229})

Layer = tuple[int, int]

IP, MACS, LLC, PPP, ETHER_IP, GRE, VXLAN, GENEVE, GTP, L2TP = range(1, 11)
"""IP of either version, the addresses of Ethernet, and so on."""

IPV4, IPV6, MPLS, PPPOE = 0x0800, 0x86DD, 0x8847, 0x8864
VLAN_TAGS = (0x8100, 0x88A8, 0x9100, 0x9200)
_BRIDGED, _PPP_TYPE, _MPLS_MULTICAST, _BACKBONE = 0x6558, 0x880B, 0x8848, 0x88E7
_ERSPAN, _ERSPAN3 = 0x88BE, 0x22EB
_LEAST_TYPE = 0x0600

# What was understood no further: a number of its own protocol, on top of one of these.
PPP_PROTOCOL, LLC_SAP, IP_PROTOCOL, LINK, COOKED, WIFI, OTHER = (n << 16 for n in range(1, 8))
DAMAGED, FRAGMENT, GRE_CONTROL, VXLAN_OTHER = range(OTHER, OTHER + 4)

PPP_TYPES = {0x21: IPV4, 0x57: IPV6, 0x281: MPLS, 0x283: MPLS}
IP_TUNNELS = {4: IPV4, 41: IPV6, 47: GRE, 97: ETHER_IP, 137: MPLS}
"""Layer in an IP packet, by protocol."""
UDP_TUNNELS = {4789: VXLAN, 8472: VXLAN, 4790: VXLAN, 6081: GENEVE, 2152: GTP, 1701: L2TP}
"""Layer in a UDP datagram, by destination port. Its header must fit, too."""

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
        return at + size, _typed(_u16(frame, at + place)[0])
    if link in _COOKED:
        size, place = _COOKED[link]
        return at + size, _cooked(_u16(frame, at + place)[0])
    start = _STARTS.get(link)
    return start(frame, at) if start else (at, LINK + link)


def next_layer(frame: bytes, at: int, kind: int) -> Layer | None:
    """What the layer holds; None if it is IP, or nothing that is understood."""
    step = _STEPS.get(kind)
    return step(frame, at) if step else None


def _typed(number: int) -> int:
    """What an EtherType says, or a length in its place (IEEE 802.3)."""
    return number if number >= _LEAST_TYPE else LLC


def _cooked(number: int) -> int:
    """The protocol in a Linux cooked header: Linux has numbers of its own below EtherTypes."""
    return number if number >= _LEAST_TYPE else LLC if number == 4 else COOKED + number


def _tag(frame: bytes, at: int) -> Layer:
    return at + 4, _typed(_u16(frame, at + 2)[0])


def _macs(frame: bytes, at: int) -> Layer:
    return at + 14, _typed(_u16(frame, at + 12)[0])


def _backbone(frame: bytes, at: int) -> Layer:
    """IEEE 802.1ah: a service tag, then the customer's whole frame."""
    return at + 4, MACS


def _ether_ip(frame: bytes, at: int) -> Layer:
    return at + 2, MACS


def _llc(frame: bytes, at: int) -> Layer:
    sap = frame[at]
    if sap == 0xAA and frame[at + 2] == 3:
        kind = _u16(frame, at + 6)[0]
        # RFC 1042, and the bridge tunnel of IEEE 802.1H; other organisations have own numbers.
        if frame[at + 3 : at + 6] in (b"\0\0\0", b"\0\0\xf8") and kind >= _LEAST_TYPE:
            return at + 8, kind
    if sap == 6 and frame[at + 2] == 3:
        return at + 3, IPV4
    return at, LLC_SAP + sap


def _ppp(frame: bytes, at: int) -> Layer:
    """RFC 1661, and the address and control of RFC 1662 where they are."""
    if frame[at] == 0xFF and frame[at + 1] == 3:
        at += 2
    # A protocol may be compressed to one byte, which then is odd.
    size = 1 if frame[at] & 1 else 2
    protocol = frame[at] if size == 1 else _u16(frame, at)[0]
    return at + size, PPP_TYPES.get(protocol, PPP_PROTOCOL + protocol)


def _pppoe(frame: bytes, at: int) -> Layer:
    return at + 6, PPP


def _mpls(frame: bytes, at: int) -> Layer:
    """RFC 3032: labels do not say what follows, its first four bits do (RFC 4928)."""
    while not frame[at + 2] & 1:
        at += 4
    at += 4
    first = frame[at] >> 4
    if first in (4, 6):
        return at, IP
    # A pseudowire: the control word, which starts with zeros, is mostly there.
    return (at + 4, MACS) if first == 0 else (at, MACS)


def _gre(frame: bytes, at: int) -> Layer:
    """RFC 2784, 2890 and for PPTP 2637."""
    flags, kind = _u16(frame, at)[0], _u16(frame, at + 2)[0]
    at += 4 + 4 * ((flags & 0xC000 > 0) + (flags >> 13 & 1) + (flags >> 12 & 1))
    if flags & 7 == 1:
        at += 4 * (flags >> 7 & 1)
        return (at, PPP) if flags & 0x1000 else (at, GRE_CONTROL)
    if kind == _BRIDGED:
        return at, MACS
    if kind == _ERSPAN:  # the first version has neither a sequence number nor a header
        return at + 8 * (flags >> 12 & 1), MACS
    if kind == _ERSPAN3:
        return at + 12 + 8 * (frame[at + 11] & 1), MACS
    if kind == _PPP_TYPE:
        return at, PPP
    return at, _typed(kind) if kind else GRE_CONTROL


def _vxlan(frame: bytes, at: int) -> Layer:
    """RFC 7348; with the extension for other content than Ethernet."""
    if frame[at] & 4:
        inner = {1: IPV4, 2: IPV6, 3: MACS, 5: MPLS}
        return at + 8, inner.get(frame[at + 3], VXLAN_OTHER)
    return at + 8, MACS


def _geneve(frame: bytes, at: int) -> Layer:
    kind = _u16(frame, at + 2)[0]
    return at + 8 + 4 * (frame[at] & 0x3F), MACS if kind == _BRIDGED else _typed(kind)


def _gtp(frame: bytes, at: int) -> Layer:
    """3GPP TS 29.281, section 5."""
    flags = frame[at]
    more = frame[at + 11] if flags & 4 else 0
    at += 12 if flags & 7 else 8
    while more:
        size = 4 * frame[at]
        if not size:
            return at, DAMAGED
        more, at = frame[at + size - 1], at + size
    return at, IP


def _l2tp(frame: bytes, at: int) -> Layer:
    """RFC 2661, section 3.1: a data message."""
    flags = frame[at]
    size = 6 + 2 * (flags >> 6 & 1) + 4 * (flags >> 3 & 1)
    if flags & 2:
        size += 2 + _u16(frame, at + size)[0]
    return at + size, PPP


_STEPS: dict[int, Callable[[bytes, int], Layer]] = {
    **dict.fromkeys(VLAN_TAGS, _tag),
    ETHER_IP: _ether_ip,
    MACS: _macs,
    LLC: _llc,
    PPP: _ppp,
    PPPOE: _pppoe,
    GRE: _gre,
    MPLS: _mpls,
    _MPLS_MULTICAST: _mpls,
    _BACKBONE: _backbone,
    VXLAN: _vxlan,
    GENEVE: _geneve,
    GTP: _gtp,
    L2TP: _l2tp,
}


def in_udp(frame: bytes, at: int, length: int, port: int) -> int:
    """Which tunnel's header a datagram's payload has, by port and by what must stand in it; or 0.

    A port alone proves nothing: clients take any of them.
    """
    kind = UDP_TUNNELS.get(port, 0)
    if not kind or length < 8:
        return 0
    head = frame[at : at + 8]
    if len(head) < 8:
        return 0
    fits = {
        # The flag that a network is given; the last byte is reserved.
        VXLAN: head[0] & 0x08 and not head[0] & 0x70 and not head[1] & 0xB7 and head[7] == 0,
        GENEVE: head[0] < 0x40
        and not head[1] & 0x3F
        and head[7] == 0
        # Anything else than these would be too little to tell it from other datagrams.
        and _u16(head, 2)[0] in (_BRIDGED, IPV4, IPV6),
        GTP: head[0] & 0xF0 == 0x30 and head[1] == 255 and _u16(head, 2)[0] == length - 8,
        L2TP: head[0] & 0xB4 == 0
        and head[1] & 0x0F == 2
        and (not head[0] & 0x40 or _u16(head, 2)[0] == length),
    }
    return kind if fits[kind] else 0


def _ppp_serial(frame: bytes, at: int) -> Layer:
    if frame[at] in (0x0F, 0x8F):  # Cisco HDLC instead
        return at + 4, _typed(_u16(frame, at + 2)[0])
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
        return at + 2, _typed(_u16(frame, at)[0])
    at += 2 if frame[at + 1] == 0 else 1
    if frame[at] == 0x80:
        return at + 6, _typed(_u16(frame, at + 4)[0])
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
