"""One QUIC connection with one stream of bytes, on aioquic; its socket; a server's certificate."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import (
    ConnectionTerminated,
    HandshakeCompleted,
    QuicEvent,
    StreamDataReceived,
)
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from eloquent.udp import Address, UdpSocket

from .base import StackError

#: The client's first bidirectional stream (RFC 9000, section 2.1).
STREAM = 0
#: Datagrams that are read at once.
_BATCH = 64


class Connection(QuicConnectionProtocol):
    """Queues what arrives on the stream, each piece with the time at which it came."""

    def __init__(self, quic: QuicConnection, stream_handler: Any = None) -> None:
        super().__init__(quic, stream_handler)
        #: Whether the handshake is done.
        self.open = False
        self._arrivals: asyncio.Queue[tuple[bytes, float]] = asyncio.Queue()
        self._news = asyncio.Event()
        self._why: str | None = None

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, HandshakeCompleted):
            self.open = True
        elif isinstance(event, StreamDataReceived):
            if event.stream_id == STREAM and event.data:
                self._arrivals.put_nowait((event.data, self._loop.time()))
        elif isinstance(event, ConnectionTerminated):
            self._ended(event.reason_phrase or f"closed with code {event.error_code}")
        self._news.set()

    def _ended(self, why: str) -> None:
        self._why = self._why or " ".join(why.split())
        self._news.set()

    async def opened(self) -> None:
        """Wait for the handshake. Raises StackError if it fails."""
        while not self.open:
            await self._next()

    async def read(self) -> tuple[bytes, float]:
        """The next bytes and when they came. Raises StackError when the connection has ended."""
        while self._arrivals.empty():
            await self._next()
        return self._arrivals.get_nowait()

    async def _next(self) -> None:
        self._alive()
        self._news.clear()
        await self._news.wait()

    def _alive(self) -> None:
        if self._why is not None:
            raise StackError(f"the QUIC connection ended: {self._why}")

    def hang_up(self) -> None:
        """Close the socket of a client's connection."""
        if self._transport is not None:
            self._transport.close()

    def write(self, data: bytes) -> None:
        """Hand bytes to the socket, as far as congestion control lets them leave at once."""
        self._alive()
        self._quic.send_stream_data(STREAM, data)
        self.transmit()


class Wire(asyncio.DatagramTransport):
    """A UDP socket for aioquic: an answer leaves from the address that was asked.

    What a full socket does not take is lost, and repeated by QUIC as what a network loses.
    """

    def __init__(self, sock: UdpSocket, protocol: asyncio.DatagramProtocol) -> None:
        super().__init__()
        self._sock = sock
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._loop.add_reader(sock.sock, self._readable)
        protocol.connection_made(self)

    def _readable(self) -> None:
        for data, address in self._sock.receive(_BATCH):
            self._protocol.datagram_received(data, address)

    def sendto(self, data: Any, addr: Any = None) -> None:
        if not self._is_closed:
            try:
                self._sock.send(data, Address(*addr))
            except BlockingIOError:
                pass

    def is_closing(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._sock.sock)
            self._sock.close()


def self_signed() -> tuple[x509.Certificate, Ed25519PrivateKey]:
    """A new certificate for nobody in particular, and its key; both live in memory only.

    Ed25519, because its signatures have one length: handshakes of all runs are of one size.
    """
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "eloquent testbed")])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    try:
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + 365 * day)
            .sign(key, None)
        )
    except ValueError as error:  # a clock before 1950, say
        raise StackError(f"cannot make a certificate for QUIC: {error}") from None
    return certificate, key
