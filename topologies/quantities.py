"""Quantities as people write them: "20 ms", "10 Mbit/s", "2 %", "25 packets". Numbers are SI."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple

_FORM = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*")
_TIMES = {"s": "1", "ms": "1e-3", "us": "1e-6", "µs": "1e-6", "min": "60"}
_RATES = {"bit/s": "1", "kbit/s": "1e3", "Mbit/s": "1e6", "Gbit/s": "1e9"}
_SHARES = {"%": "1e-2"}
_SIZES = {"B": "1", "kB": "1e3", "MB": "1e6", "KiB": "1024", "MiB": "1048576"}
_COUNTS = {"packets": "1", "packet": "1"}


class QuantityError(ValueError):
    """What is written is no such quantity; the message is one line without the place."""


class Queue(NamedTuple):
    """The length of a queue, in one of the two."""

    packets: int | None = None
    size: int | None = None


def seconds(value: Any) -> float:
    """A time, such as "20 ms"."""
    return _quantity(value, _TIMES, "20 ms")


def bits_per_second(value: Any) -> float:
    """A rate, such as "10 Mbit/s"."""
    return _quantity(value, _RATES, "10 Mbit/s")


def share(value: Any) -> float:
    """A part of 1, such as "2 %"."""
    return _quantity(value, _SHARES, "2 %")


def number(value: Any) -> float:
    """A number without a unit."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise QuantityError(f"must be a number without a unit, not {value!r}")
    return _finite(value, value)


def size(value: Any) -> int:
    """Whole bytes, such as "64 kB"."""
    return _whole(_quantity(value, _SIZES, "64 kB"), value)


def queue(value: Any) -> Queue:
    """The length of a queue: "25 packets" or "64 kB"; a number alone says neither."""
    if not isinstance(value, str):
        raise QuantityError(f'must say its unit, as in "25 packets" or "64 kB", not {value!r}')
    count = _quantity(value, _COUNTS | _SIZES, "25 packets")
    whole = _whole(count, value)
    return Queue(packets=whole) if value.rstrip().endswith(tuple(_COUNTS)) else Queue(size=whole)


def _whole(count: float, value: Any) -> int:
    if count != int(count):
        raise QuantityError(f"must be a whole number, not {value!r}")
    return int(count)


def _quantity(value: Any, units: Mapping[str, str], example: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(value, value)
    found = _FORM.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise QuantityError(f'must be a number or a text such as "{example}", not {value!r}')
    digits, unit = found.groups()
    known = ", ".join(units)
    if not unit:
        raise QuantityError(f"has no unit: {value!r}; known are {known}")
    if unit not in units:
        raise QuantityError(f"has an unknown unit, {unit!r}; known are {known}")
    try:
        # In decimals: 18 * 0.001 is not 0.018 in binary fractions.
        return _finite(float(Decimal(digits) * Decimal(units[unit])), value)
    except ArithmeticError:  # an exponent beyond those of Decimal
        raise QuantityError(f"is out of range: {value!r}") from None


def _finite(number: float, value: Any) -> float:
    """The number itself, if a float can hold it: whole numbers of TOML may be of any length."""
    try:
        if math.isfinite(number):
            return number
    except OverflowError:
        value = f"{str(value)[:20]}..."
    raise QuantityError(f"is out of range: {value!r}")
