"""Recorded answers: the same tokens at the same pace, without a model.

A trace is a text file of JSON lines:

1. ``{"format": "eloquent-trace/1", "model": ..., "prompt": ..., "recorded": how}``
2. one line a token: ``[seconds since the request, "bytes in hex"]``, 1 to 1024 bytes
3. ``{"end": "stop" | "length", "count": tokens}``, so that a cut file is noticed.

``python -m apps.trace record --prompt TEXT --tokens N --out FILE`` records the language model.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, NoReturn, Self

from apps.sources import (
    Finish,
    ScheduledSource,
    Source,
    SourceError,
    check_max_tokens,
    shortened,
)
from eloquent.wire import MAX_TOKEN
from terminal import message, program, stopping
from terminal.arguments import Parser
from topologies import text_file

FORMAT = "eloquent-trace/1"
_LONGEST = 86_400.0
"""Seconds from the request to the last token; beyond are dates and milliseconds."""
DEFAULT_TRACE = Path(__file__).parent / "data" / "smollm2.jsonl"


class TraceError(SourceError):
    """A trace file is not what it should be; names the file and the line."""


class RecordingFailed(SourceError):
    """There is no whole answer to record."""


class TraceSource(ScheduledSource):
    """Replays one recorded answer, whatever the prompt.

    Args:
        path: the trace file, read and checked as a whole.

    Raises:
        TraceError: unreadable file or a line that breaks the format.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            raw = text_file.read(self.path)
            lines = text_file.lines(text_file.decode(raw))
        except text_file.TextFileError as error:
            raise TraceError(f"cannot read trace {self.path}: {error}") from None
        self.sha256 = hashlib.sha256(raw).hexdigest()
        reader = _Reader(self.path, lines)
        self.model = reader.model
        self.prompt = reader.prompt
        self.recorded = reader.recorded
        #: (seconds since the request, bytes) of every token.
        self.tokens: tuple[tuple[float, bytes], ...] = tuple(reader.tokens)
        self.end: Finish = reader.end
        self.name = f"trace of {self.model}"

    def describe(self) -> dict[str, object]:
        return {
            "source": "trace",
            "path": str(self.path),
            "sha256": self.sha256,
            "model": self.model,
            "prompt": self.prompt,
            "recorded": self.recorded,
            "tokens": len(self.tokens),
            "seconds": self.tokens[-1][0],
            "end": self.end,
        }

    def schedule(
        self, prompt: str, max_tokens: int, seed: int = 0
    ) -> tuple[list[tuple[float, bytes]], Finish]:
        check_max_tokens(max_tokens)
        cut = max_tokens < len(self.tokens)
        return list(self.tokens[:max_tokens]), "length" if cut else self.end


class TraceFolder(ScheduledSource):
    """Replays the recorded answer to each prompt, from a folder of traces (``*.jsonl``).

    Raises:
        TraceError: no trace in the folder, a broken one, or two for one prompt.
    """

    def __init__(self, folder: Path) -> None:
        self._traces: dict[str, TraceSource] = {}
        self._folder = folder
        for path in sorted(folder.glob("*.jsonl")):
            trace = TraceSource(path)
            if trace.prompt in self._traces:
                raise TraceError(f"{path} answers the same prompt as another trace of {folder}")
            self._traces[trace.prompt] = trace
        if not self._traces:
            raise TraceError(f"there are no traces (*.jsonl) in {folder}")
        self.name = f"traces of {next(iter(self._traces.values())).model}"

    def describe(self) -> dict[str, object]:
        return {
            "source": "trace",
            "path": str(self._folder),
            "traces": [trace.describe() for trace in self._traces.values()],
        }

    def schedule(
        self, prompt: str, max_tokens: int, seed: int = 0
    ) -> tuple[list[tuple[float, bytes]], Finish]:
        if prompt not in self._traces:
            raise TraceError(f"no trace in {self._folder} answers the prompt {shortened(prompt)}")
        return self._traces[prompt].schedule(prompt, max_tokens, seed)


def open_trace(path: str | Path) -> TraceSource | TraceFolder:
    """One trace, or a folder with one for each prompt. Raises TraceError."""
    path = Path(path)
    return TraceFolder(path) if path.is_dir() else TraceSource(path)


