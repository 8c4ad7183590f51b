"""Packet duplication, the paper's second baseline: each datagram several times, back to back."""

from __future__ import annotations

from collections.abc import Iterable

from ..window import Window
from .base import Scheme


class Duplicate(Scheme):
    """New tokens only, each datagram ``copies`` times (``duplicate:3`` for three).

    What is still missing after a probe timeout is sent again, in copies as well, so that nothing
    is lost. Only tokens whose own timeout has passed are repeated.
    """

    name = "duplicate"

    def __init__(self, argument: str = "") -> None:
        super().__init__()
        if argument and not (argument.isdecimal() and 2 <= int(argument) <= 5):
            raise ValueError(f"duplicate takes 2 to 5 copies, got {argument!r}")
        self.copies = int(argument or 2)

    def on_token(self, window: Window, now: float) -> Iterable[int]:
        return range(window.unsent, window.next_index)

    def on_timeout(self, window: Window, now: float, timeout: float) -> Iterable[int]:
        return (i for i in window.unacknowledged() if window.last_sent(i) <= now - timeout + 1e-9)
