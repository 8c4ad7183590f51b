"""Garbage at both ends: no exception, no growing memory, and running streams do not notice."""

from __future__ import annotations

import random
import tracemalloc
import zlib
from collections.abc import Iterator

import pytest
from network import Network, lossy  # type: ignore[import-not-found]

from eloquent import Client, Server, schemes
from eloquent.server import MAX_STREAMS
from eloquent.window import WINDOW_BYTES
from eloquent.wire import Ack, Cancel, CancelReason, Data, Message, Reason, encode

COUNT = 50_000  # by then every table is as full as it gets


def mutated(rng: random.Random, datagram: bytes) -> bytes:
    data = bytearray(datagram)
    for _ in range(rng.randint(1, 6)):
        choice = rng.random()
        if choice < 0.6 and data:
            data[rng.randrange(len(data))] = rng.randrange(256)
        elif choice < 0.8:
            data.insert(rng.randint(0, len(data)), rng.randrange(256))
        elif data:
            del data[rng.randrange(len(data)) :]
    return bytes(data)


def repaired(datagram: bytes) -> bytes:
    """With a checksum that fits, so that the contents are looked at."""
    body = datagram[:-4]
    return body + zlib.crc32(body).to_bytes(4, "big")


def sample(rng: random.Random, stream_id: int) -> Message:
    stamp, server = rng.getrandbits(32), rng.random() < 0.5
    kind = rng.randrange(3)
    if kind == 0:
        tokens = tuple(rng.randbytes(rng.randrange(12)) for _ in range(rng.randint(1, 8)))
        end = rng.choice([None, Reason.STOP])
        return Data(stream_id, stamp, server, rng.randrange(1000), tokens, end)
    if kind == 1:
        start = rng.randrange(50)
        ranges = ((start + 1, start + 3),) if rng.random() < 0.5 else ()
        asks = rng.random() < 0.3
        return Ack(stream_id, stamp, server, start, rng.getrandbits(32), 5, ranges, asks)
    return Cancel(stream_id, stamp, server, rng.choice(list(CancelReason)))


def garbage(seed: int, count: int) -> Iterator[bytes]:
    """Random bytes, mutated datagrams, mutated ones with a good checksum, of foreign streams."""
    rng = random.Random(seed)
    for _ in range(count):
        kind = rng.random()
        if kind < 0.2:
            yield rng.randbytes(rng.randrange(1600))
            continue
        datagram = encode(sample(rng, rng.getrandbits(64)))
        if kind < 0.4:
            yield mutated(rng, datagram)
        elif kind < 0.8:
            yield repaired(mutated(rng, datagram))
        else:
            yield datagram


@pytest.mark.parametrize("scheme", schemes.names())
def test_a_stream_finishes_while_garbage_pours_in(scheme: str) -> None:
    tokens = [b"token %d" % n for n in range(100)]
    network = Network(tokens, lossy(1, 0.1), scheme=scheme)
    source = garbage(1, COUNT)
    steps = network.steps_until(600)
    for number, datagram in enumerate(source):
        network._arrival(datagram, "up", ("attacker", number % 50))()
        network.received += network.client.receive(datagram, network.now)
        if number % 75 == 0:
            next(steps, None)
    network.run()
    assert [token.data for token in network.received] == tokens
    assert network.server.streams <= MAX_STREAMS
    assert network.server.malformed > COUNT / 4


def test_memory_does_not_grow_with_garbage() -> None:
    server = Server(random_bits=random.Random(1).getrandbits)
    client = Client(b"hello", 0.0, random_bits=random.Random(2).getrandbits)
    source = list(garbage(2, 2 * COUNT))  # made before: to trace costs a multiple
    held = []
    tracemalloc.start()
    for number, datagram in enumerate(source, 1):
        now = number * 1e-4
        server.receive(datagram, ("attacker", number % 50), now)
        client.receive(datagram, now)
        if number % 1000 == 0:
            server.datagrams(now)
            server.events()
            client.datagrams(now)
        if number % COUNT == 0:
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert held[1] - held[0] < 250_000  # 5 bytes a datagram
    assert held[1] < 30_000_000


def test_garbage_with_the_streams_own_id_is_survived() -> None:
    # Who knows the id sits on the path and can end a stream; memory and sanity must hold.
    rng = random.Random(3)
    network = Network([b"x"] * 50, lossy(1, 0.0))
    network.run(until=1.0, stop=lambda: network.now > 0.5)
    stream_id = network.client.stream_id
    for _ in range(20_000):
        datagram = encode(sample(rng, stream_id))
        if rng.random() < 0.5:
            datagram = repaired(mutated(rng, datagram))
        network.server.receive(datagram, ("attacker", rng.randrange(3)), network.now)
        network.client.receive(datagram, network.now)
        network.server.datagrams(network.now)
        network.client.datagrams(network.now)
    assert network.server.bytes_held <= 3 * WINDOW_BYTES


def test_a_flood_of_prompts_does_not_shut_others_out() -> None:
    server = Server(random_bits=random.Random(1).getrandbits)
    rng = random.Random(2)
    for number in range(3 * MAX_STREAMS):
        # Prompts without an end, from addresses that never answer.
        data = Data(rng.getrandbits(64), 0, False, 0, (bytes(1000),))
        server.receive(encode(data), ("spoofed", number), 1.0)
    assert server.streams <= MAX_STREAMS
    assert server.bytes_held <= MAX_STREAMS * 1000
    client = Client(b"hello", 1.0, random_bits=rng.getrandbits)
    asked: list[bytes] = []
    for step in range(40):  # it has to prove its address first
        now = 1.0 + step * 0.05
        for datagram in client.datagrams(now):
            server.receive(datagram, ("good", 1), now)
        asked += [event.prompt for event in server.events() if hasattr(event, "prompt")]
        for datagram, address in server.datagrams(now):
            if address == ("good", 1):
                client.receive(datagram, now)
    assert asked == [b"hello"]


@pytest.mark.parametrize("move", [False, True])
def test_never_more_than_three_times_the_bytes_before_an_address_is_proven(move: bool) -> None:
    """A spoofed address gets at most three times what was sent in its name (RFC 9000, 8.1)."""
    network = Network([b"some words " * 20] * 400, lossy(1, 0.0), spacing=0.01)
    network.run(until=5.0, stop=lambda: network.now > (1.0 if move else 0.0))
    victim = ("victim", 9)
    if move:
        # A thief of the stream id claims that the client has moved.
        stamp = (network.client._path.clock(network.now) + 1000) % 2**32
        claim = encode(Ack(network.client.stream_id, stamp, False, 0, 0, asks=True))
    else:
        claim = encode(Data(7, 0, False, 0, (b"prompt" * 20,), Reason.STOP))
    network.server.receive(claim, victim, network.now)
    got = 0
    now = network.now
    for _ in range(5000):
        for event in network.server.events():
            if hasattr(event, "prompt"):
                for _ in range(100):
                    event.stream.push(b"some words " * 20, now)
        got += sum(len(d) for d, to in network.server.datagrams(now) if to == victim)
        due = network.server.next_timeout()
        if due is None or due > network.now + 30:
            break
        now = max(now, due)
    assert 0 < got <= 3 * len(claim)
