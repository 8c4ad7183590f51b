"""Tables at every width: nothing is cut, and what comes from outside is shown as it is."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from terminal.table import Table

NUMBERS = ("3.0 ± 2.5 (6)", "62.0 [-1, 92]", "1.7%", "61/112/212", "373", "23/136", "2.23", "155")
HEADERS = (
    *("stall %\n(runs)", "below tcp, %\n[95% int.]", "gaps >\n200 ms", "gap P50/P95/P99", "TTFT"),
    *("delay\nP50/P95", "pkts/\ntoken", "bytes/\ntoken"),
)
OUTSIDE = ("client[lte].pcap", "/b].pcap", "[fd00::1]:443", "2001:db8:100:a::2", "[red]", ":smile:")


def table(*rows: str) -> Table:
    made = Table("mean ± 95% interval over runs; times in ms", "a caption of some words")
    made.add_column("scheme", key=True)
    for header in HEADERS:
        made.add_column(header, justify="right")
    for name in rows:
        made.add_row(name, *NUMBERS)
    return made


def text(made: Table, width: int, encoding: str = "utf-8") -> str:
    return "\n".join(line for line, _ in made.lines(width, encoding))


def test_where_it_fits_it_is_one_table() -> None:
    lines = text(table("eloquent"), 120).splitlines()
    assert len(lines) == 1 + 2 + 1 + 1 + 1
    assert lines[4].split()[0] == "eloquent" and lines[4].endswith("155")
    assert lines[2].split() == [
        *("scheme", "(runs)", "[95%", "int.]", "200", "ms", "gap", "P50/P95/P99", "TTFT"),
        *("P50/P95", "token", "token"),
    ]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120, 10_000])
def test_every_number_and_every_header_is_whole(width: int) -> None:
    shown = text(table("eloquent", "tcp"), width)
    for number in NUMBERS:
        assert len(re.findall(rf"(?<![\w.]){re.escape(number)}(?![\w.])", shown)) >= 2
    assert "…" not in shown
    for word in " ".join(HEADERS).split():
        assert word.rstrip("/") in shown
    if width >= 60:
        assert max(map(cell_len, shown.splitlines())) <= width


def test_at_80_columns_the_rest_stands_below_with_the_names_again() -> None:
    lines = text(table("eloquent", "tcp"), 80).splitlines()
    assert sum(line.startswith("eloquent ") for line in lines) == 2
    assert sum(line.startswith("─") for line in lines) == 2


def test_long_names_make_blocks() -> None:
    made = Table()
    for header in ("client", "server"):
        made.add_column(header, key=True)
    for header in ("segments", "bytes"):
        made.add_column(header, justify="right")
    made.add_row("[2001:db8:100:a::2]:60000", "[fd00::1]:443", "84", "123456")
    lines = text(made, 40).splitlines()
    assert lines == [
        "client: [2001:db8:100:a::2]:60000",
        "server: [fd00::1]:443",
        "    segments: 84  bytes: 123456",
    ]


def test_prose_is_wrapped_between_words_but_no_number_leaves_its_unit() -> None:
    made = Table()
    made.add_column("profile", key=True)
    made.add_column("its numbers", prose=True)
    made.add_row("lte", "24.5 ms, 5.74% lost (outages of 650 ms), up 10.6 Mbit/s, down 27 Mbit/s")
    shown = text(made, 40)
    assert max(map(len, shown.splitlines())) <= 40
    for number in ("24.5 ms", "650 ms", "10.6 Mbit/s", "27 Mbit/s"):
        assert number in shown


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("width", [40, 200])
def test_nothing_from_outside_is_markup(name: str, width: int) -> None:
    made = Table(name, name)
    for key in (True, False):
        made.add_column(name, key=key)
    made.add_row(name, name)
    out = io.StringIO()
    Console(file=out, width=width).print(made)  # with markup and emoji on, as rich has it
    assert out.getvalue().count(name) >= 6


def test_control_characters_do_not_reach_the_terminal() -> None:
    made = Table("t\x1b[2Jitle")
    made.add_column("na\tme")
    made.add_row("a\nb\x1b]0;owned\x07\u202egpj.exe\udcff")
    shown = text(made, 80)
    assert r"a\nb\x1b]0;owned\x07\u202egpj.exe\xff" in shown and r"t\x1b[2Jitle" in shown
    assert shown.replace("\n", "").isprintable()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_columns_stand_below_each_other_in_every_encoding(encoding: str) -> None:
    lines = text(table("eloquent", "tcp"), 120, encoding).splitlines()
    assert all(line.encode(encoding) for line in lines)
    assert set(lines[3]) == {"-"}
    assert len(lines[4]) == len(lines[5]) == len(lines[3])


def test_wide_characters_take_two_columns() -> None:
    made = Table()
    made.add_column("name")
    made.add_column("n", justify="right")
    made.add_row("中文.pcap", "1")
    made.add_row("a.pcap", "22")
    lines = text(made, 80).splitlines()
    assert {cell_len(line) for line in lines[2:]} == {cell_len("中文.pcap") + 2 + 2}


def test_sparse_names_and_sections() -> None:
    made = Table()
    made.add_column("scheme", key=True, sparse=True)
    made.add_column("n", justify="right")
    for scheme, n in (("a", "1"), ("a", "2"), ("b", "3")):
        if scheme == "b":
            made.add_section()
        made.add_row(scheme, n)
    assert text(made, 80).splitlines()[2:] == ["a       1", "        2", "", "b       3"]
    made.add_column("a long header of a long name", justify="right")
    for cells in ("1", "2", "3"):
        made.columns[-1].cells.append([20 * cells])
    assert "scheme: a\n    n: 2\n" in text(made, 20)  # a block needs its name


CELLS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30)


@given(
    rows=st.lists(st.lists(CELLS, min_size=6, max_size=6), min_size=1, max_size=4),
    width=st.integers(1, 200),
)
def test_whatever_the_cells_and_the_width_all_of_it_is_there(
    rows: list[list[str]], width: int
) -> None:
    made = Table()
    for n in range(6):
        made.add_column(f"h{n}", key=n < 2)
    for row in rows:
        made.add_row(*row)
    words = text(made, width).split()
    for row in rows:
        for cell in row:
            assert cell in words
