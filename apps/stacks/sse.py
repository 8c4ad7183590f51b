"""Server-Sent Events over HTTP/1.1, as most services stream answers: uvicorn, Starlette, httpx.

The prompt is the body of a POST. Each token is one event whose data is a JSON string, one
character of it for each byte (ISO 8859-1): a token may hold a part of a UTF-8 character, or a
newline. The last event is of type ``end`` and says how many there were, and why no more come.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Generator
from typing import TYPE_CHECKING, NamedTuple

from eloquent import Reason, Token
from eloquent.window import MAX_PROMPT, WINDOW_BYTES
from terminal.text import one_line

from .base import (
    PROMPT_TIMEOUT,
    Answering,
    Reader,
    Stack,
    StackError,
    end_text,
    quiet_logger,
    read_end,
)
from .sockets import client_options, congestion_control, listener

if TYPE_CHECKING:
    import httpx
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

PATH = "/answer"


class Event(NamedTuple):
    """One event of the stream."""

    kind: str
    data: str


class EventParser:
    """Cuts an event stream (HTML standard, section 9.2.6) into events, whatever the pieces.

    Raises StackError for a line beyond ``largest`` bytes.
    """

    def __init__(self, largest: int = WINDOW_BYTES) -> None:
        self.largest = largest
        self._line = bytearray()
        self._kind = ""
        self._data: list[str] = []
        self._after_return = False

    def feed(self, data: bytes) -> list[Event]:
        """The events that ``data`` completes, in order."""
        if not data:
            return []
        # CR and LF are one end of line, also when they come in two pieces.
        second_half = self._after_return and data.startswith(b"\n")
        self._after_return = data.endswith(b"\r")
        if second_half:
            data = data[1:]
        *lines, rest = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        out: list[Event] = []
        for line in lines:
            self._take(bytes(self._line) + line, out)
            self._line.clear()
        self._line += rest
        if len(self._line) > self.largest:
            raise StackError(f"an event line of more than {self.largest} bytes")
        return out

    def _take(self, line: bytes, out: list[Event]) -> None:
        if not line:
            if self._data:
                out.append(Event(self._kind or "message", "\n".join(self._data)))
            self._kind, self._data = "", []
            return
        field, _, value = line.decode(errors="replace").partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._kind = value


def encode(token: bytes) -> bytes:
    """The event of one token."""
    return f"data: {json.dumps(token.decode('latin-1'))}\n\n".encode("ascii")


def decode(data: str) -> bytes:
    """The token in an event's data. Raises StackError."""
    try:
        text = json.loads(data)
        if isinstance(text, str):
            return text.encode("latin-1")
    except ValueError:
        pass
    raise StackError(f"an event that holds no token: {data[:60]!r}")


class Sse(Stack):
    """A Starlette application in uvicorn (h11), asked by httpx; without TLS, as all of them here
    over TCP."""

    name = "sse"
    # The last two are imported by httpx only when it asks, which would count as waiting.
    packages = (
        *("uvicorn", "starlette.applications", "httpx"),
        *("httpcore", "anyio._backends._asyncio"),
    )

    async def listen(self, host: str, port: int, answering: Answering) -> None:
        sock = listener(host, port, self.congestion_control)
        # Accepted sockets inherit it; uvicorn does not show them.
        control = congestion_control(sock)
        self._server = _server(_application(answering, control))
        self._task = asyncio.create_task(self._server.serve(sockets=[sock]))
        while not (self._server.started or self._task.done()):
            await asyncio.sleep(0.01)

    async def ask(self, host: str, port: int, prompt: bytes, reader: Reader) -> Reason:
        import httpx

        options = client_options(self.congestion_control)
        # verify=False: loading certificates takes longer than an answer's first token, for nothing.
        transport = httpx.AsyncHTTPTransport(verify=False, socket_options=options)
        url = httpx.URL(scheme="http", host=host, port=port, path=PATH)
        # The caller bounds the time. trust_env=False: no proxy of this machine may take part.
        async with httpx.AsyncClient(transport=transport, timeout=None, trust_env=False) as client:
            headers = {"accept": "text/event-stream"}
            try:
                async with client.stream("POST", url, content=prompt, headers=headers) as response:
                    return await self._read(response, reader)
            except httpx.ConnectError as error:
                why = one_line(error)
                raise StackError(f"cannot connect to {host}, TCP port {port}: {why}") from None
            except httpx.HTTPError as error:
                raise StackError(f"the answer broke off: {one_line(error)}") from None

    async def _read(self, response: httpx.Response, reader: Reader) -> Reason:
        reader.reached = True
        loop = asyncio.get_running_loop()
        connection: socket.socket = response.extensions["network_stream"].get_extra_info("socket")
        reader.congestion_control = congestion_control(connection)
        if response.status_code != 200:
            said = (await response.aread())[:200].decode(errors="replace")
            raise StackError(f"HTTP status {response.status_code}: {' '.join(said.split())}")
        parser, count = EventParser(), 0
        reason: Reason | None = None
        async for data in response.aiter_raw():
            now = loop.time()
            reader.stream_bytes += len(data)
            for event in parser.feed(data):
                if reason is not None:
                    raise StackError("an event after the END")
                if event.kind == "end":
                    reason = read_end(event.data, count)
                elif event.kind == "message":
                    reader.show([Token(count, decode(event.data), now)])
                    count += 1
        if reason is None:
            raise StackError("the server closed the connection before the END")
        return reason


def _server(application: Starlette) -> uvicorn.Server:
    import uvicorn

    class Guest(uvicorn.Server):
        """Signals are for the program that it is a part of."""

        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            yield

    quiet_logger("uvicorn.error")
    return Guest(
        uvicorn.Config(
            application,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
    )


def _application(answering: Answering, control: str) -> Starlette:
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect
    from starlette.responses import PlainTextResponse, StreamingResponse
    from starlette.routing import Route

    async def events(prompt: bytes) -> AsyncIterator[bytes]:
        with answering(prompt, control) as answer:
            async for token in answer:
                yield encode(token)
                answer.sent()  # it goes on here as soon as uvicorn has written
            end = end_text(answer.total, answer.reason)
            yield f"event: end\ndata: {end}\n\n".encode()

    async def answer(request: Request) -> Response:
        prompt = bytearray()
        try:
            async with asyncio.timeout(PROMPT_TIMEOUT):
                async for piece in request.stream():
                    prompt += piece
                    if len(prompt) > MAX_PROMPT:
                        return PlainTextResponse(f"the prompt is over {MAX_PROMPT} bytes\n", 413)
        except (TimeoutError, ClientDisconnect):
            return PlainTextResponse("no whole prompt came\n", 408)
        return StreamingResponse(
            events(bytes(prompt)),
            media_type="text/event-stream",
            headers={"cache-control": "no-store"},
        )

    return Starlette(routes=[Route(PATH, answer, methods=["POST"])])
