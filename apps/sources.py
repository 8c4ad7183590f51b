"""Token sources: where the answers come from.

A source turns a prompt into tokens, one at a time and in real time. The server does not know
whether a language model computes them (:mod:`apps.model`, :mod:`apps.speculative`), a recording is
replayed (:mod:`apps.trace`), or a serving system's pace is imitated (:mod:`apps.timing`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Literal

from eloquent.wire import MAX_TOKEN
from terminal.arguments import did_you_mean

#: Why an answer ended: the model said so, or the number of tokens asked for was reached.
Finish = Literal["stop", "length"]

#: Takes one line of progress ("loading ...") that a person may want to see.
Log = Callable[[str], None]


class SourceError(ValueError):
    """A source cannot be opened or cannot answer. The message is one line."""


class Source(ABC):
    """Answers prompts with tokens, at the pace at which they are generated."""

    #: Short name of what answers, for tables and logs.
    name: str
    #: Of all randomness, together with the prompt. A source that has none ignores it.
    seed: int = 0

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """Return what a reader needs to judge or repeat a run: JSON values only."""

    @abstractmethod
    def answer(self, prompt: str, max_tokens: int) -> Generator[bytes, None, Finish]:
        """Generate the answer to ``prompt``; blocks until each token exists.

        Yields:
            The bytes of one token, 1 to 1024 (the protocol's limit), at the moment it is generated.
            A character may be split over tokens, so a single token need not be valid UTF-8. Work
            starts with the first ``next()``, which is the moment of the request.

        Returns:
            Why the answer ended (the generator's return value).

        Raises:
            SourceError: the prompt cannot be answered, or ``max_tokens`` is less than 1.
        """


class ScheduledSource(Source):
    """A source that knows beforehand when each token will exist.

    A simulation takes the schedule, and a server in real time the answer: the same tokens.
    """

    @abstractmethod
    def schedule(
        self, prompt: str, max_tokens: int, seed: int = 0
    ) -> tuple[list[tuple[float, bytes]], Finish]:
        """Return the whole answer at once, without waiting.

        Args:
            prompt: what is asked.
            max_tokens: longest answer.
            seed: in place of the source's own.

        Returns:
            Of every token the seconds since the request, which never decrease, and the bytes;
            and why the answer ends.

        Raises:
            SourceError: as ``answer``.
        """

    def answer(self, prompt: str, max_tokens: int) -> Generator[bytes, None, Finish]:
        start = time.monotonic()
        tokens, finish = self.schedule(prompt, max_tokens, self.seed)
        for seconds, data in tokens:
            # A deadline of its own for every token: a late wake-up delays that token alone and
            # does not add up over the answer.
            wait = start + seconds - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            yield data
        return finish


#: Specs for which ``open_source`` loads a language model, which takes seconds.
MODEL_SPECS = ("model", "model:prompt-lookup")


def open_source(
    spec: str,
    model_dir: str | Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    log: Log | None = None,
    seed: int = 0,
) -> Source:
    """Open the source that ``spec`` names.

    Args:
        spec: ``model`` (a language model), ``model:prompt-lookup`` (the same with speculative
            decoding), ``trace`` (the recording that ships with the testbed), ``trace:FILE``
            (another recording), ``trace:FOLDER`` (one per prompt), ``timing:NAME`` or
            ``timing:FILE.toml`` (the pace of a serving system), with ``:key=value`` after it.
        model_dir: folder or ``.gguf`` file of the model; None takes the default model.
        device: ``auto``, ``cpu`` or ``cuda``; for models only.
        threads: CPU threads of the model; None takes two, or one on a single core.
        log: called with lines of progress, because loading a model takes seconds.
        seed: of a timing profile's answers; the other sources have no randomness.

    Raises:
        SourceError: unknown spec, or the source cannot be opened.
    """
    # The sources are imported only when asked for: torch alone takes seconds.
    if spec == "model":
        from apps.model import ModelSource

        return ModelSource(model_dir, device=device, threads=threads, log=log)
    if spec == "model:prompt-lookup":
        from apps.speculative import PromptLookupSource

        return PromptLookupSource(model_dir, device=device, threads=threads, log=log)
    kind, colon, rest = spec.partition(":")
    if kind not in ("trace", "timing") or (kind == "trace" and colon and not rest):
        meant = did_you_mean(spec, (*MODEL_SPECS, "trace", "timing"))
        raise SourceError(
            f"unknown source {spec!r}: use 'model', 'model:prompt-lookup', 'trace', 'trace:FILE', "
            f"'timing:NAME' or 'timing:FILE.toml'{meant}"
        )
    if model_dir is not None:
        raise SourceError(
            f"source {spec!r} does not use a model, but {str(model_dir)!r} was given: "
            "leave the model away or use source 'model'"
        )
    if kind == "trace":
        from apps.trace import DEFAULT_TRACE, open_trace

        return open_trace(rest or DEFAULT_TRACE)
    from apps.timing import open_timing

    return open_timing(rest, seed)


def shortened(prompt: str) -> str:
    """A prompt as messages quote it."""
    return repr(prompt if len(prompt) <= 60 else f"{prompt[:57]}...")


def check_max_tokens(max_tokens: int) -> None:
    """Raise SourceError if no token is asked for."""
    if max_tokens < 1:
        raise SourceError(f"an answer needs at least 1 token, {max_tokens} were asked for")


def cut(data: bytes) -> Iterator[bytes]:
    """The pieces of a token that is longer than the protocol's (1024 B), as Reply.send cuts it."""
    for start in range(0, len(data), MAX_TOKEN):
        yield data[start : start + MAX_TOKEN]
