"""The headers of many frames at once: what `analysis.headers.parse` finds in one, by numpy.

Tests hold the two against each other.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from analysis.encapsulation import FRAGMENT, IP_PROTOCOL, IP_TUNNELS
from analysis.headers import Skipped, locate
from analysis.pcap.bulk_encapsulation import SLOW, first_layers, in_udp, is_ip, walk
from analysis.pcap.frame_index import Index
from analysis.pcap.mapped_file import Bytes, Numbers, gather, number

TCP, UDP = 6, 17
_FRAGMENT, _AUTHENTICATION = 44, 51
_EXTENDED = (0, 43, 60, 135, _FRAGMENT, _AUTHENTICATION)
_MOST_HEADERS = 8
_MOST_TUNNELS = 4
"""IPv6 extension headers, or IP packets in one another; where there are more, it is done slowly."""

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
    header: Numbers
    """Bytes of the TCP or UDP header."""
    before_ip: Numbers
    """Bytes of the frame before the innermost IP header."""
    skipped: dict[int, int] = dataclasses.field(default_factory=dict)
    """Number of the other frames, by kind (`headers.Skipped`)."""


def parse(array: Bytes, frames: Index) -> Headers:
    """The TCP segments and UDP datagrams among some frames: the innermost ones."""
    place = _locate(array, frames)
    _locate_slowly(array, frames, place)
    rows = np.flatnonzero(place.kind == _FOUND)
    ip, version = place.ip[rows], place.version[rows]
    found = _transport(
        array,
        row=rows,
        version=version,
        protocol=place.protocol[rows],
        start=place.start[rows],
        stop=place.stop[rows],
        limit=frames.offset[rows] + frames.captured[rows],
        addresses=ip + np.where(version == 4, 12, 8),
        ip_id=np.where(version == 4, number(gather(array, ip + 4, 2), 0, 2), -1),
        before_ip=ip - frames.offset[rows],
    )
    kinds, counts = np.unique(place.kind[place.kind != _FOUND], return_counts=True)
    found.skipped = dict(zip(kinds.tolist(), counts.tolist(), strict=True))
    for kind in (TCP, UDP):
        broken = int((place.protocol[rows] == kind).sum() - (found.protocol == kind).sum())
        if broken:
            found.skipped[IP_PROTOCOL + kind] = broken
    return found


_FOUND = 0


@dataclasses.dataclass
class _Places:
    """`headers.Located` of each frame, with positions in the file; kind is `_FOUND` or why not."""

    kind: Numbers
    version: Numbers
    protocol: Numbers
    start: Numbers
    stop: Numbers
    ip: Numbers


def _locate(array: Bytes, frames: Index) -> _Places:
    count = len(frames.offset)
    at, kind = first_layers(array, frames)
    end, on_wire = frames.offset + frames.captured, frames.offset + frames.size
    zeros = [np.zeros(count, dtype=np.int64) for _ in range(5)]
    place = _Places(kind, *zeros)
    rows = np.arange(count)
    for _ in range(_MOST_TUNNELS):
        at[rows], kind[rows] = walk(array, at[rows], kind[rows], end[rows])
        rows = rows[is_ip(kind[rows])]
        if not len(rows):
            return place
        _read_ip(array, rows, at[rows], end[rows], on_wire[rows], place)
        rows = rows[kind[rows] == _FOUND]
        protocol, start = place.protocol[rows], place.start[rows]
        inner = np.zeros(len(rows), dtype=np.int64)
        for value, layer in IP_TUNNELS.items():
            inner[protocol == value] = layer
        udp = np.flatnonzero(protocol == UDP)
        inner[udp] = in_udp(array, start[udp], end[rows[udp]])
        unknown = (inner == 0) & (protocol != UDP) & (protocol != TCP)
        kind[rows] = np.where(unknown, IP_PROTOCOL + protocol, inner)
        tunnels = inner > 0
        rows = rows[tunnels]
        at[rows] = start[tunnels] + 8 * (protocol[tunnels] == UDP)
        if not len(rows):
            return place
    kind[rows] = SLOW
    return place


def _read_ip(
    array: Bytes, rows: Numbers, at: Numbers, end: Numbers, on_wire: Numbers, place: _Places
) -> None:
    """Fill in what stands in the IP headers of these rows."""
    version = gather(array, at, 1)[:, 0] >> 4
    whole = np.where(version == 4, at + 20, at + 40) <= end
    place.kind[rows] = SLOW
    place.ip[rows], place.version[rows] = at, version
    four = np.flatnonzero((version == 4) & whole)
    block = gather(array, at[four], 20)
    words, total, protocol = number(block, 0, 1) & 15, number(block, 2, 2), number(block, 9, 1)
    split = (number(block, 6, 2) & 0x3FFF) > 0
    usual = (words >= 5) & (protocol != _AUTHENTICATION)
    row = rows[four]
    place.kind[row] = np.where(usual, np.where(split, FRAGMENT, _FOUND), SLOW)
    place.protocol[row], place.start[row] = protocol, at[four] + 4 * words
    # A total length of 0 is what segmentation offload leaves in a local capture.
    place.stop[row] = np.where(total > 0, at[four] + total, on_wire[four])

    six = np.flatnonzero((version == 6) & whole)
    block = gather(array, at[six], 8)
    total, protocol, start = number(block, 4, 2), number(block, 6, 1), at[six] + 40
    protocol, start, split = _extensions(array, protocol, start, end[six])
    row = rows[six]
    odd = np.isin(protocol, _EXTENDED) & ~split
    place.kind[row] = np.where(odd, SLOW, np.where(split, FRAGMENT, _FOUND))
    place.protocol[row], place.start[row] = protocol, start
    place.stop[row] = np.where(total > 0, at[six] + 40 + total, on_wire[six])


def _locate_slowly(array: Bytes, frames: Index, place: _Places) -> None:
    """One by one, what is left."""
    for row in np.flatnonzero(place.kind == SLOW).tolist():
        first, captured = int(frames.offset[row]), int(frames.captured[row])
        frame = array[first : first + captured].tobytes()
        found = locate(frame, int(frames.link[row]), int(frames.size[row]))
        if isinstance(found, Skipped):
            place.kind[row] = found.kind
            continue
        place.kind[row], place.version[row] = _FOUND, found.version
        place.protocol[row] = found.protocol
        place.start[row], place.stop[row] = first + found.start, first + found.stop
        place.ip[row] = first + found.ip


def _extensions(
    array: Bytes, protocol: Numbers, start: Numbers, end: Numbers
) -> tuple[Numbers, Numbers, Mask]:
    """Walk IPv6 extension headers: the protocol, where it starts, and whether it is a fragment."""
    split = np.zeros(len(protocol), dtype=np.bool_)
    for _ in range(_MOST_HEADERS):
        rows = np.flatnonzero(np.isin(protocol, _EXTENDED) & ~split & (start + 4 <= end))
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
    before_ip: Numbers,
) -> Headers:
    """Read ports and what follows them; drops rows of other protocols and cut headers."""
    tcp, udp = protocol == TCP, protocol == UDP
    block = gather(array, start, 14)
    header = np.where(tcp, 4 * (number(block, 12, 1) >> 4), 8)
    length = np.where(tcp, stop - start - header, number(block, 4, 2) - 8)
    keep = ((tcp & (start + 14 <= limit)) | (udp & (start + 6 <= limit))) & (length >= 0)
    order = np.flatnonzero(keep)

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
        header=header,
        before_ip=before_ip[order],
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
