"""The token server: one model, one port per scheme or stack.

    python -m apps.server --host 10.0.0.2 --udp eloquent:4433 --udp duplicate:4434 --tcp 4433
    python -m apps.server --stack tcp:4433 --stack sse:8080 --stack websocket:8081 --stack quic:4433

It prints one JSON object per line: ``ready``, then ``first_token`` and ``done`` for each answer,
and serves until SIGTERM (status 0), SIGHUP (129) or Ctrl-C (130); its readers are told.

With ``--commands`` it also takes commands on standard input: ``stats`` (counters per port),
``seed N`` (of the answers from then on), ``end`` (end all streams) and ``quit``; the end of the
input is ``quit`` as well, so that a server never outlives the program that started it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from apps import stacks
from apps.answers import Answer, AnswerLog, Generation
from apps.service import (
    complain,
    failed,
    host,
    next_line,
    port_number,
    say,
    standard_input,
    stop_signals,
)
from apps.sources import Source, SourceError, open_source
from apps.stacks import Stack, StackError
from eloquent import Server
from eloquent.aio import Reply, ServerEndpoint
from eloquent.server import MAX_STREAMS
from terminal import program
from terminal.arguments import Parser


class TokenServer:
    """Serves one source to all schemes and stacks, and logs every token if there is a folder."""

    def __init__(
        self,
        source: Source,
        max_tokens: int,
        log_dir: Path | None,
        max_streams: int = MAX_STREAMS,
    ) -> None:
        self.source = source
        self.max_tokens = max_tokens
        self.max_streams = max_streams
        self.log_dir = log_dir
        self.endpoints: dict[str, LoggedEndpoint] = {}
        self.stacks: dict[str, Stack] = {}
        self.closing = False
        self._answers = 0

    async def open_udp(self, host: str, scheme: str, port: int) -> None:
        """Listen for one scheme. Raises OSError (port taken) and ValueError (unknown scheme)."""
        endpoint = LoggedEndpoint(Server(scheme, max_streams=self.max_streams), self, scheme)
        await endpoint.open(host, port)
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
        try:
            yield answer
            answer.how = answer.how or "finished"
        finally:
            answer.stop()
            if not self.closing:
                self._done(log, answer.how or "lost")

    async def answer_udp(self, prompt: bytes, reply: Reply, scheme: str) -> None:
        endpoint = self.endpoints[scheme]
        with self.answering(scheme, prompt) as answer:
            try:
                async for token in answer:
                    await endpoint.send(token, reply, answer.log)
                reply.finish(answer.reason)
                await endpoint.all_sent(reply, answer.log)
            finally:  # where the reader leaves, this task is cancelled
                endpoint.forget(reply)
                answer.how = reply.stream.ended

    def _new_log(self, scheme: str, prompt: bytes) -> AnswerLog:
        text = prompt.decode("utf-8", errors="replace")
        return AnswerLog(scheme, text, asyncio.get_running_loop().time())

    def _generate(self, log: AnswerLog) -> Answer:
        generation = Generation(self.source, log.prompt, self.max_tokens)
        return Answer(log, generation, lambda log, at: say("first_token", scheme=log.scheme, at=at))

    def _done(self, log: AnswerLog, how: str) -> None:
        self._answers += 1
        path: Path | None = None
        if self.log_dir is not None:
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
            error=log.error,
            how=how,
            log=path and str(path),
        )

    def close(self) -> None:
        """Tell every reader, and answer nobody any more."""
        self.closing = True
        for endpoint in self.endpoints.values():
            endpoint.close()
        for stack in self.stacks.values():
            stack.end()

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
        self._unsent: dict[Reply, AnswerLog] = {}

    async def send(self, token: bytes, reply: Reply, log: AnswerLog) -> None:
        """``reply.send``, noted."""
        self._unsent[reply] = log
        await reply.send(token)

    def forget(self, reply: Reply) -> None:
        """Note nothing more of it."""
        self._unsent.pop(reply, None)

    def pump(self) -> None:
        super().pump()
        for reply, log in list(self._unsent.items()):
            missing = reply.stream.tokens_sent - len(log.sent_at)
            log.sent_at += [self.loop.time()] * missing
            if len(log.sent_at) == len(log.tokens):
                del self._unsent[reply]

    async def all_sent(self, reply: Reply, log: AnswerLog) -> None:
        """Wait until every token has left once, or the stream has ended."""
        while not reply.cancelled and len(log.sent_at) < len(log.tokens):
            await reply.progress()


async def serve(options: argparse.Namespace, source: Source) -> int:
    """Run until a signal or, with ``--commands``, ``quit``. Returns the exit status."""
    asyncio.get_running_loop().set_exception_handler(failed)
    server = TokenServer(source, options.tokens, options.log_dir, options.max_streams)
    with contextlib.closing(server):
        await _listen(server, options)
        stopped = stop_signals()
        say("ready", source=source.describe(), pid=os.getpid())
        if not options.commands:
            return await stopped
        obeying = asyncio.create_task(obey(server))
        ends: set[asyncio.Future[Any]] = {obeying, stopped}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if stopped.done():
            return stopped.result()
        await obeying
        return 0


async def _listen(server: TokenServer, options: argparse.Namespace) -> None:
    for scheme, port in options.udp:
        if scheme in server.endpoints:
            raise StackError(f"the scheme {scheme} is asked for twice")
        with _listening(options.host, "UDP", port):
            await server.open_udp(options.host, scheme, port)
    wanted = [*options.stack, *([("tcp", options.tcp)] if options.tcp is not None else [])]
    for name, port in wanted:
        if name in server.stacks:
            raise StackError(f"the stack {name} is asked for twice")
        with _listening(options.host, name, port):
            await server.open_stack(options.host, name, port, options.congestion_control)


async def obey(server: TokenServer) -> None:
    """Take commands from standard input, until its end or ``quit``."""
    commands = await standard_input()
    while line := await next_line(commands):
        command = line.decode(errors="replace").strip()
        if command == "stats":
            say("stats", **server.stats())
        elif command.startswith("seed ") and command[5:].isdecimal():
            server.source.seed = int(command[5:])
            say("seed", seed=server.source.seed)
        elif command == "end":
            server.end_streams()
            say("end")
        elif command == "quit":
            return
        elif command:
            say("error", message=f"unknown command {command[:60]!r}: stats, seed N, end, quit")


@contextlib.contextmanager
def _listening(host: str, what: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise StackError(f"cannot listen on {host}, {what} port {port}: {why}") from None


def _prepare(folder: Path) -> None:
    """Make the folder for logs, and try to write there. Raises StackError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(b"x" * 4096)
    except OSError as error:
        why = error.strerror
        if isinstance(error, FileExistsError):
            why = "there is a file of that name"
        raise StackError(f"cannot write logs to {folder}: {why}") from None


