"""The scheme of the paper (arXiv 2401.12961): new tokens, with all that is not acknowledged."""

from __future__ import annotations

from collections.abc import Iterable

from ..window import Window
from .base import Scheme


class Eloquent(Scheme):
    """Any datagram that arrives can be shown at once: nothing it builds on can be missing.

    The paper does not say when something is repeated. Here an overdue ACK starts repetitions at a
    steady pace, so that an outage is over for the reader soon after it is over for the network,
    even if the model is slow with its next token.
    """

    name = "eloquent"
    steady = True

    def on_token(self, window: Window, now: float) -> Iterable[int]:
        return window.unacknowledged()
