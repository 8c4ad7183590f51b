"""The engine of the user-space link: frames in, fates drawn, frames out when they are due."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import os
import select
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from topologies.channel import DIRECTIONS, Channel
from topologies.channel.replay import FATE_COLUMNS, ReplayChannel
from topologies.nat import Nat
from topologies.tap import MAX_FRAME, Timer

_IPV4 = b"\x08\x00"
_ETHERNET = 14  # bytes of header
_BATCH = 64  # frames read at once, before the other direction and the due frames have their turn


@dataclass
class Counts:
    """Frames of one direction: what came in, and what became of it.

    `delivered` includes the `corrupt` ones; `copies` come on top. See channel.replay.FATE_COLUMNS.
    """

    received: int = 0
    delivered: int = 0
    lost: int = 0
    queue: int = 0
    mtu: int = 0
    nat: int = 0
    corrupt: int = 0
    copies: int = 0
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


class _Frame(NamedTuple):
    """A frame on its way. `order` keeps frames that are due at the same time in their order."""

    due: float
    order: int
    direction: int
    number: int
    entered: float
    fate: str
    flip: float | None
    data: bytes


class Forwarder:
    """Two devices joined by two channels, up (from the first to the second) and down.

    Args:
        devices: file descriptors; a read is one Ethernet frame, a write sends one.
        channels: up and down.
        nat: translates what enters, if there is one.
    """

    def __init__(
        self,
        devices: tuple[int, int],
        channels: tuple[Channel, Channel],
        nat: Nat | None = None,
    ) -> None:
        self._devices = devices
        self._drawn = channels
        self._channels: tuple[Channel | ReplayChannel, Channel | ReplayChannel] = channels
        self._nat = nat
        self._poll = select.epoll()
        self._timer = Timer()
        self._armed: float | None = None
        self._watched: dict[int, Callable[[], None]] = {}
        self._heap: list[_Frame] = []
        self._order = itertools.count()
        self._fates: TextIO | None = None
        self._running = True
        self._forget()
        self.watch(self._timer.fileno(), self._tick)
        for direction, fd in enumerate(devices):
            self.watch(fd, functools.partial(self._receive, direction))

    def _forget(self) -> None:
        self._counts = (Counts(), Counts())
        self._numbers = [0, 0]
        self._first = next(self._order)  # frames before it belong to an earlier seed
        self._lateness = Lateness()

    # What the control side may ask.

    def seed(self, seed: int) -> None:
        """Start the random streams anew; no epoch, all counters at 0 (frames in flight stay)."""
        self._channels = self._drawn
        self._start(seed)

    def replay(self, channels: tuple[ReplayChannel, ReplayChannel]) -> None:
        """Repeat recorded fates, from the first frame on, until the next seed."""
        self._channels = channels
        self._start(0)

    def _start(self, seed: int) -> None:
        for channel in self._channels:
            channel.seed(seed)
        if self._nat:
            self._nat.reset()
        self._forget()
        self.flush()

    def set_epoch(self, epoch: float | None) -> None:
        """Channel time 0 on CLOCK_MONOTONIC; None stops the channel's clock."""
        for channel in self._channels:
            channel.epoch = epoch

    def record_fates(self, path: Path | None) -> None:
        """Write a line (channel.replay.FATE_COLUMNS) for each frame from now on; None ends it."""
        if self._fates:
            for frame in sorted(self._heap):  # still on their way
                self._log_frame(frame, None)
            self._fates.close()
            self._fates = None
        if path is not None:
            self._fates = path.open("w", buffering=1 << 20)
            self._fates.write(",".join(FATE_COLUMNS) + "\n")

    def stats(self) -> dict[str, Any]:
        """Counts of both directions and the lateness, since the last seed.

        `beyond`: frames after the end of a fate log that is replayed.
        """
        self.flush()
        counts = zip(DIRECTIONS, self._counts, strict=True)
        replayed = [c for c in self._channels if isinstance(c, ReplayChannel)]
        return {name: asdict(count) for name, count in counts} | {
            "lateness": self._lateness.summary(),
            "beyond": sum(channel.beyond for channel in replayed),
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
        device = self._devices[direction]
        read, monotonic, enter = os.read, time.monotonic, self._enter
        for _ in range(_BATCH):
            try:
                frame = read(device, MAX_FRAME)
            except BlockingIOError:
                return
            except OSError:
                self.unwatch(device)  # the device was deleted
                return
            enter(direction, frame, monotonic())

    def _enter(self, direction: int, frame: bytes, now: float) -> None:
        """Draw the fate of a frame."""
        channel, counts = self._channels[direction], self._counts[direction]
        counts.received += 1
        if frame[12:14] != _IPV4:
            self._push(channel.exempt(now), direction, 0, now, "exempt", None, frame)
            return
        if self._nat:
            t = -math.inf if channel.epoch is None else now - channel.epoch
            translated = self._nat.translate(frame, DIRECTIONS[direction], t)
            if translated is None:
                counts.nat += 1
                self._log(0, now, direction, len(frame), "nat", now, None, None)
                return
            frame = translated
        self._numbers[direction] += 1
        number = self._numbers[direction]
        lost, due, reason, copy_due, flip = channel.fate(now, len(frame))
        if lost:
            setattr(counts, reason, getattr(counts, reason) + 1)
            self._log(number, now, direction, len(frame), reason, due, None, None)
            return
        fate, sent = "ok", frame
        if flip is not None:
            fate, sent = "corrupt", _inverted(frame, flip)
        self._push(due, direction, number, now, fate, flip, sent)
        if copy_due is not None:
            self._push(copy_due, direction, number, now, "copy", None, frame)

    def _push(
        self,
        due: float,
        direction: int,
        number: int,
        entered: float,
        fate: str,
        flip: float | None,
        data: bytes,
    ) -> None:
        order = next(self._order)
        frame = _Frame(due, order, direction, number, entered, fate, flip, data)
        heapq.heappush(self._heap, frame)

    def _deliver(self) -> None:
        heap, monotonic = self._heap, time.monotonic
        while heap:
            now = monotonic()
            if heap[0].due > now:
                if self._armed != heap[0].due:
                    self._armed = heap[0].due
                    self._timer.set(self._armed)
                return
            self._write(heapq.heappop(heap), now)

    def _write(self, frame: _Frame, now: float) -> None:
        # What entered before the last seed was not counted there, and is not counted here.
        counts = self._counts[frame.direction] if frame.order >= self._first else Counts()
        fate = frame.fate
        written: float | None = now
        try:
            os.write(self._devices[1 - frame.direction], frame.data)
        except OSError:
            # A copy stays one in the log: it must not be taken for its frame.
            fate, written = fate if fate == "copy" else "dropped", None
            counts.dropped += 1
        else:
            if fate == "copy":
                counts.copies += 1
            else:
                counts.delivered += 1
                counts.corrupt += fate == "corrupt"
        self._lateness.add(now - frame.due)
        self._log_frame(frame._replace(fate=fate), written)

    def _log_frame(self, frame: _Frame, written: float | None) -> None:
        due, order, direction, number, entered, fate, flip, data = frame
        if order >= self._first:
            self._log(number, entered, direction, len(data), fate, due, written, flip)

    def _log(
        self,
        number: int,
        entered: float,
        direction: int,
        size: int,
        fate: str,
        due: float,
        written: float | None,
        flip: float | None,
    ) -> None:
        if self._fates:
            end = "" if written is None else f"{written:.6f}"
            place = "" if flip is None else repr(flip)
            self._fates.write(
                f"{number},{entered:.9f},{DIRECTIONS[direction]},{size},{fate},{due:.9f},{end},"
                f"{place}\n"
            )


def _inverted(frame: bytes, share: float) -> bytes:
    """The frame with one bit of its IP packet inverted; the receiver's checksum must catch it."""
    bit = 8 * _ETHERNET + int(share * 8 * (len(frame) - _ETHERNET))
    changed = bytearray(frame)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
