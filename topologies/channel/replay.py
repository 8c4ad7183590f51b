"""A channel that repeats recorded fates: frame n of a direction meets what frame n met."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from .channel import Fate
from .loss import DIRECTIONS
from .randomness import ChannelError

FATE_COLUMNS = ("number", "time", "direction", "size", "fate", "due", "written", "flip")
"""Columns of a fate log (CSV), a line per frame. `number` counts the frames of a direction since
the link was seeded, from 1; times in seconds of CLOCK_MONOTONIC; `size` of the Ethernet frame in
bytes; `written` is empty for frames that were not. `fate` is `ok`; `copy` (of the frame with the
same number); `corrupt` (delivered with one bit inverted, at the share `flip` of its length);
`exempt` (not IPv4: never lost); `lost` (by the loss model), `queue`, `mtu`, `nat`; or `dropped`
(unintended)."""

_REASONS = ("lost", "queue", "mtu")
_FATES = ("ok", "copy", "corrupt", "exempt", "nat", "dropped", *_REASONS)


class ReplayChannel:
    """The fates of one direction, in the place of a `Channel`.

    Frames after the last recorded one meet the last fate that was a delivery; `beyond` counts them.
    """

    def __init__(self, fates: Sequence[Fate]) -> None:
        """`fates` have times of delay, not moments."""
        self._fates = fates
        self._usual = next((f.due for f in reversed(fates) if not f.lost), 0.0)
        self.epoch: float | None = None
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Start again with the first frame; nothing is drawn, so the seed is of no use."""
        self._next = 0
        self.beyond = 0
        self.epoch = None

    def fate(self, now: float, size: int = 0) -> Fate:
        """The recorded fate of the next frame."""
        if self._next >= len(self._fates):
            self.beyond += 1
            return Fate(False, now + self._usual)
        lost, delay, reason, copy, flip = self._fates[self._next]
        self._next += 1
        return Fate(lost, now + delay, reason, None if copy is None else now + copy, flip)

    def exempt(self, now: float) -> float:
        """When a frame is due that is never lost."""
        return now + self._usual


def read_fates(path: Path) -> tuple[ReplayChannel, ReplayChannel]:
    """The channels up and down from a fate log. Raises ChannelError with file and line."""
    recorded: dict[str, dict[int, Fate]] = {direction: {} for direction in DIRECTIONS}
    copies: dict[tuple[str, int], float] = {}
    try:
        with path.open(newline="") as lines:
            reader = csv.DictReader(lines)
            if tuple(reader.fieldnames or ()) != FATE_COLUMNS:
                raise ChannelError(f"{path}:1: this is no fate log: {','.join(FATE_COLUMNS)}")
            for row in reader:
                _take(row, recorded, copies)
    except (OSError, UnicodeDecodeError) as error:
        raise ChannelError(f"cannot read the fate log {path}: {error}") from None
    except (csv.Error, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ChannelError):
            raise
        raise ChannelError(f"{path}:{reader.line_num}: not a line of a fate log") from None
    up, down = (_channel(path, name, recorded[name], copies) for name in DIRECTIONS)
    return up, down


def _take(
    row: dict[str, str],
    recorded: dict[str, dict[int, Fate]],
    copies: dict[tuple[str, int], float],
) -> None:
    direction, fate, number = row["direction"], row["fate"], int(row["number"])
    delay = float(row["due"]) - float(row["time"])
    flip = float(row["flip"]) if row["flip"] else None
    known = direction in DIRECTIONS and fate in _FATES
    whole = None not in row and None not in row.values()
    if not (known and whole and 0 <= delay < math.inf and 0 <= (flip or 0.0) < 1):
        raise ValueError
    if fate in ("exempt", "nat"):
        return
    if number < 1 or (fate != "copy" and number in recorded[direction]):
        raise ValueError
    if fate == "copy":
        copies[direction, number] = delay
        return
    lost = fate in _REASONS
    recorded[direction][number] = Fate(lost, delay, fate if lost else "", None, flip)


def _channel(
    path: Path, direction: str, fates: dict[int, Fate], copies: dict[tuple[str, int], float]
) -> ReplayChannel:
    # Lines come in the order in which frames left; numbers say in which they came.
    missing = set(range(1, len(fates) + 1)) - set(fates)
    if missing:
        raise ChannelError(f"{path}: frame {min(missing)} {direction} is missing")
    return ReplayChannel(
        [fates[n]._replace(copy_due=copies.get((direction, n))) for n in sorted(fates)]
    )
