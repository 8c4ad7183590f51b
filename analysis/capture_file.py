"""From a capture file (pcap or pcapng, also gzipped) to its frames."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from os import PathLike
from typing import NamedTuple

from analysis.capture_errors import CaptureError, CaptureNote, CaptureWarning
from analysis.pcap.frame_index import index
from analysis.pcap.mapped_file import MappedFile
from analysis.protocol_names import counted

__all__ = ["CaptureError", "CaptureNote", "CaptureWarning", "Counts", "Frame", "frames"]


class Frame(NamedTuple):
    """One frame as captured."""

    time: float
    """Seconds, as the capture's clock has it."""
    data: bytes
    link: int
    """Link type of the interface."""
    size: int
    """Bytes on the wire; more than len(data) if a snap length cut it."""


@dataclasses.dataclass
class Counts:
    """What a capture held. Filled while it is read."""

    packets: int = 0
    udp: int = 0
    tcp: int = 0
    fragments: int = 0
    other: int = 0
    cut: int = 0
    """Packets whose payload was not captured in full."""
    copies: int = 0
    """Packets left out because the capture has them more than once (`pcap.copies`)."""
    kinds: dict[int, int] = dataclasses.field(default_factory=dict)
    """What the other packets were, by kind (`headers.Skipped`)."""

    @property
    def others(self) -> str:
        """The other packets in words; empty if there are none."""
        return counted(self.kinds)


def frames(path: str | PathLike[str]) -> Iterator[Frame]:
    """Read the frames of a capture in file order, with time resolution as the file states it.

    A file that breaks off gives what is readable, then a CaptureWarning with the number of
    packets read. Raises CaptureError if the file is missing, empty, no capture, or without
    capture times.
    """
    source = MappedFile(path)
    count = 0
    for some in index(source):
        columns = (some.time, some.offset, some.captured, some.link, some.size)
        for time, at, captured, link, size in zip(*(c.tolist() for c in columns), strict=True):
            count += 1
            yield Frame(time, bytes(source.view[at : at + captured]), link, size)
        source.release()
    warn_of_damage(source, count, stacklevel=2)


def warn_of_damage(source: MappedFile, count: int, stacklevel: int) -> None:
    """Say that the file broke off after `count` packets, if it did."""
    if source.damage:
        warnings.warn(
            f"{source.name} is truncated or damaged ({source.damage}): {count} packets were read",
            CaptureWarning,
            stacklevel=stacklevel + 1,
        )
