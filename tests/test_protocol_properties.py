"""Hypothesis draws networks with everything at once: bursts, one-way outages, very late copies of
any datagram, changes of address, long silences of the model, clocks of any size."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from network import Network  # type: ignore[import-not-found]

from eloquent import TextDecoder, schemes


@dataclass(frozen=True)
class Weather:
    """What the network does; ``outages`` are (start, length, directions)."""

    seed: int
    up: float
    down: float
    delay: float
    jitter: float
    copies: float
    late: float
    corrupt: float
    outages: tuple[tuple[float, float, tuple[str, ...]], ...]

    def fate(self, start: float):
        rng = random.Random(self.seed)
        loss = {"up": self.up, "down": self.down}

        def decide(datagram: bytes, way: str, now: float) -> list[tuple[bytes, float]]:
            for begin, length, ways in self.outages:
                if begin <= now - start < begin + length and way in ways:
                    return []
            out = []
            while rng.random() >= loss[way]:
                data = bytearray(datagram)
                if rng.random() < self.corrupt:
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                if rng.random() < self.corrupt:
                    del data[rng.randrange(len(data)) :]
                out.append((bytes(data), self.delay + self.jitter * rng.random()))
                if rng.random() >= self.copies:
                    break
            if rng.random() < self.late:
                out.append((datagram, 30 * rng.random()))
            return out

        return decide


WAYS = st.sampled_from([("up",), ("down",), ("up", "down")])
# Together at most 30 s: a silent minute would rightly end the stream.
OUTAGES = st.lists(
    st.tuples(st.floats(0, 15), st.sampled_from([0.1, 1.0, 10.0]), WAYS), max_size=3
) | st.tuples(st.tuples(st.floats(0, 15), st.just(30.0), WAYS)).map(list)
WEATHER = st.builds(
    Weather,
    seed=st.integers(0, 2**32),
    up=st.floats(0, 0.5),
    down=st.floats(0, 0.5),
    delay=st.sampled_from([0.0005, 0.01, 0.05, 0.4]),
    jitter=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    copies=st.sampled_from([0.0, 0.3]),
    late=st.sampled_from([0.0, 0.05]),
    corrupt=st.sampled_from([0.0, 0.1]),
    outages=OUTAGES.map(tuple),
)
TOKEN = st.binary(max_size=8) | st.sampled_from([b"", bytes(1024), b"\xf0\x9f"])
PROPERTY = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("scheme", schemes.names())
@PROPERTY
@given(
    weather=WEATHER,
    tokens=st.lists(TOKEN, max_size=60),
    prompt=st.sampled_from([0, 1, 1024, 1025, 5000, 65_536]),
    silence=st.sampled_from([0.0, 0.0, 20.0, 60.0]),
    spacing=st.sampled_from([0.0, 0.003, 0.045, 0.5]),
    moves=st.lists(st.floats(0, 12), max_size=3),
    start=st.sampled_from([0.0, 12_345.678, 1e8 + 1 / 3]),
)
def test_the_reader_gets_exactly_the_tokens_in_order_once(
    scheme: str,
    weather: Weather,
    tokens: list[bytes],
    prompt: int,
    silence: float,
    spacing: float,
    moves: list[float],
    start: float,
) -> None:
    asked = random.Random(weather.seed).randbytes(prompt)
    network = Network(
        tokens,
        weather.fate(start),
        prompt=asked,
        scheme=scheme,
        spacing=lambda n: silence if silence and n == 5 else spacing,
        seed=weather.seed,
        start=start,
    )
    for time in moves:
        network.move_client(start + time)
    # A TCP that has backed off for minutes needs minutes to come back.
    network.run(start + (20_000 if scheme == "retransmit" else 2000))
    assert network.client.error is None
    assert network.answer == tokens
    assert network.rendered == sorted(network.rendered)
    network.run(network.now + 200, stop=lambda: False)  # late copies arrive, leases end
    assert network.asked == [asked]
    assert len(network.ended) == 1 and network.server.streams == network.server.bytes_held == 0


@settings(PROPERTY, max_examples=60)
@given(weather=WEATHER, text=st.text(min_size=1, max_size=80), cut=st.integers(1, 3))
def test_characters_split_over_tokens_are_shown_whole(
    weather: Weather, text: str, cut: int
) -> None:
    whole = text.encode()
    tokens = [whole[i : i + cut] for i in range(0, len(whole), cut)]
    network = Network(tokens, weather.fate(0.0), seed=weather.seed).run(2000)
    decoder = TextDecoder()
    shown = "".join(decoder.feed(token) for token in network.answer) + decoder.finish()
    assert shown == text
