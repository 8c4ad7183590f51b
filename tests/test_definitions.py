"""Every definition of a stall on one short answer, by hand."""

from __future__ import annotations

import math

import pytest

from analysis.definitions import KINDS, THETAS, column, stall_definitions
from analysis.stalls import metrics

#: Gaps of 0.1, 0.3, 0.6 and 0.15 s: 1.15 s in all.
SHOWN = [10.0, 10.1, 10.4, 11.0, 11.15]


@pytest.mark.parametrize(
    ("theta", "excess", "whole", "share"),
    [
        (0.1, 0.2 + 0.5 + 0.05, 0.3 + 0.6 + 0.15, 3),  # the gap of 0.1 itself is no stall
        (0.2, 0.1 + 0.4, 0.3 + 0.6, 2),
        (0.3, 0.3, 0.6, 1),
        (0.5, 0.1, 0.6, 1),
    ],
)
def test_every_definition_by_hand(theta: float, excess: float, whole: float, share: int) -> None:
    found = stall_definitions(SHOWN)
    assert found[column("excess", theta)] == pytest.approx(excess / 1.15)
    assert found[column("whole", theta)] == pytest.approx(whole / 1.15)
    assert found[column("share", theta)] == share / 4


def test_the_columns_are_named_in_milliseconds() -> None:
    names = {f"{kind}_{ms}" for kind in KINDS for ms in (100, 200, 300, 500)}
    assert set(stall_definitions(SHOWN)) == names
    assert len(names) == len(KINDS) * len(THETAS)


def test_the_excess_over_200_ms_is_the_stall_ratio() -> None:
    assert stall_definitions(SHOWN)["excess_200"] == pytest.approx(metrics(SHOWN)["stall_ratio"])


def test_tokens_that_were_never_shown_do_not_count() -> None:
    with_lost = [*SHOWN[:2], math.nan, *SHOWN[2:], math.nan]
    assert stall_definitions(with_lost) == stall_definitions(SHOWN)


@pytest.mark.parametrize("shown", [[], [3.0], [math.nan, 3.0]])
def test_without_a_gap_nothing_is_known(shown: list[float]) -> None:
    found = stall_definitions(shown)
    assert len(found) == len(KINDS) * len(THETAS)
    assert all(math.isnan(value) for value in found.values())


def test_tokens_that_come_all_at_once_stall_nowhere() -> None:
    assert set(stall_definitions([5.0, 5.0, 5.0]).values()) == {0.0}
