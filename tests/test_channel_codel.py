"""CoDel against the pseudo-code of RFC 8289, section 5, written here once more as a real queue.

The bottleneck draws a frame's fate when it arrives; the queue here decides when it leaves.
"""

from __future__ import annotations

import math
from collections import deque

import pytest

from topologies.channel import Bottleneck

RATE, SIZE = 12e6, 1500
SERVICE = 8 * SIZE / RATE  # 1 ms
TARGET, INTERVAL = 0.005, 0.1
MAX_PACKET = 1514


class Reference:
    """RFC 8289's dequeue over all arrivals; `dropped` are (number, moment)."""

    def __init__(self, arrivals: list[float]) -> None:
        self.queue: deque[tuple[int, float]] = deque()
        self.dropped: list[tuple[int, float]] = []
        self.sojourns: list[float] = []
        self.first_above = self.drop_next = 0.0
        self.count = self.last_count = 0
        self.dropping = False
        waiting, now = deque(enumerate(arrivals)), 0.0
        while waiting or self.queue:
            if not self.queue:
                self.first_above, self.dropping = 0.0, False  # an empty queue was asked
                now = max(now, waiting[0][1])
            while waiting and waiting[0][1] <= now:
                self.queue.append(waiting.popleft())
            taken = self.dequeue(now)
            if taken is not None:
                self.sojourns.append(now - taken[1])
                end = now + SERVICE
                while waiting and waiting[0][1] <= end:
                    self.queue.append(waiting.popleft())
                now = end

    def do_dequeue(self, now: float) -> tuple[tuple[int, float] | None, bool]:
        if not self.queue:
            self.first_above = 0.0
            return None, False
        packet = self.queue.popleft()
        if now - packet[1] < TARGET or SIZE * len(self.queue) <= MAX_PACKET:
            self.first_above = 0.0
        elif self.first_above == 0:
            self.first_above = now + INTERVAL
        elif now >= self.first_above:
            return packet, True
        return packet, False

    def dequeue(self, now: float) -> tuple[int, float] | None:
        packet, ok_to_drop = self.do_dequeue(now)
        if self.dropping:
            if not ok_to_drop:
                self.dropping = False
            while now >= self.drop_next and self.dropping:
                assert packet is not None
                self.dropped.append((packet[0], now))
                self.count += 1
                packet, ok_to_drop = self.do_dequeue(now)
                if ok_to_drop:
                    self.drop_next += INTERVAL / math.sqrt(self.count)
                else:
                    self.dropping = False
        elif ok_to_drop:
            assert packet is not None
            self.dropped.append((packet[0], now))
            packet, ok_to_drop = self.do_dequeue(now)
            self.dropping = True
            delta = self.count - self.last_count
            fresh = delta > 1 and now - self.drop_next < 16 * INTERVAL
            self.count = delta if fresh else 1
            self.drop_next = now + INTERVAL / math.sqrt(self.count)
            self.last_count = self.count
        return packet


def run(arrivals: list[float], discipline: str = "codel") -> tuple[list[int], list[float]]:
    """Numbers of the dropped frames, and the time that each other frame waited."""
    process = Bottleneck(RATE, queue_packets=100_000, discipline=discipline).process()
    dropped, waits = [], []
    for number, now in enumerate(arrivals):
        leaves = process.enter(now, 0.0, SIZE)
        if leaves is None:
            dropped.append(number)
        else:
            waits.append(leaves - SERVICE - now)
    return dropped, waits


def bulk(load: float, seconds: float, start: float = 0.0) -> list[float]:
    gap = SERVICE / load
    return [start + 1e-5 + i * gap for i in range(int(seconds / gap))]


