"""Rendering at once and at reading speed, and stalls against the schedule, by hand and by rule."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.reader import (
    READING_SPEED,
    SYLLABLES_PER_TOKEN,
    ReaderError,
    at_once,
    paced,
    per_token,
    reading_stalls,
    syllables,
    text_reading,
)
from analysis.stalls import StallError, metrics

NEVER = math.nan
# Sums of these are exact in floating point, so that properties hold to the last bit.
TICKS = st.integers(0, 20_000).map(lambda ticks: ticks / 1024)
SPEEDS = st.sampled_from([0.5, 1.0, 4.0, 16.0, 64.0])
ARRIVALS = st.lists(TICKS, max_size=30)
THETAS = st.sampled_from([0.0, 0.25, 1.0])
BUFFERS = st.tuples(st.integers(0, 40), TICKS)


def test_at_once_waits_for_what_is_before():
    assert list(at_once([1.0, 3.0, 2.0, 4.0])) == [1.0, 3.0, 3.0, 4.0]
    shown = at_once([1.0, NEVER, 2.0])  # the hole is never closed
    assert shown[0] == 1.0 and np.isnan(shown[1:]).all()
    assert not len(at_once([]))


def test_paced_by_hand():
    # Two tokens a second; the fourth comes 0.5 s after the third was read.
    arrivals = [1.0, 1.1, 1.2, 3.0, 3.1]
    assert list(paced(arrivals, per_token(2))) == [1.0, 1.5, 2.0, 3.0, 3.5]
    # Three tokens are there at 1.2, and the schedule moves by 0.2 s.
    assert list(paced(arrivals, 0.5, buffer_tokens=3)) == pytest.approx([1.2, 1.7, 2.2, 3.0, 3.5])
    # One second held back covers the outage.
    assert list(paced(arrivals, 0.5, buffer_seconds=1)) == [2.0, 2.5, 3.0, 3.5, 4.0]
    # Both: whichever is later.
    assert paced(arrivals, 0.5, buffer_tokens=4, buffer_seconds=1)[0] == 3.0


def test_a_reading_time_for_each_token():
    assert list(paced([0.0, 0.0, 0.0], [0.5, 0.25, 9.0])) == [0.0, 0.5, 0.75]
    assert reading_stalls([0.0, 0.5, 0.75], [0.5, 0.25, 9.0], theta=0)["stalls"] == 0
    assert reading_stalls([0.0, 1.0, 1.25], [0.5, 0.25, 9.0], theta=0)["stall_time"] == 0.5


def test_a_buffer_larger_than_the_answer_ends_with_it():
    assert list(paced([0.0, 1.0], 0.5, buffer_tokens=9)) == [1.0, 1.5]
    assert list(paced([0.0, 1.0], 0.5, buffer_seconds=9)) == [1.0, 1.5]
    assert list(paced([0.0, 1.0, NEVER], 0.5, buffer_tokens=3))[:2] == [1.0, 1.5]


def test_tokens_never_shown():
    shown = paced([0.0, NEVER, 1.0], 0.5)
    assert shown[0] == 0.0 and np.isnan(shown[1:]).all()
    assert np.isnan(paced([NEVER], 0.5)).all() and not len(paced([], 0.5))


def test_stalls_against_the_schedule_by_hand():
    # Due at 1.5, 2.0, 2.5, 3.5; the fourth comes 0.5 s late, of which 0.2 s are forgiven.
    found = reading_stalls([1.0, 1.5, 2.0, 3.0, 3.5], per_token(2))
    assert found["stalls"] == 1
    assert found["stall_time"] == found["stall_max"] == pytest.approx(0.3)
    assert found["stall_ratio"] == pytest.approx(0.3 / 2.5)
    # Plainly, each gap of 0.5 s is a stall of 0.3 s, and that of 1 s one of 0.8 s.
    assert found["plain_stall_ratio"] == pytest.approx((3 * 0.3 + 0.8) / 2.5)


def test_reading_speed_itself_is_no_stall():
    shown = paced(np.zeros(100), per_token(READING_SPEED))  # gaps of 208 ms
    found = reading_stalls(shown, per_token(READING_SPEED))
    assert found["stalls"] == 0 and found["stall_ratio"] == 0
    assert found["plain_stall_ratio"] == pytest.approx(1 - 0.2 * 4.8)


def test_one_outage_is_one_stall():
    # All tokens after the outage are late against a schedule that never moved.
    shown = paced([0.0, 0.0, *[5.0] * 20], 1.0)
    assert reading_stalls(shown, 1.0)["stalls"] == 1
    assert reading_stalls(shown, 1.0)["stall_time"] == pytest.approx(5 - 2 - 0.2)


@pytest.mark.parametrize("shown", [[], [3.0], [NEVER]])
def test_no_gap_is_not_a_number(shown):
    found = reading_stalls(shown, 0.5)
    assert math.isnan(found["stall_ratio"]) and math.isnan(found["plain_stall_ratio"])
    assert found["stalls"] == found["stall_time"] == found["stall_max"] == 0


def test_buffer_takes_stalls_away_from_an_outage_at_the_start():
    # 20 tokens/s, but nothing from 0.1 to 0.7 s.
    arrivals = [0.0, 0.05, *np.arange(0.7, 2.0, 0.05)]
    waits = [
        reading_stalls(paced(arrivals, 0.1, tokens), 0.1)["stall_time"] for tokens in (1, 2, 3)
    ]
    assert waits == pytest.approx([0.3, 0.25, 0.0])  # 0.7 - 0.2 - 0.2; 0.05 s later; after it


@given(ARRIVALS, SPEEDS, BUFFERS)
def test_paced_is_in_order_and_never_before_arrival(arrivals, speed, buffer):
    once, shown = at_once(arrivals), paced(arrivals, per_token(speed), *buffer)
    assert (shown >= once).all() and (once >= arrivals).all()
    assert (np.diff(shown) >= per_token(speed)).all()


@given(ARRIVALS)
def test_infinite_speed_is_at_once(arrivals):
    assert per_token(math.inf) == 0
    assert list(paced(arrivals, per_token(math.inf))) == list(at_once(arrivals))


@given(st.lists(TICKS, min_size=2, max_size=30).map(sorted), THETAS)
def test_without_reading_time_the_plain_definition_holds(shown, theta):
    found, plain = reading_stalls(shown, 0.0, theta), metrics(shown, theta=theta)
    for name in ("stalls", "stall_time", "stall_ratio"):
        assert found[name] == plain[name]
    assert found["plain_stall_ratio"] == plain["stall_ratio"]


@given(ARRIVALS, SPEEDS, BUFFERS, BUFFERS, THETAS)
def test_more_buffer_never_stalls_more(arrivals, speed, buffer, extra, theta):
    reading = per_token(speed)
    larger = [one + other for one, other in zip(buffer, extra, strict=True)]
    less = reading_stalls(paced(arrivals, reading, *larger), reading, theta)
    more = reading_stalls(paced(arrivals, reading, *buffer), reading, theta)
    for name in ("stalls", "stall_time", "stall_max"):
        assert less[name] <= more[name]


@given(ARRIVALS, SPEEDS, SPEEDS, THETAS)
def test_slower_never_stalls_more(arrivals, one, other, theta):
    slow, fast = sorted([one, other])
    found = [
        reading_stalls(paced(arrivals, per_token(speed)), per_token(speed), theta)
        for speed in (slow, fast)
    ]
    assert found[0]["stall_time"] <= found[1]["stall_time"]


@pytest.mark.parametrize(
    ("word", "count"),
    [
        *(("the", 1), ("made", 1), ("table", 2), ("tree", 1), ("café", 2), ("reading", 2)),
        *(("CAFÉ", 2), ("strength", 1), ("understanding", 4), ("whole", 1), ("nth", 2)),
        ("Привет", 3),
    ],
)
def test_syllables(word, count):
    assert syllables(word) == count


def test_text_reading_by_hand():
    # One syllable a second. "reading" is cut 4 : 3 letters, "42" is two digits, the dot nothing.
    tokens = [b"read", b"ing", b" 42", b".", b"", " ☕".encode()]
    found = text_reading(tokens, speed=1 / SYLLABLES_PER_TOKEN)
    assert list(found) == pytest.approx([2 * 4 / 7, 2 * 3 / 7, 2, 0, 0, 1])
    assert list(text_reading(tokens, math.inf)) == [0] * 6
    assert not len(text_reading([]))


def test_text_reading_of_a_cut_character():
    # "é" belongs to the token with its last byte; a byte that is no text weighs nothing.
    found = text_reading([b"caf\xc3", b"\xa9", b"\xff"], speed=1 / SYLLABLES_PER_TOKEN)
    assert list(found) == pytest.approx([1.5, 0.5, 0])


@given(st.text(max_size=60), st.lists(st.integers(0, 240), max_size=10))
def test_cutting_a_text_takes_no_time(text, cuts):
    whole = text.encode("utf-8", "surrogatepass")
    ends = sorted(min(cut, len(whole)) for cut in cuts)
    tokens = [whole[start:end] for start, end in zip([0, *ends], [*ends, len(whole)], strict=True)]
    found = text_reading(tokens)
    assert len(found) == len(tokens) and (found >= 0).all()
    assert found.sum() == pytest.approx(text_reading([whole]).sum())


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: per_token(0), "reading speed of 0 tokens/s"),
        (lambda: per_token(NEVER), "must be above 0"),
        (lambda: paced([0.0], 0.5, buffer_tokens=-1), "a buffer is"),
        (lambda: paced([0.0], 0.5, buffer_seconds=math.inf), "a buffer is"),
        (lambda: paced([0.0], [0.5, 0.5]), "2 reading times for 1 tokens"),
        (lambda: paced([0.0], -0.5), "0 or more"),
        (lambda: paced([math.inf], 0.5), "infinite"),
        (lambda: at_once([[0.0]]), "shape"),
        (lambda: reading_stalls([1.0, 0.0], 0.5), "unsorted"),
        (lambda: reading_stalls([0.0, 1.0], 0.5, theta=-1), "theta"),
    ],
)
def test_mistakes_are_one_line(call, line):
    with pytest.raises((ReaderError, StallError), match=line) as error:
        call()
    assert "\n" not in str(error.value)
