"""Prompt sets: those that ship are what their names say, and a broken one is one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.prompt_sets import PromptError, load, names
from scenarios.scenario import Scenario
from scenarios.wifi_loss import network


def test_the_shipped_sets() -> None:
    sets = {name: load(name) for name in names()}
    assert set(sets) == {"questions", "long", "code", "unicode", "instant", "marathon"}
    assert all(found.title and found.sha256 for found in sets.values())
    assert (sets["instant"].tokens, sets["marathon"].tokens) == (1, 4000)
    letters = {letter for prompt in sets["unicode"].prompts for letter in prompt}
    assert any("\u4e00" <= letter <= "\u9fff" for letter in letters)
    assert any(ord(letter) > 0xFFFF for letter in letters)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("Why?\n\n  \nHow, 你好?\n")
    lines = load(str(tmp_path / "mine.txt"))
    assert (lines.name, lines.prompts, lines.tokens) == ("mine", ("Why?", "How, 你好?"), None)
    assert [lines.of_run(number) for number in (1, 2, 3)] == ["Why?", "How, 你好?", "Why?"]
    (tmp_path / "mine.toml").write_text('tokens = 7\nprompts = ["""two\nlines"""]\n')
    table = load(str(tmp_path / "mine.toml"))
    assert (table.prompts, table.tokens) == (("two\nlines",), 7)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("a.txt", "\n\n", "no prompt in it"),
        ("a.toml", 'title = "t"', "no prompt in it"),
        ("a.toml", 'prompts = "why"', "prompts must be a list of texts, not 'why'"),
        ("a.toml", "prompts = [1]", "prompt 1 is no text: 1"),
        ("a.toml", 'prompts = ["a", " "]', "prompt 2 is no text"),
        ("a.toml", 'prompts = ["a"]\ntokens = 0', "tokens must be a whole number >= 1, not 0"),
        ("a.toml", 'prompts = ["a"]\nmodel = "x"', "unknown key 'model'"),
        ("a.toml", "prompts = [", "a.toml"),
        ("a.txt", "x" * 100_001, "100001 bytes, more than 100000"),
        ("a.txt", b"\xff", "UTF-8"),
    ],
)
def test_a_broken_file_is_one_line(
    tmp_path: Path, file: str, text: str | bytes, words: str
) -> None:
    (tmp_path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PromptError) as error:
        load(str(tmp_path / file))
    assert words in str(error.value)
    assert str(tmp_path / file) in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_sets_name_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="no prompt set 'riddles': use code, instant"):
        load("riddles")
    with pytest.raises(PromptError, match="No such file"):
        load(str(tmp_path / "none.txt"))


def test_a_scenario_names_its_set_or_holds_its_prompts() -> None:
    assert Scenario("s", "t", network).prompt_set() == load("questions")
    assert Scenario("s", "t", network, prompts="code").prompt_set() == load("code")
    own = Scenario("s", "t", network, prompts=("Why?",)).prompt_set()
    assert (own.name, own.prompts, own.sha256) == ("s", ("Why?",), None)
