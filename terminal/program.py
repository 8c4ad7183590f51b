"""How a command runs and ends: every `if __name__ == "__main__"` calls `run`.

- What standard output and error cannot encode is written in plain characters (`terminal.text`).
- A reader that leaves (`| head`) ends the command without a word, with status 141: what a shell
  reports of a program that SIGPIPE ended. SIGPIPE itself stays as Python has it, ignored: a
  process with sockets must not die of it.
- An output that takes no more (a full disk) is one line on standard error, status 1.
- Ctrl-C is status 130.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from terminal import stopping
from terminal.text import PLAIN

READER_LEFT = 128 + 13  # SIGPIPE, by number: not every system has the name

_NAMES = {1: "standard output", 2: "standard error"}


class OutputLost(SystemExit):
    """Standard output or error takes no more. It ends the program, and is nobody's to handle.

    No OSError, as a command that handles those of its own files would take it for one of them.
    """

    def __init__(self, descriptor: int, error: OSError) -> None:
        if error.errno == errno.EPIPE:
            super().__init__(READER_LEFT)
        else:
            name = _NAMES.get(descriptor, "output")
            super().__init__(f"error: cannot write {name}: {error.strerror or error}")


class _Stream(io.TextIOWrapper):
    """A standard stream whose failure ends the program, once; afterwards it writes to nowhere."""

    loss: OutputLost | None = None
    _told = False  # the main thread, which is the one that ends

    def write(self, text: str, /) -> int:
        self._tell()
        try:
            return super().write(text)
        except OSError as error:
            self._lose(error)

    def flush(self) -> None:
        self._tell()
        try:
            super().flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> NoReturn:
        descriptor = self.fileno()
        with open(os.devnull, "wb") as nowhere:  # else the interpreter's end would fail again
            os.dup2(nowhere.fileno(), descriptor)
        self.loss = OutputLost(descriptor, error)
        self._told = threading.current_thread() is threading.main_thread()
        if not self._told:  # a thread ends without a word by SystemExit alone, by no subclass
            raise SystemExit(self.loss.code) from None
        raise self.loss from None

    def _tell(self) -> None:
        here = threading.current_thread() is threading.main_thread()
        if self.loss is not None and here and not self._told:
            self._told = True
            raise self.loss


def run(main: Callable[..., int | None], *arguments: Any) -> NoReturn:
    """Call `main` with the arguments and end the process with the status that it returns."""
    streams = [_prepare("stdout"), _prepare("stderr")]
    status: int | str | None
    try:
        try:
            status = main(*arguments)
        except KeyboardInterrupt as stop:
            status = stopping.status(stop)
        except BrokenPipeError:  # by os.write(), which passes our streams by
            if not _reader_left():
                raise
            status = READER_LEFT
        except SystemExit as end:
            status = end.code
    finally:
        for stream in streams:
            try:
                stream.flush()
            except OutputLost:
                pass  # it is known now
    # Lost standard error is told by OutputLost, unless whoever lost it has reasons to go on.
    lost = streams[0].loss if isinstance(streams[0], _Stream) else None
    sys.exit(status if lost is None else lost.code)


def _prepare(name: str) -> Any:
    stream = getattr(sys, name)
    if stream is None:  # closed by whoever started us: nothing is to be said
        stream = open(os.devnull, "w")  # noqa: SIM115 - it lives as long as the process
    elif type(stream) is io.TextIOWrapper:  # and not a test's
        stream.flush()
        stream = _Stream(
            stream.buffer,
            encoding=stream.encoding,
            errors=PLAIN,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
    setattr(sys, name, stream)
    return stream


def _reader_left() -> bool:
    poll = select.poll()
    for descriptor in _NAMES:
        poll.register(descriptor, 0)  # errors and hang-ups are told in any case
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
