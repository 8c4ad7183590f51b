"""Two servers answer one prompt: their texts are never spliced into one."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

import pytest

from eloquent import Asked, Client, Reason, Server, schemes
from eloquent.wire import Ack, Cancel, CancelReason, Data, decode, encode

ONE_WAY = 0.2
TOKENS = 30


class Fleet:
    """Servers behind one address; ``pick`` says which of them gets what arrives, and when.

    Server number n answers with tokens "n:0", "n:1", ... at 20/s.
    """

    def __init__(self, pick: Callable[[float], int], *, servers: int, scheme: str, seed: int):
        bits = random.Random(seed).getrandbits
        self.servers = [Server(scheme, random_bits=bits) for _ in range(servers)]
        self.pick, self.now = pick, 0.0
        self.client = Client(b"why?", 0.0, random_bits=bits)
        self.text: list[bytes] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def _at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), action))

    def _speak(self, number: int, asked: Asked) -> None:
        def say(index: int) -> None:
            if index == TOKENS:
                asked.stream.finish(Reason.STOP, self.now)
                return
            asked.stream.push(b"%d:%d " % (number, index), self.now)
            self._at(self.now + 0.05, lambda: say(index + 1))

        say(0)

    def _pump(self) -> None:
        for number, server in enumerate(self.servers):
            for event in server.events():
                if isinstance(event, Asked):
                    self._speak(number, event)
            for datagram, _ in server.datagrams(self.now):
                self._at(self.now + ONE_WAY, lambda d=datagram: self._show(d))  # type: ignore[misc]
        for datagram in self.client.datagrams(self.now):
            self._at(self.now + ONE_WAY, lambda d=datagram: self._ask(d))  # type: ignore[misc]

    def _ask(self, datagram: bytes) -> None:
        self.servers[self.pick(self.now)].receive(datagram, "client", self.now)

    def _show(self, datagram: bytes) -> None:
        self.text += [token.data for token in self.client.receive(datagram, self.now)]

    def run(self, until: float = 100.0) -> Fleet:
        while True:
            self._pump()
            ends: list[Server | Client] = [*self.servers, self.client]
            due = [at for end in ends if (at := end.next_timeout()) is not None]
            due += [event[0] for event in self._events[:1]]
            if not due or min(due) > until:
                return self
            self.now = max(self.now, min(due))
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()

    def whole(self) -> bool:
        """The text is a beginning of one server's answer; all of it if the client says so."""
        answers = [[b"%d:%d " % (n, i) for i in range(TOKENS)] for n in range(len(self.servers))]
        beginning = any(self.text == answer[: len(self.text)] for answer in answers)
        return beginning and (not self.client.complete or len(self.text) == TOKENS)


def restart(moment: float) -> Callable[[float], int]:
    """A server takes the place of the first one at ``moment``."""
    return lambda now: int(now > moment)


@pytest.mark.parametrize("scheme", schemes.names())
def test_a_restart_at_any_moment_never_splices_two_answers(scheme: str) -> None:
    """The first probe timeout is 0.3 s and the RTT 0.4 s: a copy of the prompt is always out."""
    errors = 0
    for step in range(30):
        moment = 0.1 * step
        fleet = Fleet(restart(moment), servers=2, scheme=scheme, seed=step).run(20)
        assert fleet.whole(), (moment, fleet.text, fleet.client.error)
        assert fleet.client.complete != (fleet.client.error is not None)
        errors += fleet.client.error is not None
    assert 10 < errors < 30  # before the prompt comes, and after the answer, a restart is not seen


@pytest.mark.parametrize("seed", range(20))
def test_a_balancer_that_flaps_never_splices_two_answers(seed: int) -> None:
    rng = random.Random(seed)
    fleet = Fleet(lambda _: rng.randrange(3), servers=3, scheme="eloquent", seed=seed).run()
    assert fleet.whole(), (fleet.text, fleet.client.error)


def client() -> Client:
    user = Client(b"hello", 0.0, random_bits=random.Random(2).getrandbits)
    user.datagrams(0.0)
    return user


def spoken(user: Client, instance: int, first: int = 0, end: Reason | None = None) -> bytes:
    return encode(Data(user.stream_id, 0, True, first, (b"x",), end, instance))


def test_the_reader_is_told_and_both_servers_may_stop() -> None:
    user = client()
    assert user.receive(spoken(user, 1), 0.1)
    assert user.receive(spoken(user, 2, first=1), 0.2) == []
    assert user.error is not None and "another instance of the server" in user.error
    assert user.closed and user.tokens_received == 1
    (datagram,) = user.datagrams(0.2)
    message = decode(datagram)
    assert isinstance(message, Cancel) and message.reason is CancelReason.READER
    assert user.datagrams(0.3) == [] and user.next_timeout() is None


def test_an_acknowledgement_names_the_instance_as_well() -> None:
    user = client()
    user.receive(encode(Ack(user.stream_id, 0, True, 2, 0, instance=1)), 0.1)
    assert user.receive(spoken(user, 2), 0.2) == []
    assert user.error is not None and user.tokens_received == 0


def test_a_server_that_has_not_opened_the_stream_is_no_other_instance() -> None:
    user = client()
    user.receive(encode(Ack(user.stream_id, 0, True, 0, 0, asks=True)), 0.1)
    assert user.receive(spoken(user, 1), 0.2)
    user.receive(encode(Ack(user.stream_id, 0, True, 0, 0, asks=True)), 0.3)
    assert user.error is None


def test_what_makes_no_sense_names_no_instance() -> None:
    user = client()
    user.receive(encode(Ack(user.stream_id, 0, True, 99, 0, instance=1)), 0.1)  # never sent
    assert user.receive(spoken(user, 2), 0.2)
    assert user.error is None and user.malformed == 1


def test_after_the_end_another_answer_is_ignored() -> None:
    user = client()
    user.receive(spoken(user, 1, end=Reason.STOP), 0.1)
    user.datagrams(0.1)
    assert user.receive(spoken(user, 2, end=Reason.STOP), 0.2) == []
    assert user.complete and user.error is None and user.datagrams(0.2) == []


def test_a_stream_that_is_opened_anew_is_another_instance() -> None:
    """A server that has forgotten the stream, not only another server."""
    prompt = encode(Data(7, 0, False, 0, (b"why?",), Reason.STOP))
    server = Server(random_bits=random.Random(1).getrandbits)
    instances = set()
    for _ in range(20):
        server.receive(prompt, "user", 0.0)
        (event,) = [e for e in server.events() if isinstance(e, Asked)]
        (message,) = [decode(datagram) for datagram, _ in server.datagrams(0.0)]
        assert isinstance(message, Ack) and message.instance
        instances.add(message.instance)
        server.cancel(event.stream, 0.0)
        server.datagrams(0.0)
        server._remembered.clear()
    assert len(instances) == 20
