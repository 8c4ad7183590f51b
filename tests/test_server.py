"""The server at its edges: restarts, refusals, floods, early CANCELs, one-way networks."""

from __future__ import annotations

import random

import pytest
from network import Network, lossy  # type: ignore[import-not-found]

from eloquent import Asked, Client, Reason, Server
from eloquent.server import MAX_STREAMS
from eloquent.window import MAX_PROMPT
from eloquent.wire import Ack, Cancel, CancelReason, Data, decode, encode


def server(seed: int = 1, **options: int) -> Server:
    return Server(random_bits=random.Random(seed).getrandbits, **options)


def client(prompt: bytes, seed: int = 2) -> Client:
    return Client(prompt, 0.0, random_bits=random.Random(seed).getrandbits)


def asked(end: Server) -> list[bytes]:
    return [event.prompt for event in end.events() if isinstance(event, Asked)]


def converse(user: Client, end: Server, *, start: float = 0.0, until: float) -> list[bytes]:
    """Let them talk for a while, 20 ms apart; the prompts that are complete."""
    now, prompts = start, []
    while now < until:
        for datagram in user.datagrams(now):
            end.receive(datagram, "user", now + 0.02)
        prompts += asked(end)
        for datagram, address in end.datagrams(now + 0.02):
            if address == "user":
                user.receive(datagram, now + 0.04)
        now += 0.05
    return prompts


def test_a_ping_that_may_not_be_sent_does_not_spin() -> None:
    end = server()
    for index in range(1, 18, 2):  # many ranges, few bytes: the PING does not fit the limit
        end.receive(encode(Data(7, index, False, index, (b"",))), "someone", 0.0)
    now = 0.0
    for _ in range(100):
        end.datagrams(now)
        due = end.next_timeout()
        assert due is not None
        assert due > now
        now = due
        if now > 30:
            break
    assert now > 20


def test_empty_tokens_are_not_free() -> None:
    end = server()
    for stream in range(20):
        for index in range(1, 30_000, 500):
            data = Data(stream, index, False, index, (b"",) * 400)
            end.receive(encode(data), "someone", 0.0)
    assert end.bytes_held > 20 * 4000 * 64 / 2  # accounted
    assert end.bytes_held <= 20 * 256 * 1024


@pytest.mark.parametrize("size", [MAX_PROMPT, MAX_PROMPT + 1])
def test_the_longest_prompt(size: int) -> None:
    end = server()
    prompt = bytes(size)
    pieces = [prompt[i : i + 1024] for i in range(0, size, 1024)]
    for index, piece in enumerate(pieces):
        last = Reason.STOP if index == len(pieces) - 1 else None
        end.receive(encode(Data(7, index, False, index, (piece,), last)), "someone", 0.0)
    replies = [decode(datagram) for datagram, _ in end.datagrams(0.0)]
    if size == MAX_PROMPT:
        assert asked(end) == [prompt]
    else:
        assert asked(end) == []
        assert any(isinstance(m, Cancel) and m.reason is CancelReason.TOO_LARGE for m in replies)
    if size > MAX_PROMPT:
        with pytest.raises(ValueError, match=str(size)):
            client(prompt)


def test_a_restart_in_the_middle_of_a_prompt_ends_the_client_soon() -> None:
    first, second, user = server(1), server(3), client(bytes(20_000))
    now, current = 0.0, first
    while not user.closed and now < 100:
        if now > 0.06:
            current = second  # it has never heard of the first tokens
        for datagram in user.datagrams(now):
            current.receive(datagram, "user", now + 0.02)
        for datagram, _ in current.datagrams(now + 0.02):
            user.receive(datagram, now + 0.04)
        now += 0.005
    assert user.error is not None
    assert "unknown stream" in user.error
    assert now < 5


def test_a_lost_refusal_is_repeated() -> None:
    end, user = server(), client(b"hello")
    for datagram in user.datagrams(0.0):
        end.receive(datagram, "user", 0.01)
    (event,) = end.events()
    assert isinstance(event, Asked)
    end.cancel(event.stream, 0.02)
    end.datagrams(0.02)  # the CANCEL is lost, the ACK was never sent
    now = 0.3
    while not user.closed and now < 100:
        for datagram in user.datagrams(now):
            end.receive(datagram, "user", now)
        for datagram, _ in end.datagrams(now):
            user.receive(datagram, now)
        now = max(now, user.next_timeout() or now) + 0.001
    assert user.error is not None
    assert now < 3


def test_a_cancel_that_overtakes_its_prompt() -> None:
    end, user = server(), client(b"hello")
    late = user.datagrams(0.0)
    user.cancel(0.01)
    for datagram in user.datagrams(0.01) + late:
        end.receive(datagram, "user", 0.02)
    assert asked(end) == []
    assert end.streams == 0


def test_asked_streams_of_unproven_clients_make_room_too() -> None:
    end = server()
    for number in range(MAX_STREAMS + 10):
        prompt = Data(number, 0, False, 0, (b"spoofed",), Reason.STOP)
        end.receive(encode(prompt), ("spoofed", number), 0.0)
    end.events()
    user = client(b"honest")
    assert converse(user, end, until=2.0) == [b"honest"]  # after a proof of its address


def test_a_broken_message_moves_no_stream() -> None:
    network = Network([b"x"] * 50, lossy(1, 0.0))
    network.run(until=1.0, stop=lambda: network.now > 0.5)
    stamp = (network.client._path.clock(network.now) + 1000) % 2**32
    forged = Ack(network.client.stream_id, stamp, False, 40_000, 0)  # of what was never sent
    network.server.receive(encode(forged), ("thief", 1), network.now)
    assert {to for _, to in network.server.datagrams(network.now + 1)} <= {("client", 1)}


def test_a_dead_downlink_is_not_flooded() -> None:
    sent: list[float] = []

    def fate(datagram: bytes, way: str, now: float) -> list[tuple[bytes, float]]:
        if way == "down":
            sent.append(now)
        return [] if way == "down" and 1 < now < 21 else [(datagram, 0.02)]

    tokens = [b"tok "] * 1000
    network = Network(tokens, fate, spacing=0.02).run()
    assert [token.data for token in network.received] == tokens
    for second in range(3, 20):
        assert sum(second <= t < second + 1 for t in sent) <= 30


@pytest.mark.parametrize("loss", [0.3, 0.5])
def test_a_lossy_network_survives_a_model_that_thinks_for_minutes(loss: float) -> None:
    for seed in range(10):
        network = Network([b"a", b"b"], lossy(seed, loss), spacing=300.0, seed=seed, think=0.1).run(
            until=400
        )
        assert [token.data for token in network.received] == [b"a", b"b"], seed
