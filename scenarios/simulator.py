"""One answer over simulated channels: the shipped end points in a discrete-event loop.

``eloquent.Server`` and ``eloquent.Client`` are the objects that the apps run, and the channels are
those of the user-space link with the same seeds, so that a simulated run and an emulated one meet
the same bad moments. Only sockets, kernels and schedulers are missing. Times are seconds.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from eloquent import Asked, Client, Reason, Server, Stream
from eloquent.sealed import SealedClient, SealedServer, TicketBook
from topologies.channel import Channel, subseed
from topologies.profile import LinkProfile, NetworkProfile

#: Ethernet, IPv4 and UDP headers: what a capture and a link see around a datagram.
HEADERS = 14 + 20 + 8
#: A run that takes longer than this after its last token is given up.
PATIENCE = 400.0
_SERVER_ADDRESS, _CLIENT_ADDRESS = ("10.0.0.2", 4433), ("10.0.0.1", 40000)


class Sighting(NamedTuple):
    """A datagram at a host: ``sent`` there, or received."""

    time: float
    host: str
    sent: bool
    datagram: bytes


@dataclass
class Answer:
    """What one simulated answer left. Times count from the first token's generation."""

    asked_at: float
    generated_at: list[float] = field(default_factory=list)
    sent_at: list[float] = field(default_factory=list)
    received_at: list[float] = field(default_factory=list)
    rendered_at: list[float] = field(default_factory=list)
    n_bytes: list[int] = field(default_factory=list)
    datagrams: int = 0
    wire_bytes: int = 0
    losses: dict[str, int] = field(default_factory=dict)
    #: Every datagram at both hosts, if asked for.
    sightings: list[Sighting] = field(default_factory=list)
    error: str | None = None
    closed_at: float = 0.0


class SimulationError(RuntimeError):
    """The answer did not arrive, or not as it was sent."""


class _Hop(NamedTuple):
    """One direction of a link on a path; ``constant`` where it only delays."""

    channel: Channel
    constant: float | None


