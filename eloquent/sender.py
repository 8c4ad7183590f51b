"""The sending half of a stream: window, scheme, timers.

Sans-I/O: time comes in as ``now`` (seconds, monotonic), datagrams go out as bytes.
"""

from __future__ import annotations

import math

from .path import Path
from .rtt import LONG_QUEUE
from .schemes import Scheme
from .schemes import create as create_scheme
from .window import Run, Window
from .wire import Ack, Data, MalformedDatagram, Message, Reason, decode, encode

#: Most datagrams per flight and in flight (RFC 6928: an initial window of 10). It is the whole
#: congestion window: token streams need a fraction of it, and a long prompt takes turns.
FLIGHT_DATAGRAMS = 10
FLIGHT_BYTES = 11_000
#: Bytes of tokens in a full datagram, about; only used to count datagrams.
DATAGRAM_TOKENS = 1100
#: New tokens that come closer together than this share a datagram: at most 200 flights/s.
FLIGHT_INTERVAL = 0.005
#: Where datagrams queue, flights are half of the queueing delay apart, but no further than this: a
#: queue that is full for seconds is met with 7 flights/s instead of one for each token, and a
#: reader who stalls after 200 ms does not stall for it. With a longer queue, what was sent before
#: is repeated only every half of the queueing delay (or a PTO after the last time, when the peer
#: asks for it); between, only what was never sent leaves: all that waits in the queue, again and
#: again, would fill it further.
MAX_FLIGHT_INTERVAL = 0.15
#: The backed-off probe timeout never exceeds the larger of this and the plain probe timeout, so
#: that an outage of any length ends at most this long after the network is back.
PROBE_INTERVAL = 0.2
#: PROBE_INTERVAL once only the END is missing: the reader has all tokens.
END_PROBE_INTERVAL = 1.0
#: No probe timeout is shorter than this: on a fast path the peer's scheduling, which the RTT's
#: variation does not show, would look like loss; and it bounds the rate to 50 repetitions/s.
MIN_PROBE_INTERVAL = 0.02
#: Nor is the plain one longer than this (as in mosh): one answer that was stuck for seconds must
#: not stop the repetitions for three times as long.
MAX_PROBE_INTERVAL = 1.0
#: PROBE_INTERVAL before the first RTT sample, when nothing is known about the path.
INITIAL_PROBE_INTERVAL = 0.5
#: While the path is quiet (``Path.quiet_after``), new tokens trigger no datagrams any more, and
#: each probe carries at most this many.
PROBE_DATAGRAMS = 2
#: Once quiet, a scheme's own timer is heard this often at most, for one datagram.
QUIET_TIMER_INTERVAL = 0.1


