"""Order of tokens and of TCP bytes, by hand and against a plain model."""

import math
import struct

from hypothesis import given
from hypothesis import strategies as st

from analysis.reassembly import ByteOrder, Piece, Records, TokenOrder


def test_tokens_wait_for_those_before_them():
    order = TokenOrder()
    order.add(0, [3], 1.0)
    order.add(2, [4, 5], 2.0)
    order.add(0, [3, 6], 3.0)  # closes the hole
    order.add(5, [1], 4.0)  # 4 never comes
    order.end(6, 1)
    assert order.rows() == [
        (0, 3, 1.0, 1.0),
        (1, 6, 3.0, 3.0),
        (2, 4, 2.0, 3.0),
        (3, 5, 2.0, 3.0),
        (5, 1, 4.0, order.rows()[-1][3]),
    ]
    assert math.isnan(order.rows()[-1][3]) and not order.complete
    order.add(4, [1], 9.0)
    assert order.complete and order.rendered_at[4:] == [9.0, 9.0]


def test_bytes_in_order_out_of_order_overlapping_and_twice():
    flow = ByteOrder(100)
    assert flow.add(100, b"abc", 1) == [Piece(b"abc", 1)]
    assert flow.add(106, b"ghi", 2) == []
    assert flow.add(100, b"abc", 3) == []  # retransmission
    assert flow.add(108, b"ijk", 4) == []  # overlaps what waits
    # Closes the hole and repeats bytes on both sides: those that came first keep their time.
    assert flow.add(102, b"cdefgh", 5) == [Piece(b"def", 5), Piece(b"ghi", 2), Piece(b"jk", 4)]


def test_sequence_numbers_wrap():
    flow = ByteOrder(0xFFFFFFFE)
    assert flow.add(1, b"de", 1) == []
    assert flow.add(0xFFFFFFFE, b"abc", 2) == [Piece(b"abc", 2), Piece(b"de", 1)]
    assert flow.add(0xFFFFFFFF, b"bcdef", 3) == [Piece(b"f", 3)]


@given(
    st.binary(min_size=1, max_size=60),
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(st.integers(0, 59), st.integers(1, 20)), max_size=40),
)
def test_any_segments_give_the_longest_prefix_at_the_right_time(data, isn, cuts):
    flow = ByteOrder(isn)
    first: dict[int, int] = {}  # the plain model: when each byte came first
    out = b""
    for time, (start, size) in enumerate(cuts):
        part = data[start : start + size]
        for position in range(start, start + len(part)):
            first.setdefault(position, time)
        pieces = flow.add((isn + start) % 2**32, part, time)
        for piece in pieces:
            for position in range(len(out), len(out) + len(piece.data)):
                assert first[position] == piece.arrived_at
            out += piece.data
        prefix = next(n for n in range(len(data) + 1) if n not in first)
        assert out == data[:prefix]


def record(data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + data


def end(count: int, reason: int = 1) -> bytes:
    return struct.pack("!IIB", 0xFFFFFFFF, count, reason)


def test_records_are_complete_with_their_last_byte():
    records = Records()
    stream = record(b"Hello") + record(b"") + record(b" world") + end(3, 2)
    records.add([Piece(stream[:7], 1.0)], 1.0)
    assert records.order.rendered_at == []
    records.add([Piece(stream[7:14], 2.0)], 2.0)  # the rest, an empty token, one byte of the next
    assert records.order.rendered_at == [2.0, 2.0]
    # A hole was filled at 5.0; what waited behind it had arrived at 3.0.
    records.add([Piece(stream[14:18], 5.0), Piece(stream[18:], 3.0)], 5.0)
    assert records.order.rows()[2] == (2, 6, 5.0, 5.0)
    assert records.order.complete and records.order.reason == 2


def test_a_record_behind_a_hole_was_received_before_it_was_shown():
    records = Records()
    records.add([Piece(record(b"a"), 5.0), Piece(record(b"b"), 3.0)], 5.0)
    assert records.order.rows() == [(0, 1, 5.0, 5.0), (1, 1, 3.0, 5.0)]


def test_other_protocols_are_no_records():
    for stream in (b"HTTP/1.1 200 OK\r\n", b"\x16\x03\x01\x02\x00\x01", end(7), end(0) + b"x"):
        records = Records()
        records.add([Piece(stream, 1.0)], 1.0)
        assert records.broken
