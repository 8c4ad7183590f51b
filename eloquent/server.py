"""The server's end: many conversations on one socket. Sans-I/O."""

from __future__ import annotations

import heapq
import itertools
import secrets
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from .path import Path
from .receiver import Receiver
from .schemes import create as create_scheme
from .sender import Sender
from .window import MAX_PROMPT, TOKEN_OVERHEAD, WindowFull
from .wire import (
    Ack,
    Cancel,
    CancelReason,
    Data,
    MalformedDatagram,
    Message,
    Reason,
    decode,
    encode,
)

#: A client of which nothing was heard for this long is given up; it PINGs every 5 s at least.
LEASE = 60.0
MAX_STREAMS = 1024
MAX_TOTAL_BYTES = 64 * 1024 * 1024
#: Of these, for clients that have not proven their address: a flood leaves room for the others.
MAX_UNPROVEN_BYTES = MAX_TOTAL_BYTES // 2
#: Ended streams whose late datagrams are recognised, so that a prompt is never answered twice.
_REMEMBERED = 8192
#: CANCELs that overtook their prompt.
_CANCELLED_EARLY = 1024

Address = Hashable
Datagrams = list[tuple[bytes, Address]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt has arrived in full: answer with ``stream.push`` and ``stream.finish``."""

    stream: Stream
    prompt: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """A stream is over. ``how``: "complete" (END acknowledged), "cancelled", or "lost"."""

    stream: Stream
    how: str


Event = Asked | Ended


class Stream:
    """One conversation, seen by the server."""

    def __init__(self, server: Server, stream_id: int, address: Address, now: float) -> None:
        self.stream_id = stream_id
        self.address = address
        self._server = server
        path = server._new_path()
        # Another opening of the stream, by whichever server, is another answer (0: not opened).
        instance = server._random_bits(32) or 1
        self._answer = Sender(
            stream_id, server.scheme, from_server=True, path=path, instance=instance
        )
        self._prompt = Receiver(stream_id, from_server=True, path=path, now=now, instance=instance)
        self._path = path
        self._text = bytearray()
        self._asked = False
        self._proven = False
        self._newest: int | None = None
        self._heard_at = now
        self._accounted = 0
        self._due: float | None = None
        #: How the stream ended (see ``Ended``), None while it lives.
        self.ended: str | None = None

    @property
    def rtt(self) -> float | None:
        """Smoothed round-trip time in seconds, None before the first sample."""
        return self._path.rtt.smoothed if self._path.rtt.samples else None

    @property
    def tokens_sent(self) -> int:
        """Number of tokens of the answer that left at least once."""
        return self._answer.tokens_sent

    @property
    def finished(self) -> bool:
        """``finish`` was called."""
        return self._answer.window.end is not None

    def room(self) -> int:
        """Bytes of the next token that may be pushed before the client acknowledges some.

        Negative when not even an empty one may.
        """
        left = MAX_TOTAL_BYTES - self._server.bytes_held
        return min(self._answer.window.room(), left) - TOKEN_OVERHEAD

    def push(self, token: bytes, now: float) -> None:
        """Append a token of the answer.

        Raises ValueError (too long), WindowFull (the client does not keep up: wait until
        ``room`` grows, or give up) and RuntimeError (finished before). A token for a stream
        that has ended is dropped: see ``ended``.
        """
        if self.ended is not None:
            return
        if self.room() < len(token):
            raise WindowFull(f"no room for {len(token)} bytes: {self.room()} are left")
        self._answer.push(token, now)
        self._server._touch(self)

    def finish(self, reason: Reason, now: float) -> None:
        """The answer is complete."""
        if self.ended is None:
            self._answer.finish(reason, now)
            self._server._touch(self)

    def _receive(self, message: Message, size: int, address: Address, now: float) -> bytes | None:
        """Takes a message; returns the prompt when it is complete. Raises MalformedDatagram."""
        if isinstance(message, Ack):
            self._answer.receive(message, now)
        self._answer.heard(now)
        tokens = self._prompt.receive(message, now)
        # Only a message that makes sense may change the address.
        if address != self.address:
            self._consider_move(message, address, now)
        if self._newest is None or _newer(message.sent_at, self._newest):
            self._newest = message.sent_at
        if address == self.address:
            self._path.received(size)
        self._heard_at = now
        self._proven |= self._path.validated
        for token in tokens:
            self._text += token.data
        if self._prompt.complete and not self._asked and len(self._text) <= MAX_PROMPT:
            self._asked = True
            prompt, self._text = bytes(self._text), bytearray()
            return prompt
        return None

    def _consider_move(self, message: Message, address: Address, now: float) -> None:
        """Follow the client to a new address, but not a late datagram back to the old one."""
        if self._newest is not None and not _newer(message.sent_at, self._newest):
            return
        self.address = address
        self._path = self._server._new_path()
        self._prompt.move(self._path)
        self._answer.move(self._path, now)

    def _expired(self, now: float) -> bool:
        return now >= self._lease_end()

    def _lease_end(self) -> float:
        return self._heard_at + LEASE

    def _datagrams(self, now: float) -> list[bytes]:
        return self._prompt.datagrams(now) + self._answer.datagrams(now)

    def _next_timeout(self) -> float:
        timeouts = (
            self._prompt.next_timeout(),
            self._answer.next_timeout(),
            self._lease_end(),
        )
        return min(due for due in timeouts if due is not None)

    def _memory(self) -> int:
        return len(self._text) + self._prompt.bytes_held + self._answer.window.bytes_held


class Server:
    """Answers prompts from any number of clients, each with the same ``scheme``.

    Use: feed ``receive``, take ``events``, push tokens into the streams, and after each of these
    and at ``next_timeout`` send what ``datagrams`` returns. Raises ValueError for an unknown
    scheme.
    """

    def __init__(
        self,
        scheme: str = "eloquent",
        *,
        random_bits: Callable[[int], int] = secrets.randbits,
        max_streams: int = MAX_STREAMS,
    ) -> None:
        create_scheme(scheme)  # an unknown one is an error now, not with the first prompt
        self.scheme = scheme
        self.max_streams = max_streams
        #: Bytes of prompts and tokens that are held for all streams together.
        self.bytes_held = 0
        #: Datagrams that were dropped because they were malformed or foreign.
        self.malformed = 0
        self._random_bits = random_bits
        self._streams: dict[int, Stream] = {}
        self._remembered: dict[int, None] = {}
        self._cancelled_early: dict[int, None] = {}
        self._touched: OrderedDict[Stream, None] = OrderedDict()
        self._timers: list[tuple[float, int, Stream]] = []
        self._order = itertools.count()
        self._events: list[Event] = []
        self._replies: Datagrams = []

    @property
    def streams(self) -> int:
        """Number of living streams."""
        return len(self._streams)

    def _new_path(self) -> Path:
        return Path(validated=False, salt=self._random_bits(32))

    def receive(self, datagram: bytes, address: Address, now: float) -> Stream | None:
        """Take one datagram from ``address`` (any hashable value, returned by ``datagrams``).

        Returns the stream that it belongs to, if that lives: it may have more room now. Never
        raises for bad input: what is malformed or foreign is counted in ``malformed``.
        """
        try:
            message = decode(datagram)
            if message.from_server:
                raise MalformedDatagram("from another server")
            stream = self._streams.get(message.stream_id) or self._open(message, address, now)
            if stream is None:
                return None
            if isinstance(message, Cancel):
                self._refuse(message, address, CancelReason.READER)
                self._end(stream, "cancelled")
                return None
            prompt = stream._receive(message, len(datagram), address, now)
        except MalformedDatagram:
            self.malformed += 1
            return None
        if prompt is not None:
            self._events.append(Asked(stream, prompt))
        self._touch(stream)
        self._shed_unproven(stream)
        refusal = None
        if len(stream._text) > MAX_PROMPT:
            refusal = CancelReason.TOO_LARGE
        elif self.bytes_held > MAX_TOTAL_BYTES:
            refusal = CancelReason.BUSY
        elif isinstance(message, Ack) and message.asks and not stream._asked:
            # A client PINGs once its prompt is acknowledged: that was by an earlier server.
            refusal = CancelReason.UNKNOWN_STREAM
        if refusal is not None:
            self._refuse(message, address, refusal)
            self._end(stream, "lost")
        return stream if stream.ended is None else None

    def _open(self, message: Message, address: Address, now: float) -> Stream | None:
        if isinstance(message, Cancel):
            self._cancelled_early[message.stream_id] = None
            if len(self._cancelled_early) > _CANCELLED_EARLY:
                del self._cancelled_early[next(iter(self._cancelled_early))]
        known = message.stream_id in self._remembered or message.stream_id in self._cancelled_early
        if known or not isinstance(message, Data):
            self._refuse(message, address, CancelReason.UNKNOWN_STREAM)
            return None
        if len(self._streams) >= self.max_streams:
            # Prompts from addresses that never answer must not shut out others: the oldest of
            # them makes room.
            victim = next((s for s in self._streams.values() if not s._proven), None)
            if victim is None:
                self._refuse(message, address, CancelReason.BUSY)
                return None
            self._end(victim, "lost")
        stream = self._streams[message.stream_id] = Stream(self, message.stream_id, address, now)
        return stream

    def _shed_unproven(self, newest: Stream) -> None:
        """Forget the oldest unproven streams while such ones hold too much."""
        if self.bytes_held <= MAX_UNPROVEN_BYTES:
            return
        unproven = [s for s in self._streams.values() if not s._proven]
        held = sum(stream._accounted for stream in unproven)
        for victim in unproven:
            if held <= MAX_UNPROVEN_BYTES:
                return
            if victim is not newest:
                held -= victim._accounted
                self._end(victim, "lost")

    def _refuse(self, message: Message, address: Address, reason: CancelReason) -> None:
        """Answer with CANCEL: 19 bytes, never more than what it answers."""
        cancel = Cancel(message.stream_id, message.sent_at, True, reason)
        self._replies.append((encode(cancel), address))

    def _touch(self, stream: Stream) -> None:
        self._touched[stream] = None
        memory = stream._memory()
        self.bytes_held += memory - stream._accounted
        stream._accounted = memory

    def _end(self, stream: Stream, how: str) -> None:
        stream.ended = how
        del self._streams[stream.stream_id]
        self._remembered[stream.stream_id] = None
        if len(self._remembered) > _REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._touched.pop(stream, None)
        self.bytes_held -= stream._accounted
        stream._accounted = 0
        if len(self._timers) > 2 * len(self._streams) + 64:
            # Under a flood of short-lived streams their timers would hold them for a minute.
            self._timers = [t for t in self._timers if t[2].ended is None and t[2]._due == t[0]]
            heapq.heapify(self._timers)
        self._events.append(Ended(stream, how))

    def cancel(self, stream: Stream, now: float) -> None:
        """Give a stream up at once, without an END (the model failed, the server stops)."""
        if stream.ended is None:
            self._replies += self._cancel(stream, CancelReason.BUSY, now)
            self._end(stream, "cancelled")

    def cancel_all(self, now: float) -> None:
        """Give up every stream (the server stops)."""
        for stream in list(self._streams.values()):
            self.cancel(stream, now)

    def _cancel(self, stream: Stream, reason: CancelReason, now: float) -> Datagrams:
        """A CANCEL, or nothing where the path's amplification limit is reached."""
        cancel = encode(Cancel(stream.stream_id, stream._path.clock(now), True, reason))
        if not stream._path.may_send(len(cancel)):
            return []
        stream._path.sent(len(cancel))
        return [(cancel, stream.address)]

    def events(self) -> list[Event]:
        """What happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def datagrams(self, now: float) -> Datagrams:
        """The (datagram, address) pairs that are to be sent now."""
        return [pair for group in self.departures(now) for pair in group]

    def departures(self, now: float) -> Iterator[Datagrams]:
        """``datagrams`` in groups, a stream's each, which are made when they are asked for.

        Who stops asking, because the socket is full, finds the rest here the next time.
        """
        replies, self._replies = self._replies, []
        yield replies
        while self._timers and self._timers[0][0] <= now:
            due, _, stream = heapq.heappop(self._timers)
            if stream._due == due and stream.ended is None:
                stream._due = None
                self._touched[stream] = None
        while self._touched:
            stream, _ = self._touched.popitem(last=False)
            if stream._answer.complete:
                # Tells the client that its last ACK is here, so that it need not linger.
                goodbye = self._cancel(stream, CancelReason.COMPLETE, now)
                self._end(stream, "complete")
                yield goodbye
            elif stream._expired(now):
                self._end(stream, "lost")
            else:
                out = [(datagram, stream.address) for datagram in stream._datagrams(now)]
                self._schedule(stream)
                yield out

    def _schedule(self, stream: Stream) -> None:
        # A timer that turns out to be early is looked at again then; one entry per stream that
        # moves only forward in time keeps the heap small.
        due = stream._next_timeout()
        if stream._due is None or due < stream._due:
            stream._due = due
            heapq.heappush(self._timers, (due, next(self._order), stream))

    def next_timeout(self) -> float | None:
        """When ``datagrams`` has something to do if nothing happens before; None: never."""
        while self._timers:
            due, _, stream = self._timers[0]
            if stream._due == due and stream.ended is None:
                return due
            heapq.heappop(self._timers)
        return None


def _newer(stamp: int, than: int) -> bool:
    """Order of two clock stamps modulo 2**32 (RFC 1982)."""
    return 0 < (stamp - than) % 2**32 < 2**31
