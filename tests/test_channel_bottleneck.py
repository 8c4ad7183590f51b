"""A rate or Mahimahi's trace, and the queue before it, against queues written here event by event.

CoDel has a file of its own.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topologies.channel import Bottleneck, ChannelError, DeliveryTrace
from topologies.profile import Direction, ProfileError

CHANCE = 1504  # bytes of one delivery opportunity
quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
# Arrivals in units of 0.1 ms plus half a unit, so that none falls on an opportunity.
ARRIVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(60, 3000)), min_size=1, max_size=60)
TICKS = st.lists(st.integers(0, 40), min_size=1, max_size=15).filter(any).map(sorted)


def moments(steps: list[tuple[int, int]]) -> list[tuple[float, int]]:
    """(arrival, size) of each frame."""
    times = itertools.accumulate(step for step, _ in steps)
    return [(t / 1e4 + 5e-5, size) for t, (_, size) in zip(times, steps, strict=True)]


def mahimahi(folder: Path, ticks: list[int]) -> DeliveryTrace:
    path = folder / "cell.trace"
    path.write_text("".join(f"{tick}\n" for tick in ticks))
    return DeliveryTrace(str(path))


def served(ticks: list[int], frames: list[tuple[float, int]]) -> list[float]:
    """Mahimahi's rule: each opportunity takes up to 1504 B from the queue; what is not used at
    that moment is wasted, and a frame leaves with its last byte."""
    left, leaves, head = [size for _, size in frames], [], 0
    for rounds in itertools.count():
        for tick in ticks:
            now, room = (rounds * ticks[-1] + tick) / 1e3, CHANCE
            while head < len(frames) and frames[head][0] <= now and room > 0:
                used = min(room, left[head])
                room, left[head] = room - used, left[head] - used
                if left[head] == 0:
                    leaves.append(now)
                    head += 1
            if head == len(frames):
                return leaves
    raise AssertionError


@given(ARRIVALS, st.floats(1e5, 1e9))
def test_frames_leave_in_order_one_after_the_other(
    steps: list[tuple[int, int]], rate: float
) -> None:
    process = Bottleneck(rate, queue_packets=10_000).process()
    free = 0.0
    for now, size in moments(steps):
        free = max(now, free) + 8 * size / rate
        assert process.enter(now, 0.0, size) == pytest.approx(free)


@given(ARRIVALS, st.integers(1, 10), st.floats(1e5, 1e8))
def test_no_more_packets_wait_than_the_queue_holds(
    steps: list[tuple[int, int]], limit: int, rate: float
) -> None:
    process = Bottleneck(rate, queue_packets=limit).process()
    starts: list[float] = []  # of the transmission of each accepted frame
    free = -math.inf
    for now, size in moments(steps):
        waiting = sum(start > now for start in starts)
        leaves = process.enter(now, 0.0, size)
        assert (leaves is None) == (free > now and waiting >= limit)
        if leaves is not None:
            starts.append(max(now, free))
            free = leaves
            assert sum(start > now for start in starts) <= limit


@given(ARRIVALS, st.integers(3000, 9000), st.floats(1e5, 1e8))
def test_no_more_bytes_wait_than_the_queue_holds(
    steps: list[tuple[int, int]], limit: int, rate: float
) -> None:
    process = Bottleneck(rate, queue_bytes=limit).process()
    accepted: list[tuple[float, int]] = []
    free = -math.inf
    for now, size in moments(steps):
        backlog = sum(length for start, length in accepted if start > now)
        leaves = process.enter(now, 0.0, size)
        assert (leaves is None) == (free > now and backlog + size > limit)
        if leaves is not None:
            accepted.append((max(now, free), size))
            free = leaves
            assert sum(length for start, length in accepted if start > now) <= limit


@pytest.mark.parametrize("queue", [{"queue_packets": 20}, {"queue_bytes": 30_000}])
@pytest.mark.parametrize("load", [1.0, 1.5, 10.0])
def test_a_saturated_bottleneck_delivers_exactly_its_rate(
    queue: dict[str, Any], load: float
) -> None:
    rate, size = 12e6, 1500
    process = Bottleneck(rate, **queue).process()
    gap = 8 * size / rate / load
    leaves = [left for i in range(5000) if (left := process.enter(i * gap, 0.0, size)) is not None]
    # Never idle: from the first frame on, a frame leaves every 1 ms.
    assert leaves == pytest.approx([(i + 1) * 1e-3 for i in range(len(leaves))])
    assert len(leaves) == pytest.approx(5000 / load, abs=25)


def test_the_longest_wait_is_that_of_a_full_queue() -> None:
    model = Bottleneck(1e6, queue_packets=10)
    process = model.process()
    leaves = [process.enter(0.0, 0.0, 1514) for _ in range(20)]
    assert sum(left is not None for left in leaves) == 11  # one is on the line
    assert leaves[10] == pytest.approx(model.longest_wait + 8 * 1514 / 1e6)
    assert Bottleneck(1e6, queue_bytes=15_140).longest_wait == pytest.approx(model.longest_wait)
    assert model.mean_rate == 1e6


@quick
@given(TICKS, ARRIVALS)
def test_a_trace_is_served_as_mahimahi_does(
    tmp_path: Path, ticks: list[int], steps: list[tuple[int, int]]
) -> None:
    frames = moments(steps)
    process = Bottleneck(trace=mahimahi(tmp_path, ticks), queue_packets=10_000).process()
    seen = [process.enter(now, 0.0, size) for now, size in frames]
    assert seen == pytest.approx(served(ticks, frames), abs=1e-9)


@pytest.mark.parametrize("ticks", [[1, 2, 3, 3], [0, 0, 4], [1, 1, 1, 2, 2, 5, 5, 5, 7], [3]])
def test_a_saturated_trace_uses_every_opportunity(tmp_path: Path, ticks: list[int]) -> None:
    trace = mahimahi(tmp_path, ticks)
    process = Bottleneck(trace=trace, queue_packets=10**6).process()
    n = 3000 * len(ticks)
    leaves = [process.enter(1e-5, 0.0, CHANCE) or 0.0 for _ in range(n + 1)]
    zeros = ticks.count(0)  # they passed before the first frame came
    assert leaves[n - 1 - zeros] == pytest.approx(3000 * trace.length)
    assert leaves[n] > 3000 * trace.length  # as many more at 0, then the next round
    assert trace.mean_rate == pytest.approx(8 * CHANCE * len(ticks) / (ticks[-1] / 1e3))


def test_what_is_left_of_an_opportunity_cannot_be_used_later(tmp_path: Path) -> None:
    process = Bottleneck(trace=mahimahi(tmp_path, [1, 2, 3]), queue_packets=10).process()
    assert process.enter(0.0005, 0.0, 100) == pytest.approx(0.001)
    assert process.enter(0.0007, 0.0, 100) == pytest.approx(0.001)  # with it
    assert process.enter(0.0015, 0.0, 100) == pytest.approx(0.002)  # too late for it


def test_the_trace_follows_the_epoch(tmp_path: Path) -> None:
    # Before the epoch, channel time 0 is that of the clock itself; frames pass all the same.
    model = Bottleneck(trace=mahimahi(tmp_path, [100, 200, 300]), queue_packets=10)
    process = model.process()
    before = process.enter(5000.0, 0.0, 100)
    assert before is not None and 5000 <= before <= 5000.1
    assert process.enter(5001.05, 5001.0, 100) == pytest.approx(5001.1, abs=1e-6)
    assert process.enter(5001.15, 5001.0, 100) == pytest.approx(5001.2, abs=1e-6)
    late = process.enter(5002.0, 0.0, 100)
    assert late is not None and 5002 <= late <= 5002.1
    # With an epoch that is still to come, too.
    soon = model.process().enter(99.45, 100.0, 100)
    assert soon == pytest.approx(99.5, abs=1e-6)


@quick
@given(TICKS, st.integers(1, 6), st.lists(st.integers(0, 30), min_size=1, max_size=60))
def test_no_more_packets_wait_for_opportunities_than_the_queue_holds(
    tmp_path: Path, ticks: list[int], limit: int, gaps: list[int]
) -> None:
    process = Bottleneck(trace=mahimahi(tmp_path, ticks), queue_packets=limit).process()
    inside: list[float] = []
    for now, size in moments([(gap, CHANCE) for gap in gaps]):
        inside = [left for left in inside if left > now]
        leaves = process.enter(now, 0.0, size)
        assert (leaves is None) == (len(inside) >= limit)
        if leaves is not None:
            inside.append(leaves)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"queue_packets": 9}, "a bottleneck needs a rate or a delivery trace, and not both"),
        ({"rate": 1e6}, "a bottleneck needs queue_packets or queue_bytes, and not both"),
        ({"rate": 1e6, "queue_packets": 9, "queue_bytes": 9000}, "and not both"),
        ({"rate": -1e6, "queue_packets": 9}, "rate must be a number at least 1000, not -1000000.0"),
        ({"rate": math.nan, "queue_packets": 9}, "rate must be a number at least 1000, not nan"),
        ({"rate": math.inf, "queue_packets": 9}, "rate must be a number at least 1000, not inf"),
        ({"rate": "5Mbit", "queue_packets": 9}, "not '5Mbit'"),
        ({"rate": 1e6, "queue_packets": 0}, "queue_packets must be a number at least 1, not 0"),
        ({"rate": 1e6, "queue_packets": 2.5}, "queue_packets must be a whole number, not 2.5"),
        ({"rate": 1e6, "queue_bytes": 1000}, "queue_bytes must be a number at least 1514, not 10"),
        ({"rate": 1e6, "queue_packets": 9, "discipline": "red"}, "drop-tail, codel, not 'red'"),
        ({"trace": "a.trace", "queue_packets": 9}, "must be an object, not 'a.trace'"),
        ({"trace": {"file": 5}, "queue_packets": 9}, "5"),
    ],
)
def test_bad_values_are_named_in_one_line(data: dict[str, Any], words: str) -> None:
    with pytest.raises(ProfileError) as caught:
        Direction.from_dict({"bottleneck": data}, "access.down")
    assert str(caught.value).startswith("access.down")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", None, "the trace is empty: it needs a time above 0 ms"),
        ("0\n0\n", None, "the trace is empty: it needs a time above 0 ms"),
        ("5\n3\n", 2, "time goes back, from 0.005 to 0.003 s"),
        ("# LTE\n1\n-2\n", 3, "time must be a number of at least 0, not '-2'"),
        ("1\nnan\n", 2, "time must be a number of at least 0, not 'nan'"),
        ("inf\n", 1, "time must be a number of at least 0, not 'inf'"),
        ("1\ntwo\n", 2, "time must be a number of at least 0, not 'two'"),
        ("1,2\n", 1, "1 fields expected, not '1,2'"),
    ],
)
def test_a_bad_trace_is_named_with_its_line(
    tmp_path: Path, text: str, line: int | None, words: str
) -> None:
    path = tmp_path / "cell.trace"
    path.write_text(text)
    with pytest.raises(ChannelError) as caught:
        DeliveryTrace(str(path))
    assert str(caught.value) == (f"{path}:{line}: {words}" if line else f"{path}: {words}")
    with pytest.raises(ChannelError, match="No such file or directory"):
        DeliveryTrace(str(tmp_path / "none"))


def test_a_bottleneck_goes_through_json(tmp_path: Path) -> None:
    for neck in (
        Bottleneck(1e6, queue_bytes=9000, discipline="codel"),
        Bottleneck(trace=mahimahi(tmp_path, [1, 2]), queue_packets=7),
    ):
        assert Direction.from_dict(Direction(bottleneck=neck).to_dict()).bottleneck == neck
