"""Answers as the server makes them: generated in a thread, logged token by token, traced."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from apps.sources import Source, SourceError
from apps.trace import TraceWriter
from eloquent import Reason
from terminal import message
from terminal.text import one_line

REASONS = {"stop": Reason.STOP, "length": Reason.LENGTH}


class Generation:
    """Runs one answer of a source in a thread, so that the event loop keeps its timers.

    Iterate over it for (token, time.monotonic() of its generation); ``reason`` is known after.
    """

    def __init__(self, source: Source, prompt: str, max_tokens: int) -> None:
        self.reason = Reason.ERROR
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[bytes, float] | None] = asyncio.Queue()
        self._stop = threading.Event()
        self._error: Exception | None = None
        thread = threading.Thread(target=self._run, args=(source, prompt, max_tokens), daemon=True)
        thread.start()

    def _run(self, source: Source, prompt: str, max_tokens: int) -> None:
        try:
            # Inside, because a source may refuse a prompt before its first token.
            with contextlib.closing(source.answer(prompt, max_tokens)) as tokens:
                while not self._stop.is_set():
                    self._put((next(tokens), time.monotonic()))
        except StopIteration as end:
            self.reason = REASONS[end.value]
        except Exception as error:  # noqa: BLE001 - raised again where the tokens are taken
            self._error = error
        finally:
            self._put(None)

    def _put(self, item: tuple[bytes, float] | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)
        except RuntimeError:
            self._stop.set()  # the loop is closed: the server is being stopped

    def stop(self) -> None:
        """The reader has gone: generate nothing more."""
        self._stop.set()

    async def __aiter__(self) -> AsyncIterator[tuple[bytes, float]]:
        while (item := await self._queue.get()) is not None:
            yield item
        if self._error is not None:
            raise self._error


@dataclass
class AnswerLog:
    """What the server knows of one answer. Times are ``time.monotonic()`` seconds."""

    scheme: str
    prompt: str
    asked_at: float
    tokens: list[bytes] = field(default_factory=list)
    generated_at: list[float] = field(default_factory=list)
    sent_at: list[float] = field(default_factory=list)
    reason: str = "error"
    error: str | None = None
    congestion_control: str = ""

    def write(self, folder: Path, number: int, source: Source) -> Path:
        """Write ``answer-NNN.json`` into ``folder``, and ``answer-NNN.trace.jsonl`` for replay.

        NNN is ``number``, or the next one that is free: nothing is overwritten. Raises OSError.
        """
        trace = folder / f"answer-{number:03d}.trace.jsonl"
        while (path := folder / f"answer-{number:03d}.json").exists() or trace.exists():
            number += 1
            trace = folder / f"answer-{number:03d}.trace.jsonl"
        record = {
            "scheme": self.scheme,
            "prompt": self.prompt,
            "asked_at": self.asked_at,
            "reason": self.reason,
            "error": self.error,
            "congestion_control": self.congestion_control,
            "n_bytes": [len(token) for token in self.tokens],
            "generated_at": self.generated_at,
            "sent_at": self.sent_at,
            "sha256": hashlib.sha256(b"".join(self.tokens)).hexdigest(),
        }
        _write_new(path, json.dumps(record))
        replayable = bool(self.tokens) and self.reason in REASONS
        if replayable and source.describe().get("source") != "trace":
            self._write_trace(trace, source)
        return path

    def _write_trace(self, path: Path, source: Source) -> None:
        how = "live run of apps.server"
        with TraceWriter(path, model=source.name, prompt=self.prompt, recorded=how) as trace:
            for token, at in zip(self.tokens, self.generated_at, strict=True):
                trace.token(at - self.asked_at, token)
            trace.end("stop" if self.reason == "stop" else "length")


def _write_new(path: Path, text: str) -> None:
    """A file of its own, whole or not at all."""
    with path.open("x") as file:
        try:
            file.write(text)
            file.flush()
        except OSError:
            path.unlink()
            raise


class Answer:
    """One answer on its way to a reader: iterate for its tokens, each noted as it is generated.

    A source that cannot answer, or breaks off, ends it with the reason ERROR, a line on standard
    error, and the same in the log.
    """

    def __init__(
        self, log: AnswerLog, generation: Generation, on_first: Callable[[AnswerLog, float], None]
    ) -> None:
        self.log = log
        self.reason = Reason.ERROR
        #: What became of it, for who reads the server's events.
        self.how = "finished"
        self._generation = generation
        self._on_first = on_first
        self._loop = asyncio.get_running_loop()

    @property
    def total(self) -> int:
        """Number of tokens so far."""
        return len(self.log.tokens)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for token, at in self._generation:
                if not self.log.tokens:
                    self._on_first(self.log, at)
                self.log.tokens.append(token)
                self.log.generated_at.append(at)
                yield token
        except SourceError as error:
            self._failed(str(error))
        except Exception as error:  # noqa: BLE001 - whoever reads must hear of it, whatever it is
            self._failed(f"{type(error).__name__}: {one_line(error)}")
        self.reason = self._generation.reason
        self.log.reason = self.reason.name.lower()

    def _failed(self, why: str) -> None:
        self.log.error = why
        what = f"the answer broke off after {self.total} tokens" if self.total else "no answer"
        message.error(f"{what}: {why}")

    def sent(self) -> None:
        """The token taken last was handed to the socket, just now."""
        self.log.sent_at.append(self._loop.time())

    def stop(self) -> None:
        """Generate nothing more."""
        self._generation.stop()
