"""The engine of the user-space link: frames in, fates drawn, frames out when they are due."""

from __future__ import annotations

import functools
import heapq
import itertools
import os
import select
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from topologies.channel import DIRECTIONS, Channel
from topologies.tap import MAX_FRAME, Timer

FATE_COLUMNS = ("time", "direction", "size", "fate", "due", "written")
"""Columns of a fate log (CSV). Times in seconds of CLOCK_MONOTONIC; size of the Ethernet frame in
bytes; fate is `ok`, `lost` (by the model) or `dropped` (unintended); a lost one was not written."""

_IPV4 = b"\x08\x00"
_BATCH = 64  # frames read at once, before the other direction and the due frames have their turn


@dataclass
class Counts:
    """Frames of one direction: what came in, and what became of it."""

    received: int = 0
    delivered: int = 0
    lost: int = 0
    dropped: int = 0


class Lateness:
    """How much later than due frames were written: counted in steps of 10 µs."""

    _STEP, _STEPS = 1e-5, 10_000

    def __init__(self) -> None:
        self._counts = [0] * (self._STEPS + 1)
        self._n = 0
        self._max = 0.0

    def add(self, seconds: float) -> None:
        """Count one frame."""
        self._counts[min(int(seconds / self._STEP), self._STEPS)] += 1
        self._n += 1
        self._max = max(self._max, seconds)

    def quantile(self, q: float) -> float:
        """The q-quantile in seconds, rounded up to the next step; 0 without frames."""
        wanted, seen = q * self._n, 0
        for step, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return min((step + 1) * self._STEP, self._max) if step < self._STEPS else self._max
        return 0.0

    def summary(self) -> dict[str, float]:
        """Number of frames, P50, P99 and maximum in seconds."""
        return {
            "count": self._n,
            "p50": self.quantile(0.5),
            "p99": self.quantile(0.99),
            "max": self._max,
        }


class Forwarder:
    """Two devices joined by two channels, up (from the first to the second) and down.

    Args:
        devices: file descriptors; a read is one Ethernet frame, a write sends one.
        channels: up and down.
    """

    def __init__(self, devices: tuple[int, int], channels: tuple[Channel, Channel]) -> None:
        self._devices = devices
        self._channels = channels
        self._poll = select.epoll()
        self._timer = Timer()
        self._armed: float | None = None
        self._watched: dict[int, Callable[[], None]] = {}
        # (due, number, direction, entered, counts, frame); the number keeps equal times in order.
        self._heap: list[tuple[float, int, int, float, Counts, bytes]] = []
        self._numbers = itertools.count()
        self._fates: TextIO | None = None
        self._running = True
        self._forget()
        self.watch(self._timer.fileno(), self._tick)
        for direction, fd in enumerate(devices):
            self.watch(fd, functools.partial(self._receive, direction))

    def _forget(self) -> None:
        self._counts = (Counts(), Counts())
        self._lateness = Lateness()

    # What the control side may ask.

    def seed(self, seed: int) -> None:
        """Start the random streams anew; no epoch, all counters at 0 (frames in flight stay)."""
        for channel in self._channels:
            channel.seed(seed)
        self._forget()
        self.flush()

    def set_epoch(self, epoch: float | None) -> None:
        """Channel time 0 on CLOCK_MONOTONIC; None stops the channel's clock."""
        for channel in self._channels:
            channel.epoch = epoch

    def record_fates(self, path: Path | None) -> None:
        """Write a line for each frame from now on (see FATE_COLUMNS); None ends it."""
        if self._fates:
            self._fates.close()
            self._fates = None
        if path is not None:
            self._fates = path.open("w", buffering=1 << 20)
            self._fates.write(",".join(FATE_COLUMNS) + "\n")

    def stats(self) -> dict[str, Any]:
        """Counts of both directions and the lateness, since the last seed."""
        self.flush()
        counts = zip(DIRECTIONS, self._counts, strict=True)
        return {name: asdict(count) for name, count in counts} | {
            "lateness": self._lateness.summary()
        }

    def flush(self) -> None:
        """Write what the fate log still holds in memory."""
        if self._fates:
            self._fates.flush()

    # The loop.

    def watch(self, fd: int, ready: Callable[[], None]) -> None:
        """Call `ready` whenever `fd` is readable."""
        self._watched[fd] = ready
        self._poll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """Forget about `fd`."""
        if self._watched.pop(fd, None):
            self._poll.unregister(fd)

    def stop(self) -> None:
        """Leave `run` at the next turn."""
        self._running = False

    def run(self) -> None:
        """Forward until `stop` is called."""
        try:
            while self._running:
                for fd, _events in self._poll.poll():
                    if fd in self._watched:
                        self._watched[fd]()
                self._deliver()
        finally:
            self.record_fates(None)

    def _tick(self) -> None:
        self._timer.clear()
        self._armed = None

    def _receive(self, direction: int) -> None:
        device, channel = self._devices[direction], self._channels[direction]
        counts = self._counts[direction]
        read, monotonic, heap = os.read, time.monotonic, self._heap
        for _ in range(_BATCH):
            try:
                frame = read(device, MAX_FRAME)
            except BlockingIOError:
                return
            except OSError:
                self.unwatch(device)  # the device was deleted
                return
            now = monotonic()
            counts.received += 1
            if frame[12:14] == _IPV4:
                lost, due, *_ = channel.fate(now, len(frame))
                if lost:
                    counts.lost += 1
                    self._log(now, direction, frame, "lost", due, None)
                    continue
            else:
                due = channel.exempt(now)
            heapq.heappush(heap, (due, next(self._numbers), direction, now, counts, frame))

    def _deliver(self) -> None:
        heap, monotonic, write = self._heap, time.monotonic, os.write
        while heap:
            now = monotonic()
            if heap[0][0] > now:
                if self._armed != heap[0][0]:
                    self._armed = heap[0][0]
                    self._timer.set(self._armed)
                return
            due, _, direction, entered, counts, frame = heapq.heappop(heap)
            fate = "ok"
            try:
                write(self._devices[1 - direction], frame)
                counts.delivered += 1
            except OSError:
                fate = "dropped"
                counts.dropped += 1
            self._lateness.add(now - due)
            self._log(entered, direction, frame, fate, due, now)

    def _log(
        self,
        entered: float,
        direction: int,
        frame: bytes,
        fate: str,
        due: float,
        written: float | None,
    ) -> None:
        if self._fates:
            end = "" if written is None else f"{written:.6f}"
            name = DIRECTIONS[direction]
            self._fates.write(f"{entered:.6f},{name},{len(frame)},{fate},{due:.6f},{end}\n")
