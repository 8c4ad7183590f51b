"""A capture file in memory without its weight: mapped, unzipped first where it is gzipped."""

from __future__ import annotations

import gzip
import mmap
import os
import stat
import tempfile
import zlib
from os import PathLike
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from analysis.capture_errors import CaptureError

_BLOCK = 1 << 20
_GZIP = b"\x1f\x8b"

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


class MappedFile:
    """The bytes of a file, as a memoryview and as a numpy array.

    A gzip file, or a pipe, is copied to an unnamed temporary file first: every packet can then be
    looked at again, and pages that were read can be given back.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.name = str(path)
        self.damage = ""
        """In words, why the content ends early. Empty if it does not."""
        try:
            with open(self.name, "rb") as file:
                start = file.peek(2)[:2]
                if start == _GZIP:
                    with self._copy(gzip.GzipFile(fileobj=file)) as copy:
                        self._map = self._mapped(copy)
                elif start and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    with self._copy(file) as copy:
                        self._map = self._mapped(copy)
                else:
                    self._map = self._mapped(file)
        except OSError as error:
            reason = error.strerror or str(error)
            raise CaptureError(f"cannot read {self.name}: {reason}") from error
        self.view = memoryview(self._map)
        self.array: Bytes = np.frombuffer(self._map, dtype=np.uint8)

    def release(self) -> None:
        """Give the pages read so far back to the system; they come again when they are needed."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def _mapped(self, file: IO[bytes]) -> mmap.mmap:
        if os.fstat(file.fileno()).st_size == 0:
            inside = " inside its gzip data" if self.damage else ""
            raise CaptureError(f"{self.name} is empty{inside}: a pcap or pcapng file is expected")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def _copy(self, source: Any) -> IO[bytes]:
        copy = tempfile.TemporaryFile()  # noqa: SIM115 - it outlives this function
        try:
            # read1: what stands before the damage is handed out, where read would drop it.
            while block := self._read(source):
                copy.write(block)
            copy.flush()
        except OSError as error:
            copy.close()
            raise CaptureError(
                f"cannot unpack {self.name} into {tempfile.gettempdir()}: {error.strerror}"
            ) from error
        return copy

    def _read(self, source: Any) -> bytes:
        try:
            block: bytes = source.read1(_BLOCK)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            self.damage = "its gzip data breaks off"
            return b""
        return block


def gather(array: Bytes, at: Numbers, size: int) -> Bytes:
    """Shape (N, size): `size` bytes from each position. Beyond the end the last byte stands."""
    last = len(array) - size
    if not len(at) or at.max() > last or at.min() < 0:
        return array.take(at[:, np.newaxis] + np.arange(size), mode="clip")
    # Overlapping items of that size, of which each is copied as a whole: several times faster.
    windows = np.ndarray((last + 1,), f"V{size}", array.data, strides=(1,))
    return windows[at].view(np.uint8).reshape(len(at), size)


def number(block: Bytes, first: int, size: int, little: bool = False) -> Numbers:
    """The unsigned integer in columns first, first + 1, ... of each row; up to 7 bytes."""
    columns = range(first, first + size)
    value = np.zeros(len(block), dtype=np.int64)
    for column in reversed(columns) if little else columns:
        value = value << 8 | block[:, column]
    return value
