"""Proof of an address without a memory of it: what SYN cookies are to TCP (RFC 4987, section 3.6).

A server asks with a PING whose ``sent_at`` is a cookie. Whoever echoes it from the same address has
received the PING, so the address is not forged; the server need not have kept anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable

#: A cookie is good for this long (s) at least, and for twice as long at most.
LIFETIME = 10.0


class Cookies:
    """Makes and checks cookies: 32 bits of a keyed hash. ``secret`` has 16 to 32 bytes."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def make(self, stream_id: int, address: Hashable, now: float) -> int:
        """The cookie of this stream at this address (any hashable value with a true repr)."""
        return self._cookie(stream_id, address, int(now // LIFETIME))

    def proves(self, cookie: int, stream_id: int, address: Hashable, now: float) -> bool:
        """Whether ``cookie`` was made for this stream at this address, and not too long ago."""
        period = int(now // LIFETIME)
        return any(cookie == self._cookie(stream_id, address, period - age) for age in (0, 1))

    def _cookie(self, stream_id: int, address: Hashable, period: int) -> int:
        text = repr((period, stream_id, address)).encode()
        return int.from_bytes(hashlib.blake2s(text, digest_size=4, key=self._secret).digest())
