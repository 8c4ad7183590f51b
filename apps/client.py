"""The client: asks one prompt, shows the answer as it comes, logs every token.

    python -m apps.client --scheme eloquent --port 4433 10.0.0.2 "Why is the sky blue?"

The answer goes to standard output, token by token; ``--log FILE`` takes the times. The exit
status is 0 for a complete answer, 1 for one that broke off.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
from pathlib import Path

from apps import stacks
from apps.stacks import Stack, StackError
from eloquent import TextDecoder, Token
from eloquent.aio import connect
from eloquent.wire import Reason
from terminal import message, program

#: Late copies are still read for this long (s), so that they are counted.
DRAIN = 0.1


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
        self._decoder = TextDecoder()
        self._digest = hashlib.sha256()

    def show(self, tokens: list[Token]) -> None:
        """Write the tokens; a character whose bytes are not all there yet is held back."""
        for token in tokens:
            self._write(self._decoder.feed(token.data))
            self._digest.update(token.data)
            self.n_bytes.append(len(token.data))
            self.received_at.append(token.received_at)
            self.rendered_at.append(self.loop.time())

    def finish(self, reason: Reason | None) -> None:
        self._write(self._decoder.finish() + "\n")
        self.reason = reason.name.lower() if reason else None

    def _write(self, text: str) -> None:
        if text:
            os.write(sys.stdout.fileno(), text.encode())

    def write_log(self, path: Path, scheme: str) -> None:
        record = {name: value for name, value in vars(self).items() if name in _LOGGED}
        record["sha256"] = self._digest.hexdigest()
        path.write_text(json.dumps({"scheme": scheme, **record}))


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
    """Ask over Eloquent; the scheme is the server's choice, by its port."""
    endpoint = await connect(prompt, options.host, options.port, screen.show)
    try:
        async with asyncio.timeout(options.timeout):
            await endpoint.closed.wait()
            await asyncio.sleep(DRAIN)
    except TimeoutError:
        screen.error = f"not complete after {options.timeout:g} s"
    finally:
        screen.closed_at = screen.loop.time()
        screen.datagrams_sent = endpoint.datagrams_sent
        screen.datagrams_received = endpoint.datagrams_received
        endpoint.close()
    screen.error = screen.error or endpoint.core.error
    screen.finish(endpoint.core.reason)


async def ask_stack(
    screen: Screen, stack: Stack, options: argparse.Namespace, prompt: bytes
) -> None:
    """Ask over one of the stacks."""
    try:
        async with asyncio.timeout(options.timeout):
            screen.finish(await stack.ask(options.host, options.port, prompt, screen))
    except TimeoutError:
        screen.error = f"not complete after {options.timeout:g} s"
    except StackError as error:
        screen.error = str(error)


async def run(options: argparse.Namespace, prompt: bytes) -> int:
    # Before the clock starts: what a stack needs is imported here.
    stack: Stack | None = None
    if options.scheme in stacks.names():
        stack = stacks.create(options.scheme, options.congestion_control)
    screen = Screen()
    try:
        if stack is None:
            await ask_udp(screen, options, prompt)
        else:
            await ask_stack(screen, stack, options, prompt)
    finally:
        if options.log is not None:
            screen.write_log(options.log, options.scheme)
    if screen.error is not None:
        message.error(f"the answer ended after {len(screen.n_bytes)} tokens: {screen.error}")
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m apps.client",
        description="Ask a token server one prompt and show the answer as it comes.",
        epilog='example: python -m apps.client 127.0.0.1 "Why is the sky blue?"',
    )
    parser.add_argument("host", help="the server's address")
    parser.add_argument("prompt", help="the prompt; - reads it from standard input")
    parser.add_argument("--port", type=int, default=4433, help="(%(default)s)")
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
        type=float,
        default=600.0,
        help="give up after this many s (%(default)g)",
    )
    parser.add_argument(
        "--realtime",
        action="store_true",
        help="run before ordinary processes (SCHED_RR; needs root)",
    )
    return parser


def main() -> int:
    options = parser().parse_args()
    prompt = sys.stdin.buffer.read() if options.prompt == "-" else options.prompt.encode()
    try:
        if options.realtime:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        return asyncio.run(run(options, prompt))
    except PermissionError:
        message.error("--realtime needs root")
        return 2
    except (OSError, StackError, ValueError) as error:
        message.error(error)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    program.run(main)
