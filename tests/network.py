"""A simulated network for tests: the shipped endpoints, virtual time, any fate per datagram."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator

from eloquent import Asked, Client, Ended, Reason, Server, Token

#: (datagram, direction "up"|"down", time) -> (bytes, delay) of each copy that arrives.
Fate = Callable[[bytes, str, float], list[tuple[bytes, float]]]


def lossy(seed: int, loss: float, delay: float = 0.02, jitter: float = 0.0) -> Fate:
    """Independent loss, and reordering by ``jitter``."""
    rng = random.Random(seed)

    def fate(datagram: bytes, direction: str, now: float) -> list[tuple[bytes, float]]:
        return [] if rng.random() < loss else [(datagram, delay + jitter * rng.random())]

    return fate


class Network:
    """One client and one server; the server answers with ``tokens`` at ``spacing`` seconds."""

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
    ) -> None:
        bits = random.Random(seed).getrandbits
        self.now = 0.0
        self.tokens = tokens
        self.fate = fate
        self.spacing = spacing if callable(spacing) else (lambda _: spacing)
        self.think = think
        self.server = Server(scheme, random_bits=bits)
        self.client = Client(prompt, 0.0, random_bits=bits)
        self.client_address = ("client", 1)
        self.received: list[Token] = []
        self.rendered: list[float] = []
        self.generated: list[float] = []
        self.sent = {"up": 0, "down": 0}
        self.sent_bytes = {"up": 0, "down": 0}
        self.asked: list[bytes] = []
        self.ended: list[str] = []
        self.steps = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), action))

    def _send(self, datagram: bytes, direction: str, address: object) -> None:
        self.sent[direction] += 1
        self.sent_bytes[direction] += len(datagram)
        for data, delay in self.fate(datagram, direction, self.now):
            self.at(self.now + delay, self._arrival(data, direction, address))

    def _arrival(self, data: bytes, direction: str, address: object) -> Callable[[], None]:
        def arrive() -> None:
            if direction == "up":
                self.server.receive(data, address, self.now)
            elif address == self.client_address:
                tokens = self.client.receive(data, self.now)
                self.received += tokens
                self.rendered += [self.now] * len(tokens)

        return arrive

    def _answer(self, stream) -> None:  # type: ignore[no-untyped-def]
        def step(index: int) -> None:
            if index == len(self.tokens):
                stream.finish(Reason.STOP, self.now)
                return
            self.generated.append(self.now)
            stream.push(self.tokens[index], self.now)
            if index + 1 == len(self.tokens):
                step(index + 1)
            else:
                self.at(self.now + self.spacing(index), lambda: step(index + 1))

        self.at(self.now + self.think, lambda: step(0))

    def _pump(self) -> None:
        for event in self.server.events():
            if isinstance(event, Asked):
                self.asked.append(event.prompt)
                self._answer(event.stream)
            elif isinstance(event, Ended):
                self.ended.append(event.how)
        for datagram, address in self.server.datagrams(self.now):
            self._send(datagram, "down", address)
        for datagram in self.client.datagrams(self.now):
            self._send(datagram, "up", self.client_address)

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
