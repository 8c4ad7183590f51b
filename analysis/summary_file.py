"""Reading a summary.csv, also one that a spreadsheet has saved.

A spreadsheet may separate by semicolons or tabs, write decimal commas, a byte order mark and other
line ends, move columns and add its own. That says the same, and is read. Where a value is no
number any more, or may be one of two, the error names its line and column.
"""

from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.summary import LABEL_COLUMNS, MEASURES, SUMMARY_COLUMNS
from terminal.arguments import did_you_mean

NEEDED = ("scenario", "scheme", "run")
"""Columns without which rows say nothing."""
_WHOLE = ("run", "seed", "tokens", "tokens_lost", "datagrams", "wire_bytes", "payload_bytes")
_UNKNOWN = {"", "nan", "na", "n/a", "#n/a", "none", "null"}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf", re.IGNORECASE)
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")


class SummaryFileError(ValueError):
    """The file is no summary; the message is one line with its place."""


def read_summary(text: str, path: Path) -> pd.DataFrame:
    """The rows of a file's text. Raises SummaryFileError, whose line names the path."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub(r"\Asep=.\n", "", text)  # Excel's own first line
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    try:
        lines = csv.reader(io.StringIO(text), delimiter=separator, strict=True)
        header = [name.strip() for name in next(lines, [])]
        rows = [(lines.line_num, row) for row in lines if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise SummaryFileError(f"{path} is no table: {error}") from None
    _check_header(header, path)
    columns: dict[str, list[Any]] = {name: [] for name in header if name}
    for line, row in rows:
        if any(cell.strip() for cell in row[len(header) :]):
            raise SummaryFileError(
                f"{path} is no table: line {line} has {len(row)} values for {len(header)} columns"
            )
        cells = dict(zip(header, [*row, *[""] * len(header)], strict=False))
        for name, values in columns.items():
            where = f"{path}, line {line}: {name}"
            values.append(_value(name, cells[name].strip(), separator, where))
    table = pd.DataFrame({name: _column(name, values) for name, values in columns.items()})
    return table if len(table) else pd.DataFrame(columns=list(columns))


def _check_header(header: list[str], path: Path) -> None:
    for name in NEEDED:
        if name not in header:
            known = ", ".join(filter(None, header[:6])) or "none"
            meant = (
                did_you_mean(name, set(header) - set(SUMMARY_COLUMNS)) or f"; the first are {known}"
            )
            raise SummaryFileError(f"{path} has no column {name!r}{meant}")
    for name in SUMMARY_COLUMNS:
        if header.count(name) > 1:
            raise SummaryFileError(f"{path} has the column {name!r} twice")


def _value(name: str, cell: str, separator: str, where: str) -> Any:
    if name in ("scheme", "run") and cell == "":
        raise SummaryFileError(f"{where} is empty")
    if name not in MEASURES and name not in ("run", "seed"):
        return cell or math.nan
    if cell.lower() in _UNKNOWN:
        return math.nan
    if name == "seed":
        # A number in few digits would pair runs that met other moments.
        if re.fullmatch(r"-?\d+", cell) is None:
            raise SummaryFileError(f"{where} is {cell!r}, no whole number with all its digits")
        return int(cell)
    number = cell.replace(",", ".") if cell.count(",") == 1 and "." not in cell else cell
    if separator == "," and _THOUSANDS.fullmatch(cell):
        raise SummaryFileError(
            f"{where} is {cell!r}: is the comma a decimal one? Write it with a point, or none"
        )
    if _NUMBER.fullmatch(number) is None:
        raise SummaryFileError(f"{where} is {cell!r}, no number: did a spreadsheet change it?")
    value = float(number)
    if math.isinf(value) and "inf" not in cell.lower():
        raise SummaryFileError(f"{where} is {cell!r}, which no measure can be")
    if name in _WHOLE and not value.is_integer():
        raise SummaryFileError(f"{where} is {cell!r}, no whole number")
    return int(value) if name in _WHOLE else value


def _column(name: str, values: list[Any]) -> pd.Series[Any]:
    column = pd.Series(values)
    if name in MEASURES:
        return column.astype("float64") if column.isna().any() else column
    if name not in LABEL_COLUMNS:  # a reader's own
        try:
            return pd.to_numeric(column)
        except ValueError:
            return column
    return column
