"""Token ids to bytes, for each kind of tokenizer, against its own ``decode``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("transformers")

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from apps.token_bytes import TokenBytes, byte_alphabet

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "naïve café, déjà vu, smørrebrød",
    "🌟👩‍♀️ and 🧪🏼🍵 together 🏔️",
    "语言模型逐字生成文本。",
    "  two spaces\n\tand a tab ",
    "日本語とEnglishが混ざる",
]


def _byte_level(vocabulary: int = 300) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(TEXTS, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")
    tokenizer.add_tokens([AddedToken("dé[x]", special=False)])
    return tokenizer


def _sentencepiece() -> PreTrainedTokenizerFast:
    """A vocabulary in the manner of Llama 2: words with U+2581, and bytes to fall back on."""
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁t", "h", "t", "e", "c", "a", "f", "q", "u", "▁c", "▁ca"]
    merges = [("▁", "t"), ("▁", "c"), ("▁c", "a")]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


def _word_piece() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]", "[SEP]"])
    backend.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="[SEP]")


def _bytes(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[bytes]:
    pieces = TokenBytes(tokenizer)
    return [pieces.push(token_id) for token_id in ids]


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_tokens_give_the_very_text(text: str) -> None:
    tokenizer = _byte_level()
    tokens = _bytes(tokenizer, tokenizer.encode(text))
    assert b"".join(tokens) == text.encode()
    assert all(tokens)


@pytest.mark.parametrize("kind", [_byte_level, _sentencepiece, _word_piece])
@pytest.mark.parametrize("text", TEXTS)
def test_every_kind_agrees_with_decode(
    kind: Callable[[], PreTrainedTokenizerFast], text: str
) -> None:
    tokenizer = kind()
    ids = tokenizer.encode(text, add_special_tokens=False)
    expected: Any = tokenizer.decode(
        ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    assert b"".join(_bytes(tokenizer, ids)) == expected.encode()


def test_characters_are_split_over_tokens() -> None:
    for tokenizer in (_byte_level(257), _sentencepiece()):
        tokens = _bytes(tokenizer, tokenizer.encode("🌟", add_special_tokens=False))
        assert tokens[-4:] == [b"\xf0", b"\x9f", b"\x8c", b"\x9f"]


def test_special_tokens_yield_nothing_and_added_ones_their_text() -> None:
    tokenizer = _byte_level()
    added = tokenizer.convert_tokens_to_ids("dé[x]")
    assert _bytes(tokenizer, [tokenizer.eos_token_id, added]) == [b"", "dé[x]".encode()]


def test_only_the_first_space_of_a_sentencepiece_answer_is_dropped() -> None:
    tokenizer = _sentencepiece()
    word, end = (tokenizer.convert_tokens_to_ids(piece) for piece in ("▁t", "</s>"))
    assert _bytes(tokenizer, [end, word, word]) == [b"", b"t", b" t"]


def test_alphabet_is_that_of_the_tokenizers_library() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(alphabet.values()) == list(range(256))
    encode = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in [chr(code) for code in range(128)] + TEXTS:
        letters = "".join(piece for piece, _ in encode.pre_tokenize_str(text))
        assert bytes(alphabet[letter] for letter in letters) == text.encode()
