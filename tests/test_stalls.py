"""Stall metrics against values computed by hand."""

import math

import pytest

from analysis.stalls import StallError, metrics, stall_intervals

# Gaps 0.1, 0.5, 0.2, 0.3: beyond 0.2 s are 0.3 + 0.1 = 0.4 s of 1.1 s.
SHOWN = [10.0, 10.1, 10.6, 10.8, 11.1]
MADE = [9.9, 10.0, 10.1, 10.2, 10.3]  # delays 0.1, 0.1, 0.5, 0.6, 0.8


def test_metrics_by_hand():
    result = metrics(SHOWN, MADE, requested=9.0)
    assert result["stall_ratio"] == pytest.approx(0.4 / 1.1)
    assert result["stall_time"] == pytest.approx(0.4)
    assert result["stalls"] == 2  # the gap of exactly 0.2 s is none
    assert result["gap_share"] == 0.5
    assert result["gap_p50"] == pytest.approx(0.25)  # between 0.2 and 0.3
    assert result["gap_p95"] == pytest.approx(0.47)  # 0.3 + 0.85 * (0.5 - 0.3)
    assert result["gap_p99"] == pytest.approx(0.494)
    assert result["gap_max"] == pytest.approx(0.5)
    assert result["duration"] == pytest.approx(1.1)
    assert result["ttft"] == pytest.approx(1.0)
    assert result["delay_p50"] == pytest.approx(0.5)
    assert result["delay_p95"] == pytest.approx(0.76)  # 0.6 + 0.8 * (0.8 - 0.6)
    assert result["generation_stall_ratio"] == 0
    assert (result["tokens"], result["tokens_lost"]) == (5, 0)


def test_theta_and_generation_stalls():
    assert metrics(SHOWN, theta=0.0)["stall_ratio"] == pytest.approx(1.0)
    assert metrics(SHOWN, theta=1.0)["stall_ratio"] == 0
    # The model itself paused for 1.2 s in 2 s.
    made = metrics([0.5, 2.5], [0.0, 2.0])
    assert made["generation_stall_ratio"] == pytest.approx(0.9)
    assert made["stall_ratio"] == pytest.approx(0.9)


@pytest.mark.parametrize("shown", [[], [5.0]])
def test_no_gap_is_not_a_number(shown):
    result = metrics(shown, shown, requested=4.0)
    for name in ("stall_ratio", "gap_share", "gap_p50", "gap_p99", "generation_stall_ratio"):
        assert math.isnan(result[name])
    assert result["tokens"] == len(shown)
    if shown:
        assert result["ttft"] == 1.0 and result["delay_p50"] == 0.0
    else:
        assert math.isnan(result["ttft"]) and math.isnan(result["delay_p50"])


def test_all_tokens_at_one_instant():
    result = metrics([3.0, 3.0, 3.0])
    assert result["stall_ratio"] == 0 and result["gap_share"] == 0 and result["gap_max"] == 0


def test_tokens_never_shown_are_lost():
    result = metrics([0.0, 0.1, math.nan, math.nan], [0.0, 0.05, 0.1, 0.15])
    assert (result["tokens"], result["tokens_lost"]) == (2, 2)
    assert result["delay_p95"] == pytest.approx(0.0475)


@pytest.mark.parametrize(
    ("shown", "made", "line"),
    [
        ([0.0, 2.0, 1.0], None, "unsorted: token 2 at 1.000000 s"),
        ([0.0, math.nan, 1.0], None, "token 1 was never rendered but a later one was"),
        ([0.0, math.inf], None, "token 1 is infinite"),
        ([0.0, 1.0], [0.0], "1 generation times for 2 rendered"),
        ([0.0, 1.0], [1.0, 0.0], "generated times are unsorted"),
        ([[0.0], [1.0]], None, "shape"),
    ],
)
def test_impossible_times_are_one_line(shown, made, line):
    with pytest.raises(StallError, match=line) as error:
        metrics(shown, made)
    assert "\n" not in str(error.value)


def test_stall_intervals():
    stalls = stall_intervals(SHOWN)
    assert list(stalls["index"]) == [2, 4]
    assert list(stalls["gap_start"]) == pytest.approx([10.1, 10.8])
    assert list(stalls["start"]) == pytest.approx([10.3, 11.0])
    assert list(stalls["end"]) == pytest.approx([10.6, 11.1])
    assert stall_intervals([]).empty and stall_intervals([1.0]).empty
