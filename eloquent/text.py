"""Tokens to text: a character whose bytes are split over tokens appears when it is whole."""

from __future__ import annotations

import codecs


class TextDecoder:
    """Incremental UTF-8. Broken bytes (not merely incomplete ones) become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: bytes) -> str:
        """The text that ``token`` completes; may be empty."""
        return self._decoder.decode(token)

    def finish(self) -> str:
        """What is left at the end: U+FFFD if the answer stops in the middle of a character."""
        return self._decoder.decode(b"", final=True)
