"""A scapy layer for Eloquent datagrams: dissects them, shows them, builds them.

Importing this module binds the layer to UDP ports 4433 to 4439. Written from the wire format
alone, not from the library's code, so that each can check the other.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, ClassVar

from scapy.fields import (
    BitEnumField,
    BitField,
    ByteEnumField,
    ConditionalField,
    Field,
    FieldLenField,
    FieldListField,
    IntField,
    XByteField,
    XIntField,
    XLongField,
)
from scapy.layers.inet import UDP
from scapy.packet import Packet, Raw, bind_bottom_up, bind_layers

VERSION = 0xE2
PORTS = range(4433, 4440)
DATA, ACK, PING, CANCEL = 1, 2, 3, 4
KINDS = {DATA: "DATA", ACK: "ACK", PING: "PING", CANCEL: "CANCEL"}
ENDS = {0: "none", 1: "stop", 2: "length", 3: "error", 4: "cancelled"}
CANCEL_REASONS = {0: "reader", 1: "unknown stream", 2: "busy", 3: "too large", 4: "complete"}


def varint(value: int) -> bytes:
    """A number in the variable-length encoding of RFC 9000, section 16, in its shortest form."""
    for size, prefix, limit in ((1, 0, 6), (2, 1, 14), (4, 2, 30), (8, 3, 62)):
        if value < 1 << limit:
            return (value | prefix << limit).to_bytes(size, "big")
    raise ValueError(f"{value} does not fit a varint: the largest is 2^62 - 1")


def take_varint(data: bytes) -> tuple[bytes, int]:
    """What follows a varint, and its value."""
    if not data:
        raise struct.error("a varint is missing")
    size = 1 << (data[0] >> 6)
    if len(data) < size:
        raise struct.error("a varint is cut off")
    return data[size:], int.from_bytes(data[:size], "big") & ((1 << (8 * size - 2)) - 1)


class VarIntField(Field[int, int]):
    """A variable-length integer."""

    def __init__(self, name: str, default: int) -> None:
        super().__init__(name, default, "B")

    def addfield(self, pkt: Packet | None, s: bytes, val: int | None) -> bytes:
        return s + varint(self.i2m(pkt, val))

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, int]:
        return take_varint(s)

    def i2len(self, pkt: Packet, x: Any) -> int:
        return len(varint(x))


class VarIntCountField(FieldLenField):
    """A variable-length integer that counts the entries of a list."""

    def __init__(self, name: str, count_of: str) -> None:
        super().__init__(name, None, count_of=count_of)

    def addfield(self, pkt: Packet, s: bytes, val: int | None) -> bytes:
        return s + varint(self.i2m(pkt, val))

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, int]:
        return take_varint(s)


class TokenField(Field[bytes, bytes]):
    """A token: its length as a varint, then its bytes."""

    def __init__(self) -> None:
        super().__init__("token", b"", "B")

    def addfield(self, pkt: Packet | None, s: bytes, val: bytes | None) -> bytes:
        return s + varint(len(val or b"")) + (val or b"")

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, bytes]:
        rest, size = take_varint(s)
        if len(rest) < size:
            raise struct.error("a token is cut off")
        return rest[size:], rest[:size]

    def i2repr(self, pkt: Packet | None, x: bytes) -> str:
        return repr(x)


class RangeField(Field[tuple[int, int], tuple[int, int]]):
    """A range received beyond a hole: (gap, length), two varints."""

    def __init__(self) -> None:
        super().__init__("range", (1, 1), "B")

    def addfield(self, pkt: Packet | None, s: bytes, val: tuple[int, int] | None) -> bytes:
        gap, length = val or (1, 1)
        return s + varint(gap) + varint(length)

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, tuple[int, int]]:
        rest, gap = take_varint(s)
        rest, length = take_varint(rest)
        return rest, (gap, length)


class ChecksumField(XIntField):
    """CRC-32 of everything before it: computed when built, compared when dissected."""

    def i2repr(self, pkt: Packet | None, x: Any) -> str:
        correct = getattr(pkt, "crc_correct", None)
        verdict = "" if correct is None else " (correct)" if correct else " (WRONG)"
        return super().i2repr(pkt, x) + verdict


def _of(kinds: tuple[int, ...], field: Any) -> ConditionalField:
    return ConditionalField(field, lambda packet: packet.kind in kinds)


def _of_server(field: Any) -> ConditionalField:
    """In what a server's stream sends: a CANCEL may come from a server that has no stream."""
    return ConditionalField(field, lambda p: p.from_server and p.kind in (*_TOKENS, *_STATE))


_TOKENS, _STATE, _REASON = (DATA,), (ACK, PING), (CANCEL,)  # the three bodies


class EloquentDatagram(Packet):
    """One Eloquent datagram. `crc` and the counts are computed when they are not given.

    `crc_correct` is True or False after dissection, None for a datagram made by hand.
    """

    name = "Eloquent"
    fields_desc: ClassVar[list[Any]] = [
        XByteField("version", VERSION),
        BitField("from_server", 0, 1),
        BitField("reserved", 0, 3),
        BitEnumField("kind", DATA, 4, KINDS),
        XLongField("stream_id", 0),
        _of((DATA, PING, CANCEL), IntField("sent_at", 0)),
        _of_server(XIntField("instance", 0)),
        _of(_TOKENS, VarIntField("first", 0)),
        _of(_TOKENS, VarIntCountField("count", "tokens")),
        _of(_TOKENS, FieldListField("tokens", [], TokenField(), count_from=lambda p: p.count)),
        _of(_TOKENS, ByteEnumField("end", 0, ENDS)),
        _of(_STATE, VarIntField("next", 0)),
        _of(_STATE, IntField("echo", 0)),
        _of(_STATE, VarIntField("delay", 0)),
        _of(_STATE, VarIntCountField("n", "ranges")),
        _of(_STATE, FieldListField("ranges", [], RangeField(), count_from=lambda p: p.n)),
        _of(_REASON, ByteEnumField("reason", 0, CANCEL_REASONS)),
        ChecksumField("crc", None),
    ]
    crc_correct: bool | None = None

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *_: Any, **__: Any) -> Any:
        """Leave other protocols on these ports (QUIC, say) to scapy's Raw."""
        return Raw if _pkt and _pkt[0] != VERSION else cls

    def pre_dissect(self, s: bytes) -> bytes:
        self.crc_correct = len(s) >= 4 and zlib.crc32(s[:-4]) == int.from_bytes(s[-4:], "big")
        return s

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        if self.crc is None:
            pkt = pkt[:-4] + struct.pack("!I", zlib.crc32(pkt[:-4]))
        return pkt + pay

    def mysummary(self) -> str:
        side = "server" if self.from_server else "client"
        return self.sprintf(f"Eloquent %kind% {side} stream %stream_id%")


for _port in PORTS:
    bind_bottom_up(UDP, EloquentDatagram, sport=_port)
    bind_bottom_up(UDP, EloquentDatagram, dport=_port)
bind_layers(UDP, EloquentDatagram, dport=PORTS[0])
