"""The receiving half of a stream: order, acknowledgements, signs of life.

Sans-I/O: time comes in as ``now`` (seconds, monotonic), datagrams go out as bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .path import Path
from .window import TOKEN_OVERHEAD, WINDOW_BYTES, WINDOW_TOKENS
from .wire import (
    MAX_RANGES,
    Ack,
    Cancel,
    Data,
    MalformedDatagram,
    Message,
    Reason,
    decode,
    encode,
)

#: A reader that expects tokens and has heard nothing for this long sends a PING: it holds the
#: NAT binding and the lease, tells the server a new address, and ends the server's backoff.
PING_INTERVAL = 0.25
#: After a token the first PING comes this soon: a reader who stalls after 200 ms asks before that,
#: so that the server knows of the stall when it begins.
EAGER_PING_INTERVAL = 0.15
#: Each answered PING without a token doubles the interval up to this (a model that "thinks").
#: RFC 4787 asks NATs to keep UDP bindings for 2 minutes, but many give 30 s.
KEEPALIVE = 5.0
#: After this long without any answer PINGs are sent once a second only (as mosh does).
FAST_PING_TIME = 10.0
SLOW_PING_INTERVAL = 1.0
#: DATA that bring nothing new (copies, refreshes) are acknowledged this often at most: when ACKs
#: are lost, every further one says the same. Shorter than path.MAX_ACK_DELAY.
REPEATED_ACK_INTERVAL = 0.02
#: A PING fits into this unless it names many ranges.
_PING_ROOM = 40


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a stream, delivered in order and once.

    ``received_at`` is when it first arrived (``now`` of that call), perhaps before its turn.
    """

    index: int
    data: bytes
    received_at: float


