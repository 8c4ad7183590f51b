"""Quantities of options: what is read, and what is refused with what was probably meant."""

from __future__ import annotations

import argparse
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.quantities import (
    ANY,
    BYTES,
    COUNT,
    KILOBITS,
    MEBIBYTES,
    MEGABITS,
    PACKETS,
    SHARE,
    TIME,
    Kind,
    QuantityError,
)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (TIME, "100ms", 0.1),
        (TIME, "0.1", 0.1),
        (TIME, " 18 ms ", 0.018),  # 18 * 0.001 is not 0.018 in binary fractions
        (TIME, "100s", 100.0),
        (TIME, "2min", 120.0),
        (TIME, "50us", 50e-6),
        (TIME, "0", 0.0),
        (TIME, "+.5", 0.5),
        (SHARE, "10%", 0.1),
        (SHARE, "10 %", 0.1),
        (SHARE, "0.1", 0.1),
        (SHARE, "0", 0.0),
        (MEGABITS, "2", 2.0),
        (MEGABITS, "500kbit/s", 0.5),
        (KILOBITS, "0.05 Mbit/s", 50.0),
        (PACKETS, "50 packets", 50.0),
        (COUNT, "4", 4.0),
        (BYTES, "64kB", 64000.0),
        (MEBIBYTES, "2GiB", 2048.0),
        (ANY, "-3", -3.0),
        (ANY, "50ms", 0.05),
        (ANY, "5%", 0.05),
    ],
)
def test_what_is_read(kind: Kind, text: str, value: float) -> None:
    assert kind.read(text, 0.1) == value


@pytest.mark.parametrize(
    ("kind", "text", "line"),
    [
        (TIME, "100", "100 is 100 s: did you mean 100ms? If not, write 100s"),
        (TIME, "5", "5 is 5 s: did you mean 5ms? If not, write 5s"),
        (TIME, "-1", "'-1' is too little: at least 0 s"),
        (TIME, "2000000s", "'2000000s' is too much: at most 1000000 s"),
        (TIME, "1e999999999s", "'1e999999999s' is too much: at most 1000000 s"),
        (TIME, "nan", "'nan' is no time: write it as 20ms or 0.5"),
        (TIME, "", "'' is no time: write it as 20ms or 0.5"),
        (TIME, "0,1", "'0,1' is no time: did you mean 0.1?"),
        (SHARE, "10", "10 is 1000%: did you mean 10%?"),
        (SHARE, "1", "1 is 100%: did you mean 1%?"),
        (SHARE, "100%", "'100%' is too much: below 100%"),
        (SHARE, "150", "'150' is too much: below 100%"),
        (SHARE, "5ms", "'5ms' has an unknown unit, 'ms'; known are %"),
        (COUNT, "2.5", "'2.5' is no whole number"),
        (COUNT, "4%", "'4%' has an unknown unit, '%'; known are none, a plain number"),
        (MEGABITS, "1e300", "'1e300' is too much: at most 1000000 Mbit/s"),
    ],
)
def test_what_is_refused(kind: Kind, text: str, line: str) -> None:
    with pytest.raises(QuantityError) as caught:
        kind.read(text, 0.1)
    assert str(caught.value) == line
    with pytest.raises(argparse.ArgumentTypeError) as told:
        kind.option(0.1)(text)
    assert str(told.value) == line


def test_a_long_time_is_no_mistake_where_long_times_are_usual() -> None:
    assert TIME.read("100", usual=30.0) == 100.0
    assert TIME.read("100") == 100.0


@given(st.sampled_from([TIME, SHARE, MEGABITS, KILOBITS]), st.floats(0, 0.999))
def test_what_is_written_is_read_again(kind: Kind, value: float) -> None:
    assert kind.read(kind.write(value), 1e-9) == value


@given(st.text(max_size=12))
def test_any_text_is_a_number_or_one_line(text: str) -> None:
    for kind in (TIME, SHARE, COUNT, BYTES, ANY):
        line = ""
        try:
            assert math.isfinite(kind.read(text, 0.1))
        except QuantityError as error:
            line = str(error)
        assert len(line.splitlines()) <= 1
