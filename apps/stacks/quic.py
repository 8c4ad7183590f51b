"""QUIC (RFC 9000), with aioquic at both ends: one stream for each prompt, as records.

The stream carries what the baseline over kernel TCP carries (``eloquent.records``), so the two
differ in their transport alone, TLS included: QUIC has no other way.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from typing import TYPE_CHECKING, Any

from eloquent import Reason, Token, records, udp
from eloquent.udp import Address
from terminal.text import one_line

from .base import (
    CLOSE_TIMEOUT,
    PROMPT_TIMEOUT,
    Answering,
    Reader,
    Stack,
    StackError,
    quiet_logger,
)
from .sockets import addresses, first_of

if TYPE_CHECKING:
    from aioquic.quic.configuration import QuicConfiguration

    from ._aioquic import Connection

PROTOCOL = "eloquent-records"
CONGESTION_CONTROL = "cubic"
#: A connection on which nothing comes for this long (s) is over: longer than any outage and than
#: a model's first thought.
IDLE_TIMEOUT = 300.0
#: A server that has not answered for this long (s) is given up, as Eloquent's client does. An ICMP
#: error proves nothing, so there is no shorter way.
HANDSHAKE_TIMEOUT = 60.0
#: The client waits this long (s) for its own closing at most.
CLOSING = 1.0


class Quic(Stack):
    """The client does not verify the certificate, which the server makes at its start: the
    testbed's network holds nobody who could pretend."""

    name = "quic"
    # The last is imported by aioquic only in the handshake, which would count as waiting.
    packages = (
        *("aioquic.asyncio.server", "apps.stacks._aioquic"),
        "cryptography.hazmat.backends.openssl",
    )

    def __init__(self, congestion_control: str = CONGESTION_CONTROL) -> None:
        del congestion_control  # kernel TCP's; this one is aioquic's
        super().__init__(f"{CONGESTION_CONTROL} (aioquic)")
        self._living: dict[asyncio.Task[None], Connection] = {}
        quiet_logger("quic")

    async def listen(self, host: str, port: int, answering: Answering) -> None:
        from aioquic.asyncio.server import QuicServer

        from ._aioquic import Connection, Wire, self_signed

        configuration = _configuration(is_client=False)
        configuration.certificate, configuration.private_key = self_signed()

        def connected(*arguments: Any, **options: Any) -> Connection:
            connection = Connection(*arguments, **options)
            task = asyncio.get_running_loop().create_task(self._answer(connection, answering))
            self._living[task] = connection
            task.add_done_callback(self._living.pop)
            return connection

        # Not aioquic's own `serve`, whose socket does not know at which address it is asked.
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )
        server = QuicServer(configuration=configuration, create_protocol=connected)
        self._wire = Wire(udp.bound(found), server)

    async def _answer(self, connection: Connection, answering: Answering) -> None:
        try:
            await self._serve(connection, answering)
        except (OSError, StackError, records.MalformedRecord) as error:
            self.dropped(error)
        finally:
            connection.close()

    async def _serve(self, connection: Connection, answering: Answering) -> None:
        parser = records.Parser()
        prompts: list[Token | records.End] = []
        async with asyncio.timeout(PROMPT_TIMEOUT):
            while not prompts:
                data, _ = await connection.read()
                prompts = parser.feed(data)
        if not isinstance(prompts[0], Token):
            raise records.MalformedRecord("an END record instead of a prompt")
        with answering(prompts[0].data, self.congestion_control) as answer:
            async for token in answer:
                connection.write(records.encode(token))
                answer.sent()
            connection.write(records.encode_end(answer.total, answer.reason))
        await _wait_closed(connection, CLOSE_TIMEOUT)

    def end(self) -> None:
        """Close what a lost CONNECTION_CLOSE has left open: it would probe for minutes."""
        for connection in list(self._living.values()):
            connection.close()

    async def ask(self, host: str, port: int, prompt: bytes, reader: Reader) -> Reason:
        reader.congestion_control = self.congestion_control
        where = f"{host}, UDP port {port}"
        places = await addresses(host, port, socket.SOCK_DGRAM)
        attempts = [
            functools.partial(self._connect, host, *place, where, reader) for place in places
        ]
        try:
            connection = await first_of(attempts, self._discard)
        except OSError as error:
            raise StackError(f"cannot connect to {where}: {error.strerror or error}") from None
        reader.reached = True
        try:
            connection.write(records.encode(prompt))
            return await self._read(connection, reader)
        except records.MalformedRecord as error:
            raise StackError(str(error)) from None
        finally:
            await self._close(connection)

    def _discard(self, connection: Connection) -> None:
        """Close a connection that came second, without waiting for it."""
        connection.close()

    async def _close(self, connection: Connection) -> None:
        connection.close()
        if connection.open:
            await _wait_closed(connection, CLOSING)
        connection.hang_up()

    async def _read(self, connection: Connection, reader: Reader) -> Reason:
        parser = records.Parser()
        while True:
            data, now = await connection.read()
            reader.stream_bytes += len(data)
            for record in parser.feed(data, now):
                if isinstance(record, records.End):
                    return record.reason
                reader.show([record])

    async def _connect(
        self, name: str, family: int, address: Address, where: str, reader: Reader
    ) -> Connection:
        """A connection whose handshake is done. Raises OSError and StackError."""
        from aioquic.quic.connection import QuicConnection

        from ._aioquic import Connection, Wire

        configuration = _configuration(is_client=True)
        configuration.verify_mode = ssl.CERT_NONE
        configuration.server_name = name
        # Not aioquic's own `connect`, which wants IPv6: not every kernel has that.
        sock = udp.unconnected(family)

        def unreachable(peer: tuple[Any, ...], error: OSError) -> None:
            reader.unreachable = error.strerror or one_line(error)

        sock.on_unreachable = unreachable
        connection = Connection(QuicConnection(configuration=configuration))
        Wire(sock, connection)
        try:
            connection.connect(address)
            await _handshake(connection, where)
        except BaseException:  # a cancelled attempt as well
            connection.close()
            connection.hang_up()
            raise
        return connection


async def _handshake(connection: Connection, where: str) -> None:
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT):
            await connection.opened()
    except TimeoutError:
        why = f"no answer within {HANDSHAKE_TIMEOUT:g} s"
        raise StackError(f"cannot connect to {where}: {why}") from None
    except StackError as error:
        raise StackError(f"cannot connect to {where}: {error}") from None


async def _wait_closed(connection: Connection, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await connection.wait_closed()
    except TimeoutError:
        pass  # the peer has gone without a word


def _configuration(*, is_client: bool) -> QuicConfiguration:
    from aioquic.quic.configuration import QuicConfiguration

    return QuicConfiguration(
        is_client=is_client,
        alpn_protocols=[PROTOCOL],
        congestion_control_algorithm=CONGESTION_CONTROL,
        idle_timeout=IDLE_TIMEOUT,
    )
