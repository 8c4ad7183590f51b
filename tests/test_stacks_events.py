"""What the stacks wrap tokens into: Server-Sent Events in any pieces, and the END as a message."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.stacks import StackError
from apps.stacks.base import end_text, read_end
from apps.stacks.sse import Event, EventParser, decode, encode
from eloquent import Reason


@given(
    st.lists(st.binary(min_size=1, max_size=20), max_size=8),
    st.sampled_from([b"\n", b"\r", b"\r\n"]),
    st.lists(st.integers(0, 30), min_size=1, max_size=20).filter(any),
)
def test_events_survive_any_cut(tokens: list[bytes], newline: bytes, sizes: list[int]) -> None:
    end = f"event: end\ndata: {end_text(len(tokens), Reason.STOP)}\n\n".encode()
    stream = b": a comment\n\n" + b"".join(map(encode, tokens)) + end
    stream = stream.replace(b"\n", newline)
    parser, events = EventParser(), []
    for size in itertools.cycle(sizes):
        if not stream:
            break
        events += parser.feed(stream[:size])
        stream = stream[size:]
    assert [decode(event.data) for event in events[:-1]] == tokens
    assert events[-1].kind == "end"
    assert read_end(events[-1].data, len(tokens)) is Reason.STOP


def test_an_end_of_line_in_two_pieces_is_one() -> None:
    parser = EventParser()
    pieces = [b"data: 1\r", b"\n", b"\r", b"\n", b"data: 2\r", b"\n", b"\n"]
    assert [event.data for piece in pieces for event in parser.feed(piece)] == ["1", "2"]


def test_lines_of_events() -> None:
    parser = EventParser(largest=50)
    assert parser.feed(b"data: a\r") == []
    assert parser.feed(b"\ndata:b\ndata\nid: 7\nevent: odd\n\nevent: none\n\n") == [
        Event("odd", "a\nb\n")
    ]
    with pytest.raises(StackError, match="more than 50 bytes"):
        parser.feed(b"x" * 51)


@pytest.mark.parametrize("data", ["", "7", '"', "null", '"\\u0100"', "[]"])
def test_an_event_without_a_token(data: str) -> None:
    with pytest.raises(StackError, match="no token"):
        decode(data)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"total": 2, "reason": 3}', '{"total": 2, "reason": "sloth"}']
)
def test_an_end_that_cannot_be_read(text: str) -> None:
    with pytest.raises(StackError, match="cannot be read"):
        read_end(text, 2)


def test_an_end_of_another_answer() -> None:
    with pytest.raises(StackError, match="END says 3 tokens, but 2 came"):
        read_end(end_text(3, Reason.STOP), 2)
