"""A simulated network for tests: the shipped endpoints, virtual time, any fate per datagram."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterator

from eloquent import Asked, Client, Ended, MalformedDatagram, Reason, Server, Stream, Token
from eloquent.wire import Ack, Data, decode

#: (datagram, direction "up"|"down", time) -> (bytes, delay) of each copy that arrives.
Fate = Callable[[bytes, str, float], list[tuple[bytes, float]]]


def lossy(seed: int, loss: float, delay: float = 0.02, jitter: float = 0.0) -> Fate:
    """Independent loss, and reordering by ``jitter``."""
    rng = random.Random(seed)

    def fate(datagram: bytes, direction: str, now: float) -> list[tuple[bytes, float]]:
        return [] if rng.random() < loss else [(datagram, delay + jitter * rng.random())]

    return fate


def outage(start: float, stop: float, fate: Fate, directions: tuple[str, ...] = ()) -> Fate:
    """Nothing gets through in [start, stop), in ``directions`` or in both; else ``fate``."""

    def with_outage(datagram: bytes, direction: str, now: float) -> list[tuple[bytes, float]]:
        out = start <= now < stop and direction in (directions or ("up", "down"))
        return [] if out else fate(datagram, direction, now)

    return with_outage


class AmplificationObserver:
    """Watches all datagrams at the server's socket for RFC 9000, section 8.1.

    An address is proven once it echoed a stamp that was sent to it. Before that it may get at
    most three times the bytes that came from it.
    """

    def __init__(self) -> None:
        self.came: Counter[Hashable] = Counter()
        self.went: Counter[Hashable] = Counter()
        self.proven: set[Hashable] = set()
        self._stamps: set[tuple[Hashable, int]] = set()

    def arrived(self, datagram: bytes, address: Hashable) -> None:
        """``datagram`` came to the server."""
        self.came[address] += len(datagram)
        try:
            message = decode(datagram)
        except MalformedDatagram:
            return
        if isinstance(message, Ack) and (address, message.echo) in self._stamps:
            self.proven.add(address)

    def left(self, datagram: bytes, address: Hashable) -> None:
        """``datagram`` left the server."""
        self.went[address] += len(datagram)
        message = decode(datagram)
        if isinstance(message, Data) or (isinstance(message, Ack) and message.asks):
            self._stamps.add((address, message.sent_at))
        assert address in self.proven or self.went[address] <= 3 * self.came[address], (
            f"{self.went[address]} bytes went to {address}, only {self.came[address]} came from it"
        )


class Network:
    """One client and one server; the server answers with ``tokens`` at ``spacing`` seconds.

    Asserts on its way that no endpoint asks to be called again at once (a busy loop), and that
    nothing is amplified.
    """

    def __init__(
        self,
        tokens: list[bytes],
        fate: Fate,
        *,
        prompt: bytes = b"why is the sky blue?",
        scheme: str = "eloquent",
        spacing: float | Callable[[int], float] = 0.045,
        seed: int = 0,
        think: float = 0.1,
        start: float = 0.0,
    ) -> None:
        bits = random.Random(seed).getrandbits
        self.now = start
        self.tokens = tokens
        self.fate = fate
        self.spacing = spacing if callable(spacing) else (lambda _: spacing)
        self.think = think
        self.server = Server(scheme, random_bits=bits)
        self.client = Client(prompt, start, random_bits=bits)
        self.client_address = ("client", 1)
        self.received: list[Token] = []
        self.rendered: list[float] = []
        self.generated: list[float] = []
        self.sent = {"up": 0, "down": 0}
        self.sent_bytes = {"up": 0, "down": 0}
        #: (time, direction, datagram) of everything that either side sent.
        self.log: list[tuple[float, str, bytes]] = []
        self.asked: list[bytes] = []
        self.ended: list[str] = []
        self.amplification = AmplificationObserver()
        self.steps = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    @property
    def answer(self) -> list[bytes]:
        """The tokens that the reader has got, in the order in which it got them."""
        return [token.data for token in self.received]

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Call ``action`` at ``time``."""
        heapq.heappush(self._events, (time, next(self._order), action))

    def move_client(self, time: float) -> None:
        """The client has another address from ``time`` on, as after a change of network."""

        def move() -> None:
            self.client_address = ("client", self.client_address[1] + 1)

        self.at(time, move)

    def _send(self, datagram: bytes, direction: str, address: Hashable) -> None:
        self.sent[direction] += 1
        self.sent_bytes[direction] += len(datagram)
        self.log.append((self.now, direction, datagram))
        if direction == "down":
            self.amplification.left(datagram, address)
        for data, delay in self.fate(datagram, direction, self.now):
            self.at(self.now + delay, self._arrival(data, direction, address))

    def _arrival(self, data: bytes, direction: str, address: Hashable) -> Callable[[], None]:
        def arrive() -> None:
            if direction == "up":
                self.amplification.arrived(data, address)
                self.server.receive(data, address, self.now)
            elif address == self.client_address:
                tokens = self.client.receive(data, self.now)
                self.received += tokens
                self.rendered += [self.now] * len(tokens)

        return arrive

    def _answer(self, stream: Stream) -> None:
        def step(index: int) -> None:
            if index == len(self.tokens):
                stream.finish(Reason.STOP, self.now)
                return
            if stream.ended is None and stream.room() < 1024:
                self.at(self.now + 0.05, lambda: step(index))
                return
            self.generated.append(self.now)
            stream.push(self.tokens[index], self.now)
            if index + 1 == len(self.tokens):
                step(index + 1)
            else:
                self.at(self.now + self.spacing(index), lambda: step(index + 1))

        self.at(self.now + self.think, lambda: step(0))

    def _pump(self) -> None:
        for datagram, address in self.server.datagrams(self.now):
            self._send(datagram, "down", address)
        for datagram in self.client.datagrams(self.now):
            self._send(datagram, "up", self.client_address)
        for event in self.server.events():
            if isinstance(event, Asked):
                self.asked.append(event.prompt)
                self._answer(event.stream)
            elif isinstance(event, Ended):
                self.ended.append(event.how)

    def run(self, until: float = 300.0, stop: Callable[[], bool] | None = None) -> Network:
        """Run until the client is closed (or ``stop``), or until ``until`` seconds."""
        for _ in self.steps_until(until):
            if stop() if stop else self.client.closed:
                break
        return self

    def steps_until(self, until: float) -> Iterator[None]:
        while True:
            self._pump()
            yield
            for endpoint in (self.client, self.server):
                due_at = endpoint.next_timeout()
                assert due_at is None or due_at > self.now, (
                    f"{endpoint} wants to be called at {due_at} again, but it is {self.now}"
                )
            timers = [self.client.next_timeout(), self.server.next_timeout()]
            due = [t for t in timers if t is not None]
            if self._events:
                due.append(self._events[0][0])
            if not due or min(due) > until:
                self.now = until
                return
            self.steps += 1
            assert self.steps < 1_000_000, "an endpoint asks to be called again and again"
            self.now = max(self.now, min(due))
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
