"""A flood of mutated and replayed packets: nothing is accepted, raised, answered or kept."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Callable

import pytest
from network import lossy  # type: ignore[import-not-found]
from sealed_network import SealedNetwork  # type: ignore[import-not-found]

from eloquent.sealed import Aead
from eloquent.sealed.packets import MIN_PACKET

#: Of each kind; a million takes some minutes.
MANY = int(os.environ.get("ELOQUENT_GARBAGE", "50000"))
TOKENS = [b" token-%d" % n for n in range(120)]
#: More than the allocator's noise, and far less than one byte for each packet.
FLAT = 16_000


def mutated(rng: random.Random, packets: list[bytes]) -> bytes:
    """A packet that neither end has sent, most of them with a header that looks right."""
    packet = rng.choice(packets)
    kind = rng.randrange(7)
    if kind == 0:
        at = rng.randrange(len(packet))
        return packet[:at] + bytes([packet[at] ^ 1 << rng.randrange(8)]) + packet[at + 1 :]
    if kind == 1:
        return packet[: rng.randrange(len(packet))]
    if kind == 2:
        return packet + rng.randbytes(rng.randrange(1, 40))
    if kind == 3:  # another number, far ahead of the window as well
        return packet[:9] + rng.randbytes(4) + packet[13:]
    if kind == 4:  # a session that nobody has
        return packet[:1] + rng.randbytes(8) + packet[9:]
    if kind == 5:
        return packet[:13] + rng.randbytes(rng.randrange(1300))
    return packet[: rng.randrange(13, len(packet))] + rng.choice(packets)[13:]


def flood(take: Callable[[bytes], None], packet: Callable[[], bytes]) -> int:
    """Give ``take`` very many packets; returns how many bytes the latter half has left."""
    for _ in range(MANY // 2):
        take(packet())
    tracemalloc.start()
    try:
        for _ in range(1000):
            take(packet())
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(MANY // 2):
            take(packet())
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["mutated", "replayed"])
@pytest.mark.parametrize("aead", Aead)
def test_nothing_is_accepted(kind: str, aead: Aead) -> None:
    rng = random.Random(f"{kind} {aead}")
    net = SealedNetwork(TOKENS, lossy(0, 0.0), aead=aead)
    net.run(stop=lambda: len(net.answer) == 60)
    # What is on its way would be taken, and rightly: a copy that overtakes it is it.
    known = [packet for at, _, packet in net.log if at < net.now - 0.02]
    server, client, now = net.server, net.client, net.now
    malformed = server.malformed, client.malformed
    given = [0, 0]

    def packet() -> bytes:
        return rng.choice(known) if kind == "replayed" else mutated(rng, known)

    def take(data: bytes) -> None:
        if rng.random() < 0.8:
            server.receive(data, ("attacker", rng.randrange(60_000)), now)
            given[0] += 1
        else:
            assert client.receive(data, now) == []
            given[1] += 1

    server.datagrams(now), client.datagrams(now)
    grown = flood(take, packet)
    assert (server.malformed, client.malformed) == (
        malformed[0] + given[0],
        malformed[1] + given[1],
    )
    assert not server.events() and not server.datagrams(now) and not client.datagrams(now)
    assert (server.sessions, server.streams) == (1, 1)
    assert grown < FLAT
    net.run()
    assert net.answer == TOKENS and net.client.complete
    assert set(net.amplification.went) == {("client", 1)}


def test_the_mutations_look_right() -> None:
    """Else the test above would say nothing of the cipher."""
    net = SealedNetwork(TOKENS, lossy(0, 0.0)).run()
    rng, known = random.Random(1), net.packets("up")
    made = [mutated(rng, known) for _ in range(2000)]
    right = [p for p in made if len(p) >= MIN_PACKET and p[:9] == known[0][:9]]
    assert len(right) > 1000 and not set(made) & set(known)
