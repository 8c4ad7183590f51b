"""Sealed conversations: whole answers, and nothing for who has no key."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random

import pytest
from network import Network, lossy  # type: ignore[import-not-found]
from sealed_network import ADDRESS, SealedNetwork  # type: ignore[import-not-found]

from eloquent import Asked, Client, Server, schemes
from eloquent.aio import Reply, ServerEndpoint, ask
from eloquent.sealed import (
    Aead,
    SealedClient,
    SealedServer,
    Ticket,
    TicketBook,
    TicketError,
)
from eloquent.sealed.ends import MAX_SERVER_PAD, SESSION_LEASE

TOKENS = [b" token-%d" % n for n in range(120)]
QUESTION = b"why is the sky blue?"


@pytest.mark.parametrize("scheme", schemes.names())
@pytest.mark.parametrize(("pad", "aead"), [(0, Aead.AES_256_GCM), (64, Aead.CHACHA20_POLY1305)])
def test_the_answer_arrives(scheme: str, pad: int, aead: Aead) -> None:
    fate = lossy(3, 0.15, jitter=0.1)
    net = SealedNetwork(TOKENS, fate, scheme=scheme, pad=pad, aead=aead, seed=3).run()
    assert net.answer == TOKENS and net.client.complete and net.asked == [QUESTION]
    sizes = {len(packet) for packet in net.packets("up") + net.packets("down")}
    assert max(sizes) <= 1232 and (not pad or all(s % 64 == 0 or s == 1232 for s in sizes))


def test_it_moves_as_the_plain_one_does_and_costs_18_bytes() -> None:
    """The same seed, the same losses: the same datagrams at the same times, each 18 bytes more."""
    logs = []
    for kind in (Network, SealedNetwork):
        net = kind(TOKENS, lossy(5, 0.1), seed=5).run()
        logs.append([(at, way, len(datagram)) for at, way, datagram in net.log])
    assert [(at, way, size + 18) for at, way, size in logs[0]] == logs[1]


def test_neither_text_nor_stream_id_is_seen() -> None:
    net = SealedNetwork([b"attack at dawn"] * 40, lossy(1, 0.1)).run()
    seen = b"".join(net.packets("up") + net.packets("down"))
    assert len(net.answer) == 40
    for secret in (b"attack", QUESTION[:6], net.client.stream_id.to_bytes(8, "big")):
        assert secret not in seen


@pytest.mark.parametrize("pad", [0, 64])
def test_an_unproven_address_gets_three_times_what_came(pad: int) -> None:
    """RFC 9000, section 8.1, counted in what is on the wire: small messages grow by most."""
    book = TicketBook(ADDRESS)
    server = SealedServer(book, pad=pad, scheme="duplicate")
    packets = SealedClient(b"x" * 1000, 0.0, book.issue()).datagrams(0.0)
    for packet in packets:
        server.receive(packet, "client", 0.0)
    (asked,) = server.events()
    went, tokens = 0, 0
    while tokens < 300:
        now = 0.005 * tokens
        if asked.stream.room() >= 1:
            asked.stream.push(b"x", now)
        went += sum(len(packet) for packet, _ in server.datagrams(now))
        tokens += 1
    came = sum(map(len, packets))
    assert 2.8 * came < went <= 3 * came


def test_padding_that_came_counts_too() -> None:
    """Seen by how much an unproven address may get: three times the 1232 bytes of one packet."""
    book = TicketBook(ADDRESS)
    server = SealedServer(book)
    (packet,) = SealedClient(QUESTION, 0.0, book.issue(), pad=1232).datagrams(0.0)
    server.receive(packet, "client", 0.0)
    went = sum(len(answer) for answer, _ in server.datagrams(0.0))
    (asked,) = server.events()
    for _ in range(3):
        asked.stream.push(b"x" * 1024, 0.0)
    went += sum(len(answer) for answer, _ in server.datagrams(0.1))
    assert 2 * 1232 < went <= 3 * 1232


def test_no_answer_is_three_times_what_it_answers() -> None:
    """RFC 9000, section 8.1, where the limit of a stream does not count: CANCEL and challenges."""
    net = SealedNetwork(TOKENS, lossy(1, 0.0), pad=MAX_SERVER_PAD, client_pad=0)
    net.run(stop=lambda: len(net.answer) == 5)
    net.client.cancel(net.now)
    (cancel,) = net.client.datagrams(net.now)
    net.server.datagrams(net.now)
    net.server.receive(cancel, "forged", net.now)
    (answer,) = net.server.datagrams(net.now)
    assert (len(cancel), len(answer[0]), answer[1]) == (37, 96, "forged")
    with pytest.raises(
        ValueError, match=r"pad is 97: more than 96 bytes would be more than 3 times"
    ):
        SealedServer(net.book, pad=97)


def test_plain_and_sealed_do_not_hear_each_other() -> None:
    book = TicketBook(ADDRESS)
    sealed, plain = SealedServer(book), Server()
    for datagram in Client(QUESTION, 0.0).datagrams(0.0):
        sealed.receive(datagram, "client", 0.0)
    assert (sealed.malformed, sealed.streams, sealed.sessions, sealed.events()) == (1, 0, 0, [])
    client = SealedClient(QUESTION, 0.0, book.issue())
    for packet in client.datagrams(0.0):
        plain.receive(packet, "client", 0.0)
    assert (plain.malformed, plain.streams, plain.events()) == (1, 0, [])
    assert sealed.datagrams(0.0) == plain.datagrams(0.0) == []


def test_a_sealed_client_takes_nothing_plain() -> None:
    """Even with its stream id, which nobody on the way sees."""
    client = SealedClient(QUESTION, 0.0, TicketBook(ADDRESS).issue())
    server, twin = Server(), Client(QUESTION, 0.0)
    twin.stream_id = client.stream_id
    for datagram in Client(QUESTION, 0.0, random_bits=lambda _: client.stream_id).datagrams(0.0):
        server.receive(datagram, "client", 0.0)
    answer = server.datagrams(0.0)
    assert answer and int.from_bytes(answer[0][0][2:10], "big") == client.stream_id
    for datagram, _ in answer:
        assert client.receive(datagram, 0.1) == []
    assert client.malformed == len(answer) and client.rtt is None


def test_another_secret_of_the_same_session() -> None:
    book = TicketBook(ADDRESS)
    server, ticket = SealedServer(book), book.issue()
    forged = Ticket(ticket.session_id, bytes(32), ADDRESS, ticket.expires)
    for packet in SealedClient(QUESTION, 0.0, forged).datagrams(0.0):
        server.receive(packet, "attacker", 0.0)
    assert server.malformed == 1 and not server.events() + server.datagrams(0.0)
    # The attempt takes nothing away from the one who has the ticket.
    for packet in SealedClient(QUESTION, 1.0, ticket).datagrams(1.0):
        server.receive(packet, "client", 1.0)
    (asked,) = server.events()
    assert isinstance(asked, Asked) and asked.prompt == QUESTION


def test_an_expired_ticket_opens_nothing_and_a_running_session_goes_on() -> None:
    now = [0.0]
    book = TicketBook(ADDRESS, lifetime=60.0, clock=lambda: now[0])
    server = SealedServer(book)
    early, late = (SealedClient(QUESTION, 0.0, book.issue()) for _ in range(2))
    first = early.datagrams(0.0)
    server.receive(first[0], "early", 0.0)
    now[0] = 60.0
    server.receive(late.datagrams(0.0)[0], "late", 50.0)
    assert (server.sessions, server.streams, server.malformed) == (1, 1, 1)
    (again,) = early.datagrams(50.0)
    server.receive(again, "early", 50.0)
    assert server.malformed == 1
    assert {address for _, address in server.datagrams(50.0)} == {"early"}


def test_a_ticket_is_used_up() -> None:
    book = TicketBook(ADDRESS)
    ticket = book.issue()
    SealedClient(QUESTION, 0.0, ticket)
    with pytest.raises(TicketError, match="used before"):
        SealedClient(QUESTION, 0.0, ticket)


def test_a_restarted_server_is_silence_and_never_another_text() -> None:
    """Without the secret it can say nothing that the client could believe."""
    net = SealedNetwork(TOKENS, lossy(1, 0.0))
    net.at(2.0, lambda: setattr(net, "server", SealedServer(TicketBook(ADDRESS))))
    net.run()
    assert net.client.error == "lost" and not net.client.complete
    assert 0 < len(net.answer) < 120 and net.answer == TOKENS[: len(net.answer)]


def test_copies_from_elsewhere_move_nothing_and_are_not_answered() -> None:
    """Each packet of the client comes again from an attacker's address, at once and later."""
    net = SealedNetwork(TOKENS, lossy(4, 0.1))
    send, down, arrived = net._send, lossy(4, 0.1), itertools.count(1)

    def copied(packet: bytes, direction: str, address: object) -> None:
        send(packet, direction, address)
        if direction == "up":
            for later in (0.021, 0.5, 3.0):
                net.at(net.now + later, functools.partial(attack, packet))

    def attack(packet: bytes) -> None:
        number = next(arrived)
        net.server.receive(packet, ("attacker", number), net.now)
        assert net.server.malformed == number

    # What is lost on its way to the server is new when its copy comes, from wherever that is: here
    # nothing is lost on that way.
    net.fate = lambda packet, way, now: [(packet, 0.02)] if way == "up" else down(packet, way, now)
    net._send = copied
    net.run()
    assert net.answer == TOKENS
    assert next(arrived) > 250
    assert set(net.amplification.went) == {("client", 1)}


