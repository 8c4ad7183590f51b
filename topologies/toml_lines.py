"""TOML files whose keys know their lines, for errors that say where they are."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from topologies import text_file

Keys = tuple[str | int, ...]
"""The way to a value: names of tables and keys, numbers of the tables in an array."""

_KEY = re.compile(r"""[ \t]*("(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[A-Za-z0-9_-]+)[ \t]*""")
_VALUE = re.compile(
    r"""
    (?P<text>\"{3}(?:\\.|[^\\])*?\"{3,5} | '{3}.*?'{3,5} | "(?:[^"\\\n]|\\.)*" | '[^'\n]*')
    | (?P<comment>\#[^\n]*)
    | (?P<open>[\[{])
    | (?P<close>[\]}])
    | (?P<end>\n)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")


class TomlError(ValueError):
    """A file cannot be read, or is no TOML; one line with file and, where there is one, line."""


class TomlFile:
    """A TOML file, read whole; ``raw`` are its bytes.

    What TOML allows and no file of ours can mean is refused here: numbers that are not finite, and
    NUL characters, which neither a program's arguments nor the names of files may hold.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.raw = text_file.read(path)
            text = text_file.decode(self.raw)
        except text_file.TextFileError as error:
            raise TomlError(f"cannot read {path}: {error}") from None
        try:
            self.data: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise TomlError(_placed(path, text, str(error))) from None
        except (RecursionError, ValueError) as error:  # brackets, or digits, by the thousand
            raise TomlError(f"{path}:1: this is no TOML: {error}") from None
        self._lines = key_lines(text)
        for keys, value in _leaves((), self.data):
            if isinstance(value, float) and not math.isfinite(value):
                raise TomlError(
                    f"{self.place(keys)}: {_dotted(keys)} must be a finite number, not {value}"
                )
            if isinstance(value, str) and "\0" in value:
                raise TomlError(
                    f"{self.place(keys)}: {_dotted(keys)} must not hold a NUL character: "
                    f"{value[:60]!r}"
                )

    def place(self, keys: Keys) -> str:
        """`file:line` of a value, or of the nearest table around it that the file names."""
        while keys and keys not in self._lines:
            keys = keys[:-1]
        return f"{self.path}:{self._lines.get(keys, 1)}"


def _leaves(keys: Keys, value: Any) -> Iterator[tuple[Keys, Any]]:
    """All names of keys, and all values that are no tables and no arrays."""
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
        yield from (((*keys, name), name) for name in value)
    elif isinstance(value, list):
        inner = enumerate(value)
    else:
        yield keys, value
    for name, each in inner:
        yield from _leaves((*keys, name), each)


def _dotted(keys: Keys) -> str:
    return repr(".".join(str(key) for key in keys)).strip("'")


def _placed(path: Path, text: str, message: str) -> str:
    """tomllib's message, its line moved to where all our errors have it."""
    found = re.fullmatch(r"(.*) \(at line (\d+), column \d+\)", message)
    if found:
        return f"{path}:{found[2]}: this is no TOML: {found[1]}"
    last = max(1, len(text.splitlines()))
    return f"{path}:{last}: this is no TOML: {message.removesuffix(' (at end of document)')}"


def key_lines(text: str) -> dict[Keys, int]:
    """The line of each table and key of a valid TOML text; of keys on one line, that line."""
    lines: dict[Keys, int] = {}
    arrays: dict[Keys, int] = {}
    table: Keys = ()
    at = 0
    while True:
        at = _after_blank(text, at)
        if at == len(text):
            return lines
        line = text.count("\n", 0, at) + 1
        brackets = len(text[at : at + 2]) - len(text[at : at + 2].lstrip("["))
        names, at = _keys(text, at + brackets)
        if brackets:
            table = _resolved(names, arrays)
            if brackets == 2:
                lines.setdefault(table, line)
                arrays[table] = arrays.get(table, -1) + 1
                table = (*table, arrays[table])
            keys = table
        else:
            keys = (*table, *names)
        for length in range(1, len(keys) + 1):
            lines.setdefault(keys[:length], line)
        at = _after_value(text, at)


def _after_blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    assert found is not None  # it matches nothing, too
    return found.end()


def _keys(text: str, at: int) -> tuple[Keys, int]:
    """A dotted key, and where it ends."""
    names: list[str] = []
    while True:
        found = _KEY.match(text, at)
        assert found is not None, "the text is no valid TOML"
        name = found[1]
        names.append(tomllib.loads(f"k = {name}")["k"] if name[0] in "\"'" else name)
        at = found.end()
        if text[at : at + 1] != ".":
            return tuple(names), at
        at += 1


def _resolved(names: Keys, arrays: dict[Keys, int]) -> Keys:
    """The way of a table's header: through an array it leads to the latest table in it."""
    way: Keys = ()
    for position, name in enumerate(names):
        way = (*way, name)
        if way in arrays and position < len(names) - 1:
            way = (*way, arrays[way])
    return way


def _after_value(text: str, at: int) -> int:
    """The end of the line on which a value, or a header, ends."""
    depth = 0
    for found in _VALUE.finditer(text, at):
        if found["open"]:
            depth += 1
        elif found["close"]:
            depth -= 1
        elif found["end"] and depth <= 0:
            return found.end()
    return len(text)
