"""A direction put together: first the bottleneck, then losses, then delay; copies, flips, mtu.

Tolerances are 5 standard errors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.channel import (
    Bernoulli,
    Bottleneck,
    Channel,
    ChannelError,
    DelayModel,
    DropList,
    Fate,
    Gaps,
    GilbertElliott,
    LossModel,
)
from topologies.profile import Direction, LinkProfile, ProfileError

SLOW = Bottleneck(1e6, queue_packets=3)  # 1250 B take 10 ms
ARRIVALS = st.lists(st.tuples(st.floats(0, 0.05), st.integers(60, 1514)), min_size=1, max_size=50)


def make(
    loss: LossModel | None = None, delay: DelayModel | None = None, seed: int = 1, **more: Any
) -> Channel:
    direction = more.pop("direction", "up")
    channel = Channel(delay or DelayModel(0.02), loss, "access", direction, seed, **more)
    channel.epoch = 0.0
    return channel


def test_a_frame_waits_before_it_is_lost_and_is_lost_before_it_travels() -> None:
    # Bad from 15 to 25 ms: it meets the frame that leaves the queue at 20 ms.
    channel = make(Gaps(((0.015, 0.025),)), bottleneck=SLOW)
    fates = [channel.fate(0.0, 1250) for _ in range(5)]
    assert [fate.reason for fate in fates] == ["", "lost", "", "", "queue"]
    assert [fate.due for fate in fates] == pytest.approx([0.03, 0.04, 0.05, 0.06, 0.0])


def test_a_frame_lost_on_the_air_has_used_the_bottleneck() -> None:
    channel = make(DropList((1, 2)), bottleneck=SLOW)
    assert [channel.fate(0.0, 1250).due for _ in range(3)] == pytest.approx([0.03, 0.04, 0.05])


def test_what_the_queue_refuses_draws_neither_loss_nor_delay() -> None:
    jittery = DelayModel(0.02, 0.005)
    full = make(Bernoulli(0.3), jittery, bottleneck=SLOW)
    fates = [full.fate(2.0 * i, 1250) for i in range(300) for _ in range(6)]
    passed = [fate for fate in fates if fate.reason != "queue"]
    plain = make(Bernoulli(0.3), jittery)
    assert len(passed) == 300 * 4
    assert [fate.lost for fate in passed] == [plain.fate(9.0 * i).lost for i in range(1200)]


def test_a_frame_above_the_mtu_is_lost_before_the_queue() -> None:
    channel = make(mtu=1400, bottleneck=SLOW)
    assert channel.fate(0.0, 1415) == Fate(True, 0.0, "mtu")
    assert channel.fate(0.0, 1414).due == pytest.approx(8 * 1414 / 1e6 + 0.02)  # 14 of Ethernet
    channel = make(Bernoulli(0.5), mtu=1400)
    plain = make(Bernoulli(0.5))
    pattern = []
    for i in range(200):
        assert channel.fate(float(i), 1500).reason == "mtu"
        pattern.append(channel.fate(float(i), 1400).lost)
    assert pattern == [plain.fate(float(i)).lost for i in range(200)]


@given(ARRIVALS, st.booleans(), st.floats(0, 1), st.integers(0, 99))
def test_without_reorder_all_that_arrives_is_in_order(
    steps: list[tuple[float, int]], jitter: bool, duplicate: float, seed: int
) -> None:
    delay = DelayModel(0.01, 0.02 * jitter, clamp=True)
    neck = Bottleneck(1e6, queue_bytes=9000)
    channel = make(Bernoulli(0.2), delay, seed, bottleneck=neck, duplicate=duplicate)
    now, last = 0.0, 0.0
    for gap, size in steps:
        now += gap
        fate = channel.fate(now, size)
        assert fate.due >= now
        if fate.lost:
            continue
        assert fate.due >= max(last, now + 8 * size / 1e6 - 1e-12)
        assert fate.copy_due is None or fate.copy_due >= fate.due
        last = fate.copy_due or fate.due


@pytest.mark.parametrize("share", [0.02, 0.3, 1.0])
def test_copies_and_flips_have_their_share(share: float) -> None:
    n = 30_000
    error = 5 * math.sqrt(share * (1 - share) / n)
    channel = make(duplicate=share, corrupt=share)
    fates = [channel.fate(float(i)) for i in range(n)]
    copies = [fate.copy_due is not None for fate in fates]
    flips = [fate.flip for fate in fates if fate.flip is not None]
    assert abs(sum(copies) / n - share) <= error
    assert abs(len(flips) / n - share) <= error
    both = sum(fate.copy_due is not None and fate.flip is not None for fate in fates) / n
    assert abs(both - share**2) <= 5 * math.sqrt(share**2 * (1 - share**2) / n)
    # Anywhere in the frame: uniform, standard error of the mean sqrt(1 / 12 n).
    assert all(0 <= flip < 1 for flip in flips)
    assert abs(sum(flips) / len(flips) - 0.5) <= 5 * math.sqrt(1 / 12 / len(flips))


def test_a_copy_has_a_delay_of_its_own_and_with_reorder_may_come_first() -> None:
    channel = make(None, DelayModel(0.05, 0.01, reorder=True), duplicate=1.0)
    fates = [channel.fate(float(i)) for i in range(4000)]
    first = sum(fate.copy_due < fate.due for fate in fates if fate.copy_due is not None) / 4000
    assert abs(first - 0.5) <= 5 * 0.5 / math.sqrt(4000)


def test_lost_frames_have_no_copies_and_none_is_corrupt() -> None:
    channel = make(Bernoulli(0.5), duplicate=1.0, corrupt=1.0)
    for i in range(500):
        fate = channel.fate(float(i))
        assert (fate.copy_due is None) == (fate.flip is None) == fate.lost
        assert fate.reason == ("lost" if fate.lost else "")


@pytest.mark.parametrize("more", [{"duplicate": 0.3}, {"corrupt": 0.3}, {"bottleneck": SLOW}])
def test_copies_flips_and_queues_leave_the_losses_alone(more: dict[str, Any]) -> None:
    loss = GilbertElliott(0.4, 0.2, 0.1, 0.9)
    plain, busy = make(loss), make(loss, **more)
    assert [plain.fate(0.1 * i).lost for i in range(2000)] == [
        busy.fate(0.1 * i).lost for i in range(2000)
    ]
    assert plain.outages(0, 100) == busy.outages(0, 100)


def everything(seed: int, direction: str = "up") -> list[Fate]:
    channel = make(
        GilbertElliott(0.4, 0.1, 0.05, 0.8),
        DelayModel(0.02, 0.005),
        seed,
        direction=direction,
        bottleneck=Bottleneck(5e6, queue_packets=10, discipline="codel"),
        duplicate=0.1,
        corrupt=0.1,
        mtu=1400,
    )
    return [channel.fate(0.001 * i, 600 + i % 900) for i in range(5000)]


def test_the_same_seed_gives_the_same_fates_to_the_last_bit() -> None:
    fates = everything(3)
    assert {fate.reason for fate in fates} == {"", "lost", "queue", "mtu"}
    assert everything(3) == fates
    assert everything(4) != fates != everything(3, "down")


def test_a_seed_forgets_the_queue_and_the_order() -> None:
    channel = make(None, DelayModel(0.02, 0.005), bottleneck=SLOW, duplicate=0.5)
    first = [channel.fate(0.0, 1250) for _ in range(6)]
    channel.seed(1)
    assert channel.epoch is None
    channel.epoch = 0.0
    assert [channel.fate(0.0, 1250) for _ in range(6)] == first


def test_copies_of_the_two_directions_are_independent() -> None:
    n = 20_000
    up, down = (
        [channel.fate(float(i)).copy_due is not None for i in range(n)]
        for channel in (make(duplicate=0.5, direction=name) for name in ("up", "down"))
    )
    agree = sum(a == b for a, b in zip(up, down, strict=True)) / n
    assert abs(agree - 0.5) <= 5 * 0.5 / math.sqrt(n)


def test_exempt_frames_stay_in_order_with_the_others() -> None:
    channel = make(None, DelayModel(0.02, 0.01))
    dues = []
    for i in range(500):
        dues += [channel.fate(0.001 * i).due, channel.exempt(0.001 * i + 0.0005)]
    assert all(a <= b for a, b in itertools.pairwise(dues))


@pytest.mark.parametrize("value", [1.3, -0.1, math.nan, math.inf, "x"])
@pytest.mark.parametrize("name", ["duplicate", "corrupt"])
def test_shares_that_are_none_are_refused(name: str, value: Any) -> None:
    line = f"{name} must be a number from 0 to 1, not {value!r}"
    builders: list[tuple[type[Exception], Callable[..., Any]]] = [
        (ChannelError, make),
        (ProfileError, Direction),
    ]
    for error, build in builders:
        with pytest.raises(error) as caught:
            build(**{name: value})
        assert str(caught.value) == line


@pytest.mark.parametrize("mtu", [67, 65536, 1400.0, True, "1400", math.nan])
def test_an_mtu_that_no_link_can_have_is_refused(mtu: Any) -> None:
    with pytest.raises(ProfileError) as caught:
        LinkProfile("x", Direction(), Direction(), "test", mtu=mtu)
    assert str(caught.value) == f"mtu must be a whole number from 68 to 65535, not {mtu!r}"
