"""Redundancy as in real-time text (RFC 4103): the last few tokens travel along, ACK or not."""

from __future__ import annotations

from collections.abc import Iterable

from ..rtt import RttEstimator
from ..window import Window
from .base import Scheme

#: RFC 4103, section 5.1: redundant text is sent once per buffering time, 300 ms.
GENERATION_TIME = 0.3


class Redundancy(Scheme):
    """New tokens, with those of the last ``n`` datagrams (``redundancy:2`` is the default).

    In pauses, as RFC 4103 has it, what was sent last is repeated every 300 ms until each token has
    gone out ``n`` times after the first. RFC 4103 gives up what was lost then; here the
    probe timeout brings it. Tokens that are known to have arrived are left out, which saves bytes
    and changes nothing for the reader.
    """

    name = "redundancy"

    def __init__(self, argument: str = "") -> None:
        super().__init__()
        if argument and not (argument.isdecimal() and 1 <= int(argument) <= 20):
            raise ValueError(f"redundancy takes 1 to 20 generations, got {argument!r}")
        self._generations = int(argument or 2)
        self._firsts: list[int] = []  # first new index of the last n datagrams
        self._sent_at = 0.0
        self._left = 0  # repetitions that are still due in a pause

    def on_token(self, window: Window, now: float) -> Iterable[int]:
        start = self._firsts[0] if self._firsts else window.unsent
        self._firsts = [*self._firsts, window.unsent][-self._generations :]
        self._sent_at, self._left = now, self._generations
        return (index for index in window.unacknowledged() if index >= start)

    def next_timer(self, window: Window, rtt: RttEstimator) -> float | None:
        return self._sent_at + GENERATION_TIME if self._left else None

    def on_timer(self, window: Window, rtt: RttEstimator, now: float) -> Iterable[int]:
        start = self._firsts[-self._left :][0]
        self._sent_at, self._left = now, self._left - 1
        return [index for index in window.unacknowledged() if start <= index < window.unsent]
