"""Token sources: where the answers come from.

A source turns a prompt into tokens, one at a time and in real time. The server does not know
whether a language model computes them (:mod:`apps.model`) or a recording is replayed
(:mod:`apps.trace`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Literal

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

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """Return what a reader needs to judge or repeat a run: JSON values only."""

    @abstractmethod
    def answer(self, prompt: str, max_tokens: int) -> Generator[bytes, None, Finish]:
        """Generate the answer to ``prompt``; blocks until each token exists.

        Yields:
            The bytes of one token, never empty, at the moment it is generated. A character may be
            split over tokens, so a single token need not be valid UTF-8. Work starts with the
            first ``next()``, which is the moment of the request.

        Returns:
            Why the answer ended (the generator's return value).

        Raises:
            SourceError: the prompt cannot be answered, or ``max_tokens`` is less than 1.
        """


def open_source(
    spec: str,
    model_dir: str | Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    log: Log | None = None,
) -> Source:
    """Open the source that ``spec`` names.

    Args:
        spec: ``model`` (a language model), ``trace`` (the recording that ships with the
            testbed), ``trace:FILE`` (another recording) or ``trace:FOLDER`` (one per prompt).
        model_dir: folder or ``.gguf`` file of the model; None takes the default model.
        device: ``auto``, ``cpu`` or ``cuda``; for ``model`` only.
        threads: CPU threads of the model; None takes two, or one on a single core.
        log: called with lines of progress, because loading a model takes seconds.

    Raises:
        SourceError: unknown spec, or the source cannot be opened.
    """
    # The sources are imported only when asked for: torch alone takes seconds.
    if spec == "model":
        from apps.model import ModelSource

        return ModelSource(model_dir, device=device, threads=threads, log=log)
    kind, colon, file = spec.partition(":")
    if kind == "trace" and (file or not colon):
        from apps.trace import DEFAULT_TRACE, open_trace

        if model_dir is not None:
            raise SourceError(
                f"source {spec!r} does not use a model, but {str(model_dir)!r} was given: "
                "leave the model away or use source 'model'"
            )
        return open_trace(file or DEFAULT_TRACE)
    raise SourceError(f"unknown source {spec!r}: use 'model', 'trace' or 'trace:FILE'")


def check_max_tokens(max_tokens: int) -> None:
    """Raise SourceError if no token is asked for."""
    if max_tokens < 1:
        raise SourceError(f"an answer needs at least 1 token, {max_tokens} were asked for")