@pytest.mark.parametrize("load", [1.2, 2.0, 5.0])
def test_the_first_drop_comes_after_one_interval_and_the_next_by_the_control_law(
    load: float,
) -> None:
    arrivals = bulk(load, 1.5)
    dropped, _ = run(arrivals)
    # The frames before a dropped one that were sent tell when it would have been its turn.
    turns = [arrivals[0] + (number - i) * SERVICE for i, number in enumerate(dropped)]
    # Frame n waits n (1 - 1 / load) ms: the first with 5 ms starts the interval.
    first = math.ceil(TARGET / SERVICE / (1 - 1 / load)) * SERVICE + INTERVAL
    assert turns[0] == pytest.approx(arrivals[0] + first, abs=1.1 * SERVICE)
    due = turns[0]
    for n, turn in enumerate(turns[1:], 1):
        due += INTERVAL / math.sqrt(n)
        assert due - 1e-9 <= turn <= due + 1.001 * SERVICE
    assert len(turns) > 40


@pytest.mark.parametrize("load", [1.02, 1.05, 1.3, 3.0])
def test_the_same_frames_are_dropped_as_by_the_rfc(load: float) -> None:
    # While the queue is long, what was there at arrival and at departure agrees.
    arrivals = bulk(load, 0.8) + bulk(load, 0.7, 0.8 + 1.2)
    reference = Reference(arrivals)
    dropped, waits = run(arrivals)
    expected = [number for number, _ in reference.dropped]
    assert len(expected) > 5
    assert dropped == expected
    assert waits == pytest.approx(reference.sojourns)


def test_under_a_steady_overload_the_wait_settles_near_the_target() -> None:
    arrivals = bulk(1.05, 20)
    _, waits = run(arrivals)
    _, tail_drop = run(arrivals, "drop-tail")
    settled = sorted(waits[len(waits) // 2 :])
    assert TARGET / 5 <= settled[len(settled) // 2] <= 3 * TARGET
    assert settled[int(0.95 * len(settled))] <= 6 * TARGET
    assert tail_drop[-1] > 0.9  # without it the queue only grows


def test_a_sender_that_backs_off_keeps_the_line_busy_and_the_wait_short() -> None:
    """A window that grows by one a round trip of 40 ms and halves for each loss, once a trip."""
    process = Bottleneck(RATE, queue_packets=1000, discipline="codel").process()
    window, acks, now, deaf, sent, waits = 10.0, deque([0.0] * 10), 0.0, 0.0, 0, []
    flying = 0
    while now < 30 and acks:
        now = max(now, acks.popleft())
        flying = max(0, flying - 1)
        window += 1 / window
        while flying < int(window):
            leaves = process.enter(now, 0.0, SIZE)
            if leaves is None:
                if now >= deaf:
                    window, deaf = max(2.0, window / 2), now + 0.04
                break
            flying += 1
            acks.append(leaves + 0.04)
            if leaves > 5:
                sent += 1
                waits.append(leaves - SERVICE - now)
    waits.sort()
    assert waits[len(waits) // 2] <= 2 * TARGET
    assert sent * SERVICE / (now - 5) >= 0.8


@pytest.mark.parametrize("load", [0.5, 0.99])
def test_without_overload_nothing_is_dropped(load: float) -> None:
    dropped, waits = run(bulk(load, 5))
    assert not dropped
    assert max(waits) < 1e-9


def test_a_burst_shorter_than_the_interval_passes_whole() -> None:
    arrivals = [t for start in range(20) for t in [start * 0.2 + 1e-5] * 90]  # 90 ms of work
    dropped, waits = run(arrivals)
    assert not dropped
    assert max(waits) == pytest.approx(0.089)


def test_a_nearly_empty_queue_loses_nothing_however_slow_the_line() -> None:
    process = Bottleneck(1e5, queue_packets=100, discipline="codel").process()  # 120 ms a frame
    assert all(process.enter(0.12 * i, 0.0, SIZE) for i in range(200))
    # One frame on the line and one that waits: each waits above the target, but none is lost.
    process = Bottleneck(1e5, queue_packets=100, discipline="codel").process()
    process.enter(0.0, 0.0, SIZE)
    assert all(process.enter(0.01 + 0.12 * i, 0.0, SIZE) for i in range(200))


def test_the_limit_holds_under_codel_too() -> None:
    process = Bottleneck(RATE, queue_packets=5, discipline="codel").process()
    leaves = [process.enter(0.0, 0.0, SIZE) for _ in range(50)]
    assert sum(left is not None for left in leaves) == 6
