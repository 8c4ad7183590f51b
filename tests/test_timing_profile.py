"""Timing profiles as files and on the command line: what is wrong is named in one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from apps.sources import SourceError, open_source
from apps.timing import TimingError, TimingSource, names
from apps.timing.profile import FOLDER, load
from apps.timing.shapes import SHAPES

GOOD = """\
title = "mine"
kind = "steady"
source = "nobody"

[parameters.first]
value = 0
assumption = "a"

[parameters.spacing]
value = 0.02
source = "b"

[parameters.per_step]
value = 2
assumption = "c"
"""


def _message(spec: str) -> str:
    with pytest.raises(SourceError) as error:
        open_source(f"timing:{spec}")
    assert isinstance(error.value, TimingError)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_a_profile_of_one_s_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    source = open_source(f"timing:{path}:spacing=0.5")
    assert isinstance(source, TimingSource)
    assert [at for at, _ in source.schedule("", 5)[0]] == [0, 0, 0.5, 0.5, 1.0]
    about = source.describe()
    assert (about["profile"], about["path"]) == ("mine", str(path))
    assert source.name == "timing profile mine"
    assert source.profile.parameters["per_step"]["assumption"] == "c"
    assert source.profile.parameters["spacing"]["source"] == "the command line"


def test_inline_tables_are_the_same_toml(tmp_path: Path) -> None:
    path = tmp_path / "inline.toml"
    path.write_text(
        'title = "t"\nkind = "steady"\nsource = "s"\n[parameters]\n'
        'first = { value = 0.1, source = "s" }\n'
        'spacing = { value = 0.02, source = "s" }\n'
        'per_step = { value = 0, source = "s" }\n'
    )
    assert f"{path}, line 7: per_step must be a whole number from 1" in _message(str(path))


@pytest.mark.parametrize("name", names())
def test_shipped_profiles_say_where_each_number_comes_from(name: str) -> None:
    text = (FOLDER / f"{name}.toml").read_text()
    profile = load(name)
    for key, parameter in profile.parameters.items():
        if key != "tokens":
            origin = parameter.get("source") or parameter.get("assumption")
            assert isinstance(origin, str)
            assert len(origin) > 5
    assert re.search(r"arXiv \d{4}\.\d{5}|openai\.com", text) or name == "steady"


BROKEN = {
    "no TOML": ("spacing]", "spacing", 9, "not TOML"),
    "an unfinished text": ('"c"', '"c', 15, "not TOML"),
    "the same table twice": ("[parameters.spacing]", "[parameters.first]", 9, "not TOML"),
    "an unknown key": ('source = "nobody"', 'sauce = "nobody"', 3, "unknown key 'sauce'"),
    "no title": ('title = "mine"', "", 1, "title is missing"),
    "no source": ('source = "nobody"', "", 1, "source is missing"),
    "an empty source": ('"nobody"', '" "', 3, "source must be a text"),
    "a number as title": ('title = "mine"', "title = 1", 1, "title must be a text, not 1"),
    "an unknown kind": ('"steady"', '"stead"', 2, "unknown kind 'stead': use one of steady, vllm"),
    "an unknown parameter": (
        "parameters.first",
        "parameters.last",
        5,
        "no parameter 'last'; steady knows first, tokens, spacing, per_step",
    ),
    "no origin": ('source = "b"', "", 9, "spacing needs a value, and either source or assumption"),
    "two origins": ('source = "b"', 'source = "b"\nassumption = "b"', 9, "either source or"),
    "no value": ("value = 0.02", "", 9, "spacing needs a value"),
    "an empty origin": ('"b"', '""', 9, "source must be a text"),
    "an unknown key of a parameter": ("value = 0.02", "value = 0.02\nx = 1", 9, "needs a value"),
    "a text as value": ("0.02", '"x"', 9, "spacing must be a number from 0.0001"),
    "a truth as value": ("0.02", "true", 9, "not True"),
    "not a number": ("0.02", "nan", 9, "not nan"),
    "infinity": ("0.02", "inf", 9, "not inf"),
    "too short": ("0.02", "0.0", 9, "spacing must be a number from 0.0001"),
    "half a token": ("value = 2", "value = 2.5", 13, "per_step must be a whole number"),
    "a huge number": ("value = 2", f"value = {10**400}", 13, "per_step must be a whole number"),
    "a parameter without a table": ("[parameters.spacing]", "[spacing]", 9, "unknown key"),
}


@pytest.mark.parametrize(("old", "new", "line", "problem"), BROKEN.values(), ids=BROKEN)
def test_broken_profile_names_file_and_line(
    tmp_path: Path, old: str, new: str, line: int, problem: str
) -> None:
    assert old in GOOD
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(old, new, 1))
    message = _message(str(path))
    assert message.startswith(f"timing profile {path}, line {line}: ")
    assert problem in message


def test_missing_parameters_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    head = 'title = "t"\nkind = "steady"\nsource = "s"\n'
    path.write_text(head)
    assert "tables [parameters.NAME]" in _message(str(path))
    path.write_text(head + "parameters = 3\n")
    assert f"{path}, line 4: there must be tables" in _message(str(path))
    path.write_text(head + "[parameters]\nfirst = 3\n")
    assert f"{path}, line 5: first needs a value" in _message(str(path))
    path.write_text(head + '[parameters]\nfirst = { value = 3, source = "s" }\n')
    assert f"{path}, line 4: the parameter spacing is missing" in _message(str(path))


def test_unreadable_files_are_one_line(tmp_path: Path) -> None:
    assert "No such file" in _message(str(tmp_path / "none.toml"))
    (tmp_path / "folder.toml").mkdir()
    assert "Is a directory" in _message(str(tmp_path / "folder.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    assert "UTF-8" in _message(str(tmp_path / "binary.toml"))
    (tmp_path / "empty.toml").write_bytes(b"")
    assert "empty.toml, line 1: title is missing" in _message(str(tmp_path / "empty.toml"))


def test_unknown_profiles_are_answered_with_the_known_ones() -> None:
    for spec in ("", "Steady", "steady:", "steady:fast", "steady:fast:spacing=1", "../x"):
        message = _message(spec)
        assert message.startswith("unknown timing profile ")
        assert ", ".join(names()) in message
    assert _message("steady:fast:spacing=1").startswith("unknown timing profile 'steady:fast'")
    assert _message("speculatve").endswith(": did you mean 'speculative'?")
    with pytest.raises(SourceError, match="unknown timing profile ''"):
        open_source("timing")


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("pace=1", "no parameter 'pace'; steady knows first, tokens, spacing, per_step"),
        ("=1", "no parameter ''"),
        ("spacing=", "spacing must be a number from 0.0001 to 1e+09 (s), not ''"),
        ("spacing=fast", "not 'fast'"),
        ("spacing=0", "not 0"),
        ("spacing=-1", "not -1"),
        ("spacing=nan", "not nan"),
        ("spacing=inf", "not inf"),
        ("tokens=0", "tokens must be a whole number from 1"),
        ("tokens=2.5", "not 2.5"),
        ("spacing=1:spacing=2", "spacing is given twice"),
    ],
)
def test_wrong_settings_are_one_line(setting: str, problem: str) -> None:
    message = _message(f"steady:{setting}")
    assert message.startswith("timing profile steady, '")
    assert problem in message


def test_whole_numbers_may_be_written_as_any_number() -> None:
    for text in ("400", "4e2", "400.0", "+400"):
        profile = load(f"steady:tokens={text}")
        assert profile.shape.tokens == 400
        assert type(profile.shape.tokens) is int


def test_every_parameter_can_be_set() -> None:
    for name in names():
        shape = SHAPES[name]
        for key, parameter in shape.parameters().items():
            value = max(parameter.low, 1)
            assert getattr(load(f"{name}:{key}={value}").shape, key) == value
