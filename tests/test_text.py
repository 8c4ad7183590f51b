"""Characters that are split over tokens."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from eloquent import TextDecoder


def test_a_split_character_appears_when_it_is_whole() -> None:
    decoder = TextDecoder()
    whole = "é€😀".encode()  # 2, 3 and 4 bytes
    shown = [decoder.feed(whole[i : i + 1]) for i in range(len(whole))]
    assert shown == ["", "é", "", "", "€", "", "", "", "😀"]
    assert decoder.finish() == ""


def test_broken_bytes_become_the_replacement_character() -> None:
    assert TextDecoder().feed(b"a\xffb") == "a\ufffdb"


def test_an_answer_that_stops_within_a_character() -> None:
    decoder = TextDecoder()
    assert decoder.feed("é".encode()[:1]) == ""
    assert decoder.finish() == "\ufffd"


@given(st.text(), st.lists(st.integers(0, 400)))
def test_any_cut_gives_the_same_text(text: str, cuts: list[int]) -> None:
    whole = text.encode()
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    decoder = TextDecoder()
    pieces = [decoder.feed(whole[a:b]) for a, b in itertools.pairwise(edges)]
    assert "".join(pieces) + decoder.finish() == text
    assert not any("\ufffd" in piece for piece in pieces if "\ufffd" not in text)
