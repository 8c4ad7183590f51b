"""Seeds, random streams, and the check of parameters."""

from __future__ import annotations

import hashlib
import math
import random
import sys
from collections.abc import Callable

Stream = Callable[[str], random.Random]
"""From a purpose ("loss", "states", ...) to a random stream of its own."""


class ChannelError(ValueError):
    """A parameter of a channel model makes no sense."""


def subseed(seed: int, *names: str) -> int:
    """A 64-bit seed for one named purpose, independent of all other names of the same seed.

    It is a hash (SHA-256), so it is the same on every machine and every version of Python.
    """
    text = "/".join([str(seed), *names])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def exponential(draws: random.Random, mean: float) -> float:
    """Python promises the same random() in all versions, but not the same expovariate()."""
    return -mean * math.log(1.0 - draws.random())


def sequence(name: str, value: object) -> list[object] | tuple[object, ...]:
    """Raise ChannelError unless `value` is a list or a tuple."""
    if not isinstance(value, list | tuple):
        raise ChannelError(f"{name} must be a list, not {value!r}")
    return value


def check_number(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Raise ChannelError unless `value` is a finite number within [low, high]."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if known and low <= value <= high and value <= sys.float_info.max:
        return
    limits = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
    raise ChannelError(f"{name} must be a number {limits}, not {value!r}")
