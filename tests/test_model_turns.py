"""How a model's answer ends, and what is said when it cannot begin."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tiny_models import CHATML, END, START, TURN, make  # type: ignore[import-not-found, unused-ignore]  # noqa: E402

from apps import chat, trace  # noqa: E402
from apps.model import ModelSource  # noqa: E402
from apps.model_files import first_sentences  # noqa: E402
from apps.sources import SourceError  # noqa: E402
from apps.speculative import PromptLookupSource  # noqa: E402
from scenarios import simulated  # noqa: E402
from scenarios.command import plan_of  # noqa: E402
from scenarios.wifi_loss import SCENARIO  # noqa: E402

RAISES = "{{ raise_exception('only\\nfor tools') }}"
#: Turns are closed by the beginning of the next one, as in GLM-4.
OPENERS = "{% for m in messages %}{{ '<|im_start|>' if m.role == 'user' else '<|im_end|>' }}\n"
OPENERS += "{{ m.content }}{% endfor %}"
#: One question is all that it takes.
SINGLE = "{% if messages | length > 1 %}{{ raise_exception('one') }}{% endif %}{{ messages[0] }}"


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Says ab after a newline, closes its turn, and then would go round for ever."""
    following = {"Ċ": "a", "a": "b", "b": TURN, TURN: "a"}
    return make(tmp_path_factory.mktemp("talker"), CHATML, following, "x")


