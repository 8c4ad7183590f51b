"""The scheme of the paper (arXiv 2401.12961): new tokens, with all that is not acknowledged."""

from __future__ import annotations

from collections.abc import Iterable

from ..window import Window
from .base import Scheme


class Eloquent(Scheme):
    """Any datagram that arrives can be shown at once: nothing it builds on can be missing."""

    name = "eloquent"

    def on_token(self, window: Window, now: float) -> Iterable[int]:
        return window.unacknowledged()
