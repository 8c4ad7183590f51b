"""The client: asks one prompt, shows the answer as it comes, logs every token.

    python -m apps.client --scheme eloquent --port 4433 10.0.0.2 "Why is the sky blue?"

The answer goes to standard output, token by token; ``--log FILE`` takes the times. Who leaves
early (Ctrl-C, SIGTERM, a closed pipe) cancels the answer at the server.

Exit status: 0 for a complete answer, 1 for one that broke off, 2 for what cannot be asked, 128 and
the signal for one that ended it: 130 Ctrl-C, 143 SIGTERM, 141 when nobody reads the output.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import hashlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from apps import stacks
from apps.answer_output import AnswerOutput, OutputLost
from apps.service import complain, host, port_number
from apps.stacks import Stack, StackError
from eloquent import TextDecoder, Token
from eloquent.aio import ClientEndpoint, connect
from eloquent.window import MAX_PROMPT
from eloquent.wire import Reason
from terminal import message, program
from terminal.arguments import Parser
from topologies.quantities import TIME

#: Late copies are still read for this long (s), so that they are counted.
DRAIN = 0.1
#: A server of which nothing was heard for this long (s) is worth a word.
PATIENCE = 1.0
#: Who leaves early stays this long (s) at most, so that the server hears of it.
LEAVE = 1.0
#: No signal ends the process, so that a lost reader looks as it does elsewhere.
READER_LEFT = 128 + signal.SIGPIPE


class Screen:
    """Renders tokens and remembers when. Times are ``time.monotonic()`` seconds."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.asked_at = self.loop.time()
        self.n_bytes: list[int] = []
        self.received_at: list[float] = []
        self.rendered_at: list[float] = []
        self.closed_at: float | None = None
        self.datagrams_sent = 0
        self.datagrams_received = 0
        self.stream_bytes = 0
        self.congestion_control = ""
        self.error: str | None = None
        self.reason: str | None = None
        self.reached = False
        self.unreachable = ""
        self.output = AnswerOutput()
        self._decoder = TextDecoder()
        self._digest = hashlib.sha256()

    def show(self, tokens: list[Token]) -> None:
        """Write the tokens; a character whose bytes are not all there yet is held back."""
        for token in tokens:
            self.output.write(self._decoder.feed(token.data))
            self._digest.update(token.data)
            self.n_bytes.append(len(token.data))
            self.received_at.append(token.received_at)
            self.rendered_at.append(self.loop.time())

    def finish(self, reason: Reason | None) -> None:
        self.output.write(self._decoder.finish() + "\n")
        self.reason = reason.name.lower() if reason else None
        self.error = self.error or _BROKEN.get(reason)

    def write_log(self, path: Path, scheme: str) -> None:
        record = {name: value for name, value in vars(self).items() if name in _LOGGED}
        record["sha256"] = self._digest.hexdigest()
        path.write_text(json.dumps({"scheme": scheme, **record}))

    def hint(self, where: str) -> str:
        """What is waited for, while nothing has answered."""
        line = f"no answer from {where} yet, still trying"
        if self.unreachable == os.strerror(errno.ECONNREFUSED):
            return f"{line}; the port seems closed: is a server running there?"
        return f"{line}; the system says: {self.unreachable}" if self.unreachable else line


#: Ends of an answer that is not whole, and what is said of them.
_BROKEN: dict[Reason | None, str] = {
    Reason.ERROR: "the server could not generate it; why is in its own messages",
    Reason.CANCELLED: "the server stopped it",
}

_LOGGED = {
    "asked_at",
    "closed_at",
    "n_bytes",
    "received_at",
    "rendered_at",
    "datagrams_sent",
    "datagrams_received",
    "stream_bytes",
    "congestion_control",
    "error",
    "reason",
}


async def ask_udp(screen: Screen, options: argparse.Namespace, prompt: bytes) -> None:
    """Ask over Eloquent; the scheme is the server's choice, by its port.

    Raises OutputLost, and OSError and ValueError for what cannot be asked.
    """
    endpoint = await connect(prompt, options.host, options.port, screen.show)

    def look() -> None:
        screen.reached = endpoint.core.answered
        unreachable = endpoint.core.unreachable.values()
        screen.unreachable = next(iter(unreachable), "")

    try:
        with waiting(screen, f"{options.host}, UDP port {options.port}", look):
            async with asyncio.timeout(options.timeout):
                await endpoint.wait_closed()
                await asyncio.sleep(DRAIN)
    except TimeoutError:
        screen.error = f"not complete after {options.timeout:g} s"
    finally:
        screen.closed_at = screen.loop.time()
        await _leave(endpoint)
        screen.datagrams_sent = endpoint.datagrams_sent
        screen.datagrams_received = endpoint.datagrams_received
        endpoint.close()
    screen.error = screen.error or endpoint.client.error
    screen.finish(endpoint.client.reason)


async def _leave(endpoint: ClientEndpoint) -> None:
    """Tell the server that nobody reads any more, unless the answer is complete."""
    if endpoint.client.complete:
        return
    endpoint.cancel()
    if endpoint.core.answered:
        with contextlib.suppress(TimeoutError, OutputLost):
            async with asyncio.timeout(LEAVE):
                await endpoint.wait_closed()