def _scheme_port(text: str) -> tuple[str, int]:
    scheme, _, number = text.rpartition(":")
    if not scheme:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:PORT, for example eloquent:4433")
    return scheme, port_number(number)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number: 1 or more")
    return int(text)


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m apps.server",
        description="Serve a language model's tokens over Eloquent, TCP, HTTP, WebSocket, QUIC.",
        epilog="examples:\n"
        "  python -m apps.server --udp eloquent:4433 --stack sse:8080 --source trace\n"
        "  python -m apps.server --host 0.0.0.0 --udp eloquent:4433 --tcp 4434 --source model",
    )
    parser.add_argument(
        "--host",
        type=host,
        default="127.0.0.1",
        help="address to listen on; 0.0.0.0 is every IPv4 address, :: every address (%(default)s)",
    )
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
    parser.add_argument(
        "--tcp", type=port_number, metavar="PORT", help="the same as --stack tcp:PORT"
    )
    parser.add_argument(
        "--congestion-control",
        default="cubic",
        help="of kernel TCP, tcp-bbr excepted (%(default)s)",
    )
    parser.add_argument("--source", default="trace", help="model, trace or trace:FILE")
    parser.add_argument("--model", metavar="DIR", help="folder or GGUF file of another model")
    parser.add_argument(
        "--device",
        default="auto",
        choices=["auto", "cpu", "cuda"],
        help="where the model computes (%(default)s)",
    )
    parser.add_argument("--threads", type=int, help="CPU threads of the model")
    parser.add_argument("--tokens", type=_count, default=120, help="longest answer (%(default)s)")
    parser.add_argument(
        "--max-streams",
        type=_count,
        default=MAX_STREAMS,
        metavar="N",
        help="most answers at a time on each --udp port; more readers are told busy (%(default)s)",
    )
    parser.add_argument(
        "--log-dir", type=Path, help="log every answer in this folder, which is made (none)"
    )
    parser.add_argument(
        "--commands",
        action="store_true",
        help="take commands on standard input (stats, seed N, end, quit), and end with it",
    )
    parser.add_argument("--nice", type=int, default=0, help="lower the priority by this much")
    return parser


def main() -> int:
    options = parser().parse_args()
    if not (options.udp or options.stack or options.tcp):
        parser().error("nothing to serve: name a port, for example --udp eloquent:4433")
    try:
        if options.log_dir is not None:
            _prepare(options.log_dir)
        _lower_priority(options.nice)
        source = open_source(
            options.source,
            options.model,
            options.device,
            options.threads,
            log=complain,
        )
        return asyncio.run(serve(options, source))
    except (SourceError, StackError, ValueError) as error:
        complain(f"error: {error}")
        return 2
    except OSError as error:
        complain(f"error: {error.strerror or error}")
        return 2
    except KeyboardInterrupt:
        return 130


def _lower_priority(by: int) -> None:
    try:
        os.nice(by)
    except OSError as error:
        raise StackError(f"--nice {by}: {error.strerror}") from None


if __name__ == "__main__":
    program.run(main)
