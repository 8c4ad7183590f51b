"""TOML files whose keys know their lines, for errors that say where they are."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

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
    """A TOML file, read whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            text = path.read_text()
        except OSError as error:
            raise TomlError(f"cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise TomlError(f"cannot read {path}: it is no text in UTF-8") from None
        try:
            self.data: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise TomlError(_placed(path, text, str(error))) from None
        self._lines = key_lines(text)

    def place(self, keys: Keys) -> str:
        """`file:line` of a value, or of the nearest table around it that the file names."""
        while keys and keys not in self._lines:
            keys = keys[:-1]
        return f"{self.path}:{self._lines.get(keys, 1)}"


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
