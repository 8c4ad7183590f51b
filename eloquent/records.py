"""Length-prefixed token records for a byte stream: the TCP baseline, and a fallback where UDP
is blocked.

A record is a big-endian u32 length and that many bytes. The client sends one record, the prompt;
the server one per token, then END: 0xFFFFFFFF, u32 number of tokens, u8 reason (as in DATA).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .receiver import Token
from .window import WINDOW_BYTES
from .wire import Reason

_LENGTH = struct.Struct(">I")
_END = struct.Struct(">IIB")
_END_MARK = 0xFFFFFFFF


class MalformedRecord(ValueError):
    """The byte stream is not one of token records."""


@dataclass(frozen=True, slots=True)
class End:
    """The last record: number of tokens and why there are no more."""

    total: int
    reason: Reason


def encode(data: bytes) -> bytes:
    """The record of one token or prompt."""
    return _LENGTH.pack(len(data)) + data


def encode_end(total: int, reason: Reason) -> bytes:
    """The END record."""
    return _END.pack(_END_MARK, total, reason)


class Parser:
    """Cuts a byte stream into records, whatever the pieces in which it comes.

    ``largest`` bounds a record and so the memory. Raises MalformedRecord with a clear line.
    """

    def __init__(self, largest: int = WINDOW_BYTES) -> None:
        self.largest = largest
        self._buffer = bytearray()
        self._count = 0
        self._ended = False

    def feed(self, data: bytes, now: float = 0.0) -> list[Token | End]:
        """The records that ``data``, received at ``now``, completes, in order."""
        self._buffer += data
        out: list[Token | End] = []
        while self._ended or len(self._buffer) >= _LENGTH.size:
            if self._ended:
                if self._buffer:
                    raise MalformedRecord(f"{len(self._buffer)} bytes after the END record")
                break
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length == _END_MARK:
                if len(self._buffer) < _END.size:
                    break
                out.append(self._end())
                del self._buffer[: _END.size]
                continue
            if length > self.largest:
                raise MalformedRecord(f"a record of {length} bytes, {self.largest} is the most")
            if len(self._buffer) < _LENGTH.size + length:
                break
            out.append(Token(self._count, bytes(self._buffer[4 : 4 + length]), now))
            self._count += 1
            del self._buffer[: 4 + length]
        return out

    def _end(self) -> End:
        _, total, code = _END.unpack_from(self._buffer)
        if total != self._count:
            raise MalformedRecord(f"END says {total} tokens, but {self._count} came")
        try:
            reason = Reason(code)
        except ValueError:
            raise MalformedRecord(f"END has the unknown reason {code}") from None
        self._ended = True
        return End(total, reason)
