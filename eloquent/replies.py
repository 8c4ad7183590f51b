"""Handlers on asyncio: each answers one prompt, in a task that lives as long as its reader.

Work for nobody is ended: who has left, or was never there (a forged prompt), costs no model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from .endpoint import Endpoint
from .server import Server, Stream
from .wire import MAX_TOKEN, Reason

#: A prompt that finds a handler running for each stream that may live waits this long (s) for those
#: whose readers have gone to tidy up. After that its reader is told *busy*.
TIDY_TIME = 2.0


class ReaderGone(ConnectionError):
    """The stream has ended: nobody reads what is sent. A handler may let it pass."""


class Reply:
    """What a handler writes its answer to."""

    def __init__(self, endpoint: Endpoint, stream: Stream) -> None:
        self.stream = stream
        self._endpoint = endpoint
        self._progress = asyncio.Event()

    @property
    def cancelled(self) -> bool:
        """The reader has gone: nothing more needs to be generated."""
        return self.stream.ended is not None

    async def send(self, token: bytes) -> None:
        """Send one token; waits while the client is far behind. Longer than 1024 B is cut.

        Raises RuntimeError after ``finish``, and ReaderGone when the stream has ended. The
        handler's own task is cancelled then, and so meets it only if it went on all the same.
        """
        for start in range(0, len(token) or 1, MAX_TOKEN):
            part = token[start : start + MAX_TOKEN]
            while not self.cancelled and self.stream.room() < len(part):
                await self.progress()
            if self.cancelled:
                await asyncio.sleep(0)  # who catches it in a loop must leave time for others
                raise ReaderGone(f"nobody reads: the stream has ended ({self.stream.ended})")
            self.stream.push(part, self._endpoint.loop.time())
            # A step of a model with speculative decoding gives several tokens at once.
            self._endpoint.pump_soon()

    def finish(self, reason: Reason = Reason.STOP) -> None:
        """The answer is complete, or with ``Reason.ERROR`` or ``CANCELLED`` breaks off here."""
        self.stream.finish(reason, self._endpoint.loop.time())
        self._endpoint.pump()

    async def progress(self) -> None:
        """Wait until something has arrived for this stream, or it has ended."""
        self._progress.clear()
        await self._progress.wait()

    def wake(self) -> None:
        """Let those go on who wait for ``progress``."""
        self._progress.set()


Handler = Callable[[bytes, Reply], Awaitable[None]]


class Handlers:
    """Runs ``handler`` for each prompt: no more at any time than streams may live.

    The task is cancelled when its stream ends, unless the answer was whole by then: what a handler
    does after ``finish`` is its own. One that goes on in spite of that keeps its place.
    """

    def __init__(self, handler: Handler, endpoint: Endpoint, core: Server) -> None:
        self._handler = handler
        self._endpoint = endpoint
        self._core = core
        self._running: dict[Stream, tuple[Reply, asyncio.Task[None]]] = {}
        self._waiting: dict[Stream, tuple[bytes, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._running)

    def start(self, stream: Stream, prompt: bytes) -> None:
        """Answer ``prompt``, at once if there is a place."""
        if stream.ended is not None:
            return
        if len(self._running) < self._core.max_streams:
            self._run(stream, prompt)
        else:
            refusal = self._endpoint.loop.call_later(TIDY_TIME, self._refuse, stream)
            self._waiting[stream] = prompt, refusal

    def heard(self, stream: Stream) -> None:
        """Something has arrived for ``stream``."""
        if (running := self._running.get(stream)) is not None:
            running[0].wake()

    def ended(self, stream: Stream) -> None:
        """Nobody reads ``stream`` any more."""
        if (waiting := self._waiting.pop(stream, None)) is not None:
            waiting[1].cancel()
        if (running := self._running.get(stream)) is not None:
            reply, task = running
            reply.wake()
            if not stream.finished:
                task.cancel()

    def close(self) -> None:
        """Cancel all of them."""
        for _, task in self._running.values():
            task.cancel()

    def _refuse(self, stream: Stream) -> None:
        del self._waiting[stream]
        self._core.cancel(stream, self._endpoint.loop.time())
        self._endpoint.pump()

    def _run(self, stream: Stream, prompt: bytes) -> None:
        reply = Reply(self._endpoint, stream)
        task = self._endpoint.loop.create_task(self._answer(prompt, reply))
        self._running[stream] = reply, task
        task.add_done_callback(partial(self._left, stream))

    def _left(self, stream: Stream, task: asyncio.Task[None]) -> None:
        del self._running[stream]
        while self._waiting and len(self._running) < self._core.max_streams:
            following = next(iter(self._waiting))
            prompt, refusal = self._waiting.pop(following)
            refusal.cancel()
            self._run(following, prompt)

    async def _answer(self, prompt: bytes, reply: Reply) -> None:
        try:
            await self._handler(prompt, reply)
        except BaseException as error:  # a cancelled task as well
            # The reader gets what there is, and must not wait for more.
            failed = isinstance(error, Exception)
            if not reply.stream.finished:
                reply.finish(Reason.ERROR if failed else Reason.CANCELLED)
            if not failed:
                raise
            if reply.cancelled and isinstance(error, ReaderGone):
                return
            # At once and once: as the result of a task nobody would see it before the task dies.
            self._endpoint.loop.call_exception_handler(
                {"message": "a handler could not answer its prompt", "exception": error}
            )
            return
        if not reply.cancelled and not reply.stream.finished:
            reply.finish()
