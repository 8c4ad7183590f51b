"""The sender's window: what it keeps, what it accepts as an ACK, how it cuts runs."""

from __future__ import annotations

import itertools
import random

import pytest

from eloquent import Reason, WindowFull
from eloquent.window import TOKEN_OVERHEAD, WINDOW_BYTES, WINDOW_TOKENS, Run, Window
from eloquent.wire import MAX_TOKEN, Ack, Data, encode


def filled(*tokens: bytes, sent: bool = True) -> Window:
    window = Window()
    for token in tokens:
        window.push(token)
    if sent:
        for run in window.pack(window.unacknowledged()):
            window.mark_sent(run, 0.0)
    return window


def ack(next_index: int, *ranges: tuple[int, int]) -> Ack:
    return Ack(0, 0, False, next_index, 0, 0, ranges)


def test_indices_count_from_zero_and_the_end_has_one_of_its_own() -> None:
    window = Window()
    assert [window.push(b"a"), window.push(b""), window.finish(Reason.STOP)] == [0, 1, 2]
    assert (window.tokens_pushed, window.next_index, len(window)) == (2, 3, 3)


def test_nothing_follows_the_end() -> None:
    window = filled(b"a")
    window.finish(Reason.STOP)
    with pytest.raises(RuntimeError, match="finished"):
        window.push(b"b")
    with pytest.raises(RuntimeError, match="finished"):
        window.finish(Reason.STOP)


def test_a_token_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="1025 bytes"):
        Window().push(bytes(MAX_TOKEN + 1))
    assert Window().push(bytes(MAX_TOKEN)) == 0


