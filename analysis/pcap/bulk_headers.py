"""The headers of many frames at once: what `analysis.headers.parse` finds in one, by numpy.

Tests hold the two against each other.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from analysis.headers import ETHERNET, LINK_TYPES, LINUX_SLL, LINUX_SLL2, LOOP, NULL
from analysis.pcap.frame_index import Index
from analysis.pcap.mapped_file import Bytes, Numbers, gather, number

TCP, UDP = 6, 17
_VLAN = (0x8100, 0x88A8, 0x9100)
_IPV4, _IPV6 = 0x0800, 0x86DD
_EXTENSIONS = (0, 43, 60, 135)
_FRAGMENT, _AUTHENTICATION = 44, 51
_MOST_HEADERS = 16
"""VLAN tags or IPv6 extension headers in one frame; more are damage or an attack."""

Mask = npt.NDArray[np.bool_]
Hashes = npt.NDArray[np.uint64]

# Odd constants of the splitmix64 generator: multiplying by them spreads all bits.
_SPREAD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9))


@dataclasses.dataclass
class Headers:
    """One chunk of TCP segments and UDP datagrams; arrays of one length."""

    row: Numbers
    """Which frame of the chunk."""
    protocol: Numbers
    version: Numbers
    """4 or 6."""
    addresses: Numbers
    """Where the source address stands in the file; the destination's follows."""
    source: Hashes
    """Hash of address and port."""
    destination: Hashes
    sport: Numbers
    dport: Numbers
    ip_id: Numbers
    """-1 in IPv6."""
    payload: Numbers
    """Where the payload starts in the file."""
    length: Numbers
    """Of the payload, as the headers say."""
    captured: Numbers
    """Bytes of the payload that are in the file."""
    seq: Numbers
    ack: Numbers
    flags: Numbers
    fragments: int = 0
    unknown_links: tuple[int, ...] = ()


def parse(array: Bytes, frames: Index) -> Headers:
    """The TCP segments and UDP datagrams among some frames."""
    at = _network_offsets(array, frames)
    end = frames.offset + frames.captured
    inside = (at >= 0) & (at < end)
    version = np.where(inside, gather(array, np.maximum(at, 0), 1)[:, 0] >> 4, 0)
    rows4 = np.flatnonzero((version == 4) & (at + 20 <= end))
    rows6 = np.flatnonzero((version == 6) & (at + 40 <= end))
    on_wire = frames.offset + frames.size

    block = gather(array, at[rows4], 20)
    words = number(block, 0, 1) & 15
    total = number(block, 2, 2)
    # A total length of 0 is what segmentation offload leaves in a local capture.
    end4 = np.where(total > 0, at[rows4] + total, on_wire[rows4])
    split4 = (number(block, 6, 2) & 0x3FFF) > 0
    good4 = ~split4 & (words >= 5)
    protocol4, id4 = number(block, 9, 1), number(block, 4, 2)

    block = gather(array, at[rows6], 8)
    total = number(block, 4, 2)
    end6 = np.where(total > 0, at[rows6] + 40 + total, on_wire[rows6])
    protocol6, start6, split6 = _extensions(array, number(block, 6, 1), at[rows6] + 40, end[rows6])
    good6 = ~split6

    rows = np.concatenate((rows4[good4], rows6[good6]))
    found = _transport(
        array,
        row=rows,
        version=version[rows].astype(np.int64),
        protocol=np.concatenate((protocol4[good4], protocol6[good6])),
        start=np.concatenate((at[rows4][good4] + 4 * words[good4], start6[good6])),
        stop=np.concatenate((end4[good4], end6[good6])),
        limit=end[rows],
        addresses=np.concatenate((at[rows4][good4] + 12, at[rows6][good6] + 8)),
        ip_id=np.concatenate((id4[good4], np.full(int(good6.sum()), -1))),
    )
    found.fragments = int(split4.sum() + split6.sum())
    found.unknown_links = tuple(int(x) for x in np.unique(frames.link) if x not in LINK_TYPES)
    return found


def _network_offsets(array: Bytes, frames: Index) -> Numbers:
    """Where each IP header starts; -1 if there is none."""
    at = np.full(len(frames.offset), -1, dtype=np.int64)
    for which in np.unique(frames.link):
        link = int(which)
        rows = np.flatnonzero(frames.link == link)
        start, end = frames.offset[rows], frames.offset[rows] + frames.captured[rows]
        if link == ETHERNET:
            at[rows] = _after_tags(array, start + 12, end)
        elif link in (LINUX_SLL, LINUX_SLL2):
            place, size = (14, 16) if link == LINUX_SLL else (0, 20)
            kind = number(gather(array, start + place, 2), 0, 2)
            at[rows] = np.where(np.isin(kind, (_IPV4, _IPV6)), start + size, -1)
        elif link in LINK_TYPES:
            at[rows] = start + (4 if link in (NULL, LOOP) else 0)
    return at


