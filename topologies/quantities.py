"""Quantities as people write them: "20 ms", "10 Mbit/s", "2 %", "25 packets". Numbers are SI.

Values of profile files go through the functions, options of commands through a ``Kind``: there a
bare number is in the option's own unit, and one that was probably meant in another is refused.
"""

from __future__ import annotations

import argparse
import decimal
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

from terminal.arguments import did_you_mean

_FORM = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*")
_TIMES = {"s": "1", "ms": "1e-3", "us": "1e-6", "µs": "1e-6", "min": "60"}
_RATES = {"bit/s": "1", "kbit/s": "1e3", "Mbit/s": "1e6", "Gbit/s": "1e9"}
_SHARES = {"%": "1e-2"}
_SIZES = {
    "B": "1",
    "kB": "1e3",
    "MB": "1e6",
    "GB": "1e9",
    "KiB": "1024",
    "MiB": "1048576",
    "GiB": "1073741824",
}
_COUNTS = {"packets": "1", "packet": "1"}
#: A bare time that is so many times the usual one was probably meant in milliseconds.
_TOO_MUCH = 50


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


@dataclass(frozen=True)
class Kind:
    """What an option takes: ``units`` it may be written in, ``unit`` that of a bare number.

    A value counts in ``unit`` (SI without one) and lies from ``low`` to ``high``, or below ``high``
    with ``below``. ``instead`` is the unit that a bare number which is too large was meant in.
    """

    what: str
    example: str
    units: Mapping[str, str] = field(hash=False)
    unit: str = ""
    low: float = 0.0
    high: float = math.inf
    below: bool = False
    whole: bool = False
    instead: str = ""

    @property
    def metavar(self) -> str:
        """What the help calls a value."""
        return self.what.split()[-1].upper()

    def option(self, usual: float | None = None) -> Callable[[str], float]:
        """Reads the words of a command line, for argparse's ``type``; ``usual`` as in ``read``."""

        def convert(text: str) -> float:
            try:
                return self.read(text, usual)
            except QuantityError as error:
                raise argparse.ArgumentTypeError(str(error)) from None

        return convert

    def read(self, text: str, usual: float | None = None) -> float:
        """The value of a text, in ``unit``. Raises QuantityError.

        ``usual``: a value of the size that is expected. A bare number far above it is refused.
        """
        found = _FORM.fullmatch(text)
        digits, unit = found.groups() if found else ("", "")
        if not digits or unit.startswith(","):
            raise QuantityError(f"{text!r} is no {self.what}{self._meant(text)}")
        if unit and unit not in self.units:
            known = ", ".join(self.units) or "none, a plain number"
            near = did_you_mean(unit, self.units)
            raise QuantityError(f"{text!r} has an unknown unit, {unit!r}; known are {known}{near}")
        try:
            value = float(Decimal(digits) * self._factor(unit) / self._factor(""))
        except decimal.DecimalException:
            value = math.inf
        if not unit and self._suspicious(value, usual):
            digits = digits.removeprefix("+")
            insist = f" If not, write {digits}{self.unit}" if self.high > value else ""
            raise QuantityError(
                f"{digits} is {self.show(value)}: did you mean {digits}{self.instead}?{insist}"
            )
        self._check(value, text)
        return value

    def write(self, value: float) -> str:
        """A value as a text that `read` takes without a question."""
        return f"{value!r}{self.unit}"

    def show(self, value: float) -> str:
        """A value for a person to read."""
        if self.instead == "%":
            return f"{100 * value:g}%"
        if self.instead == "ms" and 0 < value < 1:
            return f"{1e3 * value:g} ms"
        return f"{value:.10g} {self.unit}".rstrip()

    def _factor(self, unit: str) -> Decimal:
        unit = unit or self.unit
        return Decimal(self.units[unit]) if unit else Decimal(1)

    def _suspicious(self, value: float, usual: float | None) -> bool:
        if self.instead == "%":
            return 1 <= value < 100
        return bool(self.instead and usual) and value >= _TOO_MUCH * (usual or 0.0)

    def _check(self, value: float, text: str) -> None:
        if value < self.low:
            raise QuantityError(f"{text!r} is too little: at least {self.show(self.low)}")
        if value > self.high or (self.below and value == self.high) or math.isinf(value):
            limit = "below" if self.below else "at most"
            raise QuantityError(f"{text!r} is too much: {limit} {self.show(self.high)}")
        if self.whole and value != int(value):
            raise QuantityError(f"{text!r} is no whole number")

    def _meant(self, text: str) -> str:
        pointed = text.replace(",", ".")
        if pointed != text and _FORM.fullmatch(pointed):
            return f": did you mean {pointed}?"
        return f": write it as {self.example}"


TIME = Kind("time", "20ms or 0.5", _TIMES, "s", high=1e6, instead="ms")
SHARE = Kind("share", "10% or 0.1", _SHARES, high=1.0, below=True, instead="%")
MEGABITS = Kind("rate", "2Mbit/s or 2", _RATES, "Mbit/s", high=1e6)
KILOBITS = Kind("rate", "50kbit/s or 50", _RATES, "kbit/s", high=1e9)
BYTES = Kind("size", "64kB or 64000", _SIZES, "B", high=2**62, whole=True)
MEBIBYTES = Kind("size", "2GiB or 2048", _SIZES, "MiB", high=2**42)
PACKETS = Kind("number", "50 or 50packets", _COUNTS, "packets", high=2**53, whole=True)
COUNT = Kind("number", "3", {}, high=2**53, whole=True)
ANY = Kind(
    "number",
    "0.1, 10% or 20ms",
    _TIMES | _RATES | _SHARES | _SIZES | _COUNTS,
    low=-math.inf,
)
"""Of a parameter whose kind nobody has said: any unit, in SI."""

Seconds = Annotated[float, TIME]
Share = Annotated[float, SHARE]
Megabits = Annotated[float, MEGABITS]
Kilobits = Annotated[float, KILOBITS]
Packets = Annotated[float, PACKETS]
Count = Annotated[float, COUNT]


def at_least(kind: Kind, low: float) -> Kind:
    """The same kind with another lower limit."""
    return replace(kind, low=low)
