"""Whatever the network does, the reader gets exactly the tokens sent, in order, once."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from network import Fate, Network, lossy  # type: ignore[import-not-found]

from eloquent import schemes

SCHEMES = pytest.mark.parametrize("scheme", schemes.names())
#: A TCP waits for its RTO, which an outage has doubled many times: no bound of ours holds for it.
EAGER = pytest.mark.parametrize("scheme", [n for n in schemes.names() if n != "retransmit"])
TOKENS = st.lists(st.binary(max_size=20) | st.binary(min_size=1000, max_size=1024), max_size=40)


def bad_network(
    seed: int, loss: dict[str, float], copies: float, jitter: float, corrupt: float
) -> Fate:
    """Loss per direction, duplication, reordering by jitter, flipped and cut bytes."""
    rng = random.Random(seed)

    def fate(datagram: bytes, direction: str, now: float) -> list[tuple[bytes, float]]:
        out = []
        while rng.random() >= loss[direction]:
            data = bytearray(datagram)
            if rng.random() < corrupt:
                for _ in range(rng.randint(1, 4)):
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            if rng.random() < corrupt:
                del data[rng.randrange(len(data)) :]
            out.append((bytes(data), 0.02 + jitter * rng.random()))
            if rng.random() >= copies:
                break
        return out

    return fate


@SCHEMES
@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(
    tokens=TOKENS,
    seed=st.integers(0, 2**32),
    up=st.floats(0, 0.9),
    down=st.floats(0, 0.9),
    copies=st.floats(0, 0.5),
    jitter=st.floats(0, 0.5),
    corrupt=st.floats(0, 0.2),
    spacing=st.sampled_from([0.0, 0.01, 0.045, 0.3]),
)
def test_exactly_the_tokens_sent(
    scheme: str,
    tokens: list[bytes],
    seed: int,
    up: float,
    down: float,
    copies: float,
    jitter: float,
    corrupt: float,
    spacing: float,
) -> None:
    fate = bad_network(seed, {"up": up, "down": down}, copies, jitter, corrupt)
    network = Network(tokens, fate, scheme=scheme, spacing=spacing, seed=seed).run(
        until=20_000 if scheme == "retransmit" else 900  # its RTO goes up to two minutes
    )
    received = [token.data for token in network.received]
    assert received == tokens[: len(received)]  # never wrong, even if it is not complete
    assert [token.index for token in network.received] == list(range(len(received)))
    assert len(network.asked) <= 1  # a prompt is never answered twice
    # A silent minute ends a stream (both directions at 90% loss can be that silent); below that
    # every stream completes.
    if network.client.error is None:
        assert received == tokens
        assert network.client.reason is not None
    else:
        assert network.client.error == "lost" or "unknown" in network.client.error
        assert scheme == "retransmit" or up + down > 1.2


@SCHEMES
@pytest.mark.parametrize("loss", [0.0, 0.1, 0.5, 0.9])
def test_long_prompts_arrive_whole(scheme: str, loss: float) -> None:
    prompt = random.Random(1).randbytes(64 * 1024)
    network = Network([b"yes"], lossy(5, loss, jitter=0.03), prompt=prompt, scheme=scheme)
    network.run(until=600)
    assert network.asked == [prompt]
    if scheme == "retransmit" and loss == 0.9:
        return  # its backoff is longer than the silence after which a client gives up
    assert [token.data for token in network.received] == [b"yes"]


@SCHEMES
def test_an_empty_prompt_and_an_empty_answer(scheme: str) -> None:
    network = Network([], lossy(1, 0.3), prompt=b"", scheme=scheme).run()
    assert network.asked == [b""]
    assert network.received == []
    assert network.client.complete
    assert network.ended == ["complete"]


def first(count: int, direction: str, of: Callable[[bytes], bool] = lambda _: True) -> Fate:
    """Lose the first ``count`` datagrams of a direction."""
    left = count

    def fate(datagram: bytes, way: str, now: float) -> list[tuple[bytes, float]]:
        nonlocal left
        if way == direction and of(datagram) and left:
            left -= 1
            return []
        return [(datagram, 0.02)]

    return fate


@SCHEMES
@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_the_first_datagrams_are_lost(scheme: str, direction: str, count: int) -> None:
    tokens = [b"%d" % n for n in range(30)]
    network = Network(tokens, first(count, direction), scheme=scheme).run()
    assert [token.data for token in network.received] == tokens
    assert network.ended == ["complete"]


@EAGER
def test_every_ack_is_lost_for_a_while(scheme: str) -> None:
    tokens = [b"%d" % n for n in range(60)]

    def fate(datagram: bytes, way: str, now: float) -> list[tuple[bytes, float]]:
        return [] if way == "up" and 0.15 < now < 3.5 else [(datagram, 0.02)]

    network = Network(tokens, fate, scheme=scheme).run()
    assert [token.data for token in network.received] == tokens
    assert network.ended == ["complete"]
    assert max(network.rendered) < 3.5  # tokens went on without a single ACK


@EAGER
def test_an_outage_of_30_seconds(scheme: str) -> None:
    tokens = [b"token %d" % n for n in range(400)]
    start, stop = 1.0, 31.0
    sent: list[float] = []

    def fate(datagram: bytes, way: str, now: float) -> list[tuple[bytes, float]]:
        if way == "down":
            sent.append(now)
        return [] if start <= now < stop else [(datagram, 0.025)]

    network = Network(tokens, fate, scheme=scheme, spacing=0.045).run()
    assert [token.data for token in network.received] == tokens
    generated = network.generated[-1]
    assert generated < stop
    assert network.rendered[-1] - stop <= 0.05 + 0.3  # one RTT and 300 ms
    for second in range(4, 29):  # the sender has backed off: 5 probes of 2 datagrams a second
        assert sum(second <= t < second + 1 for t in sent) <= 11


@SCHEMES
def test_a_model_that_thinks_for_a_minute(scheme: str) -> None:
    tokens = [b"%d" % n for n in range(20)]
    pings: list[float] = []

    def fate(datagram: bytes, way: str, now: float) -> list[tuple[bytes, float]]:
        if way == "up" and 10 < now < 60:
            pings.append(now)
        return [(datagram, 0.02)]

    network = Network(tokens, fate, scheme=scheme, spacing=lambda n: 60.0 if n == 9 else 0.05)
    network.run()
    assert [token.data for token in network.received] == tokens
    assert network.ended == ["complete"]
    assert 9 <= len(pings) <= 11  # one every 5 s keeps the lease and the NAT's binding


@SCHEMES
@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_the_client_changes_its_address(scheme: str, loss: float) -> None:
    tokens = [b"%d" % n for n in range(100)]
    network = Network(tokens, lossy(7, loss), scheme=scheme)
    for number, time in enumerate((0.11, 1.0, 2.5)):

        def rebind(port: int = number + 2) -> None:
            network.client_address = ("client", port)  # what goes to the old one is lost

        network.at(time, rebind)
    network.run()
    assert [token.data for token in network.received] == tokens


@SCHEMES
def test_a_clean_network_costs_one_datagram_a_token(scheme: str) -> None:
    tokens = [b"%d" % n for n in range(200)]
    network = Network(tokens, lossy(1, 0.0), scheme=scheme).run()
    copies = schemes.create(scheme).copies
    assert 200 * copies <= network.sent["down"] <= 200 * copies + 8
    assert network.rendered[-1] - network.generated[-1] == pytest.approx(0.02)


@pytest.mark.parametrize("loss", [0.0, 0.5])
def test_cancel_reaches_the_server(loss: float) -> None:
    network = Network([b"x"] * 1000, lossy(2, loss))
    network.at(2.0, lambda: network.client.cancel(network.now))
    network.run(until=60)
    assert network.client.error == "cancelled"
    assert network.ended == ["cancelled"]
    assert network.now < 8
    assert network.server.streams == 0


def test_both_sides_give_up_a_silent_peer() -> None:
    def fate(datagram: bytes, way: str, now: float) -> list[tuple[bytes, float]]:
        return [(datagram, 0.02)] if now < 1.0 else []

    network = Network([b"x"] * 50, fate).run(until=100)
    assert network.client.error == "lost"
    assert 60 < network.now < 63
    network.run(until=100, stop=lambda: False)
    assert network.ended == ["lost"]
    assert network.server.streams == 0
    assert network.server.bytes_held == 0