class _Reader:
    """Checks the lines of a trace and takes them apart."""

    def __init__(self, path: Path, lines: list[str]) -> None:
        self._path = path
        if not lines:
            self._fail(1, "the file is empty; a trace starts with its header line")
        values = [self._json(number, line) for number, line in enumerate(lines, start=1)]
        header = values[0]
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            self._fail(1, f'not a trace: the header must have "format": "{FORMAT}"')
        self.model = self._text(header, "model")
        self.prompt = self._text(header, "prompt")
        self.recorded = self._text(header, "recorded")
        self.tokens: list[tuple[float, bytes]] = []
        self.end: Finish = "length"
        for number, value in enumerate(values[1:], start=2):
            if isinstance(value, dict):
                self._end(number, value)
                if number != len(values):
                    self._fail(number + 1, "nothing may follow the end line")
                return
            self.tokens.append(self._token(number, value))
        self._fail(len(lines), "the end line is missing: the recording was cut off")

    def _fail(self, number: int, problem: str) -> NoReturn:
        raise TraceError(f"trace {self._path}, line {number}: {problem}")

    def _json(self, number: int, line: str) -> object:
        try:
            value: object = json.loads(line)
        except (ValueError, RecursionError):  # brackets upon brackets
            self._fail(number, f"not JSON: {line[:60]!r}")
        return value

    def _text(self, header: dict[str, object], key: str) -> str:
        value = header.get(key)
        if not isinstance(value, str):
            self._fail(1, f'the header needs "{key}" as text, not {value!r}')
        return value

    def _token(self, number: int, value: object) -> tuple[float, bytes]:
        if not (isinstance(value, list) and len(value) == 2 and isinstance(value[1], str)):
            self._fail(number, f'a token is [seconds, "hex"], not {str(value)[:60]}')
        seconds, text = value
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            self._fail(number, f"the time must be a number of seconds, not {seconds!r}")
        if not 0 <= seconds < math.inf:
            self._fail(number, f"the time must be finite and not negative, not {seconds!r}")
        if seconds > _LONGEST:
            said = str(seconds)[:20]
            self._fail(number, f"{said} s is more than a day: times are seconds since the request")
        if self.tokens and seconds < self.tokens[-1][0]:
            self._fail(number, f"time goes back from {self.tokens[-1][0]} to {seconds} s")
        # bytes.fromhex would also take spaces.
        if not text or len(text) % 2 or not set(text) <= set("0123456789abcdefABCDEF"):
            self._fail(number, f"the bytes must be hex, at least one, not {text[:60]!r}")
        if len(text) // 2 > MAX_TOKEN:
            self._fail(
                number,
                f"a token has {len(text) // 2} bytes, the protocol carries {MAX_TOKEN}: "
                "split it into several of the same time",
            )
        return float(seconds), bytes.fromhex(text)

    def _end(self, number: int, value: dict[str, object]) -> None:
        end, count = value.get("end"), value.get("count")
        if end == "stop":
            self.end = "stop"
        elif end != "length":
            self._fail(number, f'"end" must be "stop" or "length", not {end!r}')
        if isinstance(count, bool) or count != len(self.tokens):
            self._fail(number, f'"count" is {count!r}, but there are {len(self.tokens)} tokens')
        if not self.tokens:
            self._fail(number, "the trace holds no tokens")


