"""The replay window against a set that remembers everything (RFC 4303, section 3.4.3)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eloquent.sealed.replay import WINDOW, ReplayWindow


class Naive:
    """All that came, in a set."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.came: set[int] = set()

    def fresh(self, number: int) -> bool:
        return number not in self.came and number > max(self.came, default=-1) - self.size


def take(window: ReplayWindow, number: int) -> bool:
    fresh = window.fresh(number)
    if fresh:
        window.mark(number)
    return fresh


@given(
    size=st.sampled_from([1, 32, 64, WINDOW]),
    steps=st.lists(st.one_of(st.integers(-70, 70), st.integers(-1100, 1100), st.just(2**31))),
)
def test_it_is_a_set_with_a_lower_edge(size: int, steps: list[int]) -> None:
    window, naive, at = ReplayWindow(size), Naive(size), 0
    for step in steps:
        at = min(max(0, at + step), 2**32 - 1)
        fresh = naive.fresh(at)
        assert take(window, at) is fresh
        if fresh:
            naive.came.add(at)
        assert window.largest == max(naive.came, default=-1)


def test_numbers_that_are_only_asked_for_change_nothing() -> None:
    """What was not authentic is not marked: it must not move the window."""
    window = ReplayWindow()
    window.mark(5)
    assert window.fresh(2**32 - 1)
    assert window.largest == 5 and window.fresh(4) and not window.fresh(5)


def test_each_once_under_loss_copies_and_reordering() -> None:
    rng = random.Random(4)
    sent = list(range(20_000))
    # Each comes up to three times, up to 1000 places late: 1024 is the window.
    arrivals = sorted(
        (n + rng.uniform(0, 1000), n) for n in sent for _ in range(rng.choice((0, 1, 1, 3)))
    )
    window = ReplayWindow()
    taken = [n for _, n in arrivals if take(window, n)]
    assert sorted(taken) == sorted({n for _, n in arrivals})


def test_the_default_holds_what_rfc_4303_asks_for() -> None:
    assert ReplayWindow().size >= 32
    window = ReplayWindow(64)
    window.mark(64)
    assert window.fresh(1) and not window.fresh(0)


@pytest.mark.parametrize("jump", [WINDOW, 2**32 - 1])
def test_a_jump_costs_no_memory(jump: int) -> None:
    window = ReplayWindow()
    window.mark(0)
    window.mark(jump)
    assert window._came.bit_length() <= WINDOW
