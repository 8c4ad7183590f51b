"""The wire format: bytes to messages and back.

One UDP datagram carries one message. ``docs/protocol.md`` is the byte-exact specification; the
constants here carry the same names. Everything is big-endian. Integers of variable length are
those of RFC 9000, section 16, in their shortest form only, so that every message has exactly one
encoding.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

VERSION = 0xE2
#: Largest UDP payload. 1200 bytes pass every IPv6 path (RFC 9000, section 14) and most tunnels.
MAX_DATAGRAM = 1200
#: Largest token. Leaves room for the header and for the varints in front of it.
MAX_TOKEN = 1024
#: Most ranges in one ACK: the oldest are named first, the rest are learned from later ACKs.
MAX_RANGES = 32
#: Indices are kept far below the varint limit so that sums never overflow it.
MAX_INDEX = 2**48

FROM_SERVER = 0x80
_KIND_MASK = 0x0F
_HEADER = struct.Struct(">BBQI")
_SHORT = struct.Struct(">BBQ")  # that of an ACK, which is never answered: nobody echoes its time
_WORD = struct.Struct(">I")
HEADER_SIZE = _HEADER.size
#: The instance follows the header in what a server's stream sends: see ``Data.instance``.
INSTANCE_SIZE = CRC_SIZE = _WORD.size
_U32 = 2**32


class Kind(IntEnum):
    """What a datagram is (low nibble of byte 1)."""

    DATA = 1
    ACK = 2
    PING = 3
    CANCEL = 4


class Reason(IntEnum):
    """Why a stream of tokens ended (the last byte of DATA; 0 there means that it did not end)."""

    STOP = 1
    LENGTH = 2
    ERROR = 3
    CANCELLED = 4


class CancelReason(IntEnum):
    """Why an endpoint has no state of a stream any more (the body of CANCEL)."""

    READER = 0
    UNKNOWN_STREAM = 1
    BUSY = 2
    TOO_LARGE = 3
    COMPLETE = 4


class MalformedDatagram(ValueError):
    """The bytes are not a datagram of this protocol; endpoints count it and drop it."""


@dataclass(frozen=True, slots=True)
class Data:
    """Tokens ``first`` … ``first + len(tokens) - 1``, and the end of the stream after them.

    ``instance`` names which opening of the stream speaks, where a server does: another one has
    another answer. 0 in what a client sends, and from a server that has not opened the stream.
    """

    stream_id: int
    sent_at: int
    from_server: bool
    first: int
    tokens: tuple[bytes, ...]
    end: Reason | None = None
    instance: int = 0


@dataclass(frozen=True, slots=True)
class Ack:
    """Everything below ``next`` has arrived in order; ``ranges`` are [start, stop) beyond it.

    ``echo`` is ``sent_at`` of the newest datagram that asked for an answer, ``delay`` the
    microseconds that passed since it came. With ``asks`` the message is a PING: the same body,
    but it wants an ACK in turn. That keeps the lease, proves an address, and finds a new one.
    ``instance`` as in ``Data``. Only a PING has ``sent_at`` on the wire.
    """

    stream_id: int
    sent_at: int
    from_server: bool
    next: int
    echo: int
    delay: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    asks: bool = False
    instance: int = 0


@dataclass(frozen=True, slots=True)
class Cancel:
    """The stream is over for the sender, at once. A server answers a client's CANCEL with one."""

    stream_id: int
    sent_at: int
    from_server: bool
    reason: CancelReason


Message = Data | Ack | Cancel


def varint_size(value: int) -> int:
    """Number of bytes of ``value`` as a varint."""
    return 1 if value < 0x40 else 2 if value < 0x4000 else 4 if value < 0x40000000 else 8


def _put_varint(out: bytearray, value: int) -> None:
    if value < 0x40:
        out.append(value)
    elif value < 0x4000:
        out += (value | 0x4000).to_bytes(2, "big")
    elif value < 0x40000000:
        out += (value | 0x80000000).to_bytes(4, "big")
    else:
        out += (value | 0xC000000000000000).to_bytes(8, "big")


