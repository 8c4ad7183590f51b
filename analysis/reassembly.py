"""When does data become usable in order? For numbered tokens, and for the bytes of a TCP stream.

Written independently of the protocol library's receiver, from the wire format alone: what it
finds is the second opinion on what the client's own log says.
"""

from __future__ import annotations

import bisect
import codecs
import math
import struct
from collections.abc import Iterable
from typing import NamedTuple

_MODULUS = 1 << 32
MAX_RECORD = 1 << 18
"""The longest record that a reader of the testbed takes; a longer one is another protocol."""

END_MARK = 0xFFFFFFFF
_REASONS = range(1, 5)
_NO_TEXT = bytes(byte for byte in range(32) if byte not in b"\t\n\r") + b"\x7f"
_length = struct.Struct("!I").unpack_from
_end = struct.Struct("!IIB").unpack_from
_END_SIZE = 9


class TokenOrder:
    """Tokens of one stream in order of index, whatever order they arrive in.

    A token is received at its first arrival, and rendered as soon as it and all before it are.
    """

    def __init__(self) -> None:
        self.received_at: dict[int, float] = {}
        self.rendered_at: list[float] = []
        self.sizes: dict[int, int] = {}
        self.total = -1
        self.reason = 0

    def add(self, first: int, sizes: Iterable[int], time: float) -> None:
        """Tokens first, first + 1, ... of the given sizes arrived at `time`."""
        for index, size in enumerate(sizes, first):
            if index not in self.received_at:
                self.received_at[index] = time
                self.sizes[index] = size
        while len(self.rendered_at) in self.received_at:
            self.rendered_at.append(time)

    def end(self, total: int, reason: int) -> None:
        """The stream has `total` tokens."""
        if self.total < 0:
            self.total, self.reason = total, reason

    @property
    def complete(self) -> bool:
        """Whether the end and every token before it arrived."""
        return self.total >= 0 and len(self.rendered_at) == self.total

    def rows(self) -> list[tuple[int, int, float, float]]:
        """(index, bytes, received_at, rendered_at or NaN) of each token received, by index."""
        shown = self.rendered_at
        return [
            (index, self.sizes[index], at, shown[index] if index < len(shown) else math.nan)
            for index, at in sorted(self.received_at.items())
        ]


class Piece(NamedTuple):
    """Bytes that became available in order."""

    data: bytes
    arrived_at: float
    """When they first arrived; earlier than they were available if a hole was before them."""


class ByteOrder:
    """One direction of a TCP connection, in order of sequence number (RFC 9293, section 3.4).

    Of overlapping segments, the bytes that arrived first count, as the receiver has already
    acknowledged them.
    """

    def __init__(self, first_seq: int) -> None:
        self._next = first_seq % _MODULUS  # sequence number, extended beyond 32 bits
        self._waiting: list[tuple[int, bytes, float]] = []  # by start, not overlapping

    def add(self, seq: int, data: bytes, time: float) -> list[Piece]:
        """A segment arrived: the pieces that can be read now."""
        # The nearest number to the one expected that is equal to seq modulo 2^32.
        ahead = (seq - self._next + _MODULUS // 2) % _MODULUS - _MODULUS // 2
        if ahead < 0:
            data, ahead = data[-ahead:], 0
        if not data:
            return []
        self._keep(self._next + ahead, data, time)
        pieces = []
        ready = 0
        for start, waiting, arrived_at in self._waiting:
            if start != self._next:
                break
            pieces.append(Piece(waiting, arrived_at))
            self._next += len(waiting)
            ready += 1
        del self._waiting[:ready]
        return pieces

    def reached(self, seq: int) -> bool:
        """Whether every byte before sequence number `seq`, and none beyond, arrived."""
        return not self._waiting and (seq - self._next) % _MODULUS == 0

    def _keep(self, start: int, data: bytes, time: float) -> None:
        """Keep what is new in a segment: the parts not covered by those that wait."""
        at = bisect.bisect_right(self._waiting, start, key=lambda segment: segment[0])
        if at:
            before, covered, _ = self._waiting[at - 1]
            overlap = max(0, before + len(covered) - start)
            data, start = data[overlap:], start + overlap
        while data:
            after, covered, _ = self._waiting[at] if at < len(self._waiting) else (None, b"", 0.0)
            fresh = data if after is None else data[: after - start]
            if fresh:
                self._waiting.insert(at, (start, fresh, time))
                at += 1
            if after is None:
                return
            data, start = data[after - start + len(covered) :], after + len(covered)
            at += 1


class Records:
    """Length-prefixed records in a byte stream: u32 length, payload; at last the end record.

    The end record is u32 0xFFFFFFFF, u32 count of records, u8 reason. `whole` says whether the
    stream is known from its first byte; if not, the end may count records that were before.
    """

    def __init__(self, whole: bool = True) -> None:
        self.order = TokenOrder()
        self.broken = False
        self.text = True
        """Whether all records so far make UTF-8 text without control characters."""
        self.whole = whole
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._buffer = bytearray()
        self._received_at = -math.inf

    def add(self, pieces: Iterable[Piece], time: float) -> None:
        """In-order bytes that became available at `time`."""
        for piece in pieces:
            # Holes are filled last: a record has been received when its latest piece had.
            earlier = self._received_at if self._buffer else -math.inf
            self._received_at = max(earlier, piece.arrived_at)
            self._buffer += piece.data
            while not self.broken and self._take(time):
                self._received_at = piece.arrived_at
            if self.broken:
                self._buffer.clear()
                return

    def _take(self, time: float) -> bool:
        buffer, order = self._buffer, self.order
        if buffer and order.total >= 0:
            self.broken = True  # bytes after the end
        if self.broken or len(buffer) < 4:
            return False
        size = _length(buffer)[0]
        if size == END_MARK:
            if len(buffer) < _END_SIZE:
                return False
            _, count, reason = _end(buffer)
            missing = count - len(order.rendered_at)
            if missing < 0 or (missing and self.whole) or reason not in _REASONS:
                self.broken = True
            else:
                order.end(count, reason)
                del buffer[:_END_SIZE]
        elif size > MAX_RECORD:
            self.broken = True  # another protocol
        elif len(buffer) < 4 + size:
            return False
        else:
            index = len(order.rendered_at)
            order.add(index, [size], time)
            order.received_at[index] = self._received_at
            self.text = self.text and self._is_text(bytes(buffer[4 : 4 + size]))
            del buffer[: 4 + size]
        return not self.broken

    def _is_text(self, data: bytes) -> bool:
        try:
            self._decoder.decode(data)
        except UnicodeDecodeError:
            return False
        return len(data.translate(None, _NO_TEXT)) == len(data)
