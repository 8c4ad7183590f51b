"""The layers before IP of many frames at once, by numpy: the usual forms of the usual ones.

All that is odd is left to `analysis.headers.locate`, frame by frame: `SLOW` marks it. Tests hold
the two against each other.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from analysis import encapsulation as layers
from analysis.pcap.frame_index import Index
from analysis.pcap.mapped_file import Bytes, Numbers, gather, number

SLOW = -1
_IP_KINDS = (layers.IP, layers.IPV4, layers.IPV6)
_TYPE = 0x0600
_MOST_STEPS = 12

Layers = tuple[Numbers, Numbers]
"""Where the content of each layer starts in the file, and what it is."""


def first_layers(array: Bytes, frames: Index) -> Layers:
    """What each frame's link type says stands at its start."""
    at, kind = frames.offset.copy(), np.full(len(frames.offset), SLOW, dtype=np.int64)
    for which in np.unique(frames.link):
        link = int(which)
        rows = np.flatnonzero(frames.link == link)
        start = frames.offset[rows]
        if link == layers.ETHERNET:
            kind[rows] = layers.MACS
        elif link in layers.RAW_IP:
            kind[rows] = layers.IP
        elif link in (layers.NULL, layers.LOOP):
            at[rows], kind[rows] = start + 4, layers.IP
        elif link in (layers.LINUX_SLL, layers.LINUX_SLL2):
            place, size = (14, 16) if link == layers.LINUX_SLL else (0, 20)
            cooked = number(gather(array, start + place, 2), 0, 2)
            at[rows] = start + size
            kind[rows] = np.where(cooked < _TYPE, SLOW, cooked)
        elif link not in layers.LINK_TYPES:
            kind[rows] = layers.LINK + link
    end = frames.offset + frames.captured
    # Not even a header of the link: the slow path says what is left of it.
    kind[(at >= end) & (kind < layers.LINK)] = SLOW
    return at, kind


def walk(array: Bytes, at: Numbers, kind: Numbers, end: Numbers) -> Layers:
    """Step through layers until IP, something that is not understood, or `SLOW`."""
    for _ in range(_MOST_STEPS):
        more = False
        for which in _distinct(kind):
            step = _STEPS.get(which)
            if step is None:
                continue
            more = True
            rows = np.flatnonzero(kind == which)
            need, function = step
            whole = at[rows] + need <= end[rows]
            kind[rows[~whole]] = SLOW
            rows = rows[whole]
            at[rows], kind[rows] = function(gather(array, at[rows], need), at[rows])
        if not more:
            return at, kind
    kind[np.isin(kind, list(_STEPS))] = SLOW
    return at, kind


def in_udp(array: Bytes, start: Numbers, limit: Numbers) -> Numbers:
    """Which tunnel each datagram carries: its layer, `SLOW`, or 0 for none."""
    kind = np.zeros(len(start), dtype=np.int64)
    port = number(gather(array, start + 2, 2), 0, 2)
    rows = np.flatnonzero(np.isin(port, list(layers.UDP_TUNNELS)) & (start + 16 <= limit))
    if not len(rows):
        return kind
    block, port = gather(array, start[rows], 16), port[rows]
    length, head = number(block, 4, 2) - 8, block[:, 8:]
    inner = number(head, 2, 2)
    first, last = head[:, 0], head[:, 7]
    zeros = (last == 0) & (length >= 8)
    vxlan = np.isin(port, [p for p, k in layers.UDP_TUNNELS.items() if k == layers.VXLAN])
    vxlan &= (first & 0x08 > 0) & (first & 0x70 == 0) & (head[:, 1] & 0xB7 == 0) & zeros
    geneve = (port == 6081) & (first < 0x40) & (head[:, 1] & 0x3F == 0) & zeros
    geneve &= np.isin(inner, (0x6558, layers.IPV4, layers.IPV6))
    gtp = (port == 2152) & (first & 0xF0 == 0x30) & (head[:, 1] == 255) & (inner == length - 8)
    kind[rows[vxlan]] = layers.VXLAN
    kind[rows[geneve]] = layers.GENEVE
    kind[rows[gtp]] = layers.GTP
    kind[rows[port == 1701]] = SLOW
    return kind


