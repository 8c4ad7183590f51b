"""Where each frame of a pcap or pcapng file stands: positions, lengths and times, in chunks."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.capture_errors import CaptureError
from analysis.pcap.mapped_file import MappedFile, Numbers, gather, number

CHUNK = 1 << 16
"""Frames handled at one time: enough to make numpy fast, few enough to keep memory small."""

# More than any Linux device hands to a capture; a larger one means damaged bytes.
_LARGEST_FRAME = 0x40000
_LARGEST_BLOCK = 0x1000000
_CUT = "it ends within a packet"

_CLASSIC = {
    b"\xd4\xc3\xb2\xa1": ("<", 1e-6),
    b"\xa1\xb2\xc3\xd4": (">", 1e-6),
    b"\x4d\x3c\xb2\xa1": ("<", 1e-9),
    b"\xa1\xb2\x3c\x4d": (">", 1e-9),
}
_SECTION, _INTERFACE, _OLD_PACKET, _SIMPLE_PACKET, _PACKET = 0x0A0D0D0A, 1, 2, 3, 6
_ORDERS = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_TSRESOL, _TSOFFSET = 9, 14


class Index(NamedTuple):
    """Some frames in file order; arrays of one length."""

    offset: Numbers
    """Of the frame's first byte in the file."""
    captured: Numbers
    """Bytes of the frame in the file."""
    size: Numbers
    """Bytes on the wire."""
    time: npt.NDArray[np.float64]
    """Seconds."""
    link: Numbers
    interface: Numbers
    """Number of the interface in the file, over all its sections."""


class _Interface(NamedTuple):
    link: int
    resolution: int
    """Ticks per second."""
    offset: int
    """Seconds to add."""


def index(source: MappedFile) -> Iterator[Index]:
    """The frames of a capture. Sets `source.damage` if they break off.

    Raises CaptureError if the file is no capture or has no capture times.
    """
    start = bytes(source.view[:4])
    if start in _CLASSIC and len(source.view) >= 24:
        yield from _classic(source, *_CLASSIC[start])
    elif start == _SECTION.to_bytes(4, "big") and bytes(source.view[8:12]) in _ORDERS:
        yield from _Blocks(source).index()
    else:
        raise CaptureError(
            f"{source.name} is no capture: it starts with bytes "
            f"{bytes(source.view[:8]).hex(' ')}; a pcap or pcapng file (also gzipped) is expected"
        )


def _classic(source: MappedFile, order: str, unit: float) -> Iterator[Index]:
    view, end = source.view, len(source.view)
    length_at: Callable[..., tuple[int]] = struct.Struct(order + "I").unpack_from
    # The upper bits say whether frames carry their check sequence.
    link = length_at(view, 20)[0] & 0x0FFFFFFF
    at = 24
    more = True
    while more:
        headers: list[int] = []
        for _ in range(CHUNK):
            if at + 16 > end:
                more = False
                source.damage = source.damage or (_CUT if at < end else "")
                break
            length = length_at(view, at + 8)[0]
            if length > _LARGEST_FRAME or at + 16 + length > end:
                more = False
                large = length > _LARGEST_FRAME
                source.damage = f"a packet of {length} bytes is announced" if large else _CUT
                break
            headers.append(at)
            at += 16 + length
        positions = np.array(headers, dtype=np.int64)
        block = gather(source.array, positions, 16)
        seconds, parts, captured, size = (
            number(block, first, 4, order == "<") for first in (0, 4, 8, 12)
        )
        links = np.full(len(positions), link, dtype=np.int64)
        time, interface = seconds + parts * unit, np.zeros_like(links)
        yield Index(positions + 16, captured, size, time, links, interface)


