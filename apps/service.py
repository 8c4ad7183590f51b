"""How a program on the network is talked to: its command line, its signals, what it says.

For ``apps.server`` and ``apps.client``, which must outlive readers that leave, inputs that are
closed, and terminals that go away.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import stat
import sys
from typing import Any

from terminal import message, program
from terminal.text import one_line


def say(event: str, **fields: object) -> None:
    """One line for whoever started the server, if anybody still reads: it serves others too."""
    if sys.stdout is None:
        return
    rest = f"{json.dumps({'event': event, **fields})}\n".encode()
    try:
        while rest:
            rest = rest[os.write(sys.stdout.fileno(), rest) :]
    except BrokenPipeError:
        pass
    except OSError as error:
        complain(f"cannot write events to standard output: {error.strerror}")


def complain(line: str) -> None:
    """One line on standard error, if there is one: print() would take standard output then."""
    if sys.stderr is not None:
        with contextlib.suppress(BrokenPipeError, program.OutputLost):
            message.note(line)


def failed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What went wrong in a task or a callback, on one line; the server goes on."""
    error = context.get("exception")
    complain(f"error: {context['message']}" + (f": {one_line(error)}" if error else ""))


def stop_signals() -> asyncio.Future[int]:
    """The exit status, once somebody has told the server to stop. Ctrl-C is asyncio's."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(status: int) -> None:
        if not stopped.done():
            stopped.set_result(status)

    # Told to stop and stopped: a success. One whose terminal has gone was not told.
    for number, status in ((signal.SIGTERM, 0), (signal.SIGHUP, 128 + signal.SIGHUP)):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            loop.add_signal_handler(number, stop, status)
    return stopped


async def standard_input() -> asyncio.StreamReader:
    """Lines of commands; ends at once where there is no input."""
    commands = asyncio.StreamReader()
    if sys.stdin is None:  # closed by who started us
        commands.feed_eof()
        return commands
    mode = os.fstat(0).st_mode
    if os.isatty(0) or not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    else:  # a file or /dev/null cannot be waited for, and need not be
        commands.feed_data(os.read(0, 65536))
        commands.feed_eof()
    return commands


async def next_line(commands: asyncio.StreamReader) -> bytes:
    """The next line, empty at the end.

    One longer than the reader's limit is dropped up to its end: its tail is no command, wherever
    the pipe cuts it (``readline`` would hand that out as a line of its own).
    """
    too_long = False
    while True:
        try:
            line = await commands.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            line = error.partial
        except asyncio.LimitOverrunError as error:
            too_long = True
            await commands.readexactly(error.consumed)
            continue
        return b"(a very long line)\n" if too_long else line


def host(text: str) -> str:
    """An argument that is a name or an address, also one in the brackets of a URL."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty: a name or an address, for example 127.0.0.1")
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def port_number(text: str) -> int:
    """An argument that is a port."""
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 1 to 65535")
    return int(text)
