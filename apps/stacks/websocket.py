"""WebSocket (RFC 6455), with the package websockets at both ends.

The prompt and each token are one binary message; the last message is a text that says how many
tokens there were, and why no more come.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from eloquent import Reason, Token
from eloquent.window import MAX_PROMPT, WINDOW_BYTES
from terminal.text import one_line

from .base import (
    CLOSE_TIMEOUT,
    PROMPT_TIMEOUT,
    Answering,
    Reader,
    Stack,
    StackError,
    end_text,
    quiet_logger,
    read_end,
)
from .sockets import congestion_control, connect, listener

if TYPE_CHECKING:
    from websockets.asyncio.connection import Connection
    from websockets.asyncio.server import ServerConnection

#: The client waits this long (s) for the server's half of the closing handshake at most.
CLOSING = 2.0


class WebSocket(Stack):
    """Without compression, which would make short messages longer, and without keepalive pings,
    which would close a connection in an outage of 20 s that the other stacks survive."""

    name = "websocket"
    packages = ("websockets.asyncio.server", "websockets.asyncio.client")

    async def listen(self, host: str, port: int, answering: Answering) -> None:
        from websockets.asyncio.server import serve
        from websockets.exceptions import WebSocketException

        async def connected(connection: ServerConnection) -> None:
            try:
                await self._serve(connection, answering)
            except (WebSocketException, OSError, StackError) as error:
                self.dropped(error)

        self._server = await serve(
            connected,
            sock=listener(host, port, self.congestion_control),
            compression=None,
            open_timeout=PROMPT_TIMEOUT,
            ping_interval=None,
            max_size=MAX_PROMPT,
            logger=quiet_logger("websockets.server"),
        )

    async def _serve(self, connection: ServerConnection, answering: Answering) -> None:
        async with asyncio.timeout(PROMPT_TIMEOUT):
            prompt = await connection.recv(decode=False)
        with answering(prompt, congestion_control(_socket(connection))) as answer:
            async for token in answer:
                await connection.send(token)
                answer.sent()
            await connection.send(end_text(answer.total, answer.reason))
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await connection.wait_closed()

    async def ask(self, host: str, port: int, prompt: bytes, reader: Reader) -> Reason:
        from websockets.asyncio.client import connect as open_websocket
        from websockets.exceptions import WebSocketException

        sock = await connect(host, port, self.congestion_control)
        reader.reached = True
        reader.congestion_control = congestion_control(sock)
        # A URL has no place for the interface of a link-local address.
        name = f"[{host.partition('%')[0]}]" if ":" in host else host
        try:
            async with open_websocket(
                f"ws://{name}:{port}/",
                sock=sock,
                compression=None,
                open_timeout=None,  # the caller bounds the time
                ping_interval=None,
                close_timeout=CLOSING,
                max_size=WINDOW_BYTES,
                logger=quiet_logger("websockets.client"),
            ) as connection:
                await connection.send(prompt)
                return await self._read(connection, reader)
        except (WebSocketException, OSError) as error:
            raise StackError(f"the answer broke off: {one_line(error)}") from None
        finally:
            sock.close()

    async def _read(self, connection: Connection, reader: Reader) -> Reason:
        loop = asyncio.get_running_loop()
        count = 0
        while isinstance(message := await connection.recv(), bytes):
            reader.stream_bytes += len(message)
            reader.show([Token(count, message, loop.time())])
            count += 1
        return read_end(message, count)


def _socket(connection: Connection) -> socket.socket:
    found: socket.socket = connection.transport.get_extra_info("socket")
    return found