def _distinct(kind: Numbers) -> list[int]:
    # Mostly there is one, which is seen faster than sorted out.
    if len(kind) and (kind == kind[0]).all():
        return [int(kind[0])]
    return [int(which) for which in np.unique(kind)]


def _typed(value: Numbers) -> Numbers:
    return np.where(value < _TYPE, layers.LLC, value)


def _tag(block: Bytes, at: Numbers) -> Layers:
    return at + 4, _typed(number(block, 2, 2))


def _macs(block: Bytes, at: Numbers) -> Layers:
    return at + 14, _typed(number(block, 12, 2))


def _llc(block: Bytes, at: Numbers) -> Layers:
    snap = (block[:, 0] == 0xAA) & (block[:, 2] == 3)
    plain = snap & (number(block, 3, 3) == 0) & (number(block, 6, 2) >= _TYPE)
    other = np.where(snap | (block[:, 0] == 6), SLOW, layers.LLC_SAP + block[:, 0].astype(np.int64))
    return np.where(plain, at + 8, at), np.where(plain, number(block, 6, 2), other)


def _ppp(block: Bytes, at: Numbers) -> Layers:
    framed = (block[:, 0] == 0xFF) & (block[:, 1] == 3)
    protocol = np.where(framed, number(block, 2, 2), number(block, 0, 2))
    kind = layers.PPP_PROTOCOL + protocol
    for value, inner in layers.PPP_TYPES.items():
        kind[protocol == value] = inner
    kind[protocol >> 8 & 1 > 0] = SLOW  # compressed to one byte
    return at + 2 + 2 * framed, kind


def _pppoe(block: Bytes, at: Numbers) -> Layers:
    return at + 6, np.full(len(at), layers.PPP)


def _mpls(block: Bytes, at: Numbers) -> Layers:
    last, first = block[:, 2] & 1 > 0, block[:, 4] >> 4
    ip = (first == 4) | (first == 6)
    return at + 4, np.where(last, np.where(ip, layers.IP, SLOW), layers.MPLS)


def _gre(block: Bytes, at: Numbers) -> Layers:
    flags, kind = number(block, 0, 2), number(block, 2, 2)
    size = 4 + 4 * ((flags >> 15) + (flags >> 13 & 1) + (flags >> 12 & 1))
    bridged = kind == 0x6558
    usual = (flags & 0x4FFF == 0) & (bridged | np.isin(kind, (layers.IPV4, layers.IPV6)))
    return np.where(usual, at + size, at), np.where(
        usual, np.where(bridged, layers.MACS, kind), SLOW
    )


def _vxlan(block: Bytes, at: Numbers) -> Layers:
    plain = block[:, 0] & 4 == 0
    return np.where(plain, at + 8, at), np.where(plain, layers.MACS, SLOW)


def _geneve(block: Bytes, at: Numbers) -> Layers:
    kind = number(block, 2, 2)
    size = 8 + 4 * (block[:, 0] & 0x3F).astype(np.int64)
    return at + size, np.where(kind == 0x6558, layers.MACS, kind)


def _gtp(block: Bytes, at: Numbers) -> Layers:
    plain = block[:, 0] & 7 == 0
    return np.where(plain, at + 8, at), np.where(plain, layers.IP, SLOW)


_Step = Callable[[Bytes, Numbers], Layers]
_STEPS: dict[int, tuple[int, _Step]] = {
    **dict.fromkeys(layers.VLAN_TAGS, (4, _tag)),
    layers.MACS: (14, _macs),
    layers.LLC: (8, _llc),
    layers.PPP: (4, _ppp),
    layers.PPPOE: (6, _pppoe),
    layers.MPLS: (5, _mpls),
    layers.GRE: (4, _gre),
    layers.VXLAN: (8, _vxlan),
    layers.GENEVE: (8, _geneve),
    layers.GTP: (8, _gtp),
}
"""Bytes that a step looks at, and the step."""

Mask = npt.NDArray[np.bool_]


def is_ip(kind: Numbers) -> Mask:
    """Which layers are IP of either version."""
    return np.isin(kind, _IP_KINDS)
