"""The discrete-event simulator against closed forms, and against the channels asked directly."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from eloquent import schemes
from scenarios.simulator import HEADERS, Answer, SimulationError, simulate
from topologies.channel import (
    Bernoulli,
    Blackouts,
    Bottleneck,
    DropList,
    Gaps,
    GilbertElliott,
    LossModel,
)
from topologies.profile import Direction, LinkProfile, NetworkProfile, Rebind

FIRST, SPACING, WAY = 0.2, 0.045, 0.025


def words(count: int, size: int = 4, spacing: float = SPACING) -> list[tuple[float, bytes]]:
    """(seconds since the request, token); every token is different."""
    return [(FIRST + spacing * n, b"%04d" % n + b"." * (size - 4)) for n in range(count)]


def network(
    down: Direction | LossModel | None = None,
    up: Direction | LossModel | None = None,
    *,
    server: Direction | None = None,
    mtu: int | None = None,
    rebind: Rebind | None = None,
) -> NetworkProfile:
    """25 ms each way on the access link, behind it a plain cable, unless said otherwise."""
    ways = [way if isinstance(way, Direction) else Direction(WAY, loss=way) for way in (up, down)]
    access = LinkProfile("air", up=ways[0], down=ways[1], source="a test", mtu=mtu, rebind=rebind)
    cable = server or Direction()
    return NetworkProfile(access, LinkProfile("cable", up=cable, down=cable, source="a test"))


def shown(answer: Answer) -> list[float]:
    """Rounded to a microsecond."""
    return [round(at, 6) for at in answer.rendered_at]


@pytest.mark.parametrize("scheme", [*schemes.names(), "duplicate:2:20", "redundancy:4"])
def test_without_loss_each_token_is_shown_one_way_after_it_was_made(scheme: str) -> None:
    answer = simulate(scheme, words(100), network(server=Direction(0.015)), seed=1)
    way = WAY + 0.015
    made = [SPACING * n for n in range(100)]
    assert answer.generated_at == pytest.approx(made, abs=1e-9)
    assert answer.sent_at[:100] == pytest.approx(made, abs=1e-9)
    assert answer.rendered_at == pytest.approx([at + way for at in made], abs=1e-9)
    assert answer.received_at == pytest.approx(answer.rendered_at, abs=1e-9)
    assert answer.rendered_at[0] - answer.asked_at == pytest.approx(way + FIRST + way, abs=1e-9)
    assert answer.n_bytes == [4] * 100
    assert answer.losses == {}


def test_the_datagram_of_token_3_is_the_fifth_and_the_next_one_repairs_its_loss() -> None:
    """Down go a PING, then a datagram for each token."""
    answer = simulate("eloquent", words(20), network(DropList((5,))), seed=1)
    expected = [SPACING * n + WAY for n in range(20)]
    expected[3] = expected[4]
    assert answer.rendered_at == pytest.approx(expected, abs=1e-9)
    assert answer.losses == {"lost": 1}


def test_one_copy_of_two_is_enough() -> None:
    answer = simulate("duplicate", words(20), network(DropList((2, 5, 7))), seed=1)
    assert answer.rendered_at == pytest.approx([SPACING * n + WAY for n in range(20)], abs=1e-9)
    assert answer.losses == {"lost": 3}


def test_both_copies_lost_are_repeated_after_the_timeout() -> None:
    """Two RTT samples of 50 ms, the PING's and token 1's: RTTVAR 25, then 18.75 ms.

    So the PTO is 50 + 75 = 125 ms, which is after token 1's ACK (at 95) and before token 2's.
    """
    answer = simulate("duplicate", words(20), network(DropList((2, 3))), seed=1)
    assert shown(answer)[:5] == [0.15, 0.15, 0.15, 0.16, 0.205]
    assert answer.losses == {"lost": 2}


@pytest.mark.parametrize("scheme", schemes.names())
def test_the_prompt_travels_once_whatever_the_scheme_of_the_answer(scheme: str) -> None:
    answer = simulate(scheme, words(3), network(), seed=1, record=True)
    prompts = [s for s in answer.sightings if s.sent and b"why?" in s.datagram]
    assert len(prompts) == 1


def test_a_lost_prompt_is_repeated_after_300_ms() -> None:
    answer = simulate("eloquent", words(5), network(up=DropList((1,))), seed=1)
    assert answer.asked_at == pytest.approx(-(0.3 + WAY + FIRST), abs=1e-9)
    assert answer.losses == {"lost": 1}


def test_after_a_blackout_the_next_datagram_brings_all() -> None:
    """Nothing enters from 1.0 to 1.4 s, so tokens 23 (1.035 s) to 31 (1.395 s) wait.

    Timeouts of 51 ms from 1.035 s on fall on 1.392 and 1.443 s: token 32, at 1.44 s, is first.
    """
    answer = simulate("eloquent", words(50), network(Blackouts(on=1.0, off=0.4)), seed=1)
    late = SPACING * 32 + WAY
    expected = [late if 23 <= n <= 31 else SPACING * n + WAY for n in range(50)]
    assert answer.rendered_at == pytest.approx(expected, abs=1e-9)


def _replayed(
    answer: Answer, profile: NetworkProfile, seed: int, direction: str
) -> tuple[list[float], int]:
    """When the datagrams of a direction arrive, and how many do not.

    By channels made and asked here, hop after hop, until the client closed.
    """
    names = ["access", "server"] if direction == "up" else ["server", "access"]
    host = "client" if direction == "up" else "server"
    entering = [(s.time, len(s.datagram)) for s in answer.sightings if s.sent and s.host == host]
    lost = 0
    for name in names:
        channel = getattr(profile, name).channel(direction, name, seed)
        leaving = []
        for at, size in entering:
            channel.epoch = 0.0 if at >= 0 else None
            fate = channel.fate(at, size + HEADERS)
            lost += fate.lost
            if not fate.lost and fate.due <= answer.closed_at:
                leaving.append((fate.due, size))
        entering = leaving
    return [at for at, _ in entering], lost


@pytest.mark.parametrize("scheme", ["eloquent", "duplicate", "retransmit"])
def test_datagrams_meet_the_fates_that_the_channels_give(scheme: str) -> None:
    lossy = Direction(0.02, jitter=0.005, loss=GilbertElliott(mean_good=0.9, mean_bad=0.1))
    profile = network(lossy, lossy, server=Direction(0.01, loss=Bernoulli(0.05)))
    answer = simulate(scheme, words(120), profile, seed=7, record=True)
    losses = 0
    for direction, end in (("up", "server"), ("down", "client")):
        arrived = [s.time for s in answer.sightings if not s.sent and s.host == end]
        expected, lost = _replayed(answer, profile, 7, direction)
        losses += lost
        assert arrived == pytest.approx(expected, abs=1e-9)
    assert answer.losses == {"lost": losses}
    assert losses > 10


def test_the_same_seed_gives_the_same_answer_and_another_one_another() -> None:
    profile = network(GilbertElliott(mean_good=0.9, mean_bad=0.1))
    answers = [simulate("eloquent", words(60), profile, seed, record=True) for seed in (5, 5, 6)]
    assert answers[0] == answers[1]
    assert answers[0].rendered_at != answers[2].rendered_at
    assert answers[0].sightings[0].datagram != answers[2].sightings[0].datagram


def test_the_counts_are_those_of_the_sightings() -> None:
    answer = simulate("eloquent", words(60), network(Bernoulli(0.2)), seed=3, record=True)
    sent = [s for s in answer.sightings if s.sent]
    assert answer.datagrams == len(sent)
    # Ethernet 14, IPv4 20 and UDP 8 bytes around each.
    assert answer.wire_bytes == sum(42 + len(s.datagram) for s in sent)
    assert all(a.time <= b.time for a, b in pairwise(answer.sightings))
    plain = simulate("eloquent", words(60), network(Bernoulli(0.2)), seed=3)
    assert plain.sightings == []
    assert (plain.rendered_at, plain.datagrams) == (answer.rendered_at, answer.datagrams)


def test_a_bottleneck_takes_its_time_for_each_datagram() -> None:
    """22 + 1 + 1 + (1 + 4) + 1 = 30 bytes and 42 of headers at 100 kbit/s: 5.76 ms."""
    slow = Direction(0.01, bottleneck=Bottleneck(rate=1e5, queue_packets=10))
    answer = simulate("eloquent", words(20), network(slow, Direction(0.01)), seed=1)
    expected = [SPACING * n + 8 * 72 / 1e5 + 0.01 for n in range(20)]
    assert answer.rendered_at == pytest.approx(expected, abs=1e-9)


def test_a_queue_of_one_loses_the_third_of_three() -> None:
    """22 + 1 + 1 + (2 + 1000) + 1 = 1027 bytes and 42 of headers at 1 Mbit/s: 8.552 ms each."""
    slow = Direction(0.01, bottleneck=Bottleneck(rate=1e6, queue_packets=1))
    tokens = [(FIRST, b"%d" % n * 1000) for n in range(3)]
    answer = simulate("eloquent", tokens, network(slow, Direction(0.01)), seed=1)
    assert answer.rendered_at[:2] == pytest.approx([0.008552 + 0.01, 0.017104 + 0.01], abs=1e-9)
    assert answer.rendered_at[2] > 0.03
    assert answer.losses["queue"] >= 1


def test_copies_on_the_way_arrive_and_are_not_shown_twice() -> None:
    double = Direction(WAY, duplicate=1.0)
    answer = simulate("eloquent", words(20), network(double, double), seed=1, record=True)
    assert answer.rendered_at == pytest.approx([SPACING * n + WAY for n in range(20)], abs=1e-9)
    data = [s.datagram for s in answer.sightings if s.sent and s.host == "server"]
    came = [s.datagram for s in answer.sightings if not s.sent and s.host == "client"]
    assert came[:-2] == [datagram for datagram in data[:-1] for _ in range(2)][: len(came) - 2]


def test_corrupt_datagrams_do_not_arrive() -> None:
    bad = Direction(WAY, corrupt=0.3)
    answer = simulate("eloquent", words(60), network(bad), seed=1, record=True)
    sent = sum(s.sent and s.host == "server" for s in answer.sightings)
    came = sum(not s.sent and s.host == "client" for s in answer.sightings)
    assert answer.losses == {"corrupt": sent - came}
    assert 0.1 * sent < sent - came < 0.5 * sent


def test_a_packet_above_the_mtu_is_lost() -> None:
    """A token of 4 bytes makes an IP packet of 30 + 28 bytes, one of 40 bytes one of 94."""
    assert len(simulate("eloquent", words(10), network(mtu=68), seed=1).rendered_at) == 10
    with pytest.raises(SimulationError, match="0 of 3 tokens arrived: it took too long"):
        simulate("eloquent", words(3, size=40), network(mtu=68), seed=1)


@pytest.mark.parametrize("scheme", schemes.names())
@pytest.mark.parametrize(
    ("profile", "arrived"),
    [
        (network(Bernoulli(1.0)), 0),
        (network(up=Bernoulli(1.0)), 0),
        (network(Direction(WAY, corrupt=1.0)), 0),
        (network(Gaps(((0.1, 1e6),)), Gaps(((0.1, 1e6),))), 3),
    ],
    ids=["down", "up", "corrupt", "later"],
)
def test_a_channel_that_never_opens_ends_with_an_error(
    scheme: str, profile: NetworkProfile, arrived: int
) -> None:
    """Tokens 0, 1 and 2 leave before 0.1 s."""
    started = time.monotonic()
    with pytest.raises(SimulationError, match=f"^{arrived} of 20 tokens arrived: lost$"):
        simulate(scheme, words(20), profile, seed=1)
    assert time.monotonic() - started < 10


def test_several_tokens_of_one_step_share_a_datagram() -> None:
    tokens = [(FIRST + 0.1 * (n // 3), b"%04d" % n) for n in range(9)]
    answer = simulate("eloquent", tokens, network(), seed=1, record=True)
    assert shown(answer) == [round(0.1 * (n // 3) + WAY, 6) for n in range(9)]
    down = [s for s in answer.sightings if s.sent and s.host == "server" and s.time >= 0]
    assert [round(s.time, 6) for s in down[:3]] == [0.0, 0.1, 0.2]


def test_an_answer_without_tokens_is_complete() -> None:
    answer = simulate("eloquent", [], network(), seed=1)
    assert (answer.rendered_at, answer.error) == ([], None)


def test_a_change_of_address_is_for_another_engine() -> None:
    with pytest.raises(SimulationError, match="rebind is for the engine emulated"):
        simulate("eloquent", words(1), network(rebind=Rebind(at=1.0)), seed=1)


def test_400_tokens_take_far_less_than_a_second() -> None:
    profile = network(GilbertElliott(mean_good=0.9, mean_bad=0.1))
    took = []
    for seed in range(3):
        started = time.perf_counter()
        simulate("eloquent", words(400), profile, seed)
        took.append(time.perf_counter() - started)
    assert min(took) < 0.5


def test_the_simulator_needs_neither_mininet_nor_a_socket() -> None:
    source = (Path(__file__).parent.parent / "scenarios" / "simulator.py").read_text()
    assert not any(f"import {name}" in source for name in ("mininet", "socket", "time", "numpy"))
