"""One question at a name with several addresses: all are tried, one answers. Sans-I/O.

In the spirit of RFC 8305: the first address gets the prompt at once. While nobody has answered,
every 250 ms one more address is asked, but only *whether* a server is there: a second prompt would
start a second answer. The first address that says anything is where the question is held.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from .client import Client
from .receiver import Token
from .wire import Ack, Cancel, MalformedDatagram, decode, encode

#: Seconds until the next address is tried (RFC 8305, section 5); none where one is unreachable.
ATTEMPT_DELAY = 0.25
#: Seconds between the PINGs to one address: the pace at which an unanswered prompt is repeated.
KNOCK_INTERVAL = 0.5

AddressT = TypeVar("AddressT")


class _Knock:
    """Asks whether a server is there: a PING of no stream, answered with *unknown stream*."""

    def __init__(self, random_bits: Callable[[int], int], now: float) -> None:
        self.due = now
        self._stream_id, self._stamp = random_bits(64), random_bits(32)

    def datagram(self, now: float) -> bytes:
        self.due = now + KNOCK_INTERVAL
        return encode(Ack(self._stream_id, self._stamp, False, 0, 0, 0, (), asks=True))

    def answered(self, datagram: bytes) -> bool:
        try:
            message = decode(datagram)
        except MalformedDatagram:
            return False
        return (
            isinstance(message, Cancel)
            and message.from_server
            and (message.stream_id, message.sent_at) == (self._stream_id, self._stamp)
        )


class Attempts(Generic[AddressT]):
    """Asks ``prompt`` at the first of ``addresses`` that answers.

    The same use as ``Client``, but datagrams go to and come from addresses, which are any hashable
    values. ``client`` asks in place of a new one, where there is one address only. Raises
    ValueError: the prompt is too long, there is no address, or several for one ``client``.
    """

    def __init__(
        self,
        prompt: bytes,
        addresses: Sequence[AddressT],
        now: float,
        *,
        random_bits: Callable[[int], int] = secrets.randbits,
        client: Client | None = None,
    ) -> None:
        if not addresses:
            raise ValueError("no address to ask")
        if client is not None and len(addresses) > 1:
            raise ValueError(f"one client cannot ask at {len(addresses)} addresses")
        #: The conversation, and where it is held. Both may change until ``answered``.
        self.client = client or Client(prompt, now, random_bits=random_bits)
        self.address = addresses[0]
        #: A server was heard.
        self.answered = False
        #: Addresses that datagrams did not reach, as far as the caller was told, and why.
        self.unreachable: dict[AddressT, str] = {}
        self._prompt = prompt
        self._random_bits = random_bits
        self._untried = deque(addresses[1:])
        self._next_at = now + ATTEMPT_DELAY
        self._knocks: dict[AddressT, _Knock] = {}
        self._left: tuple[Client, AddressT] | None = None

    @property
    def closed(self) -> bool:
        """Nothing is left to do for the reader."""
        return self.client.closed

    def receive(self, datagram: bytes, address: AddressT, now: float) -> list[Token]:
        """Take one datagram; returns the tokens that can be shown now. Never raises."""
        if address == self.address:
            malformed = self.client.malformed
            tokens = self.client.receive(datagram, now)
            if self.client.malformed == malformed:
                self._settle()
            return tokens
        knock = self._knocks.get(address)
        if knock is not None and knock.answered(datagram):
            self._change(address, now)
        elif self._left is not None and address == self._left[1]:
            self._left[0].receive(datagram, now)  # it confirms our CANCEL
        return []

    def _change(self, address: AddressT, now: float) -> None:
        """Hold the question at ``address``; the server asked before may have the prompt."""
        if self.address not in self.unreachable:
            self.client.cancel(now)
            self._left = self.client, self.address
        self.client = Client(self._prompt, now, random_bits=self._random_bits)
        self.address = address
        self._settle()

    def _settle(self) -> None:
        self.answered = True
        self.unreachable.pop(self.address, None)
        self._stop_trying()

    def _stop_trying(self) -> None:
        self._untried.clear()
        self._knocks.clear()

    def failed(self, address: AddressT, why: str, now: float) -> None:
        """A datagram to ``address`` came to nothing (port unreachable, no route).

        It is tried again all the same: a server may come up. The next one need not wait.
        """
        if not self.answered:
            self.unreachable[address] = why
            self._next_at = now
        elif self._left is not None and address == self._left[1]:
            self._left = None  # nobody there has the prompt

    def cancel(self, now: float) -> None:
        """The reader wants no more."""
        self._stop_trying()
        self.client.cancel(now)

    def datagrams(self, now: float) -> list[tuple[bytes, AddressT]]:
        """The (datagram, address) pairs that are to be sent now."""
        out = [(datagram, self.address) for datagram in self.client.datagrams(now)]
        if self.client.closed:
            self._stop_trying()
        if self._untried and now >= self._next_at:
            self._knocks[self._untried.popleft()] = _Knock(self._random_bits, now)
            self._next_at = now + ATTEMPT_DELAY
        for address, knock in self._knocks.items():
            if now >= knock.due:
                out.append((knock.datagram(now), address))
        if self._left is not None:
            client, address = self._left
            out += [(datagram, address) for datagram in client.datagrams(now)]
            if client.closed:
                self._left = None
        return out

    def next_timeout(self) -> float | None:
        """When ``datagrams`` has something to do if nothing happens before; None: closed."""
        due = [self.client.next_timeout()]
        if due[0] is None:
            return None
        if self._untried:
            due.append(self._next_at)
        due += [knock.due for knock in self._knocks.values()]
        if self._left is not None:
            due.append(self._left[0].next_timeout())
        return min(at for at in due if at is not None)
