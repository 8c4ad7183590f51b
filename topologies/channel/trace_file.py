"""Trace files: numbers in columns, read whole, errors with file and line."""

from __future__ import annotations

import csv
import hashlib
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from topologies import text_file

from .randomness import ChannelError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def named(file: object) -> Path:
    """The path of a trace. Raises ChannelError if it is no text."""
    if not isinstance(file, str):
        raise ChannelError(f"file must be the name of a trace, not {file!r}")
    return Path(file)


#: Lines of a trace. More of them take longer to read than a link may take to start.
MOST_LINES = 1_000_000
#: The same for a file of nothing but whole numbers, which numpy reads.
MOST_NUMBERS = 20_000_000


def rows(path: Path, columns: int, most: int = MOST_LINES) -> Iterator[tuple[str, list[str]]]:
    """Each row of a CSV file with its place ("file:line"). Raises ChannelError.

    Blank lines and # comments are left out, and in files of several columns a first line with
    their names.
    """
    raw = read(path)
    _check_lines(path, raw, most)
    found = 0
    for number, line in enumerate(text_file.lines(_text(path, raw)), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"{path}:{number}"
        try:
            fields = next(csv.reader([line])) if '"' in line else line.split(",")
            fields = [field.strip() for field in fields]
        except csv.Error as error:
            raise ChannelError(f"{where}: {error}") from None
        found += 1
        if found == 1 and columns > 1 and fields[0].isidentifier() and not _numeric(fields[0]):
            continue
        if len(fields) != columns:
            raise ChannelError(f"{where}: {columns} fields expected, not {line.strip()!r}")
        yield where, fields


def numbers(path: Path, name: str) -> NDArray[np.float64]:
    """The numbers of a file with one in each line, ``name`` being what they are.

    Raises ChannelError with file and line.
    """
    import numpy as np  # most links need none of it, and it takes a while

    raw = read(path)
    if raw.translate(None, b"0123456789\r\n"):
        return np.array([number(where, name, text) for where, (text,) in rows(path, 1)])
    _check_lines(path, raw, MOST_NUMBERS)
    found = np.fromstring(raw, dtype=np.float64, sep="\n") if raw.strip() else np.empty(0)
    if not np.isfinite(found).all():  # hundreds of digits
        place_of(path, int(np.flatnonzero(~np.isfinite(found))[0]), name)
    return found


def place_of(path: Path, index: int, name: str) -> str:
    """Where the number with that index stands. Raises ChannelError if it is none."""
    where, (text,) = next(itertools.islice(rows(path, 1, MOST_NUMBERS), index, None))
    number(where, name, text)
    return where


def _check_lines(path: Path, raw: bytes, most: int) -> None:
    count = raw.count(b"\n")
    if count > most:
        raise ChannelError(f"the trace {path} has {count:,} lines; at most {most:,} can be read")


def read(path: Path) -> bytes:
    """A trace as it lies there. Raises ChannelError."""
    try:
        return text_file.read(path)
    except text_file.TextFileError as error:
        raise ChannelError(f"cannot read the trace {path}: {error}") from None


def _text(path: Path, raw: bytes) -> str:
    try:
        return text_file.decode(raw)
    except text_file.TextFileError as error:
        raise ChannelError(f"cannot read the trace {path}: {error}") from None


def _numeric(text: str) -> bool:
    """Would float() take it? It takes the words nan and inf, too."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def number(where: str, name: str, text: str, low: float = 0.0) -> float:
    """A finite number of at least `low`. Raises ChannelError with its place."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= low):
        raise ChannelError(f"{where}: {name} must be a number of at least {low:g}, not {text!r}")
    return value


def fingerprint(path: Path) -> str:
    """SHA-256 of the file's bytes."""
    return hashlib.sha256(read(path)).hexdigest()


def check_fingerprint(path: Path, expected: str) -> str:
    """The file's fingerprint. Raises ChannelError when another one was recorded."""
    seen = fingerprint(path)
    if expected and seen != expected:
        raise ChannelError(f"the trace {path} has changed: SHA-256 {seen}, recorded {expected}")
    return seen
