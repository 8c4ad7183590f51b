"""The token server: one model, one port per scheme or stack.

    python -m apps.server --host 10.0.0.2 --udp eloquent:4433 --udp duplicate:4434 --tcp 4433
    python -m apps.server --stack tcp:4433 --stack sse:8080 --stack websocket:8081 --stack quic:4433

It prints one JSON object per line: ``ready``, then ``first_token`` and ``done`` for each answer.
On standard input it takes ``stats`` (counters per port), ``seed N`` (of the answers from then on),
``end`` (end all streams) and ``quit``; the end of the input is ``quit`` as well, so that a server
never outlives who started it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from apps import stacks
from apps.answers import Answer, AnswerLog, Generation
from apps.sources import Source, SourceError, open_source
from apps.stacks import Stack, StackError
from eloquent import Server
from eloquent.aio import Reply, ServerEndpoint
from terminal import message, program


class TokenServer:
    """Serves one source to all schemes and stacks, and logs every token."""

    def __init__(self, source: Source, max_tokens: int, log_dir: Path) -> None:
        self.source = source
        self.max_tokens = max_tokens
        self.log_dir = log_dir
        self.endpoints: dict[str, LoggedEndpoint] = {}
        self.stacks: dict[str, Stack] = {}
        self.closing = False
        self._answers = 0

    async def open_udp(self, host: str, scheme: str, port: int) -> None:
        """Listen for one scheme. Raises OSError (port taken) and ValueError (unknown scheme)."""
        loop = asyncio.get_running_loop()
        core = Server(scheme)
        _, endpoint = await loop.create_datagram_endpoint(
            lambda: LoggedEndpoint(core, self, scheme), local_addr=(host, port)
        )
        self.endpoints[scheme] = endpoint

    async def open_stack(self, host: str, name: str, port: int, congestion_control: str) -> None:
        """Listen for one stack. Raises OSError (port taken) and StackError."""
        stack = stacks.create(name, congestion_control)

        def answering(prompt: bytes, control: str) -> AbstractContextManager[Answer]:
            return self.answering(name, prompt, control)

        await stack.listen(host, port, answering)
        self.stacks[name] = stack

    @contextlib.contextmanager
    def answering(self, scheme: str, prompt: bytes, control: str = "") -> Iterator[Answer]:
        """Generate an answer inside of this context, and write its log at the end."""
        log = self._new_log(scheme, prompt)
        log.congestion_control = control
        answer = self._generate(log)
        how = "lost"
        try:
            yield answer
            how = "finished"
        finally:
            answer.stop()
            if not self.closing:
                self._done(log, how)

    async def answer_udp(self, prompt: bytes, reply: Reply, scheme: str) -> None:
        log = self._new_log(scheme, prompt)
        endpoint = self.endpoints[scheme]
        endpoint.watch(reply, log)
        answer = self._generate(log)
        async for token in answer:
            await reply.send(token)
            if reply.cancelled:
                answer.stop()
        reply.finish(answer.reason)
        await endpoint.all_sent(reply, log)
        self._done(log, reply.stream.ended or "finished")

    def _new_log(self, scheme: str, prompt: bytes) -> AnswerLog:
        text = prompt.decode("utf-8", errors="replace")
        return AnswerLog(scheme, text, asyncio.get_running_loop().time())

    def _generate(self, log: AnswerLog) -> Answer:
        generation = Generation(self.source, log.prompt, self.max_tokens)
        return Answer(log, generation, lambda log, at: say("first_token", scheme=log.scheme, at=at))

    def _done(self, log: AnswerLog, how: str) -> None:
        self._answers += 1
        try:
            path = log.write(self.log_dir, self._answers, self.source)
        except OSError as error:  # a full disk, say: whoever waits for the log must hear of it
            say("error", message=f"cannot write the log of an answer: {error.strerror}")
            return
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
        for stack in self.stacks.values():
            stack.end()

    def stats(self) -> dict[str, object]:
        """Counters since the start: datagrams per scheme."""
        return {
            "udp": {
                scheme: {
                    "sent": endpoint.datagrams_sent,
                    "received": endpoint.datagrams_received,
                    "malformed": endpoint.core.malformed,
                }
                for scheme, endpoint in self.endpoints.items()
            },
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
        with _listening(options.host, "UDP", port):
            await server.open_udp(options.host, scheme, port)
    wanted = [*options.stack, *([("tcp", options.tcp)] if options.tcp is not None else [])]
    for name, port in wanted:
        if name in server.stacks:
            raise StackError(f"the stack {name} is asked for twice")
        with _listening(options.host, name, port):
            await server.open_stack(options.host, name, port, options.congestion_control)
    commands = asyncio.StreamReader()
    mode = os.fstat(0).st_mode
    if os.isatty(0) or not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    else:  # a file or /dev/null cannot be waited for, and need not be
        commands.feed_data(os.read(0, 65536))
        commands.feed_eof()
    say("ready", source=source.describe(), pid=os.getpid())
    while line := (await commands.readline()).decode().strip():
        if line == "stats":
            say("stats", **server.stats())
        elif line.startswith("seed ") and line[5:].isdecimal():
            source.seed = int(line[5:])
            say("seed", seed=source.seed)
        elif line == "end":
            server.end_streams()
            say("end")
        elif line == "quit":
            break
        else:
            say("error", message=f"unknown command {line!r}: stats, seed N, end, quit")
    server.closing = True


@contextlib.contextmanager
def _listening(host: str, what: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise StackError(f"cannot listen on {host}, {what} port {port}: {why}") from None


def _scheme_port(text: str) -> tuple[str, int]:
    scheme, _, port = text.rpartition(":")
    if not scheme:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:PORT, for example eloquent:4433")
    return scheme, _port(port)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 1 to 65535")
    return int(text)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m apps.server",
        description="Serve a language model's tokens over Eloquent, TCP, HTTP, WebSocket, QUIC.",
        epilog="example: python -m apps.server --udp eloquent:4433 --stack sse:8080 --source trace",
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
    parser.add_argument(
        "--stack",
        type=_scheme_port,
        action="append",
        default=[],
        metavar="STACK:PORT",
        help=f"a port for one of {', '.join(stacks.names())}; may be repeated",
    )
    parser.add_argument("--tcp", type=_port, metavar="PORT", help="the same as --stack tcp:PORT")
    parser.add_argument(
        "--congestion-control",
        default="cubic",
        help="of kernel TCP, tcp-bbr excepted (%(default)s)",
    )
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
            log=message.note,
        )
        asyncio.run(serve(options, source))
    except (SourceError, StackError, ValueError) as error:
        message.error(error)
        return 2
    except OSError as error:
        message.error(f"{error.strerror or error}")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    program.run(main)
