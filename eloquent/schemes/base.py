"""What every scheme offers to the sender."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from ..window import Window


class Scheme(ABC):
    """A sender's policy. One object serves one stream, so a scheme may keep state.

    Both methods return indices of the window in ascending order; the sender packs them into as
    few datagrams as possible, oldest first, and sends each datagram ``copies`` times.
    """

    name: ClassVar[str]
    copies: int = 1

    def __init__(self, argument: str = "") -> None:
        if argument:
            raise ValueError(f"scheme {self.name!r} takes no argument, got {argument!r}")

    @abstractmethod
    def on_token(self, window: Window, now: float) -> Iterable[int]:
        """New tokens (``window.unsent`` and beyond) wait: what is sent now?"""

    def on_timeout(self, window: Window, now: float, timeout: float) -> Iterable[int]:
        """The oldest unacknowledged token was sent ``timeout`` seconds ago: what is sent again?"""
        return window.unacknowledged()
