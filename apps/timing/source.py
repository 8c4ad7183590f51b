"""The token source of a timing profile: the shape's times, a recorded answer's bytes."""

from __future__ import annotations

import itertools
import random

from apps.sources import Finish, ScheduledSource, check_max_tokens
from apps.timing.profile import Profile, load
from apps.trace import DEFAULT_TRACE, TraceSource


class TimingSource(ScheduledSource):
    """Answers any prompt at the pace of a profile.

    The tokens are those of the trace that ships, from its start and again as often as needed:
    their sizes are a language model's, and their text is not an answer to the prompt.

    Args:
        profile: times.
        seed: of the answers in real time; ``schedule`` is given its own.

    Raises:
        TraceError: the shipped trace is broken.
    """

    def __init__(self, profile: Profile, seed: int = 0) -> None:
        self.profile = profile
        self.seed = seed
        self.name = f"timing profile {profile.name}"
        self._trace = TraceSource(DEFAULT_TRACE)

    def describe(self) -> dict[str, object]:
        return {
            "source": "timing",
            **self.profile.to_dict(),
            "bytes": {
                "path": str(self._trace.path),
                "sha256": self._trace.sha256,
                "model": self._trace.model,
            },
        }

    def schedule(
        self, prompt: str, max_tokens: int, seed: int = 0
    ) -> tuple[list[tuple[float, bytes]], Finish]:
        check_max_tokens(max_tokens)
        shape = self.profile.shape
        whole = shape.tokens is not None and shape.tokens <= max_tokens
        count = shape.tokens if shape.tokens is not None and whole else max_tokens
        # Seeding by a text goes through SHA-512: near seeds give unrelated answers.
        rng = random.Random(f"{seed}\n{prompt}")
        times = (at for at, tokens in shape.steps(rng) for _ in range(tokens))
        data = itertools.cycle(token for _, token in self._trace.tokens)
        tokens = [(at, next(data)) for at in itertools.islice(times, count)]
        return tokens, "stop" if whole else "length"


def open_timing(spec: str, seed: int = 0) -> TimingSource:
    """Open ``NAME`` or ``FILE.toml``, each with ``:key=value`` as often as wanted.

    Raises:
        SourceError: no such profile or parameter, a value that cannot be, or a broken file.
    """
    return TimingSource(load(spec), seed)
