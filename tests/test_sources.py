"""Sources by their specs, and the real-time answer of those that know their schedule."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from apps.sources import (
    MODEL_SPECS,
    Finish,
    ScheduledSource,
    SourceError,
    check_max_tokens,
    open_source,
)
from apps.timing import TimingSource
from apps.trace import TraceFolder, TraceSource, TraceWriter


class _Fixed(ScheduledSource):
    """Two tokens at once and a third 50 ms later; remembers what it was asked."""

    name = "fixed"

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []

    def describe(self) -> dict[str, object]:
        return {"source": "fixed"}

    def schedule(
        self, prompt: str, max_tokens: int, seed: int = 0
    ) -> tuple[list[tuple[float, bytes]], Finish]:
        check_max_tokens(max_tokens)
        self.asked.append((prompt, max_tokens, seed))
        return [(0.1, b"a"), (0.1, b"b"), (0.15, b"c")], "stop"


def _all(source: ScheduledSource, prompt: str, max_tokens: int) -> tuple[list[bytes], Finish]:
    answer = source.answer(prompt, max_tokens)
    tokens = []
    while True:
        try:
            tokens.append(next(answer))
        except StopIteration as stop:
            return tokens, stop.value


def test_answer_is_the_schedule_in_real_time() -> None:
    source = _Fixed()
    source.seed = 7
    answer = source.answer("why?", 3)
    assert source.asked == []  # work starts with the first next()
    start = time.monotonic()
    times = [time.monotonic() - start for _ in answer]
    assert source.asked == [("why?", 3, 7)]
    assert [at - due for at, due in zip(times, (0.1, 0.1, 0.15), strict=True)] == pytest.approx(
        [0, 0, 0], abs=0.04
    )
    assert min(times) >= 0.099
    assert times[1] - times[0] < 0.02
    assert _all(source, "why?", 3) == ([b"a", b"b", b"c"], "stop")


def test_a_late_reader_is_not_made_later() -> None:
    """Each token has its own deadline: what one next() loses, the following ones do not."""
    answer = _Fixed().answer("", 3)
    start = time.monotonic()
    next(answer)
    time.sleep(0.1)
    next(answer)
    next(answer)
    assert time.monotonic() - start < 0.25


def test_errors_come_with_the_first_token() -> None:
    answer = _Fixed().answer("", 0)
    with pytest.raises(SourceError, match="at least 1 token"):
        next(answer)


def test_traces_have_schedules(tmp_path: Path) -> None:
    for number, prompt in enumerate(("why?", "how?")):
        path = tmp_path / f"{number}.jsonl"
        with TraceWriter(path, model="m", prompt=prompt, recorded="by hand") as writer:
            writer.token(0.0, prompt.encode())
            writer.token(0.01, b"!")
            writer.end("stop")
    one, folder = open_source(f"trace:{tmp_path}/0.jsonl"), open_source(f"trace:{tmp_path}")
    assert isinstance(one, TraceSource)
    assert isinstance(folder, TraceFolder)
    whole = [(0.0, b"how?"), (0.01, b"!")]
    assert folder.schedule("how?", 2) == (whole, "stop")
    assert folder.schedule("how?", 9, seed=5) == (whole, "stop")
    assert folder.schedule("how?", 1) == (whole[:1], "length")
    assert one.schedule("how?", 1) == ([(0.0, b"why?")], "length")
    assert _all(folder, "how?", 2) == ([b"how?", b"!"], "stop")
    unknown = folder.answer("who?", 2)
    with pytest.raises(SourceError, match="answers the prompt 'who\\?'"):
        next(unknown)
    for source in (one, folder):
        with pytest.raises(SourceError, match="at least 1 token"):
            source.schedule("how?", 0)


def test_schedule_is_not_the_source_s_own_list(tmp_path: Path) -> None:
    source = open_source("trace")
    assert isinstance(source, TraceSource)
    tokens, _ = source.schedule("", 10)
    tokens.clear()
    assert len(source.schedule("", 10)[0]) == 10


def test_open_source_names_what_it_knows() -> None:
    for spec in ("", "traces", "trace:", "Model", "model:x", "timings", "radio:steady"):
        with pytest.raises(SourceError) as error:
            open_source(spec)
        message = str(error.value)
        assert message.startswith(f"unknown source {spec!r}: use ")
        assert "\n" not in message
        for known in (*MODEL_SPECS, "trace", "trace:FILE", "timing:NAME", "timing:FILE.toml"):
            assert f"'{known}'" in message


def test_open_source_refuses_a_model_where_none_is_used(tmp_path: Path) -> None:
    for spec in ("trace", "timing:steady"):
        with pytest.raises(SourceError, match="does not use a model"):
            open_source(spec, model_dir=tmp_path)


def test_both_model_specs_look_for_the_model(tmp_path: Path) -> None:
    for spec in MODEL_SPECS:
        with pytest.raises(SourceError, match="no model at"):
            open_source(spec, model_dir=tmp_path / "none")


def test_seed_of_open_source_is_that_of_the_answer() -> None:
    spec = "timing:speculative:first=0:spacing=0.001"
    source = open_source(spec, seed=4)
    assert isinstance(source, TimingSource)
    assert source.seed == 4
    tokens, _ = source.schedule("why?", 30, seed=4)
    assert _all(source, "why?", 30)[0] == [data for _, data in tokens]
    # The bytes do not depend on the seed, so the times must be looked at.
    answer = source.answer("why?", 30)
    start = time.monotonic()
    seen = [time.monotonic() - start for _ in answer]
    assert max(at - due for at, (due, _) in zip(seen, tokens, strict=True)) < 0.1
    assert min(at - due for at, (due, _) in zip(seen, tokens, strict=True)) > -1e-3
