"""Link profiles as TOML files: quantities with units, and a source for every group of values.

    title = "A long link"

    [both.delay]
    one_way = "20 ms"
    jitter = "2 ms"
    source = "assumed"

    [down.loss]
    model = "gilbert-elliott-time"
    mean_loss = "2 %"
    mean_bad = "100 ms"
    source = "a paper"

Groups are `delay`, `loss`, `bottleneck` and `faults`, for `up`, `down` or `both`; a group of one
direction replaces that of `both`. `delay = "20 ms"` and `loss = "2 %"` are short forms. A group
without a `source` of its own takes that of the table around it. A file that holds groups at its
top describes one direction: another file may name it (`up = "radio.toml"`), and read alone it
makes a link that is the same both ways. Paths are relative to the file in which they are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from terminal.arguments import did_you_mean
from topologies.profile import Direction, LinkProfile, ProfileError, Rebind
from topologies.profile_groups import GROUPS, Group, direction_from, fail, text_of
from topologies.quantities import seconds, size
from topologies.toml_lines import Keys, TomlError, TomlFile

FOLDER = Path(__file__).parent / "profiles"

_LINK = ("name", "title", "source", "mtu", "rebind", "both", "up", "down")
_DIRECTION = ("name", "title", "source", *GROUPS)

Groups = dict[str, Group]


def names() -> list[str]:
    """The profiles that ship with the testbed."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def named(name: str) -> LinkProfile:
    """One of them. Raises ProfileError."""
    if name not in names():
        meant = did_you_mean(name, names()) or f"; known are {', '.join(names())}"
        raise ProfileError(f"no link profile {name!r}{meant}")
    return load(FOLDER / f"{name}.toml")


def title(name: str) -> str:
    """What a named profile is, in a line."""
    return str(_open(FOLDER / f"{name}.toml").data.get("title", ""))


def find(spec: str) -> LinkProfile:
    """The profile of that name, or that of the file `spec`. Raises ProfileError."""
    if spec in names():
        return named(spec)
    if not spec.endswith(".toml"):
        known = ", ".join(names())
        raise ProfileError(f"no link profile {spec!r}: use {known}, or a .toml file")
    return load(Path(spec))


def load(path: Path | str) -> LinkProfile:
    """Read a profile file.

    Raises ProfileError: one line with the file and the number of the line at fault.
    """
    file = _open(Path(path))
    own_source = _text(file, "source")
    rebind = None
    if any(key in file.data for key in GROUPS):
        ways = dict.fromkeys(("up", "down"), _groups(file, (), file.data, own_source, _DIRECTION))
    else:
        for key in file.data:
            if key not in _LINK:
                known = ", ".join(dict.fromkeys((*_LINK, *GROUPS)))
                raise fail(file, (key,), f"unknown key {key!r}; known are {known}")
        ways = {way: _way(file, way, own_source) for way in ("up", "down")}
        rebind = _rebind(file, own_source)
    mtu = _mtu(file, own_source)
    up, down = (direction_from(ways[way]) for way in ("up", "down"))
    try:
        return LinkProfile(
            name=_text(file, "name") or file.path.stem,
            up=up,
            down=down,
            source=_sources(file, ways, {"rebind": rebind, "mtu": mtu}, own_source),
            mtu=mtu[0] if mtu else None,
            rebind=rebind[0] if rebind else None,
        )
    except ProfileError as error:
        raise fail(file, (str(error).split()[0],), str(error)) from None


def load_direction(path: Path | str) -> Direction:
    """Read a file that describes one direction. Raises ProfileError, as `load` does."""
    return direction_from(_direction_file(Path(path)))


def _open(path: Path) -> TomlFile:
    try:
        return TomlFile(path)
    except TomlError as error:
        raise ProfileError(str(error)) from None


def _text(file: TomlFile, key: str) -> str | None:
    return text_of(file, (key,), file.data[key]) if key in file.data else None


def _way(file: TomlFile, way: str, source: str | None) -> Groups:
    """The groups of one direction: those of `both`, replaced by its own."""
    groups: Groups = {}
    for key in ("both", way):
        if key not in file.data:
            continue
        value = file.data[key]
        if isinstance(value, str):
            groups |= _direction_file(_included(file, key, value))
        elif isinstance(value, dict):
            groups |= _groups(file, (key,), value, source, ("source", *GROUPS))
        else:
            raise fail(file, (key,), f"{key} must be a table or the name of a file, not {value!r}")
    return groups


def _included(file: TomlFile, key: str, name: str) -> Path:
    path = file.path.parent / name
    if not path.is_file():
        raise fail(file, (key,), f"{key}: there is no file {path}")
    return path


def _direction_file(path: Path) -> Groups:
    file = _open(path)
    return _groups(file, (), file.data, _text(file, "source"), _DIRECTION)


def _groups(
    file: TomlFile, place: Keys, table: dict[str, Any], source: str | None, known: tuple[str, ...]
) -> Groups:
    if "source" in table:
        source = text_of(file, (*place, "source"), table["source"])
    groups = {}
    for key, value in table.items():
        keys = (*place, key)
        if key not in known:
            raise fail(file, keys, f"unknown key {key!r}; known are {', '.join(known)}")
        if key in GROUPS:
            groups[key] = Group.read(file, keys, value, source)
    return groups


def _mtu(file: TomlFile, source: str | None) -> tuple[int, str] | None:
    if "mtu" not in file.data:
        return None
    group = Group.read(file, ("mtu",), file.data["mtu"], source, short="bytes")
    group.check(("bytes",))
    return group.value("bytes", size), group.source


def _rebind(file: TomlFile, source: str | None) -> tuple[Rebind, str] | None:
    if "rebind" not in file.data:
        return None
    group = Group.read(file, ("rebind",), file.data["rebind"], source)
    group.check(("at", "every"))
    every = group.value("every", seconds) if "every" in group.values else None
    at = group.value("at", seconds)
    return group.made(lambda: Rebind(at, every)), group.source


def _sources(
    file: TomlFile,
    ways: Mapping[str, Groups],
    others: Mapping[str, tuple[Any, str] | None],
    own_source: str | None,
) -> str:
    """Where all numbers come from, in one text: each source once, with the groups it covers."""
    covers: dict[str, list[str]] = {}
    up, down = ways["up"], ways["down"]
    for name in GROUPS:
        if name in up and name in down and up[name].source == down[name].source:
            covers.setdefault(up[name].source, []).append(name)
            continue
        for way, groups in ways.items():
            if name in groups:
                covers.setdefault(groups[name].source, []).append(f"{way} {name}")
    for name, other in others.items():
        if other is not None:
            covers.setdefault(other[1], []).append(name)
    if len(covers) > 1:
        return "; ".join(f"{', '.join(names)}: {source}" for source, names in covers.items())
    source = next(iter(covers), own_source)
    if source is None:
        raise fail(file, (), 'there is no source: say where this comes from, or "assumed"')
    return source
