"""The record framing against bytes built by hand."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eloquent import Reason, Token, records


def test_bytes_of_a_conversation() -> None:
    assert records.encode(b"Hi") == b"\x00\x00\x00\x02Hi"
    assert records.encode(b"") == b"\x00\x00\x00\x00"
    assert records.encode_end(3, Reason.STOP) == b"\xff\xff\xff\xff\x00\x00\x00\x03\x01"


@given(
    st.lists(st.binary(max_size=40), max_size=20),
    st.sampled_from(Reason),
    st.lists(st.integers(0, 900), max_size=30),
)
def test_any_cut_of_the_stream_gives_the_same_records(
    tokens: list[bytes], reason: Reason, cuts: list[int]
) -> None:
    whole = b"".join(struct.pack(">I", len(token)) + token for token in tokens)
    whole += struct.pack(">IIB", 0xFFFFFFFF, len(tokens), reason)
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    parser = records.Parser()
    out = [r for a, b in itertools.pairwise(edges) for r in parser.feed(whole[a:b], 1.5)]
    expected = [Token(i, token, 1.5) for i, token in enumerate(tokens)]
    assert out == [*expected, records.End(len(tokens), reason)]


@pytest.mark.parametrize(
    ("stream", "match"),
    [
        (struct.pack(">I", 2000), "2000 bytes"),
        (records.encode(b"x") + records.encode_end(2, Reason.STOP), "says 2 tokens, but 1"),
        (struct.pack(">IIB", 0xFFFFFFFF, 0, 9), "unknown reason 9"),
        (records.encode_end(0, Reason.STOP) + records.encode(b"x"), "after the END"),
    ],
)
def test_what_is_not_a_record_is_refused_with_a_clear_line(stream: bytes, match: str) -> None:
    with pytest.raises(records.MalformedRecord, match=match):
        records.Parser(largest=1999).feed(stream)


def test_even_one_byte_after_the_end_is_refused() -> None:
    with pytest.raises(records.MalformedRecord):
        records.Parser().feed(records.encode_end(0, Reason.STOP) + b"\x00")


def test_the_largest_record_is_accepted() -> None:
    assert records.Parser(largest=5).feed(records.encode(b"12345")) == [Token(0, b"12345", 0.0)]
