"""The client's end of one conversation: a prompt out, an answer in."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from .path import Path
from .receiver import Receiver, Token
from .sender import Sender
from .window import MAX_PROMPT
from .wire import (
    MAX_TOKEN,
    Ack,
    Cancel,
    CancelReason,
    Data,
    MalformedDatagram,
    Reason,
    decode,
    encode,
)

#: A peer of which nothing was heard for this long is given up.
LEASE = 60.0
#: After the answer is complete the client stays this long to repeat its last ACK if that was
#: lost: the server repeats its END every 0.2 s at least, so this covers several losses in a row.
LINGER = 1.0
#: CANCEL is repeated at this interval, and this often, until the server confirms it.
CANCEL_INTERVAL = 0.2
CANCEL_TRIES = 25


class Client:
    """Asks one question and receives the answer. Sans-I/O.

    ``prompt`` is any bytes up to ``window.MAX_PROMPT`` (240 KiB). ``random_bits`` is the source
    of the stream id and the clock salt; give one of your own only for repeatable simulations.
    """

    def __init__(
        self,
        prompt: bytes,
        now: float,
        *,
        scheme: str = "eloquent",
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        if len(prompt) > MAX_PROMPT:
            raise ValueError(f"the prompt has {len(prompt)} bytes, more than {MAX_PROMPT}")
        self.stream_id = random_bits(64)
        # The client chose the server's address itself, so there is nothing to prove.
        path = Path(validated=True, salt=random_bits(32))
        self._path = path
        self._prompt = Sender(self.stream_id, scheme, from_server=False, path=path)
        self._answer = Receiver(self.stream_id, from_server=False, path=path, now=now)
        for start in range(0, len(prompt), MAX_TOKEN):
            self._prompt.push(prompt[start : start + MAX_TOKEN], now)
        self._prompt.finish(Reason.STOP, now)
        self._heard_at = now
        self._complete_at: float | None = None
        self._lingered = False
        self._prompt_done = False
        self._instance = 0  # of the server's stream, once it is known
        self._farewell = False  # one CANCEL is to be sent though all is over
        self._cancel_at: float | None = None
        self._cancel_tries = 0
        #: Why there is no complete answer: "lost", "cancelled", or the server's CANCEL reason.
        self.error: str | None = None
        #: Datagrams that were dropped because they were malformed or foreign.
        self.malformed = 0

    @property
    def rtt(self) -> float | None:
        """Smoothed round-trip time in seconds, None before the first sample."""
        return self._path.rtt.smoothed if self._path.rtt.samples else None

    @property
    def tokens_received(self) -> int:
        """Number of tokens delivered in order so far."""
        return self._answer.next

    @property
    def reason(self) -> Reason | None:
        """Why the answer ended, once the END is known."""
        return self._answer.reason

    @property
    def complete(self) -> bool:
        """The whole answer is here."""
        return self._answer.complete

    @property
    def closed(self) -> bool:
        """Nothing is left to do: the socket may be closed."""
        return (self.complete and self._lingered) or self.error is not None

    def receive(self, datagram: bytes, now: float) -> list[Token]:
        """Take one datagram; returns the tokens that can be shown now, in order.

        Never raises for bad input: what is malformed or foreign is counted in ``malformed``.
        """
        if self.error is not None:
            return []
        try:
            message = decode(datagram)
            if not message.from_server or message.stream_id != self.stream_id:
                raise MalformedDatagram("not for this client")
            if isinstance(message, Cancel):
                self._receive_cancel(message)
                return []
            if self._instance and message.instance not in (0, self._instance):
                self._meet_another()
                return []
            if isinstance(message, Ack):
                self._prompt.receive(message, now)
            tokens = self._answer.receive(message, now)
            self._instance = self._instance or message.instance
            # Whoever answers has the prompt, whatever happened to the ACKs for it.
            self._prompt_done |= isinstance(message, Data) or self._prompt.complete
            # Before that, the prompt itself keeps asking.
            self._answer.pings = self._prompt_done
        except MalformedDatagram:
            self.malformed += 1
            return []
        self._heard_at = now
        if self._answer.complete and self._complete_at is None:
            self._complete_at = now
        return tokens

    def _meet_another(self) -> None:
        """A copy of the prompt has reached another server, whose answer is another text."""
        self.malformed += 1
        if not self.complete and self._cancel_at is None:
            self.error = (
                "another instance of the server answers: it was restarted, or a load balancer "
                "has changed it"
            )
            self._farewell = True  # nobody reads what the two of them say

    def _receive_cancel(self, message: Cancel) -> None:
        if self.complete:
            self._lingered = True  # the server has forgotten the stream: it got our last ACK
        elif self._cancel_at is not None:
            self.error = "cancelled"
        elif (
            message.reason is CancelReason.UNKNOWN_STREAM
            and not self._prompt_done
            and not self._path.remembers(message.sent_at)
        ):
            return  # an ACK of ours overtook the prompt; an answer to the prompt has its stamp
        else:
            self.error = f"refused by the server: {message.reason.name.lower().replace('_', ' ')}"

    def cancel(self, now: float) -> None:
        """The reader wants no more. The server is told, repeatedly until it confirms."""
        if not self.complete and self._cancel_at is None:
            self._cancel_at = now

    def datagrams(self, now: float) -> list[bytes]:
        """The datagrams that are to be sent now."""
        self._expire(now)
        if self._farewell:
            self._farewell = False
            return [self._parting(now)]
        if self.closed:
            return []
        if self._cancel_at is not None:
            if now < self._cancel_at:
                return []
            self._cancel_tries += 1
            self._cancel_at = now + CANCEL_INTERVAL
            return [self._parting(now)]
        out = self._answer.datagrams(now)
        return out if self._prompt_done else out + self._prompt.datagrams(now)

    def _parting(self, now: float) -> bytes:
        stamp = self._path.clock(now)
        return encode(Cancel(self.stream_id, stamp, False, CancelReason.READER))

    def _expire(self, now: float) -> None:
        if self._complete_at is not None:
            self._lingered |= now >= self._complete_at + LINGER
        elif self._cancel_at is not None and self._cancel_tries >= CANCEL_TRIES:
            self.error = self.error or "cancelled"
        elif now >= self._heard_at + LEASE:
            self.error = self.error or "lost"

    def next_timeout(self) -> float | None:
        """When ``datagrams`` has something to do if nothing happens before; None: closed."""
        if self.closed:
            return None
        if self._cancel_at is not None:
            return self._cancel_at
        timeouts = [self._answer.next_timeout()]
        if not self._prompt_done:
            timeouts.append(self._prompt.next_timeout())
        if self._complete_at is not None:
            timeouts.append(self._complete_at + LINGER)
        else:
            timeouts.append(self._heard_at + LEASE)
        return min(due for due in timeouts if due is not None)