class TraceWriter:
    """Writes a trace, token by token; usable as a context manager.

    A trace closed without :meth:`end` lacks its end line, and :class:`TraceSource` refuses it:
    an interrupted recording cannot pass for a whole one.

    Args:
        path: the file, created; must not exist.
        model: name of what generated the tokens.
        prompt: the prompt that was answered.
        recorded: how, in a few words: device, program, machine.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: str | Path, *, model: str, prompt: str, recorded: str) -> None:
        self._file: IO[str] = open(path, "x", encoding="utf-8")  # noqa: SIM115
        self._count = 0
        self._last = 0.0
        self._write({"format": FORMAT, "model": model, "prompt": prompt, "recorded": recorded})

    def token(self, seconds: float, data: bytes) -> None:
        """Add one token of 1 to ``MAX_TOKEN`` bytes, ``seconds`` after the request."""
        if not 1 <= len(data) <= MAX_TOKEN:
            raise ValueError(f"a token of a trace has 1 to {MAX_TOKEN} bytes, not {len(data)}")
        if not (math.isfinite(seconds) and seconds >= self._last):
            raise ValueError(f"time goes back from {self._last} to {seconds} s in a trace")
        self._last = seconds
        self._count += 1
        self._write([round(seconds, 6), data.hex()])

    def end(self, reason: Finish) -> None:
        """Write the end line and close the file."""
        self._write({"end": reason, "count": self._count})
        self.close()

    def close(self) -> None:
        """Close the file; harmless when closed already."""
        self._file.close()

    def _write(self, value: object) -> None:
        self._file.write(json.dumps(value, ensure_ascii=False) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def record(source: Source, prompt: str, max_tokens: int, writer: TraceWriter) -> Finish:
    """Let ``source`` answer ``prompt`` and write every token with its time.

    Returns:
        Why the answer ended.

    Raises:
        RecordingFailed: the source cannot answer, breaks off, or its answer has no token; the
            trace is without its end then.
    """
    start = time.monotonic()
    answer = source.answer(prompt, max_tokens)
    count = 0
    while True:
        try:
            data = next(answer)
        except StopIteration as stop:
            reason: Finish = stop.value
            if not count:
                raise RecordingFailed(
                    f"{source.name} gives an empty answer to {shortened(prompt)}: "
                    "the trace would have no token"
                ) from None
            writer.end(reason)
            return reason
        except SourceError as error:
            after = f" after {count} tokens" if count else ""
            raise RecordingFailed(f"no answer to {shortened(prompt)}{after}: {error}") from None
        writer.token(time.monotonic() - start, data)
        count += 1


def warm_up(source: Source) -> None:
    """A first, short answer warms caches and thread pools, as in a server that has run.

    What it cannot answer is no news: the real prompt says it.
    """
    with contextlib.suppress(SourceError):
        for _ in source.answer("Hello", 4):
            pass


@contextlib.contextmanager
def _whole_or_none(path: Path) -> Iterator[None]:
    """Remove what was begun when it does not come to its end: it would block the next try."""
    try:
        yield
    except FileExistsError:  # somebody else's
        raise
    except BaseException:
        path.unlink(missing_ok=True)
        raise


_EXAMPLES = """examples:
  python -m apps.trace record --prompt "Why is the sky blue?" --out sky.jsonl
  python -m apps.trace record --prompt "Write a poem." --tokens 200 --model DIR --out poem.jsonl
"""


def main(arguments: list[str] | None = None) -> int:
    """Command line: record a trace with the language model."""
    parser = Parser(
        prog="python -m apps.trace",
        description="Record a language model's answer with its times, to be replayed with "
        "--source trace:FILE.",
        epilog=_EXAMPLES,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    sub = commands.add_parser(
        "record",
        help="record the language model's answer to one prompt",
        description="Let the language model answer one prompt, and write every token with its "
        "time to a file.",
        epilog=_EXAMPLES,
    )
    sub.add_argument("--prompt", required=True, help="what is asked")
    sub.add_argument("--tokens", type=int, default=600, help="longest answer (default 600)")
    sub.add_argument("--out", type=Path, required=True, help="the trace file; must not exist")
    sub.add_argument("--model", help="folder or .gguf file (default: SmolLM2-135M-Instruct)")
    sub.add_argument("--device", default="auto", help="auto, cpu or cuda (%(default)s)")
    sub.add_argument("--threads", type=int, help="CPU threads of the model")
    sub.add_argument(
        "--repetition-penalty",
        type=float,
        default=1.0,
        help="above 1: what was said is said again less often (%(default)s, none)",
    )
    options = parser.parse_args(arguments)
    try:
        check_max_tokens(options.tokens)
        if options.out.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        from apps.model import ModelSource

        source = ModelSource(
            options.model,
            device=options.device,
            threads=options.threads,
            repetition_penalty=options.repetition_penalty,
            log=message.note,
        )
        warm_up(source)
        how = ", ".join(f"{key} {value}" for key, value in source.settings().items())
        with (
            stopping.stoppable(),
            _whole_or_none(options.out),
            TraceWriter(
                options.out,
                model=source.name,
                prompt=options.prompt,
                recorded=f"{how}, {platform.machine()}",
            ) as writer,
        ):
            record(source, options.prompt, options.tokens, writer)
    except RecordingFailed as error:
        message.error(error)
        return 1
    except SourceError as error:
        message.error(error)
        return 2
    except OSError as error:
        message.error(f"cannot write {options.out}: {error.strerror}")
        return 2
    except KeyboardInterrupt as stop:
        return stopping.status(stop)
    return 0


if __name__ == "__main__":
    program.run(main)
