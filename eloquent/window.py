"""The sender's window: tokens that were pushed and are not known to have arrived."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .wire import MAX_DATAGRAM, MAX_TOKEN, Ack, Reason, data_overhead, token_size

#: What is kept for one stream by either side: a model that speaks 60 tokens/s does not fill it
#: within the 60 s after which a silent peer is given up.
WINDOW_BYTES = 256 * 1024
#: What a kept token counts beside its bytes, so that empty ones are not free.
TOKEN_OVERHEAD = 64
#: So many tokens at most. A receiver takes no index further ahead than this.
WINDOW_TOKENS = WINDOW_BYTES // TOKEN_OVERHEAD
#: The longest prompt: in tokens of MAX_TOKEN it just fits.
MAX_PROMPT = WINDOW_BYTES // (MAX_TOKEN + TOKEN_OVERHEAD) * MAX_TOKEN
#: Sending a token again that has arrived costs less than a further datagram's headers
#: (IPv4 20 + UDP 8 + ours 25), so holes of up to this many bytes are bridged.
_BRIDGE_BYTES = 48


class WindowFull(RuntimeError):
    """The peer has not acknowledged enough to take more tokens: wait, or cancel the stream."""


class _Entry:
    __slots__ = ("acknowledged", "first_sent", "last_sent", "token")

    def __init__(self, token: bytes | None) -> None:
        self.token = token  # None: the end of the stream, which has an index of its own
        self.first_sent = self.last_sent = -math.inf
        self.acknowledged = False


@dataclass(frozen=True, slots=True)
class Fresh:
    """An index that has just been acknowledged, and when it was sent first and last."""

    index: int
    first_sent: float
    last_sent: float


Run = tuple[int, tuple[bytes, ...], Reason | None]


class Window:
    """Indices [base, next_index) with their tokens; the END takes the last index.

    ``base`` is the oldest index that is not acknowledged, ``unsent`` the first one that was never
    sent. A scheme reads this object to decide what goes into the next datagram.
    """

    def __init__(self) -> None:
        self.base = 0
        self.unsent = 0
        self.next_index = 0
        self.end: Reason | None = None
        self._entries: deque[_Entry] = deque()
        #: Bytes of tokens that are kept.
        self.bytes_held = 0
        #: Bytes (with their lengths) of what was sent and is not acknowledged.
        self.bytes_in_flight = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def tokens_pushed(self) -> int:
        """Number of tokens pushed so far, without the END."""
        return self.next_index - (self.end is not None)

    @property
    def complete(self) -> bool:
        """Everything, the END included, is acknowledged."""
        return self.end is not None and not self._entries

    @property
    def only_end_missing(self) -> bool:
        """Every token is acknowledged, but the END is not."""
        return len(self._entries) == 1 and self._entries[0].token is None

    def room(self) -> int:
        """Bytes that can still be pushed; a token counts TOKEN_OVERHEAD beside its own."""
        return WINDOW_BYTES - self.bytes_held

    def push(self, token: bytes) -> int:
        """Append a token and return its index."""
        if self.end is not None:
            raise RuntimeError("the stream has been finished")
        if len(token) > MAX_TOKEN:
            raise ValueError(f"a token has {len(token)} bytes; split it, {MAX_TOKEN} is the most")
        if self.room() < len(token) + TOKEN_OVERHEAD:
            raise WindowFull(
                f"{len(self._entries)} tokens with {self.bytes_held} bytes wait for the peer"
            )
        return self._append(_Entry(token), len(token) + TOKEN_OVERHEAD)

    def finish(self, reason: Reason) -> int:
        """Append the END and return its index, which is the number of tokens."""
        if self.end is not None:
            raise RuntimeError("the stream has been finished")
        self.end = reason
        return self._append(_Entry(None), 0)

    def _append(self, entry: _Entry, size: int) -> int:
        self._entries.append(entry)
        self.bytes_held += size
        self.next_index += 1
        return self.next_index - 1

    def acknowledge(self, ack: Ack) -> list[Fresh]:
        """Take an ACK. Returns what it is the first to acknowledge, in ascending order.

        Raises ValueError when it names what was never sent: such an ACK is forged or broken.
        """
        highest = ack.ranges[-1][1] if ack.ranges else ack.next
        if highest > self.unsent:
            raise ValueError(f"acknowledges index {highest - 1}, but {self.unsent} were sent")
        fresh: list[Fresh] = []
        for index in range(self.base, ack.next):
            self._note(index, fresh)
        for start, stop in ack.ranges:
            for index in range(max(start, self.base, ack.next), stop):
                self._note(index, fresh)
        while self._entries and self._entries[0].acknowledged:
            entry = self._entries.popleft()
            if entry.token is not None:
                self.bytes_held -= len(entry.token) + TOKEN_OVERHEAD
            self.base += 1
        return fresh

    def _note(self, index: int, fresh: list[Fresh]) -> None:
        entry = self._entries[index - self.base]
        if not entry.acknowledged:
            entry.acknowledged = True
            self.bytes_in_flight -= token_size(entry.token or b"")
            fresh.append(Fresh(index, entry.first_sent, entry.last_sent))

    def unacknowledged(self) -> Iterator[int]:
        """Indices that are not known to have arrived, oldest first, never sent ones included."""
        for index, entry in enumerate(self._entries, self.base):
            if not entry.acknowledged:
                yield index

    def size(self, index: int) -> int:
        """Bytes that ``index`` takes in a datagram."""
        return token_size(self._entries[index - self.base].token or b"")

    def last_sent(self, index: int) -> float:
        """When ``index`` was sent for the last time; -inf when it never was."""
        return self._entries[index - self.base].last_sent

    def first_sent(self, index: int) -> float:
        """When ``index`` was sent for the first time; -inf when it never was."""
        return self._entries[index - self.base].first_sent

    def mark_sent(self, run: Run, now: float) -> None:
        """Note that ``run``, made by ``pack``, left at ``now``."""
        first, tokens, end = run
        stop = first + len(tokens) + (end is not None)
        for index in range(first, stop):
            entry = self._entries[index - self.base]
            entry.last_sent = now
            if entry.first_sent == -math.inf:
                entry.first_sent = now
        # Tokens that a scheme has skipped count as sent: the next repetition brings them.
        for index in range(self.unsent, stop):
            self.bytes_in_flight += token_size(self._entries[index - self.base].token or b"")
        self.unsent = max(self.unsent, stop)

    def void_flight(self) -> None:
        """What is in flight will not arrive: everything is due again."""
        for _, entry in zip(range(self.unsent - self.base), self._entries, strict=False):
            entry.first_sent = entry.last_sent = -math.inf

    def pack(self, indices: Iterable[int], most: int = WINDOW_TOKENS) -> list[Run]:
        """Cut ascending ``indices`` into at most ``most`` runs that fit into one datagram each.

        A run is contiguous: (first index, tokens, end). Small holes are filled with tokens that
        were acknowledged already, where that saves a datagram.
        """
        runs: list[Run] = []
        first = -1
        tokens: list[bytes] = []
        room = 0
        for index in indices:
            if len(runs) == most:
                return runs
            if tokens:
                fill = self._between(first + len(tokens), index)
                size = sum(map(token_size, fill))
                if fill and size > _BRIDGE_BYTES:
                    runs.append((first, tuple(tokens), None))
                    tokens = []
                else:
                    token = self._entries[index - self.base].token
                    if token is None and size <= room:
                        runs.append((first, (*tokens, *fill), self.end))
                        return runs
                    if token is not None and size + token_size(token) <= room:
                        tokens += fill
                        tokens.append(token)
                        room -= size + token_size(token)
                        continue
                    runs.append((first, tuple(tokens), None))
                    tokens = []
            first = index
            token = self._entries[index - self.base].token
            if token is None:
                runs.append((first, (), self.end))
                return runs[:most]
            tokens = [token]
            # The count's varint never needs more than 2 bytes: 1200 one-byte tokens do not fit.
            room = MAX_DATAGRAM - data_overhead(first, 0x3FFF) - token_size(token)
        if tokens:
            runs.append((first, tuple(tokens), None))
        return runs[:most]

    def _between(self, start: int, stop: int) -> list[bytes]:
        return [self._entries[i - self.base].token or b"" for i in range(start, stop)]
