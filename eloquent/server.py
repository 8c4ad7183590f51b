"""The server's end: many conversations on one socket. Sans-I/O."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .admission import MAX_STREAMS, MAX_TOTAL_BYTES, Admission
from .cookies import Cookies
from .path import Path
from .schemes import create as create_scheme
from .stream import Address, Stream
from .timers import Timers
from .wire import Ack, Cancel, CancelReason, Data, MalformedDatagram, Message, decode, encode

__all__ = ["MAX_STREAMS", "MAX_TOTAL_BYTES", "Asked", "Ended", "Server", "Stream"]

#: Ended streams whose late datagrams are recognised, so that a prompt is never answered twice.
_REMEMBERED = 8192
#: CANCELs that overtook their prompt.
_CANCELLED_EARLY = 1024

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
        #: Datagrams that were dropped because they were malformed or foreign.
        self.malformed = 0
        self._random_bits = random_bits
        self._admission = Admission(max_streams)
        self._cookies = Cookies(random_bits(128).to_bytes(16, "big"))
        self._streams: dict[int, Stream] = {}
        self._remembered: dict[int, CancelReason] = {}
        self._touched: OrderedDict[Stream, None] = OrderedDict()
        self._timers: Timers[Stream] = Timers()
        self._cancelled_early: dict[int, None] = {}
        self._events: list[Event] = []
        self._replies: Datagrams = []

    @property
    def streams(self) -> int:
        """Number of living streams."""
        return len(self._streams)

    @property
    def max_streams(self) -> int:
        """Most streams that live at once, and so most handlers that run."""
        return self._admission.max_streams

    @property
    def bytes_held(self) -> int:
        """Bytes of prompts and tokens that are held for all streams together."""
        return self._admission.prompt_bytes + self._admission.answer_bytes

    def _new_path(self, *, validated: bool) -> Path:
        return Path(validated=validated, salt=self._random_bits(32))

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
                self._end(stream, "cancelled", CancelReason.READER)
                return None
            unproven = not stream.proven
            prompt = stream.receive(message, len(datagram), address, now)
        except MalformedDatagram:
            self.malformed += 1
            return None
        if address != stream.address:
            self._consider_move(stream, message, address, now)
        elif unproven and stream.proven:
            self._admission.proved(stream)
        if prompt is not None:
            self._events.append(Asked(stream, prompt))
        self._touch(stream)
        refusal = None
        if stream.too_large:
            refusal = CancelReason.TOO_LARGE
        elif isinstance(message, Ack) and message.asks and not stream.asked:
            # A client PINGs once its prompt is acknowledged: that was by an earlier server.
            refusal = CancelReason.UNKNOWN_STREAM
        if refusal is not None:
            self._refuse(message, address, refusal)
            self._end(stream, "lost", refusal)
        while (victim := self._admission.overfull()) is not None:
            self._replies += self._cancel(victim, CancelReason.BUSY, now)
            self._end(victim, "lost", CancelReason.BUSY)
        return stream if stream.ended is None else None

    def _open(self, message: Message, address: Address, now: float) -> Stream | None:
        """A place for a newcomer; None, and an answer, where it gets none or not yet."""
        stream_id = message.stream_id
        if isinstance(message, Cancel):
            self._cancelled_early[stream_id] = None
            if len(self._cancelled_early) > _CANCELLED_EARLY:
                del self._cancelled_early[next(iter(self._cancelled_early))]
        gone = self._remembered.get(stream_id)
        if gone is None and stream_id in self._cancelled_early:
            gone = CancelReason.UNKNOWN_STREAM
        proven = self._proves(message, address, now)
        if gone is None and not proven and not isinstance(message, Data):
            gone = CancelReason.UNKNOWN_STREAM
        if gone is not None:
            self._refuse(message, address, gone)
            return None
        if not proven and self._admission.wants_proof:
            victim = None if self._admission.full else self._admission.overdue(now)
            if victim is None:
                self._challenge(message, address, now)
                return None
            self._end(victim, "lost", None)
        if self._admission.full:
            victim = self._admission.gives_way(address, now)
            if victim is None:
                self._refuse(message, address, CancelReason.BUSY)
                return None
            self._replies += self._cancel(victim, CancelReason.BUSY, now)
            self._end(victim, "lost", CancelReason.BUSY)
        stream = self._streams[stream_id] = Stream(self, stream_id, address, now, proven=proven)
        self._admission.enter(stream)
        return stream

    def _proves(self, message: Message, address: Address, now: float) -> bool:
        return isinstance(message, Ack) and self._cookies.proves(
            message.echo, message.stream_id, address, now
        )

    def _consider_move(
        self, stream: Stream, message: Message, address: Address, now: float
    ) -> None:
        """Follow the client to an address that it has proven; all goes to the old one until then.

        So a copy with a forged source takes nothing away (RFC 9000, section 9.3).
        """
        if self._proves(message, address, now):
            stream.move(address, now)
            self._admission.proved(stream)
        else:
            self._challenge(message, address, now, stream)

    def _challenge(
        self, message: Message, address: Address, now: float, stream: Stream | None = None
    ) -> None:
        """Ask for a proof of ``address`` with a PING: at most 36 bytes, 3 times what came."""
        cookie = self._cookies.make(message.stream_id, address, now)
        state = stream.acknowledged if stream is not None else (0, 0)
        echo = message.sent_at if isinstance(message, Data) else 0
        head = message.stream_id, cookie, True
        ping = Ack(*head, state[0], echo, asks=True, instance=state[1])
        self._replies.append((encode(ping), address))

    def _refuse(self, message: Message, address: Address, reason: CancelReason) -> None:
        """Answer with CANCEL: 19 bytes, never more than what it answers."""
        cancel = Cancel(message.stream_id, message.sent_at, True, reason)
        self._replies.append((encode(cancel), address))

    def _touch(self, stream: Stream) -> None:
        self._touched[stream] = None
        self._admission.account(stream, *stream.memory)

    def _end(self, stream: Stream, how: str, say: CancelReason | None) -> None:
        """``say`` is what late datagrams of it are told; None: the client may open it again."""
        stream.ended = how
        del self._streams[stream.stream_id]
        if say is not None:
            self._remembered[stream.stream_id] = say
        if len(self._remembered) > _REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._touched.pop(stream, None)
        self._timers.drop(stream)
        self._admission.leave(stream)
        self._events.append(Ended(stream, how))

    def cancel(self, stream: Stream, now: float) -> None:
        """Give a stream up at once, without an END (the model failed, the server stops)."""
        if stream.ended is None:
            self._replies += self._cancel(stream, CancelReason.BUSY, now)
            self._end(stream, "cancelled", CancelReason.BUSY)

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
        """What happened since the last call, in order; no prompt whose stream has ended already."""
        events, self._events = self._events, []
        return [e for e in events if isinstance(e, Ended) or e.stream.ended is None]

    def datagrams(self, now: float) -> Datagrams:
        """The (datagram, address) pairs that are to be sent now."""
        return [pair for group in self.departures(now) for pair in group]

    def departures(self, now: float) -> Iterator[Datagrams]:
        """``datagrams`` in groups, a stream's each, which are made when they are asked for.

        Who stops asking, because the socket is full, finds the rest here the next time.
        """
        replies, self._replies = self._replies, []
        yield replies
        for stream in self._timers.expired(now):
            self._touched[stream] = None
        while self._touched:
            stream, _ = self._touched.popitem(last=False)
            if stream.complete:
                # Tells the client that its last ACK is here, so that it need not linger.
                goodbye = self._cancel(stream, CancelReason.COMPLETE, now)
                self._end(stream, "complete", CancelReason.COMPLETE)
                yield goodbye
            elif now >= stream.ends_at:
                late = CancelReason.UNKNOWN_STREAM if stream.asked else CancelReason.TOO_LARGE
                self._end(stream, "lost", late)
            else:
                out = [(datagram, stream.address) for datagram in stream.datagrams(now)]
                self._timers.set_by(stream, stream.next_timeout())
                yield out

    def next_timeout(self) -> float | None:
        """When ``datagrams`` has something to do if nothing happens before; None: never."""
        return self._timers.next()