class Sender:
    """Sends one stream of tokens, and its END, until all is acknowledged.

    ``scheme`` is a name (see ``eloquent.schemes``) or a ``Scheme`` object of this stream's own.
    ``path`` is shared with the receiving half of the same endpoint, if there is one. ``instance``
    is a server's: see ``wire.Data``.
    """

    def __init__(
        self,
        stream_id: int,
        scheme: str | Scheme = "eloquent",
        *,
        from_server: bool,
        path: Path | None = None,
        instance: int = 0,
    ) -> None:
        self.stream_id = stream_id
        self.instance = instance
        self.scheme = create_scheme(scheme) if isinstance(scheme, str) else scheme
        self.from_server = from_server
        self.path = path or Path(validated=True)
        self.window = Window()
        self._backoff = 0
        self._flight_at = self._probe_at = self._timer_at = self._repeated_at = -math.inf
        self._unanswered_since: float | None = None
        self._quiet = False
        self._asked = False  # the peer waits, and nothing was repeated since it said so
        self._blocked = False  # the last flight exceeded the amplification limit

    @property
    def tokens_sent(self) -> int:
        """Number of tokens that left at least once."""
        return min(self.window.unsent, self.window.tokens_pushed)

    @property
    def complete(self) -> bool:
        """The peer has acknowledged every token and the END."""
        return self.window.complete

    def push(self, token: bytes, now: float) -> int:
        """Append a token, return its index.

        Raises ValueError (longer than wire.MAX_TOKEN), WindowFull (the peer does not keep up) or
        RuntimeError (after ``finish``).
        """
        return self.window.push(token)

    def finish(self, reason: Reason, now: float) -> None:
        """No more tokens: send the END. Raises RuntimeError the second time."""
        self.window.finish(reason)

    def receive(self, datagram: bytes | Message, now: float) -> None:
        """Take an ACK or PING. Raises MalformedDatagram for all else and for impossible ACKs."""
        message = decode(datagram) if isinstance(datagram, bytes) else datagram
        if not isinstance(message, Ack) or message.stream_id != self.stream_id:
            raise MalformedDatagram(f"not an ACK of stream {self.stream_id:016x}: {message!r:.60}")
        try:
            fresh = self.window.acknowledge(message)
        except ValueError as error:
            raise MalformedDatagram(str(error)) from None
        if self.path.answered(message.echo, message.delay, now) or fresh:
            # Only an answer to what was sent shows that the way to the peer is open.
            self._unanswered_since = None
            if self._quiet:
                self._quiet = False
                self._probe_at = -math.inf  # what the probes left out is due
        if fresh:
            self._asked = False
            self.scheme.on_ack(self.window, fresh, self.path.rtt, now)
        elif message.asks:
            self._asked = True
            self.scheme.on_ping(self.window, now)
        self.heard(now)

    def heard(self, now: float) -> None:
        """The peer is alive: whatever it sent ends the backoff."""
        self._backoff = 0
        self._blocked = False

    def move(self, path: Path, now: float) -> None:
        """The peer has a new address. What is in flight went to the old one: send it again."""
        self.path = path
        self.window.void_flight()
        self.scheme.on_move(now)
        self._probe_at = -math.inf
        self._unanswered_since = None
        self._quiet = False
        self.heard(now)

    # -- when ------------------------------------------------------------------------------------

    def next_timeout(self) -> float | None:
        """When ``datagrams`` has something to do if nothing happens before; None: never."""
        timeouts = (self._next_flight(), self._next_probe(), self._next_timer())
        return min((at for at in timeouts if at is not None), default=None)

    def _next_flight(self) -> float | None:
        """When waiting new tokens may leave; None when none wait, or an ACK must come first."""
        window = self.window
        if self._blocked or window.unsent == window.next_index:
            return None
        if self._quiet and not self.scheme.recovers:
            return None
        if window.bytes_in_flight >= FLIGHT_BYTES:
            return None
        interval = FLIGHT_INTERVAL
        if not self.scheme.recovers:  # that has a congestion window
            interval = min(max(interval, self._queueing() / 2), MAX_FLIGHT_INTERVAL)
        return self._flight_at + interval

    def _queueing(self) -> float:
        """Seconds that datagrams seem to wait in queues, there and back."""
        since = self._unanswered_since
        return self.path.rtt.queueing(0.0 if since is None else self._flight_at - since)

    def _next_repetition(self) -> float:
        """Until then a queue is not filled with what it holds already."""
        queueing = self._queueing()
        if queueing <= LONG_QUEUE:
            return -math.inf
        wait = queueing / 2
        if self._asked and not self._quiet:
            wait = min(wait, self._plain_timeout())
        return self._repeated_at + wait

    def _next_probe(self) -> float | None:
        """When the oldest unacknowledged token is due for a repetition."""
        window = self.window
        if self._blocked or not window or self.scheme.recovers:
            return None
        if window.unsent > window.base:
            if self.scheme.steady and not self._quiet:
                since = max(window.first_sent(window.base), self._probe_at)
                return max(since + self._plain_timeout(), self._next_repetition())
            since = window.last_sent(window.base)
            if self._quiet:  # a probe may go without the oldest
                since = max(since, self._probe_at)
            return since + self._probe_timeout()
        if self._quiet:  # tokens that came during an outage; nothing older is left
            return self._flight_at + self._probe_timeout()
        return None

    def _next_timer(self) -> float | None:
        """When the scheme's own timer is due, within the limits on it."""
        window, scheme = self.window, self.scheme
        if self._blocked or not window:
            return None
        due = scheme.next_timer(window, self.path.rtt)
        if due is None or scheme.recovers:  # a timer that is all that repeats is not held up
            return due and max(due, self._timer_at + FLIGHT_INTERVAL)
        if window.bytes_in_flight > FLIGHT_BYTES // 2:
            return None
        # What has just gone out need not go again.
        interval = QUIET_TIMER_INTERVAL if self._quiet else FLIGHT_INTERVAL
        due = max(due, max(self._timer_at, self._flight_at) + interval)
        return max(due, self._next_repetition())

    def _plain_timeout(self) -> float:
        """PTO without backoff."""
        return min(max(self.path.rtt.probe_timeout, MIN_PROBE_INTERVAL), MAX_PROBE_INTERVAL)

    def _probe_timeout(self) -> float:
        """PTO with backoff (RFC 9002, section 6.2.1, but with an upper limit)."""
        plain = self._plain_timeout()
        ceiling = PROBE_INTERVAL if self.path.rtt.samples else INITIAL_PROBE_INTERVAL
        if self.window.only_end_missing:
            ceiling = END_PROBE_INTERVAL
        return min(plain * 2.0**self._backoff, max(plain, ceiling))

    # -- what ------------------------------------------------------------------------------------

    def datagrams(self, now: float) -> list[bytes]:
        """The datagrams that are to be sent now."""
        since = self._unanswered_since
        if since is not None:
            self._quiet = now - since > self.path.quiet_after
        out: list[bytes] = []
        if _due(self._next_probe(), now):
            out = self._emit(self._probe(now), now)
        else:
            if _due(self._next_timer(), now):
                out = self._emit(self._own(now), now)
            if not out and _due(self._next_flight(), now):
                out = self._emit(self._flight(now), now)
        if out and self._unanswered_since is None:
            self._unanswered_since = now
        return out

    def _probe(self, now: float) -> list[Run]:
        window = self.window
        most = self._most(PROBE_DATAGRAMS if self._quiet else FLIGHT_DATAGRAMS)
        timeout = self._probe_timeout()
        self._probe_at = now
        if self._quiet or not self.scheme.steady:
            self._backoff = min(self._backoff + 1, 16)
        if self._quiet and now < self._next_repetition():
            return self._unsent(PROBE_DATAGRAMS) or window.pack((window.base,), most)
        self._repeated_at, self._asked = now, False
        runs = window.pack(self.scheme.on_timeout(window, now, timeout), most)
        if not runs or runs[0][0] > window.base:
            # Whatever a scheme prefers: the oldest token is never waited for without sending it.
            runs = window.pack(window.unacknowledged(), most)
        return runs

    def _own(self, now: float) -> list[Run]:
        self._timer_at = now
        most = FLIGHT_DATAGRAMS if self.scheme.recovers else 1 if self._quiet else PROBE_DATAGRAMS
        chosen = self.scheme.on_timer(self.window, self.path.rtt, now)
        runs = self.window.pack(chosen, self._most(most))
        if runs:
            self._probe_at = self._repeated_at = now
            self._asked = False
        return runs

    def _most(self, datagrams: int) -> int:
        """How many runs make at most that many datagrams, copies included."""
        return max(1, datagrams // self.scheme.copies)

    def _flight(self, now: float) -> list[Run]:
        window, scheme = self.window, self.scheme
        self._flight_at = now  # also when the scheme sends nothing: it is asked again later
        if not scheme.recovers:
            # A window of many datagrams (a long prompt, a long outage) or a long queue: repeating
            # all of it with each new token would be a flood. Send what is new, as ACKs make room.
            if window.bytes_in_flight > FLIGHT_BYTES // 2 or now < self._next_repetition():
                return self._unsent(FLIGHT_DATAGRAMS)
            self._repeated_at, self._asked = now, False
        runs = window.pack(scheme.on_token(window, now), self._most(FLIGHT_DATAGRAMS))
        if runs and window.unsent == window.base < runs[0][0]:
            # A scheme may skip tokens, but not the one that is waited for: its PTO needs a start.
            runs = window.pack(window.unacknowledged(), self._most(FLIGHT_DATAGRAMS))
        return runs

    def _unsent(self, datagrams: int) -> list[Run]:
        """What was never sent, as far as there is room in flight."""
        window = self.window
        if window.bytes_in_flight >= FLIGHT_BYTES:
            return []
        room = (FLIGHT_BYTES - window.bytes_in_flight) // DATAGRAM_TOKENS + 1
        new = range(window.unsent, window.next_index)
        return window.pack(new, self._most(min(datagrams, room)))

    def _emit(self, runs: list[Run], now: float) -> list[bytes]:
        out: list[bytes] = []
        copies = self.scheme.copies
        for run in runs:
            first, tokens, end = run
            head = self.stream_id, self.path.stamp(now), self.from_server
            datagram = encode(Data(*head, first, tokens, end, self.instance))
            if not self.path.may_send(len(datagram), copies):
                self._blocked = True
                break
            self.path.sent(len(datagram), copies)
            self.window.mark_sent(run, now)
            self.scheme.on_sent(range(first, first + len(tokens) + (end is not None)), now)
            out += [datagram] * copies
        if out:
            self._flight_at = now
        return out


def _due(timeout: float | None, now: float) -> bool:
    return timeout is not None and timeout <= now
