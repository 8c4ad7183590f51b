"""The records of a TLS connection (RFC 8446, section 5.1): where they end, and of what type.

Their headers are never encrypted, so this needs no keys. What is inside does.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from analysis.pcap.mapped_file import MappedFile, Numbers

APPLICATION_DATA = 23
_TYPES = range(20, 25)
_HEADER = 5
_LARGEST = 16384 + 2048
"""Of a record's content: 2^14 bytes, and what TLS 1.2 lets encryption add."""


class Piece(NamedTuple):
    """Bytes of one direction that arrived for the first time."""

    start: int
    """In the stream."""
    end: int
    at: int
    """In the file."""
    captured: int
    """How many of them are in the file."""


def looks_like(head: bytes | memoryview) -> bool:
    """Whether bytes can start a TLS record."""
    return (
        len(head) >= _HEADER
        and head[0] in _TYPES
        and head[1] == 3
        and head[2] <= 4
        and int.from_bytes(head[3:5], "big") <= _LARGEST
    )


def pieces(start: Numbers, end: Numbers, at: Numbers, captured: Numbers) -> list[Piece]:
    """The bytes of segments in order of the stream, each once."""
    by_start = np.argsort(start, kind="stable")
    start, end, at, captured = (column[by_start] for column in (start, end, at, captured))
    seen = np.maximum.accumulate(np.concatenate(([0], end)))[:-1] if len(end) else end
    skip = np.maximum(seen - start, 0)
    new = end > seen
    columns = (start + skip, end, at + skip, np.maximum(captured - skip, 0))
    return [Piece(*row) for row in zip(*(column[new].tolist() for column in columns), strict=True)]


def records(source: MappedFile, stream: list[Piece]) -> tuple[list[tuple[int, int]], int]:
    """(type, end in the stream) of each record, and how often bytes were missing.

    Where a header was not captured, records are looked for again from the next segment that
    starts like one.
    """
    view = source.view
    found: list[tuple[int, int]] = []
    lost = 0
    place, position = 0, stream[0].start if stream else 0
    while place < len(stream):
        piece = stream[place]
        if piece.end <= position:
            place += 1
            continue
        inside = position - piece.start
        if inside >= 0 and inside + _HEADER <= piece.captured:
            head = bytes(view[piece.at + inside : piece.at + inside + _HEADER])
        else:
            head = _across(view, stream, place, position)
        if not looks_like(head):
            if len(head) < _HEADER and piece.end >= stream[-1].end:
                break  # the header of a record that goes on after the capture
            lost += 1
            place = _next_start(view, stream, place if inside < 0 else place + 1)
            position = stream[place].start if place < len(stream) else position
            continue
        position += _HEADER + int.from_bytes(head[3:5], "big")
        found.append((head[0], position))
    return found, lost


def _across(view: memoryview, stream: list[Piece], place: int, position: int) -> bytes:
    """A header that lies in several segments; shorter where bytes are missing."""
    head = b""
    for piece in itertools.islice(stream, place, place + _HEADER):
        inside = position + len(head) - piece.start
        if inside < 0 or inside >= piece.captured:
            break
        size = min(_HEADER - len(head), piece.captured - inside)
        head += bytes(view[piece.at + inside : piece.at + inside + size])
        if len(head) == _HEADER or inside + size < piece.end - piece.start:
            break
    return head


def _next_start(view: memoryview, stream: list[Piece], place: int) -> int:
    while place < len(stream):
        piece = stream[place]
        if looks_like(view[piece.at : piece.at + min(_HEADER, piece.captured)]):
            return place
        place += 1
    return place
