"""Kernel TCP with length-prefixed records, and nothing in between: the plainest baseline."""

from __future__ import annotations

import asyncio
import socket

from eloquent import Reason, Token, records

from .base import CLOSE_TIMEOUT, PROMPT_TIMEOUT, Answering, Reader, Stack, StackError
from .sockets import congestion_control, connect, listener


class Tcp(Stack):
    """One connection for each prompt; see ``eloquent.records`` for the bytes."""

    name = "tcp"
    readable = True

    async def listen(self, host: str, port: int, answering: Answering) -> None:
        sock = listener(host, port, self.congestion_control)

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await self._serve(reader, writer, answering)
            except (OSError, StackError, records.MalformedRecord) as error:
                self.dropped(error)
            finally:
                writer.close()

        # Kept: the loop alone would not hold it.
        self._server = await asyncio.start_server(connected, sock=sock)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answering: Answering
    ) -> None:
        parser = records.Parser()
        prompts: list[Token | records.End] = []
        async with asyncio.timeout(PROMPT_TIMEOUT):
            while not prompts:
                data = await reader.read(65536)
                if not data:
                    return
                prompts = parser.feed(data)
        if not isinstance(prompts[0], Token):
            raise records.MalformedRecord("an END record instead of a prompt")
        connection: socket.socket = writer.get_extra_info("socket")
        with answering(prompts[0].data, congestion_control(connection)) as answer:
            async for token in answer:
                # One write per token: the kernel's buffer is larger than any answer here, so
                # this reaches the socket at once.
                writer.write(records.encode(token))
                answer.sent()
                await writer.drain()
            writer.write(records.encode_end(answer.total, answer.reason))
            await writer.drain()
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await reader.read(1)

    async def ask(self, host: str, port: int, prompt: bytes, reader: Reader) -> Reason:
        connection = await connect(host, port, self.congestion_control)
        reader.reached = True
        reader.congestion_control = congestion_control(connection)
        incoming, writer = await asyncio.open_connection(sock=connection)
        try:
            writer.write(records.encode(prompt))
            end = await self._read(incoming, reader)
            writer.close()
            await writer.wait_closed()
        except (OSError, records.MalformedRecord) as error:
            raise StackError(str(error)) from None
        finally:
            writer.close()
        return end.reason

    async def _read(self, incoming: asyncio.StreamReader, reader: Reader) -> records.End:
        loop = asyncio.get_running_loop()
        parser = records.Parser()
        while data := await incoming.read(65536):
            reader.stream_bytes += len(data)
            for record in parser.feed(data, loop.time()):
                if isinstance(record, records.End):
                    return record
                reader.show([record])
        raise StackError("the server closed the connection before the END")


class TcpBbr(Tcp):
    """The same with the kernel's BBR, which does not take a loss for congestion."""

    name = "tcp-bbr"

    def __init__(self, congestion_control: str = "bbr") -> None:
        del congestion_control  # what the other stacks use
        super().__init__("bbr")