def test_the_window_is_bounded_in_bytes() -> None:
    window = Window()
    each = MAX_TOKEN + TOKEN_OVERHEAD
    for _ in range(WINDOW_BYTES // each):
        window.push(bytes(MAX_TOKEN))
    left = WINDOW_BYTES % each
    assert window.room() == left
    with pytest.raises(WindowFull, match=str(WINDOW_BYTES - left)):
        window.push(bytes(MAX_TOKEN))
    for run in window.pack(range(3)):
        window.mark_sent(run, 0.0)
    window.acknowledge(ack(1))
    assert window.room() == left + each


def test_the_window_is_bounded_in_empty_tokens() -> None:
    window = Window()
    for _ in range(WINDOW_TOKENS):
        window.push(b"")
    with pytest.raises(WindowFull):
        window.push(b"")
    window.finish(Reason.STOP)  # the END always has a place


def test_cumulative_and_selective_acknowledgements() -> None:
    window = filled(b"aa", b"bb", b"cc", b"dd")
    assert window.bytes_in_flight == 4 * 3 and window.bytes_held == 4 * (2 + TOKEN_OVERHEAD)
    assert window.acknowledge(ack(1, (2, 3)))
    assert (window.base, list(window.unacknowledged())) == (1, [1, 3])
    assert window.bytes_in_flight == 2 * 3
    assert not window.acknowledge(ack(1, (2, 3)))  # nothing new
    assert not window.acknowledge(ack(0))  # a late ACK
    assert window.acknowledge(ack(2))  # 2 was acknowledged before, so 3 is the oldest
    assert (window.base, window.bytes_in_flight) == (3, 3)
    assert window.bytes_held == 2 + TOKEN_OVERHEAD


def test_complete_means_that_the_end_is_acknowledged() -> None:
    window = filled(b"a")
    window.acknowledge(ack(1))
    assert not window.complete
    window.finish(Reason.STOP)
    window.mark_sent(window.pack(window.unacknowledged())[0], 0.0)
    assert not window.complete
    window.acknowledge(ack(2))
    assert window.complete and len(window) == 0 and window.bytes_held == 0


@pytest.mark.parametrize("forged", [ack(3), ack(0, (1, 3)), ack(2**40), ack(0, (2**40, 2**41))])
def test_an_ack_of_what_was_never_sent_is_refused_and_changes_nothing(forged: Ack) -> None:
    window = filled(b"a", b"b")
    window.push(b"c")
    with pytest.raises(ValueError, match="but 2 were sent"):
        window.acknowledge(forged)
    assert (window.base, len(window), list(window.unacknowledged())) == (0, 3, [0, 1, 2])


def test_pack_fills_small_holes_and_cuts_at_large_ones() -> None:
    window = filled(*[b"0123456789"] * 20)
    window.acknowledge(ack(0, (1, 4), (6, 12)))  # holes of 3 * 11 = 33 and 6 * 11 = 66 bytes
    runs = window.pack(window.unacknowledged())
    assert [(first, len(tokens)) for first, tokens, _ in runs] == [(0, 6), (12, 8)]


def test_pack_puts_the_end_behind_the_last_token() -> None:
    window = filled(b"a", b"b")
    window.finish(Reason.LENGTH)
    assert window.pack(window.unacknowledged()) == [(0, (b"a", b"b"), Reason.LENGTH)]
    assert window.pack([2]) == [(2, (), Reason.LENGTH)]
    assert window.pack([]) == []


@pytest.mark.parametrize("seed", range(30))
def test_runs_cover_what_was_asked_for_oldest_first_and_fit(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [0, 1, 5, 40, 300, 1024]
    tokens = [bytes(rng.choice(sizes)) for _ in range(rng.randrange(1, 400))]
    window = filled(*tokens)
    if rng.random() < 0.7:
        window.finish(Reason.STOP)
    edge, ranges = rng.randrange(len(tokens)), []
    start = edge
    for _ in range(32):
        gap, length = rng.randrange(1, 6), rng.randrange(1, 6)
        if edge + gap + length > len(tokens):
            break
        ranges.append((edge + gap, edge + gap + length))
        edge += gap + length
    window.acknowledge(ack(start, *ranges))
    wanted = list(window.unacknowledged())
    runs = window.pack(iter(wanted))
    covered: list[int] = []
    for first, parts, end in runs:
        assert len(encode(Data(2**64 - 1, 2**32 - 1, True, first, parts, end))) <= 1200
        assert [tokens[first + i] for i in range(len(parts))] == list(parts)
        covered += range(first, first + len(parts) + (end is not None))
    assert set(wanted) <= set(covered)
    assert covered == sorted(set(covered))
    # Neighbours would not have fitted into one datagram, or the hole between them is large.
    for (first, parts, _), (second, after, _) in itertools.pairwise(runs):
        hole = sum(len(t) + 1 for t in tokens[first + len(parts) : second])
        following = len(after[0]) + 2 if after else 0
        size = sum(len(t) + 2 for t in parts) + hole + following
        assert hole > 40 or size > 1200 - 45


def test_bytes_in_flight_returns_to_zero_whatever_the_order() -> None:
    rng = random.Random(4)
    window = filled(*[bytes(rng.randrange(100)) for _ in range(200)])
    for run in window.pack(window.unacknowledged()):  # a repetition counts once
        window.mark_sent(run, 1.0)
    for _ in range(500):
        at = rng.randrange(200)
        window.acknowledge(ack(window.base, *[(at, at + 1)] if at > window.base else []))
        assert window.bytes_in_flight >= 0
        if rng.random() < 0.05:
            window.acknowledge(ack(min(window.base + 2, 200)))
    window.acknowledge(ack(200))
    assert (window.bytes_in_flight, window.bytes_held, len(window)) == (0, 0, 0)


def test_bytes_in_flight_with_a_scheme_that_skips_tokens() -> None:
    window = filled(b"aa", b"bb", b"cc", sent=False)
    first: Run = (0, (b"aa",), None)
    third: Run = (2, (b"cc",), None)
    second: Run = (1, (b"bb",), None)
    for run in (first, third, second):
        window.mark_sent(run, 0.0)
    assert window.bytes_in_flight == 9
    window.acknowledge(ack(3))
    assert window.bytes_in_flight == 0


def test_after_an_address_change_everything_is_due_again() -> None:
    window = filled(b"a", b"b")
    window.void_flight()
    assert window.last_sent(0) == window.last_sent(1) == float("-inf")
