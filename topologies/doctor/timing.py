"""How well this machine keeps time: the clock's steps, and how late a sleeper wakes up."""

from __future__ import annotations

import ctypes
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from topologies.doctor.check import Check
from topologies.tap import Timer

SLEEPS = 200
SLEEP = 0.001
GOOD_P99, BAD_P50 = 0.001, 0.001
"""Seconds. A round trip passes two links twice and may be 2 ms off before a run is refused."""

_CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_PR_SET_TIMERSLACK, _PR_GET_TIMERSLACK = 29, 30
_PRIORITY = 10
_WORST_STEP = 1e-6


@dataclass(frozen=True)
class Lateness:
    """Seconds by which sleepers woke up too late."""

    p50: float
    p99: float
    slack: float
    realtime: bool


def check_clock() -> Check:
    """The clock that every process of a run reads."""
    step = time.clock_getres(time.CLOCK_MONOTONIC)
    try:
        source = _CLOCK_SOURCE.read_text().strip()
    except OSError:
        source = "unknown"
    finding = f"the monotonic clock has steps of {1e9 * step:.0f} ns, source {source}"
    if step > _WORST_STEP:
        remedy = "boot with highres=on; use a machine with high-resolution timers"
        return Check("clock", "problem", finding, remedy)
    return Check("clock", "ok", finding)


def check_timers() -> Check:
    """Lateness of an ordinary process, and of one that wakes up as the links do."""
    return judge(measured(promptly=False), measured(promptly=True))


def judge(ordinary: Lateness, prompt: Lateness) -> Check:
    """The finding from both measurements; only the links' own counts."""
    finding = (
        f"{SLEEPS} sleeps of 1 ms end late by {_text(ordinary)} "
        f"(timer slack {1e6 * ordinary.slack:.0f} µs); as the links sleep, by {_text(prompt)}"
    )
    quiet = "stop other programs, give a virtual machine cores of its own, or --engine virtual"
    if prompt.p50 > BAD_P50:
        return Check("timers", "problem", finding, quiet)
    if prompt.p99 > GOOD_P99:
        return Check("timers", "note", finding, quiet)
    if not prompt.realtime:
        remedy = "run it with sudo; a container needs CAP_SYS_NICE"
        return Check("timers", "note", f"{finding}; no real-time priority", remedy)
    return Check("timers", "ok", finding)


def measured(*, promptly: bool) -> Lateness:
    """Sleep and see; `promptly` like the process of a link: see topologies.user_link."""
    found: list[Lateness] = []
    # Slack and priority belong to a thread: they go with it, and this process stays as it was.
    thread = threading.Thread(target=lambda: found.append(_measure(promptly)))
    thread.start()
    thread.join()
    return found[0]


def _measure(promptly: bool) -> Lateness:
    libc = ctypes.CDLL(None)
    realtime = False
    if promptly:
        libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        try:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
            realtime = True
        except OSError:
            pass
    wait, close = _waiter(promptly)
    late = []
    for _ in range(SLEEPS):
        due = time.monotonic() + SLEEP
        wait(due)
        late.append(time.monotonic() - due)
    close()
    late.sort()
    slack = libc.prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0) / 1e9
    return Lateness(late[SLEEPS // 2], late[SLEEPS * 99 // 100], slack, realtime)


def _waiter(promptly: bool) -> tuple[Callable[[float], None], Callable[[], None]]:
    """How to wait for a moment, and what to do afterwards."""
    if not promptly:
        return lambda due: time.sleep(max(0.0, due - time.monotonic())), lambda: None
    timer, poll = Timer(), select.epoll()
    poll.register(timer.fileno(), select.EPOLLIN)

    def wait(due: float) -> None:
        timer.set(due)
        poll.poll()
        timer.clear()

    def close() -> None:
        poll.close()
        timer.close()

    return wait, close


def _text(late: Lateness) -> str:
    return f"{1e3 * late.p50:.2f} ms (P50) and {1e3 * late.p99:.2f} ms (P99)"