@contextlib.contextmanager
def waiting(screen: Screen, where: str, look: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Say once what is waited for, if nothing has answered after a while."""

    def say() -> None:
        look()
        if not screen.reached:
            complain(screen.hint(where))

    timer = screen.loop.call_later(PATIENCE, say)
    try:
        yield
    finally:
        timer.cancel()


async def ask_stack(
    screen: Screen, stack: Stack, options: argparse.Namespace, prompt: bytes
) -> None:
    """Ask over one of the stacks. Raises OutputLost."""
    try:
        with waiting(screen, f"{options.host}, port {options.port} ({stack.name})"):
            async with asyncio.timeout(options.timeout):
                screen.finish(await stack.ask(options.host, options.port, prompt, screen))
    except TimeoutError:
        screen.error = f"not complete after {options.timeout:g} s"
    except StackError as error:
        screen.error = str(error)


async def run(options: argparse.Namespace, prompt: bytes) -> int:
    if len(prompt) > MAX_PROMPT:  # the stacks would say so each in its own way, or not at all
        raise ValueError(f"the prompt has {len(prompt)} bytes, more than {MAX_PROMPT}")
    # Before the clock starts: what a stack needs is imported here.
    stack: Stack | None = None
    if options.scheme in stacks.names():
        stack = stacks.create(options.scheme, options.congestion_control)
    screen = Screen()
    signals = _end_at_signals()
    try:
        if stack is None:
            await ask_udp(screen, options, prompt)
        else:
            await ask_stack(screen, stack, options, prompt)
        await screen.output.drained()
    except OutputLost as lost:
        screen.error = str(lost)
        if lost.reader_left:
            return READER_LEFT
    except asyncio.CancelledError:
        screen.error = "interrupted"
        if not signals:
            raise
        return 128 + signals[0]
    finally:
        if options.log is not None:
            screen.write_log(options.log, options.scheme)
    if screen.error is not None:
        complain(f"error: the answer ended after {len(screen.n_bytes)} tokens: {screen.error}")
        return 1
    if not screen.n_bytes:
        message.note("the answer is empty")
    return 0


def _end_at_signals() -> list[int]:
    """Let signals cancel this task, so that the server is told. Returns those that came."""
    task = asyncio.current_task()
    assert task is not None
    came: list[int] = []

    def end(number: int) -> None:
        came.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            asyncio.get_running_loop().add_signal_handler(number, end, number)
    return came


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m apps.client",
        description="Ask a token server one prompt and show the answer as it comes.",
        epilog='examples:\n  python -m apps.client 127.0.0.1 "Why is the sky blue?"\n'
        "  python -m apps.client ::1 - --scheme tcp --timeout 30s <prompt.txt",
    )
    parser.add_argument("host", type=host, help="the server's name or address")
    parser.add_argument("prompt", help="the prompt; - reads it from standard input")
    parser.add_argument(
        "--port", type=port_number, default=4433, help="of the server (%(default)s)"
    )
    parser.add_argument(
        "--scheme",
        default="eloquent",
        help=f"{', '.join(stacks.names())}; any other name means Eloquent over UDP (%(default)s)",
    )
    parser.add_argument(
        "--congestion-control",
        default="cubic",
        help="of kernel TCP, tcp-bbr excepted, where this user may set it (%(default)s)",
    )
    parser.add_argument("--log", type=Path, help="write the times of all tokens to this file")
    parser.add_argument(
        "--timeout",
        type=TIME.option(600.0),
        default=600.0,
        metavar="TIME",
        help="give up after this long, as 30s or 2min (%(default)g s)",
    )
    parser.add_argument(
        "--realtime",
        action="store_true",
        help="run before ordinary processes (SCHED_RR; needs root)",
    )
    return parser


def _prompt(text: str) -> bytes:
    """The prompt's bytes as they were typed, whatever their encoding. Raises OSError."""
    if text != "-":
        return os.fsencode(text)
    if sys.stdin is None:
        raise OSError(errno.EBADF, "standard input is closed, and the prompt was to come from it")
    return sys.stdin.buffer.read()


def main() -> int:
    options = parser().parse_args()
    try:
        if options.log is not None:
            with options.log.open("a"):  # an answer later it would be late to learn this
                pass
        if options.realtime:
            _run_before_others()
        return asyncio.run(run(options, _prompt(options.prompt)))
    except (OSError, StackError, ValueError) as error:
        complain(f"error: {_why(error, options)}")
        return 2
    except KeyboardInterrupt:
        return 130


def _run_before_others() -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError as error:
        raise PermissionError(error.errno, "--realtime needs root") from None


def _why(error: Exception, options: argparse.Namespace) -> str:
    if isinstance(error, (socket.gaierror, UnicodeError)):
        said = error.strerror if isinstance(error, OSError) else "that is no name of a host"
        hint = "; the port goes into --port" if ":" in options.host else ""
        return f"cannot find {options.host}: {said}{hint}"
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}"
    return str(error)


if __name__ == "__main__":
    program.run(main)
