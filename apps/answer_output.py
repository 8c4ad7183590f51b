"""Standard output for an answer that comes in its own time: who reads slowly holds up nothing else.

A pager that shows its first page, or a terminal after Ctrl-S, takes no more for a while. The
protocol must go on meanwhile, or the server would take its client for dead.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import sys

#: So many bytes wait for a slow reader; an answer of a model has far fewer.
MOST_WAITING = 1 << 24


class OutputLost(Exception):
    """The answer cannot be shown any more: its reader has left, or the disk is full."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write the answer: {error.strerror}")
        self.reader_left = error.errno == errno.EPIPE


class AnswerOutput:
    """Writes text without ever waiting: what the output does not take now, it gets later."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting = bytearray()
        self._lost: OutputLost | None = None
        self._drained = asyncio.Event()
        self._drained.set()

    def write(self, text: str) -> None:
        """Write in the encoding of standard output. Raises OutputLost, also of earlier text."""
        if sys.stdout is None:  # it was closed by who started us
            return
        self._waiting += text.encode(sys.stdout.encoding, sys.stdout.errors or "strict")
        if self._drained.is_set():
            self._write()
        if self._lost is None and len(self._waiting) > MOST_WAITING:
            self._lose(OSError(errno.ENOBUFS, "its reader takes nothing, and too much waits"))
        if self._lost is not None:
            raise self._lost

    async def drained(self) -> None:
        """Wait until all is written. Raises OutputLost."""
        await self._drained.wait()
        if self._lost is not None:
            raise self._lost

    def _write(self) -> None:
        descriptor = sys.stdout.fileno()
        try:
            while self._waiting and select.select([], [descriptor], [], 0)[1]:
                # A pipe that takes anything takes this much at once (POSIX, write()).
                some = bytes(self._waiting[: select.PIPE_BUF])
                del self._waiting[: os.write(descriptor, some)]
        except BlockingIOError:  # a terminal that some other program has left so
            pass
        except OSError as error:
            self._lose(error)
        if not self._waiting:
            self._stop()
        elif self._drained.is_set():
            self._drained.clear()
            self._loop.add_writer(descriptor, self._write)

    def _lose(self, error: OSError) -> None:
        self._lost = OutputLost(error)
        self._waiting.clear()
        self._stop()

    def _stop(self) -> None:
        if not self._drained.is_set():
            self._loop.remove_writer(sys.stdout.fileno())
            self._drained.set()
