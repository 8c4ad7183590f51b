"""The wire format against bytes that are built here by hand, from the specification."""

from __future__ import annotations

import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eloquent.wire import (
    MAX_DATAGRAM,
    MAX_INDEX,
    MAX_RANGES,
    MAX_TOKEN,
    Ack,
    Cancel,
    CancelReason,
    Data,
    MalformedDatagram,
    Message,
    Reason,
    data_overhead,
    decode,
    encode,
    token_size,
    varint_size,
)

STREAM = 0x0123456789ABCDEF


def sealed(body: bytes) -> bytes:
    """``body`` with the checksum that the specification asks for."""
    return body + struct.pack(">I", zlib.crc32(body))


def header(kind: int, sent_at: int = 0xDEADBEEF, version: int = 0xE2) -> bytes:
    return bytes([version, kind]) + STREAM.to_bytes(8, "big") + sent_at.to_bytes(4, "big")


INSTANCE = 0x0A0B0C0D


def short(kind: int) -> bytes:
    """The header of an ACK: no time."""
    return header(kind)[:10]


def opened(kind: int) -> bytes:
    """The header of a server's DATA, ACK or PING: the stream's instance follows."""
    return header(kind) + INSTANCE.to_bytes(4, "big")


EXAMPLES: list[tuple[Message, bytes]] = [
    (
        Data(STREAM, 0xDEADBEEF, True, 5, (b"Hello", b"", b" w"), None, INSTANCE),
        opened(0x81) + b"\x05\x03" + b"\x05Hello" + b"\x00" + b"\x02 w" + b"\x00",
    ),
    (
        Data(STREAM, 0xDEADBEEF, False, 0, (b"?",), Reason.STOP),
        header(0x01) + b"\x00\x01\x01?\x01",
    ),
    # 300 = 0x12c needs a varint of two bytes, with 0b01 in front: 0x412c.
    (
        Data(STREAM, 0xDEADBEEF, True, 300, (), Reason.LENGTH, INSTANCE),
        opened(0x81) + b"\x41\x2c\x00\x02",
    ),
    (
        Ack(STREAM, 0, False, 7, 0x01020304, 1000, ((9, 12), (20, 21))),
        short(0x02) + b"\x07\x01\x02\x03\x04\x43\xe8\x02" + b"\x02\x03" + b"\x08\x01",
    ),
    (
        Ack(STREAM, 0xDEADBEEF, True, 0, 0, 0, (), True, INSTANCE),
        opened(0x83) + b"\x00" + bytes(4) + b"\x00\x00",
    ),
    (Cancel(STREAM, 0xDEADBEEF, False, CancelReason.READER), header(0x04) + b"\x00"),
    (Cancel(STREAM, 0xDEADBEEF, True, CancelReason.COMPLETE), header(0x84) + b"\x04"),
]


@pytest.mark.parametrize(("message", "body"), EXAMPLES)
def test_examples_of_the_specification(message: Message, body: bytes) -> None:
    assert encode(message) == sealed(body)
    assert decode(sealed(body)) == message


# RFC 9000, appendix A.1; the eight-byte example there exceeds MAX_INDEX.
@pytest.mark.parametrize(
    ("octets", "value"), [("9d7f3e7d", 494_878_333), ("7bbd", 15_293), ("25", 37)]
)
def test_varints_of_rfc_9000(octets: str, value: int) -> None:
    body = opened(0x81) + bytes.fromhex(octets) + b"\x00\x01"
    expected = Data(STREAM, 0xDEADBEEF, True, value, (), Reason.STOP, INSTANCE)
    assert decode(sealed(body)) == expected
    assert varint_size(value) == len(octets) // 2


@pytest.mark.parametrize(
    ("value", "size"),
    [(0, 1), (63, 1), (64, 2), (16_383, 2), (16_384, 4), (2**30 - 1, 4), (2**30, 8)],
)
def test_varint_sizes_at_the_edges(value: int, size: int) -> None:
    assert varint_size(value) == size
    data = Data(STREAM, 0, True, value, (b"x",))
    assert len(encode(data)) == 14 + 4 + size + 1 + 2 + 1 + 4
    assert decode(encode(data)) == data


