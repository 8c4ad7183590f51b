"""A path: stamps, echoes, and the 3x limit of RFC 9000, section 8.1."""

from __future__ import annotations

import pytest

from eloquent.path import Path


def test_the_clock_counts_microseconds_from_a_salt_and_wraps() -> None:
    path = Path(validated=True, salt=2**32 - 1)
    assert path.clock(0.0) == 2**32 - 1
    assert path.clock(2e-6) == 1


def test_an_echo_proves_the_peer_and_gives_one_sample() -> None:
    path = Path(validated=False, salt=5)
    stamp = path.stamp(1.0)
    assert path.answered(stamp, 0, 1.05)
    assert path.validated and path.rtt.smoothed == pytest.approx(0.05)
    assert not path.answered(stamp, 0, 9.0)  # a copy of the ACK says nothing new
    assert path.rtt.samples == 1


def test_a_stamp_that_was_never_sent_proves_nothing() -> None:
    path = Path(validated=False, salt=5)
    stamp = path.stamp(1.0)
    assert not path.answered((stamp + 1) % 2**32, 0, 1.05)
    assert not path.answered(path.clock(2.0), 0, 1.05)  # asked for no answer
    assert not path.validated and path.rtt.samples == 0


def test_an_old_echo_proves_the_peer_but_not_the_rtt() -> None:
    path = Path(validated=False, salt=5)
    assert path.answered(path.stamp(1.0), 500_000, 1.55)
    assert path.validated and path.rtt.samples == 0


def test_a_clock_that_runs_back_gives_no_negative_rtt() -> None:
    path = Path(validated=True)
    path.answered(path.stamp(1.0), 0, 0.9)
    assert path.rtt.smoothed == 0.0


def test_three_times_what_came_may_go() -> None:
    path = Path(validated=False)
    assert not path.may_send(1)
    path.received(10)
    assert path.may_send(30) and not path.may_send(31)
    path.sent(30)
    assert not path.may_send(1)
    path.received(1)
    assert path.may_send(3) and not path.may_send(4)
    path.answered(path.stamp(0.0), 0, 0.1)
    assert path.may_send(10**9)


def test_stamps_are_bounded_and_the_oldest_goes_first() -> None:
    path = Path(validated=True, salt=0)
    stamps = [path.stamp(i * 0.001) for i in range(5000)]
    assert len(path._stamps) <= 1024
    assert not path.answered(stamps[0], 0, 6.0)
    assert path.answered(stamps[-1], 0, 6.0)


def test_salts_differ() -> None:
    assert len({Path(validated=True).clock(0.0) for _ in range(20)}) > 15
