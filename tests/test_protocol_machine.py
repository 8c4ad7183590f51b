"""A state machine: hypothesis plays network, model and clock against the shipped end points."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from eloquent import Asked, Client, Ended, Reason, Server, schemes
from eloquent.server import Stream


class Conversation(RuleBasedStateMachine):
    """One question and its answer; the network is a bag of datagrams in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.sent: list[bytes] = []
        self.received: list[bytes] = []
        self.asked: list[bytes] = []
        self.stream: Stream | None = None
        self.finished = False
        self.port = 1
        self.flight: list[tuple[str, bytes, object]] = []

    @initialize(scheme=st.sampled_from(schemes.names()), prompt=st.binary(max_size=3000))
    def start(self, scheme: str, prompt: bytes) -> None:
        bits = random.Random(1).getrandbits
        self.prompt, self.scheme = prompt, scheme
        self.server = Server(scheme, random_bits=bits)
        self.client = Client(prompt, self.now, random_bits=bits)
        self.pump()

    def pump(self) -> None:
        for datagram, address in self.server.datagrams(self.now):
            self.flight.append(("down", datagram, address))
        for datagram in self.client.datagrams(self.now):
            self.flight.append(("up", datagram, self.port))
        for event in self.server.events():
            if isinstance(event, Asked):
                self.asked.append(event.prompt)
                self.stream = event.stream
            elif isinstance(event, Ended):
                assert event.how == "complete"
        for end in (self.server, self.client):
            due = end.next_timeout()
            assert due is None or due > self.now, f"{end} would spin"

    def arrive(self, way: str, datagram: bytes, address: object) -> None:
        if way == "up":
            self.server.receive(datagram, address, self.now)
        elif address == self.port:  # what goes to an old port of the client is lost
            tokens = self.client.receive(datagram, self.now)
            self.received += [token.data for token in tokens]
        self.pump()

    @precondition(lambda self: self.stream is not None and not self.finished)
    @rule(tokens=st.lists(st.binary(max_size=1024), min_size=1, max_size=5))
    def model_speaks(self, tokens: list[bytes]) -> None:
        assert self.stream is not None
        for token in tokens:
            self.stream.push(token, self.now)
        self.sent += tokens
        self.pump()

    @precondition(lambda self: self.stream is not None and not self.finished)
    @rule(reason=st.sampled_from([Reason.STOP, Reason.LENGTH]))
    def model_ends(self, reason: Reason) -> None:
        assert self.stream is not None
        self.stream.finish(reason, self.now)
        self.finished = True
        self.pump()

    @precondition(lambda self: self.flight)
    @rule(data=st.data(), keep=st.booleans())
    def one_arrives(self, data: st.DataObject, keep: bool) -> None:
        """Any one, in any order; kept ones will arrive again."""
        index = data.draw(st.integers(0, len(self.flight) - 1))
        item = self.flight[index] if keep else self.flight.pop(index)
        self.arrive(*item)

    @precondition(lambda self: self.flight)
    @rule(data=st.data(), flips=st.lists(st.integers(0, 10_000), min_size=1, max_size=4))
    def a_broken_copy_arrives(self, data: st.DataObject, flips: list[int]) -> None:
        way, datagram, address = data.draw(st.sampled_from(self.flight))
        broken = bytearray(datagram)
        for flip in flips:
            broken[flip // 8 % len(broken)] ^= 1 << flip % 8
        self.arrive(way, bytes(broken), address)

    @rule()
    def all_in_flight_is_lost(self) -> None:
        self.flight.clear()

    @rule(seconds=st.sampled_from([0.001, 0.02, 0.1, 0.5, 3.0]))
    def time_passes(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            dues = [due for e in (self.server, self.client) if (due := e.next_timeout())]
            if not dues or min(dues) > end:
                break
            self.now = min(dues)
            self.pump()
        self.now = end
        del self.flight[:-200]  # an outage: most is lost

    @rule()
    def client_gets_a_new_port(self) -> None:
        self.port += 1

    @invariant()
    def only_what_was_sent_in_order_once(self) -> None:
        assert self.received == self.sent[: len(self.received)]
        assert self.asked in ([], [self.prompt] if hasattr(self, "prompt") else [])

    def teardown(self) -> None:
        """From here on the network is good: everything must arrive, and soon."""
        if not hasattr(self, "client") or self.client.error is not None:
            return
        self.flight.clear()
        # A TCP that has doubled its timeout for so long waits for as long again.
        patience = 12 + (2 * self.now if self.scheme == "retransmit" else 0)
        start = self.now
        while not self.client.complete:
            while self.flight:
                self.arrive(*self.flight.pop(0))
            if self.stream is not None and not self.finished:
                self.model_ends(Reason.STOP)
            if self.flight or self.client.complete:
                continue
            dues = [due for e in (self.server, self.client) if (due := e.next_timeout())]
            self.now = max(self.now, min(dues)) + 0.001
            assert self.now < start + patience, "the network is good, but the answer does not come"
            self.pump()
        assert self.received == self.sent
        assert self.asked == [self.prompt]


TestConversation = Conversation.TestCase
TestConversation.settings = settings(
    max_examples=300,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
