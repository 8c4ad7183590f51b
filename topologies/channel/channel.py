"""One direction of a link at work."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

from .bottleneck import Bottleneck
from .delay import DelayModel
from .loss import LossModel
from .randomness import check_number, subseed


class Fate(NamedTuple):
    """What happens to a frame.

    `due` is when it leaves, or would have left had it not been lost. `reason` of a loss: `lost`
    (the loss model), `queue` (the bottleneck's queue) or `mtu`. `copy_due` is when its duplicate
    leaves. `flip` in [0, 1) says where one of its bits is inverted, as a share of its length.
    """

    lost: bool
    due: float
    reason: str = ""
    copy_due: float | None = None
    flip: float | None = None


class Channel:
    """One direction of a link at work: first the bottleneck, then losses on the air, then delay.

    `now` may be any clock in seconds; `epoch` is the moment on that clock at which channel time
    is 0, or None while the channel's clock has not started. Before the epoch, and without one,
    frames are delayed but models in time lose nothing; other losses apply always.
    """

    def __init__(
        self,
        delay: DelayModel,
        loss: LossModel | None,
        link: str,
        direction: str,
        seed: int = 0,
        *,
        bottleneck: Bottleneck | None = None,
        duplicate: float = 0.0,
        corrupt: float = 0.0,
        mtu: int | None = None,
    ) -> None:
        check_number("duplicate", duplicate, 0, 1)
        check_number("corrupt", corrupt, 0, 1)
        self.link, self.direction = link, direction
        self._delay_model, self._loss_model, self._bottleneck_model = delay, loss, bottleneck
        self._duplicate, self._corrupt = duplicate, corrupt
        self._longest = math.inf if mtu is None else mtu + 14  # the Ethernet header
        self._reorder = delay.reorder
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Start all random streams anew, forget the epoch and what waits in the queue."""

        def stream(purpose: str) -> random.Random:
            return random.Random(subseed(seed, self.link, self.direction, purpose))

        self.epoch: float | None = None
        self._delays = self._delay_model.process(stream)
        self._losses = self._loss_model.process(stream) if self._loss_model else None
        model = self._bottleneck_model
        self._bottleneck = model.process() if model else None
        self._copies, self._flips = stream("duplicate"), stream("corrupt")
        self._last_due = -math.inf

    def fate(self, now: float, size: int = 0) -> Fate:
        """Draw the fate of a frame of `size` bytes (Ethernet header included) that enters now."""
        zero = self.epoch
        if size > self._longest:
            return Fate(True, now, "mtu")
        leaves = now
        if self._bottleneck is not None:
            left = self._bottleneck.enter(now, zero or 0.0, size)
            if left is None:
                return Fate(True, now, "queue")
            leaves = left
        t = -math.inf if zero is None else leaves - zero
        # The delay is drawn for lost frames too: frame n has the same jitter under every loss.
        due = leaves + self._delays.delay_at(t)
        if not self._reorder and due < self._last_due:
            due = self._last_due
        if self._losses is not None and self._losses.lost(t):
            return Fate(True, due, "lost")
        self._last_due = due
        if not (self._duplicate or self._corrupt):
            return Fate(False, due)
        flip = copy_due = None
        if self._corrupt:
            drawn, where = self._flips.random(), self._flips.random()
            flip = where if drawn < self._corrupt else None
        if self._duplicate and self._copies.random() < self._duplicate:
            copy_due = leaves + self._delays.delay_at(t)
            if not self._reorder:
                copy_due = self._last_due = max(copy_due, due)
        return Fate(False, due, "", copy_due, flip)

    def exempt(self, now: float) -> float:
        """When a frame is due that is never lost (ARP): the mean delay, without any draw."""
        due = now + self._delay_model.mean_delay
        if not self._reorder:
            due = self._last_due = max(due, self._last_due)
        return due

    def loss_at(self, t: float) -> float:
        """The probability that a frame on the air at channel time `t` is lost."""
        return self._losses.loss_at(t) if self._losses else 0.0

    def next_change(self, t: float) -> float:
        """The first channel time after `t` at which `loss_at` changes; inf for never."""
        return self._losses.next_change(t) if self._losses else math.inf

    def outages(self, t0: float, t1: float) -> list[tuple[float, float]]:
        """The bad spells in channel time [t0, t1), each (start, end)."""
        return self._losses.outages(t0, t1) if self._losses else []
