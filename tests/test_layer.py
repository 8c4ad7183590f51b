"""The scapy layer against the library's codec: two implementations of one format."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from analysis.layer import ACK, CANCEL, DATA, PING, EloquentDatagram, varint
from eloquent import wire

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
index = st.integers(0, wire.MAX_INDEX)
ends = st.sampled_from([None, *wire.Reason])


@st.composite
def data_messages(draw: st.DrawFn) -> wire.Data:
    end = draw(ends)
    tokens = draw(st.lists(st.binary(max_size=70), max_size=12, min_size=0 if end else 1))
    server = draw(st.booleans())
    head = draw(u64), draw(u32), server, draw(index)
    return wire.Data(*head, tuple(tokens), end, draw(u32) if server else 0)


@st.composite
def ack_messages(draw: st.DrawFn) -> wire.Ack:
    edge = next_index = draw(st.integers(0, 2**40))
    ranges = []
    small = st.integers(1, 2**20)
    for gap, length in draw(st.lists(st.tuples(small, small), max_size=32)):
        ranges.append((edge + gap, edge + gap + length))
        edge += gap + length
    asks = draw(st.booleans())
    head = draw(u64), draw(u32) if asks else 0, draw(st.booleans())
    return wire.Ack(
        *head,
        next_index,
        draw(u32),
        draw(st.integers(0, 2**40)),
        tuple(ranges),
        asks,
        draw(u32) if head[2] else 0,
    )


messages = st.one_of(
    data_messages(),
    ack_messages(),
    st.builds(wire.Cancel, u64, u32, st.booleans(), st.sampled_from(wire.CancelReason)),
)


def by_scapy(message: wire.Message) -> EloquentDatagram:
    head = {
        "stream_id": message.stream_id,
        "sent_at": message.sent_at,
        "from_server": int(message.from_server),
    }
    if message.from_server and not isinstance(message, wire.Cancel):
        head["instance"] = message.instance
    match message:
        case wire.Data():
            return EloquentDatagram(
                **head,
                kind=DATA,
                first=message.first,
                tokens=list(message.tokens),
                end=int(message.end or 0),
            )
        case wire.Ack():
            edges = [message.next, *(stop for _, stop in message.ranges)]
            ranges = [
                (start - edge, stop - start)
                for (start, stop), edge in zip(message.ranges, edges, strict=False)
            ]
            return EloquentDatagram(
                **head,
                kind=PING if message.asks else ACK,
                next=message.next,
                echo=message.echo,
                delay=message.delay,
                ranges=ranges,
            )
        case wire.Cancel():
            return EloquentDatagram(**head, kind=CANCEL, reason=int(message.reason))


@given(messages)
def test_scapy_builds_what_the_library_decodes(message):
    built = bytes(by_scapy(message))
    assert wire.decode(built) == message
    assert built == wire.encode(message)


@given(messages)
def test_scapy_dissects_what_the_library_encodes(message):
    datagram = wire.encode(message)
    packet = EloquentDatagram(datagram)
    assert packet.crc_correct and not packet.haslayer(Raw)
    plain = isinstance(message, wire.Ack) and not message.asks
    stamp = None if plain else message.sent_at
    assert (packet.stream_id, packet.sent_at) == (message.stream_id, stamp)
    assert bool(packet.from_server) == message.from_server
    if message.from_server and not isinstance(message, wire.Cancel):
        assert packet.instance == message.instance
    else:
        assert packet.instance is None
    if isinstance(message, wire.Data):
        assert tuple(packet.tokens) == message.tokens and packet.first == message.first
        assert packet.end == (message.end or 0) and packet.count == len(message.tokens)
    if isinstance(message, wire.Ack):
        assert (packet.next, packet.echo, packet.delay) == (
            message.next,
            message.echo,
            message.delay,
        )
        assert packet.n == len(message.ranges)
        assert packet.kind == (PING if message.asks else ACK)
    packet.crc = None
    assert bytes(EloquentDatagram(bytes(packet))) == datagram


@pytest.mark.parametrize(
    ("value", "text"),  # RFC 9000, appendix A.1
    [
        (151288809941952652, "c2197c5eff14e88c"),
        (494878333, "9d7f3e7d"),
        (15293, "7bbd"),
        (37, "25"),
    ],
)
def test_varints_of_the_rfc(value, text):
    assert varint(value).hex() == text


def test_show_names_every_field():
    data = wire.Data(0xABC, 7, True, 5, (b"Hi", b" there"), wire.Reason.STOP)
    frame = Ether(bytes(Ether() / IP() / UDP(sport=4433, dport=5555) / Raw(wire.encode(data))))
    text = str(frame[EloquentDatagram].show(dump=True))
    for part in ("version", "0xe2", "DATA", "0xabc", "sent_at", "first", "count", "stop"):
        assert part in text
    assert "b'Hi'" in text and "b' there'" in text and "(correct)" in text
    ack = EloquentDatagram(wire.encode(wire.Ack(1, 2, False, 3, 4, 5, ((5, 6), (8, 10)))))
    text = str(ack.show(dump=True))
    assert "(2, 1)" in text and "(2, 2)" in text and "echo" in text and "delay" in text


def test_ports_and_foreign_traffic():
    datagram = wire.encode(wire.Ack(1, 2, False, 0, 0, asks=True))
    # Both ports: scapy's defaults are 53, which is DNS once another test has loaded that.
    for sport, dport in ((40000, 4433), (4439, 40000), (40000, 4435)):
        assert EloquentDatagram in IP(bytes(IP() / UDP(sport=sport, dport=dport) / Raw(datagram)))
    foreign = ((4440, datagram), (4433, b"\xc0\0\0\0\1QUIC"))
    for port, content in foreign:
        packet = IP() / UDP(sport=40000, dport=port) / Raw(content)
        assert EloquentDatagram not in IP(bytes(packet))


def test_a_damaged_datagram_is_shown_as_such():
    datagram = bytearray(wire.encode(wire.Cancel(1, 2, True, wire.CancelReason.BUSY)))
    datagram[5] ^= 1
    packet = EloquentDatagram(bytes(datagram))
    assert packet.crc_correct is False and "WRONG" in str(packet.show(dump=True))
    cut = IP(bytes(IP() / UDP(sport=40000, dport=4433) / Raw(bytes(datagram[:9]))))
    assert Raw in cut  # no exception
