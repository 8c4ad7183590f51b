"""What every scheme offers to the sender."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

from ..rtt import RttEstimator
from ..window import Fresh, Window


class Scheme(ABC):
    """A sender's policy. One object serves one stream, so a scheme may keep state.

    The ``on_`` methods that send return indices of the window in ascending order; the sender packs
    them into as few datagrams as possible, oldest first, and sends each datagram ``copies`` times.

    ``steady`` decides when something is repeated. False: a probe timeout after the oldest
    unacknowledged token was sent for the last time, doubled each time (RFC 9002, section 6.2.1).
    True: every probe timeout, whether new tokens were sent meanwhile or not, and without doubling
    until nothing was heard for a second (as mosh does for ten).

    A scheme may have a timer of its own beside the probe timeout, or instead of it, with
    ``recovers`` set: then all repetitions are its own business, and that none is forgotten.
    """

    name: ClassVar[str]
    copies: int = 1
    steady: bool = False
    recovers: bool = False

    def __init__(self, argument: str = "") -> None:
        if argument:
            raise ValueError(f"scheme {self.name!r} takes no argument, got {argument!r}")

    @abstractmethod
    def on_token(self, window: Window, now: float) -> Iterable[int]:
        """New tokens (``window.unsent`` and beyond) wait: what is sent now?

        Nothing: the question is asked again 5 ms later.
        """

    def on_timeout(self, window: Window, now: float, timeout: float) -> Iterable[int]:
        """The oldest unacknowledged token was sent ``timeout`` seconds ago: what is sent again?"""
        return window.unacknowledged()

    def on_sent(self, indices: range, now: float) -> None:
        """A datagram with ``indices`` has left: maybe less than asked for, where limits apply."""
        del indices, now  # most schemes need neither

    def on_ack(self, window: Window, fresh: Sequence[Fresh], rtt: RttEstimator, now: float) -> None:
        """An ACK came that was the first to acknowledge ``fresh``; the window has been updated."""
        del window, fresh, rtt, now  # most schemes need none of them

    def on_ping(self, window: Window, now: float) -> None:
        """The peer asks: nothing has reached it for a while, and it has no news for us."""
        del window, now

    def on_move(self, now: float) -> None:
        """The peer has a new address: all that is in flight went to the old one."""
        del now

    def next_timer(self, window: Window, rtt: RttEstimator) -> float | None:
        """When ``on_timer`` wants to be called; None: not before the next token or ACK.

        Timers closer together than the sender's FLIGHT_INTERVAL (5 ms) are put off.
        """
        return None

    def on_timer(self, window: Window, rtt: RttEstimator, now: float) -> Iterable[int]:
        """The timer has expired: what is sent now? May be nothing."""
        return ()
