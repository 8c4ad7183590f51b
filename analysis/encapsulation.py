"""What stands between the start of a frame and its IP header, one layer after the other.

A layer is (at, kind): where its content starts in the frame, and what that is. A kind is an
EtherType, or one of the numbers below it or above it that are made here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

Layer = tuple[int, int]

IP, MACS, LLC, PPP, ETHER_IP, GRE, VXLAN, GENEVE, GTP, L2TP = range(1, 11)
"""IP of either version, the addresses of Ethernet, and so on."""

IPV4, IPV6, MPLS, PPPOE = 0x0800, 0x86DD, 0x8847, 0x8864
VLAN_TAGS = (0x8100, 0x88A8, 0x9100, 0x9200)
_BRIDGED, _PPP_TYPE, _MPLS_MULTICAST, _BACKBONE = 0x6558, 0x880B, 0x8848, 0x88E7
_ERSPAN, _ERSPAN3 = 0x88BE, 0x22EB
LEAST_TYPE = 0x0600

# What was understood no further: a number of its own protocol, on top of one of these.
PPP_PROTOCOL, LLC_SAP, IP_PROTOCOL, LINK, COOKED, WIFI, OTHER = (n << 16 for n in range(1, 8))
DAMAGED, FRAGMENT, GRE_CONTROL, VXLAN_OTHER = range(OTHER, OTHER + 4)

PPP_TYPES = {0x21: IPV4, 0x57: IPV6, 0x281: MPLS, 0x283: MPLS}
IP_TUNNELS = {4: IPV4, 41: IPV6, 47: GRE, 97: ETHER_IP, 137: MPLS}
"""Layer in an IP packet, by protocol."""
UDP_TUNNELS = {4789: VXLAN, 8472: VXLAN, 4790: VXLAN, 6081: GENEVE, 2152: GTP, 1701: L2TP}
"""Layer in a UDP datagram, by destination port. Its header must fit, too."""

_u16 = struct.Struct("!H").unpack_from


def next_layer(frame: bytes, at: int, kind: int) -> Layer | None:
    """What the layer holds; None if it is IP, or nothing that is understood."""
    step = _STEPS.get(kind)
    return step(frame, at) if step else None


def typed(number: int) -> int:
    """What an EtherType says, or a length in its place (IEEE 802.3)."""
    return number if number >= LEAST_TYPE else LLC


def _tag(frame: bytes, at: int) -> Layer:
    return at + 4, typed(_u16(frame, at + 2)[0])


def _macs(frame: bytes, at: int) -> Layer:
    return at + 14, typed(_u16(frame, at + 12)[0])


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
        if frame[at + 3 : at + 6] in (b"\0\0\0", b"\0\0\xf8") and kind >= LEAST_TYPE:
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
    return at, typed(kind) if kind else GRE_CONTROL


def _vxlan(frame: bytes, at: int) -> Layer:
    """RFC 7348; with the extension for other content than Ethernet."""
    if frame[at] & 4:
        inner = {1: IPV4, 2: IPV6, 3: MACS, 5: MPLS}
        return at + 8, inner.get(frame[at + 3], VXLAN_OTHER)
    return at + 8, MACS


def _geneve(frame: bytes, at: int) -> Layer:
    kind = _u16(frame, at + 2)[0]
    return at + 8 + 4 * (frame[at] & 0x3F), MACS if kind == _BRIDGED else typed(kind)


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
