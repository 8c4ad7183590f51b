"""Eloquent's datagrams in a capture: which can be some, and what tokens are in them.

The usual ones, with few short tokens, are read all at once by numpy, the rest by `eloquent.wire`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.pcap.bulk_headers import UDP
from analysis.pcap.frame_index import CHUNK
from analysis.pcap.mapped_file import Bytes, Numbers, gather, number
from analysis.pcap.packet_table import Capture
from eloquent import wire

_LEAST_DATAGRAM = wire.HEADER_SIZE + wire.CRC_SIZE
_LOOKED_AT = 4
_ENDS = (0, *(int(reason) for reason in wire.Reason))
_SHORT = 64
"""A number below it takes one byte."""

Mask = npt.NDArray[np.bool_]
Content = tuple[int, Sequence[int], int]
"""First index, sizes and end of a DATA; (0, [], 0) for other messages."""


class Candidates(NamedTuple):
    """Packets that can be Eloquent by size, version and kind. Arrays of one length."""

    rows: Numbers
    """Of `Capture.packets`."""
    stream: npt.NDArray[np.uint64]
    from_server: Mask
    is_data: Mask
    """DATA from a server: what holds the answer's tokens."""


def candidates(capture: Capture) -> Candidates:
    """Find them."""
    packets = capture.packets
    length, captured = packets["length"].to_numpy(), packets["captured"].to_numpy()
    rows = np.flatnonzero(
        (packets["protocol"].to_numpy() == UDP)
        & (length >= _LEAST_DATAGRAM)
        & (length <= wire.MAX_DATAGRAM)
        & (captured == length)
    )
    array, payload = capture.bytes.array, packets["payload"].to_numpy()
    kinds = [int(kind) for kind in wire.Kind]
    start = gather(array, payload[rows], 2)
    like = start[:, 0] == wire.VERSION
    like &= np.isin(start[:, 1] & ~np.uint8(wire.FROM_SERVER), kinds)
    rows = rows[like]
    head = gather(array, payload[rows], wire.HEADER_SIZE)
    capture.bytes.release()
    server = head[:, 1] & wire.FROM_SERVER > 0
    stream = np.ascontiguousarray(head[:, 2:10]).view(">u8")[:, 0].astype(np.uint64)
    return Candidates(rows, stream, server, server & (head[:, 1] & 15 == wire.Kind.DATA))


def eloquent_connections(capture: Capture) -> Numbers:
    """The connections with an Eloquent datagram among their first that may be one."""
    rows = candidates(capture).rows
    connection = capture.packets["connection"].to_numpy()
    of = connection[rows]
    rows = rows[(pd.Series(of).groupby(of).cumcount() < _LOOKED_AT).to_numpy()]
    good = [row for row, content in capture.contents(rows) if decoded(content) is not None]
    return np.unique(connection[good]).astype(np.int64)


def that_matter(capture: Capture, found: Candidates) -> Candidates:
    """Those with tokens; and of everything else the first message of each side of a stream.

    That one tells when the client asked, or that the stream is there.
    """
    others = np.flatnonzero(~found.is_data)
    side, _ = pd.factorize(found.stream[others])
    side = 2 * side + found.from_server[others]
    first = ~pd.Series(side).duplicated().to_numpy()
    chosen = np.flatnonzero(found.is_data).tolist()
    known: set[int] = set()
    for part in (first, ~first):
        part &= ~np.isin(side, list(known))
        some = others[part]
        whole = zip(
            some.tolist(), side[part].tolist(), capture.contents(found.rows[some]), strict=True
        )
        for place, which, (_, content) in whole:
            if which not in known and decoded(content) is not None:
                known.add(which)
                chosen.append(place)
    places = np.sort(np.array(chosen, dtype=np.int64))
    rows, stream, from_server, is_data = found
    return Candidates(rows[places], stream[places], from_server[places], is_data[places])


def decoded(content: bytes | memoryview) -> Content | None:
    """What is in a datagram, None if it is malformed."""
    try:
        message = wire.decode(bytes(content))
    except wire.MalformedDatagram:
        return None
    if not isinstance(message, wire.Data):
        return 0, [], 0
    return message.first, [len(token) for token in message.tokens], int(message.end or 0)


def contents(capture: Capture, found: Candidates) -> Iterator[Content | None]:
    """What is in each of them, None where it is malformed."""
    payload = capture.packets["payload"].to_numpy()
    length = capture.packets["length"].to_numpy()
    view = capture.bytes.view
    for low in range(0, len(found.rows), CHUNK):
        rows = found.rows[low : low + CHUNK]
        start = payload[rows]
        stop = start + length[rows] - wire.CRC_SIZE
        usual, first_index, number_of, reasons, lengths = _usual(
            capture.bytes.array, start, stop, found.is_data[low : low + CHUNK]
        )
        checksum = number(gather(capture.bytes.array, stop, wire.CRC_SIZE), 0, 4)
        columns: list[Any] = [
            column.tolist()
            for column in (usual, start, stop, checksum, first_index, number_of, reasons)
        ]
        sizes, width = lengths.tobytes(), lengths.shape[1]
        place = 0
        for is_usual, begin, end, check, first, count, reason in zip(*columns, strict=True):
            if is_usual and zlib.crc32(view[begin:end]) == check:
                yield first, sizes[place : place + count], reason
            else:
                yield decoded(view[begin : end + wire.CRC_SIZE])
            place += width
        capture.bytes.release()


def _usual(
    array: Bytes, start: Numbers, stop: Numbers, is_data: Mask
) -> tuple[Mask, Numbers, Numbers, Numbers, Bytes]:
    """Which are DATA with few short tokens, by form: first index, count, end, and the sizes.

    Positions are those of the datagram and of its checksum.
    """
    at = start + wire.HEADER_SIZE + wire.INSTANCE_SIZE
    head = gather(array, np.minimum(at, stop - 4), 4)
    two = head[:, 0] >> 6 == 1
    first = np.where(two, number(head, 0, 2) & 0x3FFF, head[:, 0])
    usual = is_data & (at + 4 <= stop) & np.where(two, first >= _SHORT, head[:, 0] < _SHORT)
    count = np.where(two, head[:, 2], head[:, 1]).astype(np.int64)
    at += 2 + two
    usual &= (count > 0) & (count < _SHORT)
    count[~usual] = 0
    sizes = np.zeros((len(start), int(count.max(initial=1))), dtype=np.uint8)
    rows = np.flatnonzero(usual)
    for index in range(sizes.shape[1]):
        rows = rows[(count[rows] > index) & (at[rows] < stop[rows])]
        size = array[at[rows]]
        sizes[rows, index] = size
        at[rows] += 1 + size.astype(np.int64)
        usual[rows] &= size < _SHORT
    usual &= at == stop - 1
    end = array[np.where(usual, at, 0)]
    usual &= np.isin(end, _ENDS)
    return usual, first.astype(np.int64), count, end.astype(np.int64), sizes
