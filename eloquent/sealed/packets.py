"""The sealed format: a plain datagram's message to a packet, and back.

``docs/protocol.md``, section 15, is the byte-exact specification. The tag takes the place of the
checksum, and the session id that of the stream id.
"""

from __future__ import annotations

import itertools
import os
import struct
import zlib
from typing import NoReturn

from ..wire import CRC_SIZE
from .keys import TAG_SIZE, Aead, DirectionKeys, cipher, nonce
from .replay import ReplayWindow

VERSION = 0xF1
#: Largest packet: IPv6's least MTU of 1280 bytes (RFC 8200, section 5) less its and UDP's headers.
MAX_PACKET = 1232
#: Ends the message inside a packet; zeros follow (ISO/IEC 7816-4).
MARK = b"\x80"
_HEADER = struct.Struct(">BQI")
HEADER_SIZE = _HEADER.size
#: Version, session id: what a session's packets have in common.
_PREFIX = struct.Struct(">BQ")
_NUMBER = struct.Struct(">I")
_CRC = struct.Struct(">I")
#: Where a plain datagram has its stream id.
_ID_START, _ID_STOP = 2, 10
MIN_PACKET = HEADER_SIZE + len(MARK) + TAG_SIZE
#: What a packet is larger than the plain datagram, without padding.
OVERHEAD = MIN_PACKET - (_ID_STOP - _ID_START) - CRC_SIZE


class SealedOut(RuntimeError):
    """The session's key has sealed all that it may: a fresh ticket is needed."""


class SealMisused(RuntimeError):
    """A sealer in two places would seal two packets with one nonce."""


def check_pad(pad: int) -> int:
    """``pad`` if packets can be filled up in such steps. Raises ValueError."""
    if not 0 <= pad <= MAX_PACKET:
        raise ValueError(f"pad is {pad}: give a step of 1 to {MAX_PACKET} bytes, 0 for none")
    return pad


def packet_size(plain: int, pad: int = 0) -> int:
    """Bytes of the packet that a plain datagram of ``plain`` bytes becomes."""
    size = plain + OVERHEAD
    return max(size, min(-(-size // pad) * pad, MAX_PACKET)) if pad else size


def message_of(datagram: bytes) -> bytes:
    """What of a plain datagram is sealed: all but the stream id and the checksum."""
    return datagram[:_ID_START] + datagram[_ID_STOP:-CRC_SIZE]


def stream_of(datagram: bytes) -> int:
    """The stream id of a plain datagram."""
    return int.from_bytes(datagram[_ID_START:_ID_STOP], "big")


def datagram_of(message: bytes, stream_id: bytes) -> bytes:
    """The plain datagram of a message that was sealed, in a stream of this id."""
    datagram = message[:_ID_START] + stream_id + message[_ID_START:]
    return datagram + _CRC.pack(zlib.crc32(datagram))


def session_of(packet: bytes) -> int | None:
    """The session that a packet says it is of, None if it is no packet of this format."""
    if not MIN_PACKET <= len(packet) <= MAX_PACKET or packet[0] != VERSION:
        return None
    return int(_PREFIX.unpack_from(packet)[1])


class Sealer:
    """Seals the messages of one direction, each with the next packet number.

    A number is never used twice: the counter only goes up, is not copied, and ends at the AEAD's
    limit. In a forked process it refuses, as the parent counts on from the same number.
    """

    def __init__(self, keys: DirectionKeys, session_id: int, aead: Aead, *, pad: int = 0) -> None:
        self._cipher = cipher(aead, keys.key)
        self._salt = keys.nonce_salt
        self._prefix = _PREFIX.pack(VERSION, session_id)
        self._most = aead.most_packets
        self._pad = check_pad(pad)
        self._numbers = (
            itertools.count()
        )  # one step of the interpreter: threads get no number twice
        self._process = os.getpid()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise SealMisused("a sealer cannot be copied: both would use the same nonces")

    def seal(self, message: bytes) -> bytes:
        """The packet. Raises SealedOut at the limit, SealMisused after a fork."""
        if os.getpid() != self._process:
            raise SealMisused("a sealer cannot be used after a fork: take a fresh ticket")
        number = next(self._numbers)
        if number >= self._most:
            raise SealedOut(f"{self._most} packets are sealed with this key: take a fresh ticket")
        header = self._prefix + _NUMBER.pack(number)
        padded = message + MARK
        if self._pad:
            size = len(padded) + HEADER_SIZE + TAG_SIZE
            full = min(-(-size // self._pad) * self._pad, MAX_PACKET)
            padded += bytes(max(0, full - size))
        return header + self._cipher.encrypt(nonce(self._salt, number), padded, header)


class Opener:
    """Opens the packets of the other direction, each once."""

    def __init__(self, keys: DirectionKeys, session_id: int, aead: Aead) -> None:
        from cryptography.exceptions import InvalidTag  # the cipher is made of the same package

        self._invalid = InvalidTag
        self._cipher = cipher(aead, keys.key)
        self._salt = keys.nonce_salt
        self._session_id = session_id
        self._window = ReplayWindow()
        self._most_forgeries = aead.most_forgeries
        #: Packets that were not authentic, and authentic or not, that had come before.
        self.forged = 0
        self.replayed = 0

    def open(self, packet: bytes) -> bytes | None:
        """The message; None: not of this session, not authentic, or it came before.

        Never raises for bad input.
        """
        if session_of(packet) != self._session_id or self.forged >= self._most_forgeries:
            return None
        (number,) = _NUMBER.unpack_from(packet, _PREFIX.size)
        if not self._window.fresh(number):
            self.replayed += 1
            return None
        try:
            padded = self._cipher.decrypt(
                nonce(self._salt, number), packet[HEADER_SIZE:], packet[:HEADER_SIZE]
            )
        except self._invalid:
            self.forged += 1
            return None
        self._window.mark(number)
        message = padded.rstrip(b"\0")
        return message[:-1] if message.endswith(MARK) else None