def _after_tags(array: Bytes, at: Numbers, end: Numbers) -> Numbers:
    """What follows the EtherType, if that is IP; `at` is where the type or first tag stands."""
    kind = number(gather(array, at, 2), 0, 2)
    for _ in range(_MOST_HEADERS):
        tagged = np.flatnonzero(np.isin(kind, _VLAN) & (at + 6 <= end))
        if not len(tagged):
            break
        at[tagged] += 4
        kind[tagged] = number(gather(array, at[tagged], 2), 0, 2)
    return np.where(np.isin(kind, (_IPV4, _IPV6)), at + 2, -1)


def _extensions(
    array: Bytes, protocol: Numbers, start: Numbers, end: Numbers
) -> tuple[Numbers, Numbers, Mask]:
    """Walk IPv6 extension headers: the protocol, where it starts, and whether it is a fragment."""
    split = np.zeros(len(protocol), dtype=np.bool_)
    known = (*_EXTENSIONS, _FRAGMENT, _AUTHENTICATION)
    for _ in range(_MOST_HEADERS):
        rows = np.flatnonzero(np.isin(protocol, known) & ~split & (start + 4 <= end))
        if not len(rows):
            break
        block = gather(array, start[rows], 4)
        kind, length = protocol[rows], number(block, 1, 1)
        fragment = kind == _FRAGMENT
        # An offset of 0 with no more to come is whole: an "atomic" fragment, RFC 6946.
        split[rows] = fragment & ((number(block, 2, 2) & 0xFFF9) > 0)
        step = np.where(kind == _AUTHENTICATION, 4 * (length + 2), 8 * (length + 1))
        start[rows] += np.where(fragment, 8, step)
        protocol[rows] = number(block, 0, 1)
    return protocol, start, split


def _transport(
    array: Bytes,
    *,
    row: Numbers,
    version: Numbers,
    protocol: Numbers,
    start: Numbers,
    stop: Numbers,
    limit: Numbers,
    addresses: Numbers,
    ip_id: Numbers,
) -> Headers:
    """Read ports and what follows them; drops rows of other protocols and cut headers."""
    tcp, udp = protocol == TCP, protocol == UDP
    block = gather(array, start, 14)
    header = np.where(tcp, 4 * (number(block, 12, 1) >> 4), 8)
    length = np.where(tcp, stop - start - header, number(block, 4, 2) - 8)
    keep = ((tcp & (start + 14 <= limit)) | (udp & (start + 6 <= limit))) & (length >= 0)
    # The order of the frames again, as IPv4 and IPv6 came one after the other.
    order = np.flatnonzero(keep)
    order = order[np.argsort(row[order], kind="stable")]

    tcp, block, start, header = tcp[order], block[order], start[order], header[order]
    length, version, addresses = length[order], version[order], addresses[order]
    sport, dport = number(block, 0, 2), number(block, 2, 2)
    payload = start + header
    source, destination = _hashes(array, version, addresses, sport, dport)
    return Headers(
        row=row[order],
        protocol=protocol[order],
        version=version,
        addresses=addresses,
        source=source,
        destination=destination,
        sport=sport,
        dport=dport,
        ip_id=ip_id[order],
        payload=payload,
        length=length,
        captured=np.clip(limit[order] - payload, 0, length),
        seq=np.where(tcp, number(block, 4, 4), -1),
        ack=np.where(tcp, number(block, 8, 4), -1),
        flags=np.where(tcp, number(block, 13, 1), -1),
    )


def _hashes(
    array: Bytes, version: Numbers, addresses: Numbers, sport: Numbers, dport: Numbers
) -> tuple[Hashes, Hashes]:
    """Hashes of the two ends: address and port."""
    ends = []
    for side, port in ((0, sport), (1, dport)):
        words = np.zeros((len(version), 2), dtype=np.uint64)
        for kind, size in ((4, 4), (6, 16)):
            rows = np.flatnonzero(version == kind)
            block = gather(array, addresses[rows] + side * size, size)
            if kind == 4:
                words[rows, 1] = block.view(">u4")[:, 0]
            else:
                words[rows] = block.view(">u8")
        value = mix(words[:, 0]) ^ words[:, 1]
        ends.append(mix(mix(value) ^ (port + 65536 * version).astype(np.uint64)))
    return ends[0], ends[1]


def mix(value: Hashes) -> Hashes:
    """Spread each number over all 64 bits; different numbers stay different."""
    for multiplier in _SPREAD:
        value = (value ^ (value >> np.uint64(31))) * multiplier
    return value ^ (value >> np.uint64(29))