@pytest.mark.parametrize("pad", [0, 64])
def test_a_packet_that_is_held_back_and_sent_from_elsewhere_takes_nothing(pad: int) -> None:
    """RFC 9000, section 9.3: authentic and new, but who sent it cannot answer the challenge."""
    net = SealedNetwork(TOKENS, lossy(8, 0.05), pad=pad)
    honest, stolen = net._send, itertools.count(1)

    def steal(packet: bytes, direction: str, address: object) -> None:
        if direction == "up" and 1.0 < net.now < 3.0 and next(stolen) % 4 == 0:
            forged = ("attacker", 1)
            net.amplification.arrived(packet, forged)
            net.at(net.now + 0.02, lambda: net.server.receive(packet, forged, net.now))
        else:
            honest(packet, direction, address)

    net._send = steal
    net.run()
    assert net.answer == TOKENS and net.client.complete
    assert next(stolen) > 20
    amplification = net.amplification  # which asserts the limit at each address
    assert 0 < amplification.went["attacker", 1] <= 3 * amplification.came["attacker", 1]


def test_a_client_that_moves_is_followed() -> None:
    net = SealedNetwork(TOKENS, lossy(6, 0.05))
    for at in (1.0, 2.0, 3.5):
        net.move_client(at)
    net.run()
    assert net.answer == TOKENS and net.client.complete
    assert set(net.amplification.proven) >= {("client", n) for n in (1, 4)}


