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

    ``steady`` decides when something is repeated. False: a probe timeout after the oldest
    unacknowledged token was sent for the last time, doubled each time (RFC 9002, section 6.2.1).
    True: every probe timeout, whether new tokens were sent meanwhile or not, and without doubling
    until nothing was heard for a second (as mosh does for ten).
    """

    name: ClassVar[str]
    copies: int = 1
    steady: bool = False

    def __init__(self, argument: str = "") -> None:
        if argument:
            raise ValueError(f"scheme {self.name!r} takes no argument, got {argument!r}")

    @abstractmethod
    def on_token(self, window: Window, now: float) -> Iterable[int]:
        """New tokens (``window.unsent`` and beyond) wait: what is sent now?"""

    def on_timeout(self, window: Window, now: float, timeout: float) -> Iterable[int]:
        """The oldest unacknowledged token was sent ``timeout`` seconds ago: what is sent again?"""
        return window.unacknowledged()
