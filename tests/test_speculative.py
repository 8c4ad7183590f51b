"""Prompt lookup: the drafts, and that they change when tokens come but not which."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: E402

from apps.model import ModelSource  # noqa: E402
from apps.sources import Finish, SourceError, open_source  # noqa: E402
from apps.speculative import Lookup, PromptLookupSource  # noqa: E402


def _answer(source: ModelSource, prompt: str, max_tokens: int) -> tuple[list[bytes], Finish]:
    answer = source.answer(prompt, max_tokens)
    tokens = []
    while True:
        try:
            tokens.append(next(answer))
        except StopIteration as stop:
            return tokens, stop.value


# -- drafts ------------------------------------------------------------------------------------


def test_draft_is_what_followed_the_longest_n_gram() -> None:
    text = Lookup(3, [1, 2, 3, 4, 5, 9, 3, 4, 6, 7, 2, 3, 4])
    assert text.draft(3) == [5, 9, 3]  # after 2 3 4, although 3 4 came again later
    assert Lookup(2, [1, 2, 3, 4, 5, 9, 3, 4, 6, 7, 2, 3, 4]).draft(3) == [6, 7, 2]
    assert text.draft(0) == []


def test_no_draft_where_the_last_token_is_new() -> None:
    assert Lookup(3).draft(5) == []
    assert Lookup(3, [1]).draft(5) == []
    assert Lookup(3, [1, 2, 3]).draft(5) == []


def test_draft_goes_on_in_circles() -> None:
    assert Lookup(3, [5, 1, 2, 1, 2]).draft(5) == [1, 2, 1, 2, 1]
    assert Lookup(1, [8, 8]).draft(3) == [8, 8, 8]


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 4), st.integers(0, 12))
def test_draft_is_the_one_that_a_search_finds(ids: list[int], longest: int, count: int) -> None:
    text = Lookup(longest)
    for token in ids:
        text.extend([token])
    expected: list[int] = []
    for length in range(min(longest, len(ids) - 1), 0, -1):
        ends = [i for i in range(length, len(ids)) if ids[i - length : i] == ids[-length:]]
        if ends:
            for _ in range(count):
                expected.append((ids + expected)[ends[-1] + len(expected)])
            break
    assert text.draft(count) == expected


# -- small models of random weights ------------------------------------------------------------


def _tiny(folder: Path, config: Any, model: Any) -> Path:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder)
    torch.manual_seed(7)
    model(config).save_pretrained(folder)
    return folder


def _sizes(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": 256,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 200,
        "eos_token_id": None,
        "bos_token_id": None,
        **more,
    }


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = transformers.LlamaConfig(**_sizes())
    return _tiny(tmp_path_factory.mktemp("tiny"), config, transformers.LlamaForCausalLM)


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = transformers.MistralConfig(**_sizes(sliding_window=8))
    return _tiny(tmp_path_factory.mktemp("sliding"), config, transformers.MistralForCausalLM)


PROMPTS = ("ab", "abcabcabc", "x" * 60, "A sentence, and a sentence, and a sentence.")


@pytest.mark.parametrize("penalty", [1.0, 1.3])
@pytest.mark.parametrize("which", ["tiny", "sliding"])
def test_answers_are_those_of_the_plain_source(
    which: str, penalty: float, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(which)
    how: dict[str, Any] = {"device": "cpu", "threads": 1, "repetition_penalty": penalty}
    plain, lookup = ModelSource(folder, **how), PromptLookupSource(folder, **how)
    for prompt in PROMPTS:
        for tokens in (1, 2, 60):
            assert _answer(lookup, prompt, tokens) == _answer(plain, prompt, tokens)


def test_a_step_gives_several_tokens_and_never_too_many(tiny: Path) -> None:
    source = PromptLookupSource(tiny, device="cpu", threads=1, drafts=4)
    ids = source.encode("abcabcabc")
    for room in (1, 2, 3, 50):
        steps = list(source._steps(ids, room))
        assert sum(map(len, steps)) == room
        assert max(map(len, steps)) <= 5
        assert len(steps[0]) == 1
    # A model of random weights soon goes round in circles, which lookup foresees.
    assert max(map(len, steps)) > 1


def test_answer_ends_with_the_context(tiny: Path) -> None:
    tokens, reason = _answer(PromptLookupSource(tiny, device="cpu", threads=1), "x" * 190, 50)
    assert (len(tokens), reason) == (10, "length")


def test_answer_stops_within_a_step(tiny: Path) -> None:
    source = PromptLookupSource(tiny, device="cpu", threads=1)
    ids = source.encode("abcabcabc")
    steps = list(source._steps(ids, 100))
    flat = list(itertools.chain(*steps))
    number = next(i for i, step in enumerate(steps) if len(set(step)) > 1)
    stop = steps[number][1]
    source._stop_ids = frozenset({stop})
    tokens, reason = _answer(source, "abcabcabc", 100)
    assert reason == "stop"
    assert len(tokens) == flat.index(stop)


def test_wrong_settings_are_one_line(tiny: Path) -> None:
    for wrong in ({"ngram": 0}, {"drafts": 0}):
        with pytest.raises(SourceError, match="at least 1 token") as error:
            PromptLookupSource(tiny, device="cpu", threads=1, **wrong)
        assert "\n" not in str(error.value)


def test_a_cache_that_cannot_be_cropped_is_one_line(tiny: Path) -> None:
    source = PromptLookupSource(tiny, device="cpu", threads=1)
    with pytest.raises(SourceError, match="cannot take tokens back") as error:
        source._take_back({"cache": object()}, 1)
    assert "\n" not in str(error.value)


# -- the shipped model -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm() -> PromptLookupSource:
    source = open_source("model:prompt-lookup", device="cpu", threads=1)
    assert isinstance(source, PromptLookupSource)
    return source


@pytest.mark.parametrize(
    "prompt",
    [
        "What is the capital of France?",
        "Repeat this sentence three times: The quick brown fox jumps over the lazy dog.",
        "Write a Python function that adds two numbers. Then write it again with comments.",
        "☕ Beschreibe eine Tasse Kaffee.",
    ],
)
def test_tokens_are_those_of_plain_greedy_decoding(smollm: PromptLookupSource, prompt: str) -> None:
    fast = _answer(smollm, prompt, 40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PromptLookupSource, "_steps", ModelSource._steps)
        assert _answer(smollm, prompt, 40) == fast


def test_tokens_of_a_step_come_at_one_instant(smollm: PromptLookupSource) -> None:
    prompt = "Repeat this sentence three times: The quick brown fox jumps over the lazy dog."
    start = time.monotonic()
    times = [time.monotonic() - start for _ in smollm.answer(prompt, 60)]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    at_once = sum(gap < 0.002 for gap in gaps)
    # Most of what is repeated comes in bursts, and a run of the model takes far longer than that.
    assert at_once > len(gaps) / 3
    assert max(gaps) > 0.01


def test_description_says_how(smollm: PromptLookupSource) -> None:
    about = json.loads(json.dumps(smollm.describe()))
    assert about["source"] == "model"
    assert (about["decoding"], about["ngram"], about["drafts"]) == ("greedy, prompt lookup", 3, 10)
