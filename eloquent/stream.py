"""One conversation, seen by the server: a prompt comes in, an answer goes out. Sans-I/O."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable
from typing import TYPE_CHECKING

from .admission import PROMPT_DEADLINE
from .receiver import Receiver
from .sender import Sender
from .window import MAX_PROMPT, TOKEN_OVERHEAD, WindowFull
from .wire import Ack, Message, Reason

if TYPE_CHECKING:
    from .server import Server

#: A client of which nothing was heard for this long is given up; it PINGs every 5 s at least.
LEASE = 60.0

Address = Hashable


class Stream:
    """What a handler writes its answer to: ``push`` and ``finish``.

    The server makes these objects. ``proven`` says that the address is not forged: nobody sends
    from there who does not receive there.
    """

    def __init__(
        self, server: Server, stream_id: int, address: Address, now: float, *, proven: bool
    ) -> None:
        self.stream_id = stream_id
        self.address = address
        self.opened_at = now
        #: When the client last did what it owed (s): acknowledged a token, sent some of its prompt.
        self.progress_at = now
        self._server = server
        path = server._new_path(validated=proven)
        # Another opening of the stream, by whichever server, is another answer (0: not opened).
        instance = server._random_bits(32) or 1
        self._answer = Sender(
            stream_id, server.scheme, from_server=True, path=path, instance=instance
        )
        self._prompt = Receiver(stream_id, from_server=True, path=path, now=now, instance=instance)
        self._path = path
        self._text = bytearray()
        self._asked = False
        self._heard_at = now
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

    @property
    def proven(self) -> bool:
        """The client has proven its address."""
        return self._path.validated

    @property
    def waits_since(self) -> float | None:
        """Since when (s) the client owes something and makes no progress; None: it owes nothing."""
        return self.progress_at if not self._asked or self._answer.window else None

    def room(self) -> int:
        """Bytes of the next token that may be pushed before the client acknowledges some.

        Negative when not even an empty one may.
        """
        free = self._server._admission.room(self)
        return min(self._answer.window.room(), free) - TOKEN_OVERHEAD

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
        self._owes_from(now)
        self._answer.push(token, now)
        self._server._touch(self)

    def finish(self, reason: Reason, now: float) -> None:
        """The answer ends. With ``Reason.ERROR`` it broke off; what was pushed still comes."""
        if self.ended is None:
            self._owes_from(now)
            self._answer.finish(reason, now)
            self._server._touch(self)

    def _owes_from(self, now: float) -> None:
        if not self._answer.window:
            self.progress_at = now

    # -- for the server --------------------------------------------------------------------------

    def receive(self, message: Message, size: int, address: Address, now: float) -> bytes | None:
        """Take a message; returns the prompt when it is complete. Raises MalformedDatagram."""
        base, known = self._answer.window.base, (self._prompt.next, self._prompt.bytes_held)
        if isinstance(message, Ack):
            # An echo from elsewhere proves nothing about the address that it was sent to.
            here = address == self.address
            self._answer.receive(message if here else dataclasses.replace(message, echo=0), now)
        tokens = self._prompt.receive(message, now)
        self._answer.heard(now)  # only now: what makes no sense is no sign of life
        if address == self.address:
            self._path.received(size)
        self._heard_at = now
        for token in tokens:
            self._text += token.data
        if base < self._answer.window.base or known != (self._prompt.next, self._prompt.bytes_held):
            self.progress_at = now
        if self._prompt.complete and not self._asked and not self.too_large:
            self._asked = True
            prompt, self._text = bytes(self._text), bytearray()
            return prompt
        return None

    def move(self, address: Address, now: float) -> None:
        """The client has proven another address: go on there."""
        self.address = address
        self._path = self._server._new_path(validated=True)
        self._prompt.move(self._path)
        self._answer.move(self._path, now)

    @property
    def too_large(self) -> bool:
        """The prompt is longer than any may be."""
        return len(self._text) > MAX_PROMPT

    @property
    def asked(self) -> bool:
        """The prompt is complete."""
        return self._asked

    @property
    def complete(self) -> bool:
        """The client has acknowledged everything, the END included."""
        return self._answer.complete

    @property
    def ends_at(self) -> float:
        """When the server gives the client up (s), if nothing is heard."""
        deadline = math.inf if self._asked else self.opened_at + PROMPT_DEADLINE
        return min(self._heard_at + LEASE, deadline)

    @property
    def acknowledged(self) -> tuple[int, int]:
        """The first index of the prompt that has not arrived, and the instance of the stream."""
        return self._prompt.next + self._prompt.complete, self._prompt.instance

    def datagrams(self, now: float) -> list[bytes]:
        """The datagrams that are to be sent to ``address`` now."""
        return self._prompt.datagrams(now) + self._answer.datagrams(now)

    def next_timeout(self) -> float:
        """When ``datagrams`` has something to do if nothing happens before, or the stream ends."""
        timeouts = (self._prompt.next_timeout(), self._answer.next_timeout(), self.ends_at)
        return min(due for due in timeouts if due is not None)

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes held: of the prompt, of the answer."""
        return len(self._text) + self._prompt.bytes_held, self._answer.window.bytes_held
