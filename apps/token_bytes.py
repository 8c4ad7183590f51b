"""From a model's token ids to the exact bytes of its answer.

``decode([id])`` does not do: a token may hold half a character, which decodes to U+FFFD, and the
bytes are lost. The tokenizer's own tables say which bytes a token stands for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

_HEX_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def byte_alphabet() -> dict[str, int]:
    """Return the letters with which byte-level BPE writes the 256 bytes in its vocabulary.

    Bytes that are printable in Latin-1 stand for themselves; the others, in order, for the code
    points from 256 on (Radford et al. 2019, "Language Models are Unsupervised Multitask
    Learners", the GPT-2 tokenizer).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(256 + order): byte for order, byte in enumerate(others)})
    return alphabet


class TokenBytes:
    """The bytes of the tokens of one answer, in order; make one for each answer.

    The concatenation equals ``tokenizer.decode(ids, skip_special_tokens=True)`` in UTF-8, except
    that bytes which never become a character stay as they are.

    Args:
        tokenizer: a Hugging Face tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(tokenizer.all_special_ids)
        added = tokenizer.added_tokens_decoder
        # Added tokens are plain text in the vocabulary, whatever the others are.
        self._added = {index: token.content.encode() for index, token in added.items()}
        self._special |= {index for index, token in added.items() if token.special}
        self._strip = 0
        self._piece = self._choose()
        self._ids: list[int] = []
        self._shown = 0

    def push(self, token_id: int) -> bytes:
        """Return the bytes that this token adds; empty for a special token."""
        if token_id in self._special:
            return b""
        if self._piece is None:
            return self._incremental(token_id)
        data = self._added.get(token_id)
        if data is None:
            # Models pad their vocabulary: an id may have no entry at all.
            data = self._piece(self._tokenizer.convert_ids_to_tokens(token_id) or "")
        if self._strip and data:
            # Sentencepiece writes a space before the first word, and decoding takes it away.
            if data.startswith(b" "):
                data = data[1:]
            self._strip = 0
        return data

    def _choose(self) -> Callable[[str], bytes] | None:
        """Return how a vocabulary entry becomes bytes; None if only the tokenizer knows."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        decoder = json.loads(backend.to_str()).get("decoder") or {}
        steps = decoder.get("decoders", [decoder])
        kinds = {step.get("type") for step in steps}
        if kinds == {"ByteLevel"}:
            alphabet = {letter: bytes([byte]) for letter, byte in byte_alphabet().items()}
            return lambda piece: b"".join(alphabet.get(c) or c.encode() for c in piece)
        if kinds <= {"Replace", "ByteFallback", "Fuse", "Strip"} and "ByteFallback" in kinds:
            replaced = [step for step in steps if step["type"] == "Replace"]
            if [(s["pattern"], s["content"]) for s in replaced] != [({"String": "▁"}, " ")]:
                return None
            self._strip = sum(step.get("start", 0) for step in steps if step["type"] == "Strip")
            return _sentencepiece if self._strip in (0, 1) else None
        return None

    def _incremental(self, token_id: int) -> bytes:
        """Decode the answer so far and return what is new; may hold back half a character."""
        self._ids.append(token_id)
        text: str = self._tokenizer.decode(
            self._ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        if text.endswith(_REPLACEMENT):
            return b""
        new = text[self._shown :]
        self._shown = len(text)
        return new.encode()


def _sentencepiece(piece: str) -> bytes:
    """Return the bytes of a sentencepiece entry: a byte written as <0xNN>, or text."""
    match = _HEX_PIECE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else piece.replace("▁", " ").encode()