class _Blocks:
    """The blocks of a pcapng file, in one pass."""

    def __init__(self, source: MappedFile) -> None:
        self._source = source
        self._order = "<"
        self._interfaces: list[_Interface] = []
        self._earlier = 0
        """Interfaces of the sections before."""
        self._at = 0

    def index(self) -> Iterator[Index]:
        more = True
        while more:
            packets: list[int] = []
            # A new section or interface changes how packets are read: those before it go first.
            more = self._collect(packets)
            if packets:
                yield self._index(np.array(packets, dtype=np.int64))

    def _collect(self, packets: list[int]) -> bool:
        """Add the positions of the next packet blocks; False when the file is at its end."""
        view, end, source = self._source.view, len(self._source.view), self._source
        head = struct.Struct(self._order + "II").unpack_from
        at = self._at
        try:
            while len(packets) < CHUNK:
                if at + 12 > end:
                    source.damage = source.damage or (_CUT if at < end else "")
                    return False
                kind, length = head(view, at)
                if kind == _SECTION:
                    if packets:
                        return True
                    order = _ORDERS.get(bytes(view[at + 8 : at + 12]))
                    if order is None:
                        source.damage = "an invalid section header"
                        return False
                    self._order = order
                    self._earlier += len(self._interfaces)
                    self._interfaces = []
                    head = struct.Struct(order + "II").unpack_from
                    length = head(view, at)[1]
                if length < 12 or length % 4 or length > _LARGEST_BLOCK:
                    source.damage = f"a block of {length} bytes is announced"
                    return False
                if at + length > end:
                    source.damage = source.damage or _CUT
                    return False
                if kind in (_PACKET, _OLD_PACKET):
                    if length < 32:
                        source.damage = f"a packet block of {length} bytes"
                        return False
                    packets.append(at)
                elif kind == _INTERFACE:
                    self._interfaces.append(self._interface(at, length))
                elif kind == _SIMPLE_PACKET:
                    raise CaptureError(
                        f"{source.name} holds packets without capture times (simple packet "
                        "blocks): capture again with times, as tcpdump and dumpcap do"
                    )
                at += length
        finally:
            self._at = at
        return True

    def _interface(self, at: int, length: int) -> _Interface:
        view, order = self._source.view, self._order
        link = struct.unpack_from(order + "H", view, at + 8)[0]
        resolution, offset = 10**6, 0
        option, end = at + 16, at + length - 4
        while option + 4 <= end:
            code, size = struct.unpack_from(order + "HH", view, option)
            value = bytes(view[option + 4 : min(option + 4 + size, end)])
            if code == 0:
                break
            if code == _TSRESOL and len(value) == 1:
                resolution = (2 if value[0] & 0x80 else 10) ** (value[0] & 0x7F)
            elif code == _TSOFFSET and len(value) == 8:
                offset = struct.unpack(order + "q", value)[0]
            option += 4 + (size + 3) // 4 * 4
        # Finer than an int64 of ticks can hold: no clock is; damaged bytes are.
        return _Interface(link, resolution if resolution < 2**62 else 10**6, offset)

    def _index(self, at: Numbers) -> Index:
        source, little = self._source, self._order == "<"
        block = gather(source.array, at, 28)
        old = number(block, 0, 4, little) == _OLD_PACKET
        interface = np.where(old, number(block, 8, 2, little), number(block, 8, 4, little))
        captured, size = number(block, 20, 4, little), number(block, 24, 4, little)
        wrong = (interface >= len(self._interfaces)) | (captured > number(block, 4, 4, little) - 32)
        if wrong.any():
            source.damage = source.damage or f"{int(wrong.sum())} invalid packet blocks"
            at, interface, block = at[~wrong], interface[~wrong], block[~wrong]
            captured, size = captured[~wrong], size[~wrong]
        ticks = (number(block, 12, 4, little).astype(np.uint64) << np.uint64(32)) | number(
            block, 16, 4, little
        ).astype(np.uint64)
        time = np.zeros(len(at))
        link = np.zeros(len(at), dtype=np.int64)
        for which in np.unique(interface):
            of, found = interface == which, self._interfaces[int(which)]
            # Divided in integers first: nanoseconds since 1970 exceed a float's 53 bits.
            whole, rest = np.divmod(ticks[of], np.uint64(found.resolution))
            time[of] = whole + rest / found.resolution + found.offset
            link[of] = found.link
        return Index(at + 28, captured, size, time, link, interface + self._earlier)
