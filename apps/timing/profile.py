"""Timing profiles as files: a shape, the values of its parameters, and where those come from.

A profile is TOML::

    title = "One token every 45 ms"
    kind = "steady"                      # a shape of apps/timing/shapes.py
    source = "what describes such a system"

    [parameters.spacing]
    value = 0.045
    assumption = "a pace at which ..."   # or: source = "paper, table"

with every parameter that the shape does not call optional.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from apps.sources import SourceError
from apps.timing.shapes import SHAPES, Parameter, Shape
from terminal.arguments import did_you_mean
from topologies import text_file

FOLDER = Path(__file__).parents[1] / "data" / "timing"
_SPEC = re.compile(r"(?P<name>.*?)(?P<settings>(?::[^:=]*=[^:]*)*)", re.DOTALL)
_AT_LINE = re.compile(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", re.DOTALL)


class TimingError(SourceError):
    """A timing profile cannot be used. The message is one line; of a file, it names the line."""


@dataclass(frozen=True)
class Profile:
    """A shape with its values, and what is known about them.

    ``parameters`` is for a reader: value, unit, meaning, and ``source`` or ``assumption`` by name.
    """

    name: str
    title: str
    source: str
    path: Path
    sha256: str
    shape: Shape
    parameters: dict[str, dict[str, object]]

    def to_dict(self) -> dict[str, object]:
        """As JSON data."""
        return {
            "profile": self.name,
            "title": self.title,
            "kind": self.shape.kind,
            "described_by": self.source,
            "path": str(self.path),
            "sha256": self.sha256,
            "parameters": self.parameters,
            "mean_spacing": self.shape.mean_spacing(),
        }


def names() -> list[str]:
    """The profiles that ship with the testbed."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(spec: str) -> Profile:
    """The profile that ``spec`` names: ``NAME`` or ``FILE.toml``, and ``:key=value`` after it.

    Raises:
        TimingError: no such profile or parameter, a value that cannot be, or a broken file.
    """
    match = _SPEC.fullmatch(spec)
    assert match is not None  # the name may be anything
    name, settings = match["name"], match["settings"]
    if name in names():
        file = _File(FOLDER / f"{name}.toml")
    elif name.endswith(".toml"):
        file = _File(Path(name))
    else:
        known = ", ".join(names())
        raise TimingError(
            f"unknown timing profile {name!r}: use {known} or a .toml file, and :key=value after "
            f"it{did_you_mean(name, names())}"
        )
    shape, about = SHAPES[file.kind], dict(file.about)
    values: dict[str, Any] = dict.fromkeys(shape.parameters()) | file.values
    given: set[str] = set()
    for setting in settings.split(":")[1:]:
        key, _, text = setting.partition("=")
        where = f"timing profile {name}, {setting!r}"
        if key not in shape.parameters():
            raise TimingError(f"{where}: no parameter {key!r}; {_known(shape)}")
        if key in given:
            raise TimingError(f"{where}: {key} is given twice")
        given.add(key)
        try:
            number: object = int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else float(text)
        except ValueError:
            number = text
        values[key] = _checked(key, number, shape.parameters()[key], where)
        about[key] = {"source": "the command line"}
    parameters: dict[str, dict[str, object]] = {
        key: {"value": values[key], "unit": p.unit, "meaning": p.meaning, **about.get(key, {})}
        for key, p in shape.parameters().items()
    }
    return Profile(
        name if file.path.parent == FOLDER else file.path.stem,
        file.title,
        file.source,
        file.path,
        file.sha256,
        shape(**values),
        parameters,
    )


def _known(shape: type[Shape]) -> str:
    return f"{shape.kind} knows {', '.join(shape.parameters())}"


def _checked(key: str, value: object, parameter: Parameter, where: str) -> float:
    low, high = parameter.low, parameter.high
    # Not a number (nan) is not between anything.
    if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
        if not parameter.whole:
            return value
        if value == int(value):
            return int(value)
    kind = "a whole number" if parameter.whole else "a number"
    unit = f" ({parameter.unit})" if parameter.unit != "1" else ""
    limits = f"from {low:g} to {high:g}{unit}"
    raise TimingError(f"{where}: {key} must be {kind} {limits}, not {value!r}")


class _File:
    """Reads and checks one profile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            raw = text_file.read(path)
            self._text = text_file.decode(raw)
        except text_file.TextFileError as error:
            raise TimingError(f"cannot read timing profile {path}: {error}") from None
        self.sha256 = hashlib.sha256(raw).hexdigest()
        try:
            data = tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            match = _AT_LINE.fullmatch(str(error))
            problem, number = (match[1], match[2]) if match else (str(error), None)
            self._fail(int(number or self._text.count("\n") + 1), f"not TOML: {problem}")
        except (RecursionError, ValueError) as error:  # brackets, or digits, by the thousand
            self._fail(1, f"not TOML: {error}")
        for key in data:
            if key not in ("title", "kind", "source", "parameters"):
                self._fail(
                    self._line(key),
                    f"unknown key {key!r}; known are title, kind, source, parameters",
                )
        self.title, self.kind = self._string(data, "title"), self._string(data, "kind")
        self.source = self._string(data, "source")
        if self.kind not in SHAPES:
            known = ", ".join(SHAPES)
            self._fail(self._line("kind"), f"unknown kind {self.kind!r}: use one of {known}")
        tables = data.get("parameters")
        if not isinstance(tables, dict):
            self._fail(self._line("parameters"), "there must be tables [parameters.NAME]")
        self.values: dict[str, float] = {}
        self.about: dict[str, dict[str, str]] = {}
        self._read_parameters(tables)

    def _read_parameters(self, tables: dict[str, Any]) -> None:
        shape = SHAPES[self.kind]
        for key, table in tables.items():
            line = self._line(key)
            if key not in shape.parameters():
                self._fail(line, f"no parameter {key!r}; {_known(shape)}")
            origin = set(table) - {"value"} if isinstance(table, dict) else set()
            if origin not in ({"source"}, {"assumption"}) or "value" not in table:
                self._fail(line, f"{key} needs a value, and either source or assumption")
            (kind,) = origin
            if not isinstance(table[kind], str) or not table[kind].strip():
                self._fail(line, f"{key}: {kind} must be a text, not {table[kind]!r}")
            where = f"timing profile {self.path}, line {line}"
            self.values[key] = _checked(key, table["value"], shape.parameters()[key], where)
            self.about[key] = {kind: table[kind]}
        for key, parameter in shape.parameters().items():
            if key not in tables and not parameter.optional:
                self._fail(self._line("parameters"), f"the parameter {key} is missing")

    def _string(self, data: dict[str, Any], key: str) -> str:
        if key not in data:
            self._fail(1, f"{key} is missing")
        value = data[key]
        if not isinstance(value, str) or not value.strip():
            self._fail(self._line(key), f"{key} must be a text, not {value!r}")
        return value

    def _line(self, key: str) -> int:
        """The first line that starts with ``key``, or with its table; the last one if none does.

        tomllib does not keep lines; this finds them in files written as usual.
        """
        start = re.compile(rf"\s*(\[?\s*parameters\s*\.\s*)?\[?\s*[\"']?{re.escape(key)}\b")
        lines = self._text.splitlines()
        found = (n for n, line in enumerate(lines, start=1) if start.match(line))
        return next(found, max(1, len(lines)))

    def _fail(self, line: int, problem: str) -> NoReturn:
        raise TimingError(f"timing profile {self.path}, line {line}: {problem}")
