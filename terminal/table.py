"""Tables for a terminal: no number, name or header is ever cut.

A table that is too wide has its headers wrapped, then its columns are laid out in several parts
one below the other, each beginning with the key columns; and where not even that is readable, each
row becomes a block of `label: value`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from terminal.text import plain, visible

GAP = "  "
_NARROWEST = 20
"""Columns that prose is given at least."""
_HEADER, _HEADER_LINES = 6, 3
"""Columns of a header that are not worth a line break, and most of its lines."""
_INDENT = "    "


@dataclass
class Column:
    """One column: its header (lines are separated by newlines) and the cells, each of lines."""

    header: str
    justify: Literal["left", "right"] = "left"
    key: bool = False
    prose: bool = False
    sparse: bool = False
    cells: list[list[str]] = field(default_factory=list)


@dataclass
class Table:
    """Rows and columns of text. Cells are shown as they are: nothing in them is markup.

    `title` and `caption` stand above and below it, wrapped to its width.
    """

    title: str | Sequence[str] = ""
    caption: str = ""
    columns: list[Column] = field(default_factory=list)
    _sections: set[int] = field(default_factory=set)

    def add_column(
        self,
        header: str,
        *,
        justify: Literal["left", "right"] = "left",
        key: bool = False,
        prose: bool = False,
        sparse: bool = False,
    ) -> None:
        """One more column.

        `key`: it says what the row is about. `prose`: its words may be wrapped. `sparse`: where
        rows stand one below the other, what the row above has as well is left out.
        """
        self.columns.append(Column(header, justify, key, prose, sparse))

    def add_row(self, *cells: str | Sequence[str]) -> None:
        """One more row: a text for each column, or several, one below the other."""
        for column, cell in zip(self.columns, cells, strict=True):
            column.cells.append([cell] if isinstance(cell, str) else list(cell))

    def add_section(self) -> None:
        """An empty line before the next row."""
        self._sections.add(self.row_count)

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return len(self.columns[0].cells) if self.columns else 0

    def lines(self, width: int, encoding: str = "utf-8") -> list[tuple[str, bool]]:
        """What to print in `width` columns: lines, and whether each is a heading."""
        columns = [_shown(column, encoding) for column in self.columns]
        parts = _parts(columns, width)
        body: list[tuple[str, bool]] = []
        if parts:
            for number, part in enumerate(parts):
                body += [("", False)] if number else []
                body += _grid(part, _widths(part, width), plain("─", encoding), self._sections)
        else:
            body = [(line, False) for line in _blocks(columns, width)]
            body += [("", False)] if self.caption else []
        across = min(width, max([80, *(cell_len(line) for line, _ in body)]))
        titles = [self.title] if isinstance(self.title, str) else self.title
        title = [
            line
            for each in titles
            for line in _wrapped(_words(plain(visible(each), encoding)), across)
        ]
        caption = _wrapped(_words(plain(visible(self.caption), encoding)), across)
        return [
            *((line, True) for line in title),
            *body,
            *((line, False) for line in caption),
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        for line, heading in self.lines(options.max_width, options.encoding):
            yield Text(line, "bold" if heading else "", no_wrap=True, overflow="ignore", end="\n")


def _shown(column: Column, encoding: str) -> Column:
    header = plain(visible(column.header, keep="\n"), encoding)
    cells = [[plain(visible(line), encoding) for line in cell] for cell in column.cells]
    return replace(column, header=header, cells=cells)


def _parts(columns: list[Column], width: int) -> list[list[Column]]:
    """The columns that stand side by side; nothing where blocks are better."""
    if _fits(columns, width):
        return [columns]
    columns = [_with_wrapped_header(column) for column in columns]
    if _fits(columns, width):
        return [columns]
    keys = [column for column in columns if column.key] or columns[:1]
    others = [column for column in columns if not any(column is key for key in keys)]
    named = _total([_least(column) for column in keys])
    # Of a line that is mostly names, or of many parts, nobody finds what belongs together.
    if any(column.prose or not _fits([*keys, column], width) for column in others):
        return []
    parts: list[list[Column]] = []
    for column in others:
        if parts and _fits([*parts[-1], column], width):
            parts[-1].append(column)
        else:
            parts.append([*keys, column])
    return parts if 2 * named <= width or (4 * named <= 3 * width and len(parts) <= 3) else []


def _fits(columns: list[Column], width: int) -> bool:
    return _total([_least(column) for column in columns]) <= width


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _natural(column: Column) -> int:
    lines = [line for cell in column.cells for line in cell]
    return max(map(cell_len, [*column.header.split("\n"), *lines]), default=0)


def _least(column: Column) -> int:
    if not column.prose:
        return _natural(column)
    words = [word for cell in column.cells for line in cell for word in _words(line)]
    longest = max(map(cell_len, [*column.header.split("\n"), *words]), default=0)
    return max(longest, min(_NARROWEST, _natural(column)))


def _widths(columns: list[Column], width: int) -> list[int]:
    """The width of each column; prose shares what the others leave."""
    widths = [_least(column) for column in columns]
    spare = width - _total(widths)
    wanting = [n for n, column in enumerate(columns) if column.prose]
    while spare > 0 and wanting:
        share = max(1, spare // len(wanting))
        for n in list(wanting):
            more = min(share, _natural(columns[n]) - widths[n], spare)
            widths[n] += more
            spare -= more
            if widths[n] >= _natural(columns[n]):
                wanting.remove(n)
    return widths


def _with_wrapped_header(column: Column) -> Column:
    """The header in up to three lines, as narrow as its cells allow."""
    words = _label(column).split()
    lines = [line for cell in column.cells for line in cell]
    narrowest = max([_HEADER, *map(cell_len, lines), *map(cell_len, words)])
    for room in range(narrowest, _natural(column)):
        wrapped = _wrapped(words, room)
        if len(wrapped) <= _HEADER_LINES:
            return replace(column, header="\n".join(wrapped))
    return column


def _label(column: Column) -> str:
    """The header on one line."""
    return " ".join(column.header.replace("/\n", "/").replace("-\n", "").split())


def _grid(
    columns: list[Column], widths: list[int], rule: str, sections: set[int]
) -> Iterator[tuple[str, bool]]:
    headers = [column.header.split("\n") for column in columns]
    height = max(map(len, headers))
    for n in range(height):  # the last lines of all headers stand on the rule
        texts = [["", *header][max(0, n + 1 - height + len(header))] for header in headers]
        yield _row(texts, columns, widths), True
    yield rule * _total(widths), False
    for row in range(len(columns[0].cells)):
        if row in sections and row:
            yield "", False
        cells = [_cell(column, row, width) for column, width in zip(columns, widths, strict=True)]
        for n in range(max(1, *map(len, cells))):
            texts = [cell[n] if n < len(cell) else "" for cell in cells]
            yield _row(texts, columns, widths), False


def _cell(column: Column, row: int, width: int) -> list[str]:
    cell = column.cells[row]
    if column.sparse and row and cell == column.cells[row - 1]:
        return []
    if not column.prose:
        return cell
    return [piece for line in cell for piece in _wrapped(_words(line), width)]


def _row(texts: list[str], columns: list[Column], widths: list[int]) -> str:
    padded = []
    for text, column, width in zip(texts, columns, widths, strict=True):
        space = " " * (width - cell_len(text))
        padded.append(space + text if column.justify == "right" else text + space)
    return GAP.join(padded).rstrip()


def _blocks(columns: list[Column], width: int) -> Iterator[str]:
    """Each row: its key columns at the margin, below them the others, as many as fit on a line."""
    keys = [column for column in columns if column.key] or columns[:1]
    others = [column for column in columns if not any(column is key for key in keys)]
    rows = len(columns[0].cells) if columns else 0
    for n in range(rows):
        if n:
            yield ""
        yield from _flowing([_pair(column, n) for column in keys], width, "")
        yield from _flowing([_pair(column, n) for column in others], width, _INDENT)


def _pair(column: Column, n: int) -> list[str]:
    """The words of `label: value`; only prose may be broken within its value."""
    label, value = _label(column), "; ".join(column.cells[n])
    if not value:
        return []
    values = _words(value) if column.prose else [value]
    return [*f"{label}:".split(), *values] if label else values


def _flowing(pairs: list[list[str]], width: int, indent: str) -> Iterator[str]:
    room, line = width - len(indent), ""
    for pair in filter(None, pairs):
        longer = GAP.join(filter(None, (line, " ".join(pair))))
        if line and cell_len(longer) > room:
            yield indent + line
            longer = " ".join(pair)
        line = longer
        if cell_len(line) > room:
            *whole, line = _wrapped(pair, room)
            yield from (indent + piece for piece in whole)
    if line:
        yield indent + line


def _words(text: str) -> list[str]:
    """Where a line may be broken: at spaces, but not between a number and its unit."""
    return [word for word in re.split(r"(?<!\d) +", text) if word]


def _wrapped(words: list[str], width: int) -> list[str]:
    """Lines of whole words; a word that is too long has a line of its own."""
    lines: list[str] = []
    for word in words:
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