class Receiver:
    """Receives one stream of tokens.

    With ``pings`` set it sends PINGs when nothing comes: that is for the side that waits for an
    answer. The other side only PINGs until the peer's address is proven. ``instance`` is a
    server's: see ``wire.Data``.
    """

    def __init__(
        self,
        stream_id: int,
        *,
        from_server: bool,
        path: Path | None = None,
        now: float = 0.0,
        instance: int = 0,
    ) -> None:
        self.stream_id = stream_id
        self.instance = instance
        self.from_server = from_server
        self.path = path or Path(validated=True)
        self.next = 0
        self.total: int | None = None
        self.reason: Reason | None = None
        self.pings = False
        self._ahead: dict[int, Token] = {}
        #: Bytes of tokens that wait for earlier ones.
        self.bytes_held = 0
        self._echo = 0
        self._echo_at = now
        self._ack_due: float | None = None
        self._ack_at = -math.inf
        self._heard_at = self._data_at = now
        self._ping_at = -math.inf
        self._unanswered_since: float | None = None
        self._interval = PING_INTERVAL

    @property
    def complete(self) -> bool:
        """Every token and the END have arrived."""
        return self.total is not None and self.next == self.total

    def receive(self, datagram: bytes | Message, now: float) -> list[Token]:
        """Take DATA, PING or ACK; returns the tokens that can be shown now, in order.

        Raises MalformedDatagram for anything else, and for DATA that contradicts what came
        before (tokens behind the END, another END).
        """
        message = decode(datagram) if isinstance(datagram, bytes) else datagram
        if message.stream_id != self.stream_id or isinstance(message, Cancel):
            raise MalformedDatagram(f"no DATA of stream {self.stream_id:016x}: {message!r:.60}")
        tokens: list[Token] = []
        known = (self.next, len(self._ahead), self.total)
        if isinstance(message, Data):
            tokens = self._take(message, now)
        elif self._unanswered_since is not None:
            self._interval = min(2 * self._interval, KEEPALIVE)  # an answer without a token
        self.heard(now)
        if isinstance(message, Data) or message.asks:
            due = now
            if isinstance(message, Data) and known == (self.next, len(self._ahead), self.total):
                due = max(now, self._ack_at + REPEATED_ACK_INTERVAL)
            if self._ack_due is None or due <= self._ack_due:
                self._ack_due = due
            if due == now or self._echo_at <= self._ack_at:  # the oldest stamp that is not echoed
                self._echo, self._echo_at = message.sent_at, now
        return tokens

    def move(self, path: Path) -> None:
        """The peer has a new address: ask it at once to prove that."""
        self.path = path
        self._ping_at = -math.inf
        self._unanswered_since = None

    def heard(self, now: float) -> None:
        """The peer is alive."""
        self._heard_at = now
        self._unanswered_since = None

    def _take(self, data: Data, now: float) -> list[Token]:
        stop = data.first + len(data.tokens)
        if self.total is not None:
            if stop > self.total or (data.end is not None and stop != self.total):
                raise MalformedDatagram(f"ends at {stop}, but there are {self.total} tokens in all")
        elif data.end is not None:
            highest = max(self._ahead, default=self.next - 1)
            if highest >= stop:
                raise MalformedDatagram(f"an END after {stop} tokens, but token {highest} came")
            self.total, self.reason = stop, data.end
        before = self.next
        for index, token in enumerate(data.tokens, data.first):
            if index < self.next or index in self._ahead:
                continue
            cost = len(token) + TOKEN_OVERHEAD
            if index - self.next >= WINDOW_TOKENS or self.bytes_held + cost > WINDOW_BYTES:
                break  # not acknowledged, so the sender keeps it
            self._ahead[index] = Token(index, token, now)
            self.bytes_held += cost
        out = []
        while (ready := self._ahead.pop(self.next, None)) is not None:
            self.bytes_held -= len(ready.data) + TOKEN_OVERHEAD
            out.append(ready)
            self.next += 1
        # A model that is slow between tokens is no reason for PINGs.
        gap = now - self._data_at if before else 0.0
        self._interval = min(max(2 * gap, EAGER_PING_INTERVAL), SLOW_PING_INTERVAL)
        if self.next > before:
            self._data_at = now
        return out

    def _ranges(self) -> tuple[tuple[int, int], ...]:
        indices = sorted(self._ahead)
        if self.total is not None:
            indices.append(self.total)
        ranges: list[tuple[int, int]] = []
        for index in indices:
            if ranges and ranges[-1][1] == index:
                ranges[-1] = (ranges[-1][0], index + 1)
            elif len(ranges) == MAX_RANGES:
                break
            else:
                ranges.append((index, index + 1))
        return tuple(ranges)

    def _next_ping(self) -> float | None:
        if not self.path.validated:
            if not self.path.may_send(_PING_ROOM):
                return None
            return self._ping_at + PING_INTERVAL
        if not self.pings or self.complete:
            return None
        interval = self._interval
        if self._unanswered_since is not None:  # lost, it seems: ask again soon
            slow = self._ping_at - self._unanswered_since > FAST_PING_TIME
            patience = max(PING_INTERVAL, 2 * self.path.rtt.probe_timeout)
            interval = SLOW_PING_INTERVAL if slow else min(patience, SLOW_PING_INTERVAL)
        return max(self._heard_at, self._ping_at) + interval

    def next_timeout(self) -> float | None:
        """When ``datagrams`` has something to do if nothing happens before; None: never."""
        ping = self._next_ping()
        if self._ack_due is None:
            return ping
        return self._ack_due if ping is None else min(ping, self._ack_due)

    def datagrams(self, now: float) -> list[bytes]:
        """The ACK that is due (one for all that came since the last call), or a PING."""
        due = self._next_ping()
        ping = due is not None and due <= now
        if not ping and (self._ack_due is None or self._ack_due > now):
            return []
        self._ack_due, self._ack_at = None, now
        complete = self.complete
        message = Ack(
            self.stream_id,
            self.path.stamp(now) if ping else self.path.clock(now),
            self.from_server,
            self.next + complete,  # the END has an index of its own
            self._echo,
            max(0, int((now - self._echo_at) * 1e6)),
            () if complete else self._ranges(),
            ping,
            self.instance,
        )
        out = encode(message)
        if ping:  # also when it may not be sent: the next try is an interval away
            self._ping_at = now
            if self._unanswered_since is None:
                self._unanswered_since = now
        if not self.path.may_send(len(out)):
            return []  # the peer asks again
        self.path.sent(len(out))
        return [out]
