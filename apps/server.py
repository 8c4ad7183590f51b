"""The token server: one model, one port per scheme.

    python -m apps.server --host 10.0.0.2 --udp eloquent:4433 --udp duplicate:4434 --tcp 4433

It prints one JSON object per line: ``ready``, then ``first_token`` and ``done`` for each answer.
On standard input it takes ``stats`` (counters per port), ``end`` (end all streams) and ``quit``;
the end of the input is ``quit`` as well, so that a server never outlives who started it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
from pathlib import Path

from apps.answers import AnswerLog, Generation
from apps.sources import Source, SourceError, open_source
from eloquent import Server, Token, records
from eloquent.aio import Reply, ServerEndpoint

TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", 13)
#: A TCP client from which no prompt comes for this long (s) is dropped.
PROMPT_TIMEOUT = 60.0


class TokenServer:
    """Serves one source to all schemes, and logs every token."""

    def __init__(self, source: Source, max_tokens: int, log_dir: Path) -> None:
        self.source = source
        self.max_tokens = max_tokens
        self.log_dir = log_dir
        self.endpoints: dict[str, LoggedEndpoint] = {}
        self.tcp_bytes = {"sent": 0, "received": 0}
        self._answers = 0

    async def open_udp(self, host: str, scheme: str, port: int) -> None:
        """Listen for one scheme. Raises OSError (port taken) and ValueError (unknown scheme)."""
        loop = asyncio.get_running_loop()
        core = Server(scheme)
        _, endpoint = await loop.create_datagram_endpoint(
            lambda: LoggedEndpoint(core, self, scheme), local_addr=(host, port)
        )
        self.endpoints[scheme] = endpoint

    async def open_tcp(self, host: str, port: int, congestion_control: str) -> None:
        """Listen for kernel TCP. Raises OSError: port taken, congestion control not there."""
        listener = socket.create_server((host, port))
        try:
            listener.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, congestion_control.encode())
        except OSError as error:
            known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().strip()
            raise OSError(
                error.errno,
                f"no congestion control {congestion_control!r} here, only: {known}",
            ) from None
        await asyncio.start_server(self._answer_tcp, sock=listener)

    async def answer_udp(self, prompt: bytes, reply: Reply, scheme: str) -> None:
        log = self._new_log(scheme, prompt)
        endpoint = self.endpoints[scheme]
        endpoint.watch(reply, log)
        generation = Generation(self.source, log.prompt, self.max_tokens)
        async for token, at in generation:
            self._generated(log, token, at)
            await reply.send(token)
            if reply.cancelled:
                generation.stop()
        log.reason = generation.reason.name.lower()
        reply.finish(generation.reason)
        await endpoint.all_sent(reply, log)
        self._done(log, reply.stream.ended or "finished")

    async def _answer_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await self._serve_connection(connection, reader, writer)
        except (ConnectionError, TimeoutError, records.MalformedRecord) as error:
            print(f"tcp connection dropped: {error}", file=sys.stderr)
        finally:
            writer.close()

    async def _serve_connection(
        self,
        connection: socket.socket,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        loop = asyncio.get_running_loop()
        parser = records.Parser()
        prompts: list[Token | records.End] = []
        while not prompts:
            data = await asyncio.wait_for(reader.read(65536), PROMPT_TIMEOUT)
            if not data:
                return
            self.tcp_bytes["received"] += len(data)
            prompts = parser.feed(data)
        if not isinstance(prompts[0], Token):
            raise records.MalformedRecord("an END record instead of a prompt")
        log = self._new_log("tcp", prompts[0].data)
        control = connection.getsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, 16)
        log.congestion_control = control.rstrip(b"\0").decode()
        generation = Generation(self.source, log.prompt, self.max_tokens)
        try:
            async for token, at in generation:
                self._generated(log, token, at)
                # One write per token: the kernel's buffer is larger than any answer here, so
                # this reaches the socket at once.
                self._write(writer, records.encode(token))
                log.sent_at.append(loop.time())
                await writer.drain()
            log.reason = generation.reason.name.lower()
            self._write(writer, records.encode_end(len(log.tokens), generation.reason))
            await writer.drain()
        finally:
            generation.stop()
        self._done(log, "finished")
        # Close only when the client has: the last bytes may still be on their way.
        await asyncio.wait_for(reader.read(1), 60)

    def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(data)
        self.tcp_bytes["sent"] += len(data)

    def _new_log(self, scheme: str, prompt: bytes) -> AnswerLog:
        text = prompt.decode("utf-8", errors="replace")
        return AnswerLog(scheme, text, asyncio.get_running_loop().time())

    def _generated(self, log: AnswerLog, token: bytes, at: float) -> None:
        if not log.tokens:
            say("first_token", scheme=log.scheme, at=at)
        log.tokens.append(token)
        log.generated_at.append(at)

    def _done(self, log: AnswerLog, how: str) -> None:
        self._answers += 1
        path = log.write(self.log_dir, self._answers, self.source)
        say(
            "done",
            scheme=log.scheme,
            tokens=len(log.tokens),
            reason=log.reason,
            how=how,
            log=str(path),
        )

    def end_streams(self) -> None:
        """Forget every living stream, so that nothing more is sent (a run is over)."""
        for endpoint in self.endpoints.values():
            endpoint.core.cancel_all(endpoint.loop.time())
            endpoint.pump()

    def stats(self) -> dict[str, object]:
        """Counters since the start: datagrams per scheme, bytes over TCP."""
        return {
            "udp": {
                scheme: {
                    "sent": endpoint.datagrams_sent,
                    "received": endpoint.datagrams_received,
                    "malformed": endpoint.core.malformed,
                }
                for scheme, endpoint in self.endpoints.items()
            },
            "tcp_bytes": self.tcp_bytes,
        }


class LoggedEndpoint(ServerEndpoint):
    """Notes for each token when the first datagram with it was handed to the socket."""

    def __init__(self, core: Server, server: TokenServer, scheme: str) -> None:
        super().__init__(core, lambda prompt, reply: server.answer_udp(prompt, reply, scheme))
        self._watched: list[tuple[Reply, AnswerLog]] = []

    def watch(self, reply: Reply, log: AnswerLog) -> None:
        self._watched.append((reply, log))

    def pump(self) -> None:
        super().pump()
        for reply, log in self._watched:
            missing = reply.stream.tokens_sent - len(log.sent_at)
            log.sent_at += [self.loop.time()] * missing

    async def all_sent(self, reply: Reply, log: AnswerLog) -> None:
        """Wait until every token has left once, or the stream has ended."""
        while not reply.cancelled and len(log.sent_at) < len(log.tokens):
            await self.progress()
        self._watched.remove((reply, log))


def say(event: str, **fields: object) -> None:
    """One line for whoever started the server."""
    print(json.dumps({"event": event, **fields}), flush=True)


async def serve(options: argparse.Namespace, source: Source) -> None:
    """Run until ``quit`` or the end of standard input."""
    loop = asyncio.get_running_loop()
    server = TokenServer(source, options.tokens, options.log_dir)
    for scheme, port in options.udp:
        await server.open_udp(options.host, scheme, port)
    if options.tcp is not None:
        await server.open_tcp(options.host, options.tcp, options.congestion_control)
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    say("ready", source=source.describe(), pid=os.getpid())
    while line := (await commands.readline()).decode().strip():
        if line == "stats":
            say("stats", **server.stats())
        elif line == "end":
            server.end_streams()
            say("end")
        elif line == "quit":
            break
        else:
            say("error", message=f"unknown command {line!r}: stats, end, quit")


def _scheme_port(text: str) -> tuple[str, int]:
    scheme, _, port = text.rpartition(":")
    if not scheme or not port.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not SCHEME:PORT, for example eloquent:4433")
    return scheme, int(port)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m apps.server",
        description="Serve a language model's tokens over Eloquent and TCP.",
        epilog="example: python -m apps.server --udp eloquent:4433 --source trace < /dev/zero",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument(
        "--udp",
        type=_scheme_port,
        action="append",
        default=[],
        metavar="SCHEME:PORT",
        help="a UDP port whose answers use this scheme; may be repeated",
    )
    parser.add_argument("--tcp", type=int, metavar="PORT", help="a TCP port for the baseline")
    parser.add_argument("--congestion-control", default="cubic", help="of TCP (%(default)s)")
    parser.add_argument("--source", default="trace", help="model, trace or trace:FILE")
    parser.add_argument("--model", metavar="DIR", help="folder or GGUF file of another model")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--threads", type=int, help="CPU threads of the model")
    parser.add_argument("--tokens", type=int, default=120, help="longest answer (%(default)s)")
    parser.add_argument("--log-dir", type=Path, default=Path("."), help="where answers are logged")
    parser.add_argument("--nice", type=int, default=0, help="lower the priority by this much")
    return parser


def main() -> int:
    options = parser().parse_args()
    os.nice(options.nice)
    try:
        source = open_source(
            options.source,
            options.model,
            options.device,
            options.threads,
            log=lambda line: print(line, file=sys.stderr, flush=True),
        )
        asyncio.run(serve(options, source))
    except (SourceError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: cannot listen on {options.host}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
