"""Many conversations at once, and floods that want the server's memory."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

import pytest

from eloquent import Asked, Client, Ended, Reason, Server, schemes
from eloquent.server import MAX_TOTAL_BYTES
from eloquent.wire import Data, encode

SCHEMES = pytest.mark.parametrize("scheme", schemes.names())


class Crowd:
    """Clients that each get the echo of their prompt, one byte a token, over one lossy network."""

    def __init__(self, server: Server, count: int, loss: float, seed: int) -> None:
        self.rng = random.Random(seed)
        self.loss = loss
        self.server = server
        self.clients = {
            n: Client(b"prompt %d" % n, 0.0, random_bits=self.rng.getrandbits) for n in range(count)
        }
        self.answers: dict[int, bytes] = dict.fromkeys(self.clients, b"")
        self.ended: list[str] = []
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), action))

    def travel(self, arrive: Callable[[], None]) -> None:
        if self.rng.random() >= self.loss:
            self.at(self.now + self.rng.uniform(0.01, 0.06), arrive)

    def arrival(self, number: int, datagram: bytes) -> Callable[[], None]:
        def arrive() -> None:
            tokens = self.clients[number].receive(datagram, self.now)
            self.answers[number] += b"".join(token.data for token in tokens)

        return arrive

    def speak(self, event: Asked) -> None:
        def say(index: int) -> None:
            if index == len(event.prompt):
                event.stream.finish(Reason.STOP, self.now)
            else:
                event.stream.push(event.prompt[index : index + 1], self.now)
                self.at(self.now + 0.03, lambda: say(index + 1))

        say(0)

    def run(self, until: float) -> None:
        while self.now < until and not all(c.closed for c in self.clients.values()):
            for datagram, address in self.server.datagrams(self.now):
                if isinstance(address, int):
                    self.travel(self.arrival(address, datagram))
            for event in self.server.events():
                if isinstance(event, Asked):
                    self.speak(event)
                elif isinstance(event, Ended):
                    self.ended.append(event.how)
            for number, client in self.clients.items():
                for datagram in client.datagrams(self.now):
                    self.travel(
                        lambda d=datagram, n=number: self.server.receive(d, n, self.now)  # type: ignore[misc]
                    )
            due = [c.next_timeout() for c in self.clients.values()] + [self.server.next_timeout()]
            times = [t for t in due if t is not None] + [e[0] for e in self._events[:1]]
            self.now = max(self.now, min(times, default=until))
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()


@SCHEMES
def test_conversations_do_not_mix(scheme: str) -> None:
    crowd = Crowd(Server(scheme, random_bits=random.Random(1).getrandbits), 40, 0.2, seed=5)
    crowd.run(120)
    assert crowd.answers == {n: b"prompt %d" % n for n in crowd.clients}
    assert crowd.ended.count("complete") >= 38  # a last ACK may be lost again and again
    assert len(crowd.ended) <= 40


def flooded(rng: random.Random) -> Server:
    """A server whose memory is full of prompts that never end, from addresses that never answer."""
    server = Server(random_bits=rng.getrandbits)
    for size, count, streams in ((1024, 230, 300), (1024, 1, 300), (1, 1, 40)):
        for number in range(streams):
            stream_id = rng.getrandbits(64)
            for index in range(count):
                data = Data(stream_id, index, False, index, (bytes(size),))
                server.receive(encode(data), ("spoofed", number), 0.0)
        server.datagrams(0.0)
        server.events()
    return server


def test_a_flood_of_large_prompts_does_not_shut_others_out() -> None:
    rng = random.Random(1)
    server = flooded(rng)
    assert server.bytes_held <= MAX_TOTAL_BYTES
    crowd = Crowd(server, 3, 0.0, seed=2)
    for stream in crowd.clients.values():  # honest readers come a second later
        assert stream.error is None
    crowd.run(30)
    assert crowd.answers == {n: b"prompt %d" % n for n in crowd.clients}


def test_a_flood_is_forgotten_when_its_leases_end() -> None:
    server = flooded(random.Random(1))
    assert 0 < server.bytes_held <= MAX_TOTAL_BYTES
    server.datagrams(61.0)
    assert (server.streams, server.bytes_held, server.next_timeout()) == (0, 0, None)


def test_a_flood_of_prompts_by_count_hurts_nobody_who_has_answered() -> None:
    rng = random.Random(7)
    server = Server(random_bits=rng.getrandbits, max_streams=32)
    crowd = Crowd(server, 16, 0.1, seed=3)
    flood = itertools.count()

    def attack() -> None:
        for _ in range(3):
            data = Data(rng.getrandbits(64), 0, False, 0, (b"x",))
            server.receive(encode(data), ("spoofed", next(flood)), crowd.now)
        crowd.at(crowd.now + 0.02, attack)

    crowd.at(1.0, attack)  # all readers have answered the server's PING by then
    crowd.run(60)
    assert crowd.answers == {n: b"prompt %d" % n for n in crowd.clients}
    assert next(flood) > 50 and server.streams <= 32