@pytest.mark.parametrize("seed", range(24))
def test_on_any_network_the_text_is_equal(seed: int) -> None:
    rng = random.Random(seed)
    lost = lossy(seed, rng.uniform(0, 0.4), jitter=rng.choice((0.0, 0.05, 0.3)))

    def fate(packet: bytes, direction: str, now: float) -> list[tuple[bytes, float]]:
        arrivals = lost(packet, direction, now)
        if rng.random() < 0.1:  # copies, and bits that flip without a checksum to notice it
            flipped = packet[:-1] + bytes([packet[-1] ^ 1])
            copies = [(packet, rng.uniform(0.0, 1.0)) for _ in range(2)]
            arrivals = [*arrivals, (flipped, 0.01), *copies]
        return arrivals

    net = SealedNetwork(
        TOKENS,
        fate,
        scheme=rng.choice(schemes.names()),
        pad=rng.choice((0, 16, 64, 96)),
        client_pad=rng.choice((0, 64, 500)),
        aead=rng.choice(list(Aead)),
        seed=seed,
    )
    for _ in range(rng.choice((0, 0, 1, 4))):
        net.move_client(rng.uniform(0.0, 6.0))
    net.run()
    assert net.answer == TOKENS and net.client.complete and net.client.error is None


def test_sessions_are_forgotten_but_not_reopened() -> None:
    net = SealedNetwork(TOKENS[:5], lossy(1, 0.0)).run()
    assert net.client.complete and net.server.sessions == 1
    first = net.packets("up")[0]
    net.server.receive(b"", "somebody", net.now + SESSION_LEASE + 60.0)
    assert net.server.sessions == 0
    net.server.receive(first, net.client_address, net.now + SESSION_LEASE + 60.0)
    assert net.server.sessions == net.server.streams == 0
    assert len(net.asked) == 1


def test_a_session_is_kept_while_its_client_is_heard() -> None:
    net = SealedNetwork([b"one"] * 30, lossy(1, 0.0))
    net.spacing = lambda _: 20.0  # it PINGs meanwhile
    net.run(until=900.0)
    assert len(net.answer) == 30


def test_when_the_numbers_are_used_up_both_ends_say_so_or_are_silent() -> None:
    net = SealedNetwork(TOKENS, lossy(1, 0.0))
    net.client._session.sealer._numbers = itertools.count(2**23 - 20)
    net.run()
    assert net.client.error == "8388608 packets are sealed with this key: take a fresh ticket"
    other = SealedNetwork(TOKENS, lossy(1, 0.0))

    def nearly_done() -> None:
        ((session, _),) = other.server._sessions.values()
        session.sealer._numbers = itertools.count(2**23 - 20)

    other.at(0.05, nearly_done)
    other.run()
    assert other.client.error == "lost" and other.answer == TOKENS[: len(other.answer)]


async def over_loopback() -> None:
    async def answer(prompt: bytes, reply: Reply) -> None:
        for word in prompt.split():
            await reply.send(word)

    book = TicketBook(("127.0.0.1", 0))
    server = ServerEndpoint(SealedServer(book, pad=64), answer)
    await server.open("127.0.0.1", 0)
    host, port = server.address
    try:
        asker = functools.partial(SealedClient, ticket=book.issue(), pad=64)
        tokens = [t.data async for t in ask(b"one two three", host, port, asker=asker)]
        assert tokens == [b"one", b"two", b"three"]
    finally:
        server.close()


def test_loopback() -> None:
    asyncio.run(asyncio.wait_for(over_loopback(), 20))
