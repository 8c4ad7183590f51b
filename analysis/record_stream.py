"""Is a TCP connection an answer in the testbed's records, and how sure is that?

Lengths before what follows are everywhere: SMB, Kafka, Thrift, DNS. So the whole stream must fit.
"""

from __future__ import annotations

import math

from analysis.headers import ACK, FIN, SYN
from analysis.reassembly import MAX_RECORD, ByteOrder, Records

CERTAIN, LIKELY, NO = "certain", "likely", ""
"""How sure it is that a stream is one of tokens."""

_LONGEST_TOKEN = 1024
_MANY, _SHORT = 8, 32
"""So many records, so short on average, are taken for tokens even if no prompt was captured."""


class RecordStream:
    """One TCP connection, segment by segment: the prompt's record one way, the answer's back.

    On a port of the testbed it is enough that the answer can be one. Elsewhere it must be text
    as far as it goes, the client must have sent one record, the prompt, and no more, and the
    server must not have closed without the end record.
    """

    def __init__(self, own_port: bool) -> None:
        self.records = Records(whole=False)
        self.requested_at = math.nan
        self.packets = 0
        """Segments of the server with data."""
        self._own_port = own_port
        self._prompt, self._answer = _Direction(), _Direction()
        self._asked = _Prompt()
        self._closed_early = False

    def add(
        self, to_server: bool, flags: int, seq: int, ack: int, data: bytes, time: float
    ) -> None:
        """A segment was captured at `time`."""
        own, other = (self._prompt, self._answer)[:: 1 if to_server else -1]
        if flags & ACK and not flags & SYN:
            other.expect(ack)  # if its SYN was not captured: what is expected next
        flow = own.order(flags, seq, bool(data))
        if to_server:
            if math.isnan(self.requested_at):
                self.requested_at = time
            if data:
                self._asked.add(b"".join(piece.data for piece in flow.add(own.first, data, time)))
            return
        self.records.whole = own.has_begun
        if data:
            self.packets += 1
            self.records.add(flow.add(own.first, data, time), time)
        if flags & FIN and flow.reached(own.first + len(data)) and self.records.order.total < 0:
            self._closed_early = True

    @property
    def refuted(self) -> bool:
        """Whether this is no answer, whatever comes."""
        if self._own_port:
            return self.records.broken
        records = self.records
        zeros = records.order.sizes.get(0) == 0  # padding, or test traffic
        other = records.broken or zeros or not records.text
        return other or self._asked.broken or self._closed_early

    def sure(self) -> str:
        """`CERTAIN` if the end record agrees with all before it; `LIKELY`; `NO`."""
        order = self.records.order
        shown = len(order.rendered_at)
        if self.refuted:
            return NO
        if order.complete and (self._own_port or shown or self._asked.whole):
            return CERTAIN
        if self._own_port:
            return LIKELY
        # One plausible length may be chance.
        if shown < 2 or max(order.sizes.values()) > _LONGEST_TOKEN:
            return NO
        if self._asked.whole or order.total >= 0:
            return LIKELY
        unheard = self._prompt.is_silent
        short = sum(order.sizes.values()) <= _SHORT * shown
        return LIKELY if unheard and shown >= _MANY and short else NO


class _Direction:
    """Where one way of a connection begins."""

    def __init__(self) -> None:
        self.first = 0
        """Sequence number of the first byte of the latest segment."""
        self.is_silent = True
        """Whether no data was captured."""
        self._order: ByteOrder | None = None
        self._starts: set[int] = set()
        self._after_keep_alive: int | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the SYN was captured."""
        return bool(self._starts)

    def expect(self, seq: int) -> None:
        if self._order is None:
            self._order = ByteOrder(seq)

    def order(self, flags: int, seq: int, has_data: bool) -> ByteOrder:
        """The order of the bytes, for a segment with this sequence number."""
        self.first = first = (seq + 1) % 2**32 if flags & SYN else seq
        # A server with SYN cookies may answer a repeated SYN with another number. Which of them
        # the client took, its first data tells.
        begins = has_data and (first in self._starts or first == self._after_keep_alive)
        if self.is_silent and (flags & SYN or begins):
            self._order = ByteOrder(first)
        if flags & SYN and self.is_silent:
            self._starts.add(first)
        if self._order is None:
            self._order = ByteOrder(first)
            # Without data it may be a keep-alive, numbered one too low (RFC 9293, 3.8.4).
            self._after_keep_alive = None if has_data else (first + 1) % 2**32
        self.is_silent = self.is_silent and not has_data
        return self._order


class _Prompt:
    """What the client sent: one record, if it is a prompt."""

    def __init__(self) -> None:
        self._head = b""
        self._size = 0

    def add(self, data: bytes) -> None:
        """Bytes in order."""
        self._head += data[: 4 - len(self._head)]
        self._size += len(data)

    @property
    def _expected(self) -> int:
        return 4 + int.from_bytes(self._head, "big") if len(self._head) == 4 else 4

    @property
    def whole(self) -> bool:
        return len(self._head) == 4 and self._size == self._expected

    @property
    def broken(self) -> bool:
        return self._size > self._expected or self._expected > 4 + MAX_RECORD
