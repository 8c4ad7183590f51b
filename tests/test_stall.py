"""A stall that is released, not dropped (suspend, a full buffer): what was held comes late."""

from __future__ import annotations

import random

import pytest
from network import Fate, Network, lossy  # type: ignore[import-not-found]

from eloquent import schemes
from eloquent.path import Path

WAY = 0.025
STALL, FREE = 3.0, 31.0
#: The steady schemes, whose repetitions the sender times.
STEADY = ["eloquent", "eloquent-deadline", "mosh"]


def held(fate: Fate, start: float, stop: float, directions: tuple[str, ...] = ()) -> Fate:
    """What is sent in [start, stop) comes when that is over, in order, 0.2 ms apart."""
    waiting = {"up": 0, "down": 0}

    def with_stall(datagram: bytes, direction: str, now: float) -> list[tuple[bytes, float]]:
        wait = 0.0
        if start <= now < stop and direction in (directions or ("up", "down")):
            waiting[direction] += 1
            wait = stop - now + 2e-4 * waiting[direction]
        return [(data, wait + delay) for data, delay in fate(datagram, direction, now)]

    return with_stall


def lateness(network: Network, since: float) -> float:
    """Of the tokens that were generated after ``since``: the longest way to the reader, s."""
    shown = zip(network.generated, network.rendered, strict=True)
    return max(rendered - generated for generated, rendered in shown if generated > since)


@pytest.mark.parametrize("scheme", STEADY)
@pytest.mark.parametrize("directions", [(), ("up",), ("down",)])
def test_one_loss_after_the_stall_is_repaired_as_before_it(
    scheme: str, directions: tuple[str, ...]
) -> None:
    network = Network(
        [b"word "] * 900,
        held(lossy(1, 0.0, WAY), STALL, FREE, directions),
        scheme=scheme,
    )
    clear = network.fate

    def one_loss(datagram: bytes, direction: str, now: float) -> list[tuple[bytes, float]]:
        lost = FREE + 2.0 <= now < FREE + 2.1
        return [] if lost else clear(datagram, direction, now)

    network.fate = one_loss
    network.run()
    assert network.answer == [b"word "] * 900
    # The next token after the loss repairs it: 0.1 s, a token's spacing, one way.
    assert lateness(network, FREE + 1.0) < 0.1 + 0.045 + WAY + 0.01


@pytest.mark.parametrize("scheme", schemes.names())
@pytest.mark.parametrize("seed", [0, 2, 4])
def test_a_token_is_never_later_than_a_second_and_a_round_trip(scheme: str, seed: int) -> None:
    """With 10% loss, where nothing but repetitions brings it."""
    spacing = 0.045 if scheme != "retransmit" else 0.02
    rng = random.Random(seed)
    stall = rng.uniform(1.0, 40.0)
    network = Network(
        [b"word "] * int((stall + 13.0) / spacing),
        held(lossy(seed, 0.1, WAY), STALL, STALL + stall),
        scheme=scheme,
        spacing=spacing,
        seed=seed,
    ).run(600)
    assert network.client.complete
    assert lateness(network, STALL + stall + 1.0) < 1.0 + 2 * WAY


def test_late_echoes_are_no_samples_and_the_estimate_is_found_anew() -> None:
    path = Path(validated=True, salt=0)
    for n in range(100):
        path.answered(path.stamp(n * 0.05), 0, n * 0.05 + 0.02)
    late = [path.stamp(5.0 + n * 0.2) for n in range(140)]  # nothing is answered for 28 s
    for echo in late:
        path.answered(echo, 0, 33.0)
    assert path.rtt.smoothed == pytest.approx(0.02)
    # The way is longer now, as after a handover: the least RTT must not be that of the old way.
    path.answered(path.stamp(33.1), 0, 33.7)
    assert path.rtt.minimum == path.rtt.smoothed == pytest.approx(0.6)
    assert path.rtt.queueing(0.0) == 0.0


def test_a_queue_that_grows_is_measured_all_the_same() -> None:
    """Answers that come steadily, each later than the one before, are no outage."""
    path = Path(validated=True, salt=0)
    stamps = [(n * 0.1, path.stamp(n * 0.1)) for n in range(100)]
    for sent, stamp in stamps:
        path.answered(stamp, 0, 0.05 + sent * 1.5)
    assert path.rtt.latest == pytest.approx(0.05 + 9.9 * 0.5)
    assert path.rtt.minimum == pytest.approx(0.05)


def test_after_a_queue_the_least_rtt_stays() -> None:
    """The queue may still be there, or have grown: that must not be taken for the way's length."""
    for later in (0.6, 5.0):
        path = Path(validated=True, salt=0)
        for n in range(50):
            path.answered(path.stamp(n * 0.1), 0, n * 0.1 + (0.05 if n < 20 else 0.6))
        held = [path.stamp(6.0 + n) for n in range(5)]
        path.answered(held[0], 0, 11.0)
        last = path.stamp(11.0)
        for n, stamp in enumerate(held[1:], 1):
            path.answered(stamp, 0, 11.0 + n * later / 5)
        path.answered(last, 0, 11.0 + later)
        assert path.rtt.minimum == pytest.approx(0.05) and path.rtt.long_queue
        assert path.rtt.latest == pytest.approx(later)


def test_a_first_answer_that_was_held_is_no_sample() -> None:
    path = Path(validated=False, salt=0)
    early = [path.stamp(n * 0.5) for n in range(3)]
    for stamp in early:
        assert path.answered(stamp, 0, 9.6)
    assert path.validated and path.rtt.samples == 0
    path.answered(path.stamp(9.7), 0, 9.75)
    assert path.rtt.smoothed == path.rtt.minimum == pytest.approx(0.05)


def test_a_path_of_two_seconds_is_measured() -> None:
    path = Path(validated=True, salt=0)
    sent = [(n * 0.5, path.stamp(n * 0.5)) for n in range(10)]
    for at, stamp in sent[:4]:
        path.answered(stamp, 0, at + 2.0)
    late = path.stamp(3.6)
    for at, stamp in sent[4:]:
        path.answered(stamp, 0, at + 2.0)
    path.answered(late, 0, 5.6)
    assert path.rtt.minimum == pytest.approx(2.0)