@pytest.fixture(scope="module")
def mute(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ends its answer with its first token."""
    return make(tmp_path_factory.mktemp("mute"), CHATML, {}, END)


def _answer(source: ModelSource, count: int = 50) -> tuple[bytes, str]:
    answer, said = source.answer("why", count), b""
    while True:
        try:
            said += next(answer)
        except StopIteration as stop:
            return said, stop.value


@pytest.mark.parametrize("kind", [ModelSource, PromptLookupSource])
def test_an_answer_ends_where_the_template_closes_a_turn(
    talker: Path, kind: type[ModelSource]
) -> None:
    source = kind(talker, device="cpu", threads=1)
    # The config names <|endoftext|> alone.
    assert source._model.config.eos_token_id == source._tokenizer.convert_tokens_to_ids(END)
    assert _answer(source) == (b"ab", "stop")


@pytest.mark.parametrize(
    ("template", "closing"),
    [(CHATML, TURN), (OPENERS, START), (SINGLE, None), (RAISES, None), (None, None)],
)
def test_the_closing_token_is_found_in_the_template(
    talker: Path, template: str | None, closing: str | None
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(talker)
    tokenizer.chat_template = template
    expected = set() if closing is None else {tokenizer.convert_tokens_to_ids(closing)}
    assert chat.closing_tokens(tokenizer) == expected


def test_text_after_an_answer_is_no_closing_token(talker: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(talker)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\nUser: {% endfor %}"
    assert chat.closing_tokens(tokenizer) == set()


def test_a_template_that_raises_is_one_line(talker: Path) -> None:
    source = ModelSource(talker, device="cpu", threads=1)
    source._tokenizer.chat_template = RAISES
    with pytest.raises(SourceError, match=r"fails on the prompt: only for tools$"):
        _answer(source)
    source._tokenizer.chat_template = "{% for %}"
    with pytest.raises(SourceError, match="fails on the prompt"):
        _answer(source)


def test_a_model_that_breaks_off_is_one_line(talker: Path, monkeypatch: Any) -> None:
    source = ModelSource(talker, device="cpu", threads=1)
    real = source._forward

    def fails(step: Any, cache: dict[str, Any], keep: int = 1) -> Any:
        if cache:
            raise RuntimeError("out of\nmemory")
        return real(step, cache, keep)

    monkeypatch.setattr(source, "_forward", fails)
    answer = source.answer("why", 9)
    assert next(answer) == b"a"
    with pytest.raises(SourceError, match=r"RuntimeError: out of memory$"):
        next(answer)


def test_a_model_that_computes_no_numbers_is_told(talker: Path) -> None:
    source = ModelSource(talker, device="cpu", threads=1)
    with torch.no_grad():
        source._model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(SourceError, match="computes no numbers"):
        _answer(source)


def test_a_tokenizer_of_another_model_is_told(talker: Path) -> None:
    source = ModelSource(talker, device="cpu", threads=1)
    source._model.resize_token_embeddings(100)
    with pytest.raises(SourceError, match="the model knows 100: the files do not belong together"):
        _answer(source)


def test_an_empty_answer_is_no_trace(
    mute: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "t.jsonl"
    words = ["record", "--prompt", "why", "--out", str(out), "--model", str(mute)]
    assert trace.main([*words, "--device", "cpu"]) == 1
    *_, last = capsys.readouterr().err.splitlines()
    assert last == (
        f"error: {mute.name} gives an empty answer to 'why': the trace would have no token"
    )
    assert not out.exists()  # the next try is not refused


@pytest.mark.parametrize("template", [CHATML, RAISES])
def test_the_simulated_engine_says_it_in_one_line_and_leaves_nothing(
    mute: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], template: str
) -> None:
    folder = tmp_path / "mute"
    shutil.copytree(mute, folder)
    (folder / "chat_template.jinja").write_text(template)
    words = ["--engine", "simulated", "--source", "model", "--model", str(folder), "--runs", "1"]
    plan = plan_of(SCENARIO, [*words, "--schemes", "eloquent", "--device", "cpu"])
    assert simulated.run(plan, tmp_path / "out") == 1
    said = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert len(said) == 1
    assert said[0].startswith("error: ")
    assert "/tmp" not in said[0]
    assert not (tmp_path / "out").exists()


def _broken(talker: Path, folder: Path, *missing: str, **config: Any) -> str:
    for file in talker.iterdir():
        if file.name not in missing:
            (folder / file.name).write_bytes(file.read_bytes())
    values = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(SourceError) as error:
        ModelSource(folder, device="cpu", threads=1)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_missing_tokenizer_files_are_named(talker: Path, tmp_path: Path) -> None:
    assert "a tokenizer.json is missing" in _broken(talker, tmp_path, "tokenizer.json")
    # A class that is content without its files, and then knows no word.
    about = json.loads((talker / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(about | {"tokenizer_class": "LlamaTokenizer"})
    )
    missing = ("tokenizer.json", "tokenizer_config.json")
    assert "a tokenizer.json is missing" in _broken(talker, tmp_path, *missing)


def test_long_messages_of_transformers_are_cut_between_sentences(
    talker: Path, tmp_path: Path
) -> None:
    said = _broken(talker, tmp_path, model_type="nonesuch")
    assert "model type `nonesuch`" in said
    assert said.endswith(".")
    assert len(said) < 600


def test_foreign_code_is_refused_and_not_asked_about(
    talker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = _broken(talker, tmp_path, model_type="x", auto_map={"AutoConfig": "a.B"})
    assert "custom code" in said
    assert capsys.readouterr().out == ""


def test_weights_of_another_size_are_refused(talker: Path, tmp_path: Path) -> None:
    said = _broken(talker, tmp_path, hidden_size=32)
    assert "other sizes than its config.json says" in said


def test_first_sentences() -> None:
    whole = "One.\n\nTwo:\n (1) a,\n (2) b."
    assert first_sentences(ValueError(whole)) == "One. Two: (1) a, (2) b."
    assert first_sentences(ValueError("One is enough. " + "a list, " * 100)) == "One is enough."
    assert first_sentences(ValueError("x" * 500)) == "x" * 400 + "..."
    assert first_sentences(KeyError()) == "KeyError"


def test_without_its_stop_the_model_would_go_on(talker: Path) -> None:
    source = ModelSource(talker, device="cpu", threads=1)
    source._stop_ids = frozenset()
    assert _answer(source, 7) == (b"ababa", "length")  # <|im_end|> has no bytes