DATA, ACK = opened(0x81), short(0x02)
MALFORMED = {
    "empty": b"",
    "too short": sealed(header(0x04)[:13]),
    "header alone": sealed(header(0x81)),
    "instance cut": sealed(header(0x81) + bytes(3)),
    "instance of a client": sealed(header(0x01) + bytes(4) + b"\x01\x01x\x00"),
    "other version": sealed(header(0x04, version=0xE1) + b"\x00"),
    "broken checksum": sealed(header(0x04) + b"\x00")[:-1] + b"\x00",
    "reserved bits": sealed(header(0x14) + b"\x00"),
    "kind 0": sealed(header(0x00) + b"\x00"),
    "kind 5": sealed(header(0x05) + b"\x00"),
    "cancel reason 5": sealed(header(0x04) + b"\x05"),
    "no cancel reason": sealed(header(0x04)),
    "bytes behind": sealed(header(0x04) + b"\x00\x00"),
    "varint not shortest": sealed(DATA + b"\x40\x25\x00\x01"),
    "varint too large": sealed(DATA + bytes.fromhex("c2197c5eff14e88c") + b"\x00\x01"),
    "varint cut": sealed(DATA + b"\x40"),
    "neither tokens nor end": sealed(DATA + b"\x00\x00\x00"),
    "unknown end": sealed(DATA + b"\x00\x00\x05"),
    "no end byte": sealed(DATA + b"\x00\x01\x01x"),
    "token runs out": sealed(DATA + b"\x00\x01\x05abc"),
    "count runs out": sealed(DATA + b"\x00\x02\x01x\x00"),
    "huge count": sealed(DATA + b"\x00\xbf\xff\xff\xff\x00"),
    "token of 1025 bytes": sealed(DATA + b"\x00\x01\x44\x01" + bytes(1025) + b"\x00"),
    "echo cut": sealed(ACK + b"\x00\x01\x02"),
    "gap 0": sealed(ACK + b"\x00" + bytes(4) + b"\x00\x01\x00\x01"),
    "range of 0": sealed(ACK + b"\x00" + bytes(4) + b"\x00\x01\x01\x00"),
    "33 ranges": sealed(ACK + b"\x00" + bytes(4) + b"\x00\x21" + b"\x01\x01" * 33),
    "ranges run out": sealed(ACK + b"\x00" + bytes(4) + b"\x00\x02\x01\x01"),
    "1201 bytes": sealed(DATA + b"\x00\x02" + (b"\x42\x49" + bytes(585)) * 2 + bytes(8) + b"\x00"),
}


@pytest.mark.parametrize("datagram", MALFORMED.values(), ids=MALFORMED)
def test_malformed_datagrams_are_refused(datagram: bytes) -> None:
    with pytest.raises(MalformedDatagram) as caught:
        decode(datagram)
    assert "\n" not in str(caught.value) and len(str(caught.value)) > 10


def test_every_single_bit_error_and_every_cut_is_noticed() -> None:
    datagram = encode(Data(STREAM, 1, True, 3, (b"Hello", b" world"), Reason.STOP))
    for bit in range(8 * len(datagram)):
        broken = bytearray(datagram)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(MalformedDatagram):
            decode(bytes(broken))
    for size in range(len(datagram)):
        with pytest.raises(MalformedDatagram):
            decode(datagram[:size])


u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
index = st.integers(0, MAX_INDEX)


@st.composite
def acks(draw: st.DrawFn) -> Ack:
    edge = first = draw(st.integers(0, 2**40))
    ranges = []
    pair = st.tuples(st.integers(1, 2**34), st.integers(1, 2**34))
    for gap, length in draw(st.lists(pair, max_size=MAX_RANGES)):
        ranges.append((edge + gap, edge + gap + length))
        edge += gap + length
    from_server, asks = draw(st.booleans()), draw(st.booleans())
    return Ack(
        draw(u64),
        draw(u32) if asks else 0,
        from_server,
        first,
        draw(u32),
        draw(index),
        tuple(ranges),
        asks,
        draw(u32) if from_server else 0,
    )


@st.composite
def datas(draw: st.DrawFn) -> Data:
    tokens = draw(st.lists(st.binary(max_size=80), max_size=14))
    end = draw(st.sampled_from(Reason) if not tokens else st.sampled_from([None, *Reason]))
    from_server = draw(st.booleans())
    head = draw(u64), draw(u32), from_server, draw(index)
    return Data(*head, tuple(tokens), end, draw(u32) if from_server else 0)


cancels = st.builds(Cancel, u64, u32, st.booleans(), st.sampled_from(CancelReason))
messages = st.one_of(datas(), acks(), cancels)


@given(messages)
def test_what_is_encoded_is_decoded(message: Message) -> None:
    datagram = encode(message)
    assert decode(datagram) == message
    assert datagram[:1] == b"\xe2" and int.from_bytes(datagram[2:10], "big") == message.stream_id
    assert zlib.crc32(datagram[:-4]) == int.from_bytes(datagram[-4:], "big")


@given(st.binary(max_size=1300), st.sampled_from([1, 2, 3, 4, 0x81, 0x82, 0x83, 0x84]))
def test_any_bytes_are_one_message_exactly_or_malformed(body: bytes, kind: int) -> None:
    datagram = sealed(header(kind) + body)
    try:
        message = decode(datagram)
    except MalformedDatagram:
        return
    assert encode(message) == datagram  # one encoding of each message


@given(st.binary(max_size=1300))
def test_raw_bytes_never_raise_anything_else(datagram: bytes) -> None:
    with pytest.raises(MalformedDatagram):
        decode(datagram)


def test_overhead_and_token_size_add_up() -> None:
    rng = random.Random(1)
    for _ in range(200):
        tokens = tuple(bytes(rng.randrange(90)) for _ in range(rng.randrange(1, 12)))
        first = rng.randrange(2 ** rng.randrange(1, 48))
        size = data_overhead(first, len(tokens)) + sum(map(token_size, tokens))
        assert len(encode(Data(1, 2, True, first, tokens))) == size


def test_the_largest_token_fits_at_the_largest_index() -> None:
    data = Data(2**64 - 1, 2**32 - 1, True, MAX_INDEX, (bytes(MAX_TOKEN),), Reason.STOP)
    assert len(encode(data)) <= MAX_DATAGRAM
    assert decode(encode(data)) == data


def test_a_client_has_no_instance() -> None:
    with pytest.raises(ValueError, match="a client has no instance, got 7"):
        encode(Ack(1, 2, False, 0, 0, instance=7))


def test_a_message_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 1200"):
        encode(Data(1, 2, True, 0, (bytes(600), bytes(600))))
