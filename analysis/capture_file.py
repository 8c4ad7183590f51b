"""From a capture file (pcap or pcapng, also gzipped) to its frames."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import logging
import warnings
import zlib
from collections.abc import Callable, Iterator
from os import PathLike
from typing import Any, NamedTuple

from scapy.error import Scapy_Exception
from scapy.utils import RawPcapNgReader, RawPcapReader

# More than any Linux device hands to a capture; a larger one means damaged bytes.
_LARGEST_FRAME = 0x40000
_LARGEST_BLOCK = 0x1000000


class CaptureError(ValueError):
    """The file is no readable capture."""


class CaptureWarning(UserWarning):
    """The capture was read, but not all of it."""


class Frame(NamedTuple):
    """One frame as captured."""

    time: float
    """Seconds, as the capture's clock has it."""
    data: bytes
    link: int
    """Link type of the interface."""
    size: int
    """Bytes on the wire; more than len(data) if a snap length cut it."""


def frames(path: str | PathLike[str]) -> Iterator[Frame]:
    """Read the frames of a capture in file order, with time resolution as the file states it.

    A file that breaks off gives what is readable, then a CaptureWarning with the number of
    packets read. Raises CaptureError if the file is missing, empty, no capture, or without
    capture times.
    """
    name = str(path)
    count = 0
    with _opened(name) as stream:
        reader = _reader(name, stream)
        to_frame = _from_section if isinstance(reader, RawPcapNgReader) else _from_classic
        # In chunks, because scapy's log is only diverted while it reads, not while we yield.
        while chunk := _chunk(reader, stream):
            for data, meta in chunk:
                frame = to_frame(name, reader, data, meta)
                if frame is None:
                    stream.damage = "it ends within a packet"
                    break
                count += 1
                yield frame
    if stream.damage:
        warnings.warn(
            f"{name} is truncated or damaged ({stream.damage}): {count} packets were read",
            CaptureWarning,
            stacklevel=2,
        )


def _from_classic(name: str, reader: Any, data: bytes, meta: Any) -> Frame | None:
    if len(data) < min(meta.caplen, 0xFFFF) or meta.caplen > _LARGEST_FRAME:
        return None
    time = meta.sec + meta.usec * (1e-9 if reader.nano else 1e-6)
    return Frame(time, data, reader.linktype, meta.wirelen)


def _from_section(name: str, reader: Any, data: bytes, meta: Any) -> Frame:
    if meta.tshigh is None:
        raise CaptureError(
            f"{name} holds packets without capture times (simple packet blocks): "
            "capture again with times, as tcpdump and dumpcap do"
        )
    # Divided in integers first: nanoseconds since 1970 exceed a float's 53 bits.
    whole, rest = divmod((meta.tshigh << 32) + meta.tslow, meta.tsresol)
    return Frame(whole + rest / meta.tsresol, data, meta.linktype, meta.wirelen)


class _Stream(io.RawIOBase):
    """The file's bytes, unzipped; remembers whether they ended where a reader still wanted some.

    scapy's readers end quietly, or with a log line, when a file breaks off; the reads show it.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self._at_end = False
        self.damage = ""

    def read(self, size: int = -1, /) -> bytes:
        if size > _LARGEST_BLOCK:
            self.damage = f"a block of {size} bytes is announced"
            return b""
        try:
            data: bytes = self._source.read(size)
        except (EOFError, OSError, zlib.error):
            self.damage = "its gzip data breaks off"
            return b""
        if 0 < len(data) < size:
            self.damage = "it ends within a packet"
        self._at_end = not data and size > 0
        return data

    def end(self) -> None:
        """The reader has stopped: rightly only if its last read found nothing."""
        if not self._at_end:
            self.damage = self.damage or "an invalid block"


@contextlib.contextmanager
def _opened(name: str) -> Iterator[_Stream]:
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(name, "rb"))
            start = file.peek(2)[:2]
        except OSError as error:
            raise CaptureError(f"cannot read {name}: {error.strerror}") from error
        if not start:
            raise CaptureError(f"{name} is empty: a pcap or pcapng file is expected")
        yield _Stream(gzip.GzipFile(fileobj=file) if start == b"\x1f\x8b" else file)


def _reader(name: str, stream: _Stream) -> RawPcapReader:
    # Called through a variable: the metaclass hands a classic pcap to RawPcapReader.
    make: Callable[[Any], Any] = RawPcapNgReader
    try:
        with _diverted_log(stream):
            reader: RawPcapReader = make(stream)
    except (Scapy_Exception, EOFError) as error:
        with open(name, "rb") as file:
            start = file.read(8)
        raise CaptureError(
            f"{name} is no capture: it starts with bytes {start.hex(' ')}; "
            "a pcap or pcapng file (also gzipped) is expected"
        ) from error
    stream.damage = ""  # scapy's try at the other format
    return reader


def _chunk(reader: RawPcapReader, stream: _Stream) -> list[Any]:
    if stream.damage:
        return []
    chunk: list[Any] = []
    with _diverted_log(stream):
        try:
            chunk.extend(itertools.islice(reader, 1024))
        except Scapy_Exception as error:
            stream.damage = str(error)
    if len(chunk) < 1024:
        stream.end()
    return chunk


@contextlib.contextmanager
def _diverted_log(stream: _Stream) -> Iterator[None]:
    """Turn scapy's log lines about a broken file into the stream's damage."""

    def divert(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        stream.damage = stream.damage or text.removeprefix("PcapNg: ").removeprefix("Pcap: ")
        return False

    log = logging.getLogger("scapy.runtime")
    log.addFilter(divert)
    try:
        yield
    finally:
        log.removeFilter(divert)