class Simulation:
    """One client asks, the server answers with ``tokens`` that are given with their times.

    tokens
        (seconds since the request, bytes), as a trace has them.
    links
        By name, from the client's side to the server's. The name enters into the seeds.
    record
        Keep every datagram for a table of packets.
    pad
        Sealed, packets filled up in steps of so many bytes (0: not at all). None: plain.
    """

    def __init__(
        self,
        scheme: str,
        tokens: Sequence[tuple[float, bytes]],
        links: dict[str, LinkProfile],
        seed: int,
        *,
        prompt: bytes = b"why?",
        reason: Reason = Reason.STOP,
        record: bool = False,
        pad: int | None = None,
    ) -> None:
        bits = random.Random(subseed(seed, "end points", scheme, "bits")).getrandbits
        self._server: Server
        self._client: Client
        if pad is None:
            self._server = Server(scheme, random_bits=bits)
            self._client = Client(prompt, 0.0, random_bits=bits)
        else:
            secrets = random.Random(subseed(seed, "tickets")).randbytes
            book = TicketBook(_SERVER_ADDRESS, random_bytes=secrets)
            self._server = SealedServer(book, pad=pad, scheme=scheme, random_bits=bits)
            self._client = SealedClient(prompt, 0.0, book.issue(), pad=pad, random_bits=bits)
        self._tokens, self._reason, self._record = tokens, reason, record
        rebind = [link.rebind for link in links.values() if link.rebind]
        if rebind:
            raise SimulationError("the simulator has no NAT: rebind is for the engine emulated")
        self._hops = {
            "up": [_hop(link, "up", name, seed) for name, link in links.items()],
            "down": [_hop(link, "down", name, seed) for name, link in reversed(links.items())],
        }
        self._events: list[tuple[float, int, int, object]] = []
        self._order = itertools.count()
        self._timers: dict[int, float] = {}
        self._answer = Answer(asked_at=0.0)
        self._stream: Stream | None = None
        self._zero: float | None = None
        self._left = 0
        self._now = 0.0

    # -- the loop --------------------------------------------------------------------------------

    def run(self) -> Answer:
        """Until the client has closed. Raises SimulationError when the answer is not complete."""
        answer, events = self._answer, self._events
        actions = {_CLIENT: self._client_wakes, _SERVER: self._server_wakes}
        limit = PATIENCE + (self._tokens[-1][0] if self._tokens else 0.0)
        self._client_wakes()
        while events and not self._client.closed:
            self._now, _, kind, subject = heapq.heappop(events)
            if self._now > limit:
                break
            if kind <= _SERVER:
                if self._timers.get(kind) != self._now:
                    continue  # an earlier timer took its place
                del self._timers[kind]
                actions[kind]()
            elif kind == _HOP:
                self._travel(*subject)  # type: ignore[misc]
            elif kind == _AT_CLIENT:
                self._client_receives(subject)  # type: ignore[arg-type]
            elif kind == _AT_SERVER:
                self._server_receives(subject)  # type: ignore[arg-type]
            else:
                self._generate(subject)  # type: ignore[arg-type]
        self._check()
        zero = self._zero or 0.0
        for name in ("generated_at", "sent_at", "received_at", "rendered_at"):
            setattr(answer, name, [at - zero for at in getattr(answer, name)])
        answer.sightings = [s._replace(time=s.time - zero) for s in answer.sightings]
        answer.asked_at, answer.closed_at = -zero, self._now - zero
        return answer

    def _check(self) -> None:
        shown, made = len(self._answer.rendered_at), len(self._tokens)
        if self._client.error is not None or shown != made or not self._client.complete:
            why = self._client.error or "it took too long"
            raise SimulationError(f"{shown} of {made} tokens arrived: {why}")

    def _at(self, time: float, kind: int, subject: object = None) -> None:
        heapq.heappush(self._events, (time, next(self._order), kind, subject))

    def _set_timer(self, kind: int, due: float | None) -> None:
        if due is None:
            self._timers.pop(kind, None)
        elif self._timers.get(kind) != due:
            self._timers[kind] = due
            self._at(due, kind)

    # -- the end points --------------------------------------------------------------------------

    def _client_wakes(self) -> None:
        now = self._now
        for datagram in self._client.datagrams(now):
            self._send(datagram, "up")
        self._set_timer(_CLIENT, self._client.next_timeout())

    def _server_wakes(self) -> None:
        now = self._now
        for event in self._server.events():
            if isinstance(event, Asked):
                self._stream = event.stream
                for index, (seconds, _) in enumerate(self._tokens):
                    self._at(now + seconds, _TOKEN, index)
                if not self._tokens:
                    event.stream.finish(self._reason, now)
        for datagram, _ in self._server.datagrams(now):
            self._send(datagram, "down")
        stream = self._stream
        if stream is not None:
            sent = stream.tokens_sent
            if sent > self._left:
                self._answer.sent_at += [now] * (sent - self._left)
                self._left = sent
        self._set_timer(_SERVER, self._server.next_timeout())

    def _client_receives(self, datagram: bytes) -> None:
        if self._record:
            self._answer.sightings.append(Sighting(self._now, "client", False, datagram))
        answer = self._answer
        for token in self._client.receive(datagram, self._now):
            if token.data != self._tokens[token.index][1]:
                raise SimulationError(f"token {token.index} arrived as {token.data!r}")
            answer.received_at.append(token.received_at)
            answer.rendered_at.append(self._now)
        self._client_wakes()

    def _server_receives(self, datagram: bytes) -> None:
        if self._record:
            self._answer.sightings.append(Sighting(self._now, "server", False, datagram))
        self._server.receive(datagram, _CLIENT_ADDRESS, self._now)
        self._server_wakes()

    def _generate(self, index: int) -> None:
        stream, now, token = self._stream, self._now, self._tokens[index][1]
        assert stream is not None
        if self._zero is None:
            self._zero = now
            for hop in itertools.chain(*self._hops.values()):
                hop.channel.epoch = now
        self._answer.generated_at.append(now)
        self._answer.n_bytes.append(len(token))
        stream.push(token, now)
        if index + 1 == len(self._tokens):
            stream.finish(self._reason, now)
        elif self._tokens[index + 1][0] == self._tokens[index][0]:
            return  # a step of the model that gave several tokens
        self._server_wakes()

    # -- the network -----------------------------------------------------------------------------

    def _send(self, datagram: bytes, direction: str) -> None:
        answer = self._answer
        answer.datagrams += 1
        answer.wire_bytes += HEADERS + len(datagram)
        if self._record:
            host = "client" if direction == "up" else "server"
            answer.sightings.append(Sighting(self._now, host, True, datagram))
        self._travel(datagram, direction, 0, self._now)

    def _travel(self, datagram: bytes, direction: str, number: int, now: float) -> None:
        """Enter hop ``number``; hops that only delay are taken without an event of their own."""
        hops = self._hops[direction]
        while number < len(hops):
            channel, constant = hops[number]
            if now > self._now and constant is None:
                self._at(now, _HOP, (datagram, direction, number, now))
                return
            number += 1
            if constant is not None:
                now += constant
                continue
            fate = channel.fate(now, HEADERS + len(datagram))
            if fate.lost:
                losses = self._answer.losses
                losses[fate.reason] = losses.get(fate.reason, 0) + 1
                return
            if fate.copy_due is not None:
                self._at(fate.copy_due, _HOP, (datagram, direction, number, fate.copy_due))
            if fate.flip is not None:  # the UDP checksum drops it at the receiver
                self._answer.losses["corrupt"] = self._answer.losses.get("corrupt", 0) + 1
                return
            now = fate.due
        kind = _AT_SERVER if direction == "up" else _AT_CLIENT
        self._at(now, kind, datagram)


_CLIENT, _SERVER, _HOP, _AT_CLIENT, _AT_SERVER, _TOKEN = range(6)


def _hop(link: LinkProfile, direction: str, name: str, seed: int) -> _Hop:
    end = link.direction(direction)
    plain = end.loss is None and end.bottleneck is None and end.delay_model.constant
    plain = plain and not end.duplicate and not end.corrupt and link.mtu is None
    return _Hop(link.channel(direction, name, seed), end.delay if plain else None)


def simulate(
    scheme: str,
    tokens: Sequence[tuple[float, bytes]],
    network: NetworkProfile,
    seed: int,
    *,
    prompt: bytes = b"why?",
    reason: Reason = Reason.STOP,
    record: bool = False,
    pad: int | None = None,
) -> Answer:
    """One answer over the two links of ``network``; see ``Simulation``."""
    links = {"access": network.access, "server": network.server}
    simulation = Simulation(
        scheme, tokens, links, seed, prompt=prompt, reason=reason, record=record, pad=pad
    )
    return simulation.run()
