"""Trace files: numbers in columns, read whole, errors with file and line."""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Iterator
from pathlib import Path

from .randomness import ChannelError


def named(file: object) -> Path:
    """The path of a trace. Raises ChannelError if it is no text."""
    if not isinstance(file, str):
        raise ChannelError(f"file must be the name of a trace, not {file!r}")
    return Path(file)


def rows(path: Path, columns: int) -> Iterator[tuple[str, list[str]]]:
    """Each row of a CSV file with its place ("file:line"). Raises ChannelError.

    Blank lines and # comments are left out, and in files of several columns a first line with
    their names.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ChannelError(f"cannot read the trace {path}: {reason}") from None
    found = 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"{path}:{number}"
        try:
            fields = [field.strip() for field in next(csv.reader([line]))]
        except csv.Error as error:
            raise ChannelError(f"{where}: {error}") from None
        found += 1
        if found == 1 and columns > 1 and fields[0].isidentifier() and not _numeric(fields[0]):
            continue
        if len(fields) != columns:
            raise ChannelError(f"{where}: {columns} fields expected, not {line.strip()!r}")
        yield where, fields


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
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_fingerprint(path: Path, expected: str) -> str:
    """The file's fingerprint. Raises ChannelError when another one was recorded."""
    seen = fingerprint(path)
    if expected and seen != expected:
        raise ChannelError(f"the trace {path} has changed: SHA-256 {seen}, recorded {expected}")
    return seen