class _Cursor:
    """Reads fields off the body; running past its end makes the datagram malformed."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int, end: int) -> None:
        self.data, self.position, self.end = data, position, end

    def take(self, size: int, what: str) -> bytes:
        start, stop = self.position, self.position + size
        if stop > self.end:
            raise MalformedDatagram(f"{what} runs past the end of the datagram")
        self.position = stop
        return self.data[start:stop]

    def instance(self) -> int:
        return int.from_bytes(self.take(INSTANCE_SIZE, "instance"), "big")

    def varint(self, what: str) -> int:
        start = self.position
        if start >= self.end:
            raise MalformedDatagram(f"{what} runs past the end of the datagram")
        head = self.data[start]
        if head < 0x40:  # the usual case, kept short
            self.position = start + 1
            return head
        size = 1 << (head >> 6)
        value = int.from_bytes(self.take(size, what), "big") & ((1 << (8 * size - 2)) - 1)
        if varint_size(value) != size:
            raise MalformedDatagram(f"{what} is not in its shortest form")
        if value > MAX_INDEX:
            raise MalformedDatagram(f"{what} is {value}, more than {MAX_INDEX}")
        return value


def encode(message: Message) -> bytes:
    """The datagram's bytes.

    Raises ValueError when the message does not fit into MAX_DATAGRAM (who builds a message
    chooses its tokens so that it fits, see ``data_overhead``), or names an instance of a client.
    """
    if isinstance(message, Data):
        out = _head(message, Kind.DATA, message.instance)
        _put_varint(out, message.first)
        _put_varint(out, len(message.tokens))
        for token in message.tokens:
            _put_varint(out, len(token))
            out += token
        out.append(message.end or 0)
    elif isinstance(message, Ack):
        out = _head(message, Kind.PING if message.asks else Kind.ACK, message.instance)
        _put_varint(out, message.next)
        out += _WORD.pack(message.echo % _U32)
        _put_varint(out, message.delay)
        _put_varint(out, len(message.ranges))
        edge = message.next
        for start, stop in message.ranges:
            _put_varint(out, start - edge)
            _put_varint(out, stop - start)
            edge = stop
    else:
        out = _head(message, Kind.CANCEL, None)
        out.append(message.reason)
    out += _WORD.pack(zlib.crc32(out))
    if len(out) > MAX_DATAGRAM:
        raise ValueError(f"the datagram has {len(out)} bytes, more than {MAX_DATAGRAM}")
    return bytes(out)


def _head(message: Message, kind: Kind, instance: int | None) -> bytearray:
    way = FROM_SERVER if message.from_server else 0
    out = bytearray(_SHORT.pack(VERSION, kind | way, message.stream_id))
    if kind is not Kind.ACK:
        out += _WORD.pack(message.sent_at % _U32)
    if way and instance is not None:
        out += _WORD.pack(instance)
    elif instance:
        raise ValueError(f"a client has no instance, got {instance}")
    return out


def decode(datagram: bytes) -> Message:
    """The message in ``datagram``. Raises MalformedDatagram, and nothing else."""
    end = len(datagram) - CRC_SIZE
    if end < HEADER_SIZE or len(datagram) > MAX_DATAGRAM:
        raise MalformedDatagram(f"{len(datagram)} bytes are not the size of a datagram")
    version, kind_byte, stream_id, sent_at = _HEADER.unpack_from(datagram)
    if version != VERSION:
        raise MalformedDatagram(f"version byte is 0x{version:02x}, not 0x{VERSION:02x}")
    if _WORD.unpack_from(datagram, end)[0] != zlib.crc32(memoryview(datagram)[:end]):
        raise MalformedDatagram("the checksum does not match")
    if kind_byte & ~(FROM_SERVER | _KIND_MASK):
        raise MalformedDatagram(f"reserved bits are set in 0x{kind_byte:02x}")
    from_server = bool(kind_byte & FROM_SERVER)
    kind = kind_byte & _KIND_MASK
    cursor = _Cursor(datagram, HEADER_SIZE, end)
    if kind == Kind.ACK:
        cursor.position, sent_at = _SHORT.size, 0
    message: Message
    if kind == Kind.DATA:
        message = _decode_data(cursor, stream_id, sent_at, from_server)
    elif kind in (Kind.ACK, Kind.PING):
        message = _decode_ack(cursor, stream_id, sent_at, from_server, kind == Kind.PING)
    elif kind == Kind.CANCEL:
        code = cursor.take(1, "cancel reason")[0]
        try:
            message = Cancel(stream_id, sent_at, from_server, CancelReason(code))
        except ValueError:
            raise MalformedDatagram(f"cancel reason {code} is unknown") from None
    else:
        raise MalformedDatagram(f"kind {kind} is unknown")
    if cursor.position != end:
        raise MalformedDatagram(f"{end - cursor.position} bytes follow the message")
    return message


def _decode_data(cursor: _Cursor, stream_id: int, sent_at: int, from_server: bool) -> Data:
    instance = cursor.instance() if from_server else 0
    first = cursor.varint("first index")
    count = cursor.varint("token count")
    tokens = []
    for _ in range(count):  # bounded: the cursor ends with the datagram
        size = cursor.varint("token length")
        if size > MAX_TOKEN:
            raise MalformedDatagram(f"a token has {size} bytes, more than {MAX_TOKEN}")
        tokens.append(cursor.take(size, "token"))
    code = cursor.take(1, "end")[0]
    if code == 0:
        if not tokens:
            raise MalformedDatagram("neither tokens nor an end")
        return Data(stream_id, sent_at, from_server, first, tuple(tokens), None, instance)
    try:
        end = Reason(code)
    except ValueError:
        raise MalformedDatagram(f"end reason {code} is unknown") from None
    return Data(stream_id, sent_at, from_server, first, tuple(tokens), end, instance)


def _decode_ack(
    cursor: _Cursor, stream_id: int, sent_at: int, from_server: bool, asks: bool
) -> Ack:
    instance = cursor.instance() if from_server else 0
    edge = next_index = cursor.varint("next index")
    echo = _WORD.unpack(cursor.take(4, "echo"))[0]
    delay = cursor.varint("delay")
    count = cursor.varint("range count")
    if count > MAX_RANGES:
        raise MalformedDatagram(f"{count} ranges, more than {MAX_RANGES}")
    ranges = []
    for _ in range(count):
        gap, length = cursor.varint("range gap"), cursor.varint("range length")
        if gap == 0 or length == 0:
            raise MalformedDatagram("an empty gap or range")
        ranges.append((edge + gap, edge + gap + length))
        edge += gap + length
    head = stream_id, sent_at, from_server
    return Ack(*head, next_index, echo, delay, tuple(ranges), asks, instance)


def data_overhead(first: int, count: int) -> int:
    """Bytes of a server's DATA with ``count`` tokens beside the tokens and their lengths."""
    return HEADER_SIZE + INSTANCE_SIZE + varint_size(first) + varint_size(count) + 1 + CRC_SIZE


def token_size(token: bytes) -> int:
    """Bytes that ``token`` takes in a DATA datagram."""
    return varint_size(len(token)) + len(token)
