"""Traces: what is written is read, what is broken is named, and the pace is kept."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.sources import Finish, SourceError, cut, open_source
from apps.trace import DEFAULT_TRACE, FORMAT, TraceError, TraceSource, TraceWriter, main, record
from eloquent.wire import MAX_TOKEN
from scenarios.simulator import simulate
from topologies.profile import Direction, LinkProfile, NetworkProfile

HEADER = json.dumps({"format": FORMAT, "model": "m", "prompt": "p", "recorded": "by hand"})
END = '{"end": "stop", "count": 1}'
TOKEN = '[0.5, "6869"]'


def _write(folder: Path, *lines: str) -> Path:
    path = folder / "t.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_reads_a_trace_written_by_hand(tmp_path: Path) -> None:
    end = '{"end": "length", "count": 2}'
    source = TraceSource(_write(tmp_path, HEADER, '[0, "F09F"]', '[0.25, "98816869"]', end))
    assert source.tokens == ((0.0, b"\xf0\x9f"), (0.25, b"\x98\x81hi"))
    assert (source.model, source.prompt, source.recorded) == ("m", "p", "by hand")
    assert source.end == "length"
    description = source.describe()
    assert description["tokens"] == 2
    assert description["seconds"] == 0.25
    json.dumps(description)


@given(
    gaps=st.lists(st.floats(0, 100), min_size=1, max_size=20),
    data=st.data(),
    reason=st.sampled_from(["stop", "length"]),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[float], data: st.DataObject, reason: Finish
) -> None:
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    tokens = [data.draw(st.binary(min_size=1, max_size=8)) for _ in gaps]
    times = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    with TraceWriter(path, model="modèle", prompt="line\nline", recorded="test") as writer:
        for seconds, token in zip(times, tokens, strict=True):
            writer.token(seconds, token)
        writer.end(reason)
    source = TraceSource(path)
    assert [token for _, token in source.tokens] == tokens
    assert [seconds for seconds, _ in source.tokens] == pytest.approx(times, abs=1e-6)
    assert (source.model, source.prompt, source.end) == ("modèle", "line\nline", reason)


BROKEN = {
    "an empty file": ((), 1, "empty"),
    "no JSON": (("hello",), 1, "not JSON"),
    "another format": (('{"format": "x/1"}',), 1, "eloquent-trace/1"),
    "no prompt": (('{"format": "eloquent-trace/1", "model": "m"}',), 1, '"prompt"'),
    "time goes back": ((HEADER, TOKEN, '[0.4, "61"]', END), 3, "goes back"),
    "negative time": ((HEADER, '[-1, "61"]', END), 2, "negative"),
    "time not finite": ((HEADER, '[NaN, "61"]', END), 2, "finite"),
    "time too large": ((HEADER, '[1e999, "61"]', END), 2, "finite"),
    "seconds of a calendar": ((HEADER, '[1764748800.5, "61"]', END), 2, "more than a day"),
    "time beyond all floats": ((HEADER, f'[1{"0" * 400}, "61"]', END), 2, "more than a day"),
    "brackets upon brackets": ((HEADER, "[" * 100_000), 2, "not JSON"),
    "time is text": ((HEADER, '["1", "61"]', END), 2, "number of seconds"),
    "time is a truth value": ((HEADER, '[true, "61"]', END), 2, "number of seconds"),
    "no hex": ((HEADER, '[1, "6g"]', END), 2, "hex"),
    "half a byte": ((HEADER, '[1, "616"]', END), 2, "hex"),
    "spaces in the hex": ((HEADER, '[1, "61 62"]', END), 2, "hex"),
    "a token beyond the protocol's": ((HEADER, f'[1, "{"61" * 1025}"]', END), 2, "1025 bytes"),
    "an empty token": ((HEADER, '[1, ""]', END), 2, "hex"),
    "three values": ((HEADER, '[1, "61", 2]', END), 2, "[seconds"),
    "a number": ((HEADER, "7", END), 2, "[seconds"),
    "no end": ((HEADER, TOKEN), 2, "end line is missing"),
    "no tokens": ((HEADER, '{"end": "stop", "count": 0}'), 2, "no tokens"),
    "a wrong count": ((HEADER, TOKEN, TOKEN, END), 4, "2 tokens"),
    "an unknown end": ((HEADER, TOKEN, '{"end": "x", "count": 1}'), 3, '"end"'),
    "a line too much": ((HEADER, TOKEN, END, TOKEN), 4, "follow"),
}


@pytest.mark.parametrize(("lines", "number", "problem"), BROKEN.values(), ids=BROKEN)
def test_broken_trace_names_file_and_line(
    tmp_path: Path, lines: tuple[str, ...], number: int, problem: str
) -> None:
    path = _write(tmp_path, *lines)
    with pytest.raises(TraceError) as error:
        TraceSource(path)
    message = str(error.value)
    assert f"{path}, line {number}: " in message
    assert problem in message
    assert "\n" not in message


def test_the_longest_token_is_read_and_simulated(tmp_path: Path) -> None:
    longest = b"x" * MAX_TOKEN
    path = _write(tmp_path, HEADER, f'[0, "{longest.hex()}"]', END)
    tokens = TraceSource(path).tokens
    assert tokens == ((0.0, longest),)
    cable = LinkProfile("cable", Direction(), Direction(), "test")
    assert simulate("eloquent", tokens, NetworkProfile(cable, cable), 1).n_bytes == [1024]


def test_pieces_of_a_long_token_are_those_of_the_protocol() -> None:
    data = bytes(range(256)) * 9
    assert [len(piece) for piece in cut(data)] == [1024, 1024, 256]
    assert b"".join(cut(data)) == data
    assert list(cut(b"")) == []


def test_unreadable_trace_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        TraceSource(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="UTF-8"):
        TraceSource(tmp_path / "binary")


def test_replay_keeps_the_recorded_pace_without_drift(tmp_path: Path) -> None:
    count, gap = 50, 0.01
    lines = [f'[{0.1 + i * gap:.3f}, "61"]' for i in range(count)]
    end = f'{{"end": "stop", "count": {count}}}'
    source = TraceSource(_write(tmp_path, HEADER, *lines, end))
    cpu = time.process_time()
    start = time.monotonic()
    late = [
        time.monotonic() - start - (0.1 + i * gap) for i, _ in enumerate(source.answer("", count))
    ]
    assert min(late) >= -0.001
    # Were the lateness of each token added up, the last would be the latest by far.
    assert late[-1] < 0.1
    assert sorted(late)[count // 2] < 0.02
    assert time.process_time() - cpu < 0.2  # it sleeps


def test_max_tokens_cuts_the_answer(tmp_path: Path) -> None:
    end = '{"end": "stop", "count": 2}'
    source = TraceSource(_write(tmp_path, HEADER, '[0, "61"]', '[0, "62"]', end))
    assert _all(source, 1) == ([b"a"], "length")
    assert _all(source, 2) == ([b"a", b"b"], "stop")
    assert _all(source, 3) == ([b"a", b"b"], "stop")
    with pytest.raises(SourceError, match="at least 1"):
        _all(source, 0)


def _all(source: TraceSource, max_tokens: int) -> tuple[list[bytes], str]:
    answer = source.answer("", max_tokens)
    tokens = []
    while True:
        try:
            tokens.append(next(answer))
        except StopIteration as stop:
            return tokens, stop.value


def test_recording_a_replay_gives_the_same_trace(tmp_path: Path) -> None:
    end = '{"end": "length", "count": 2}'
    source = TraceSource(_write(tmp_path, HEADER, '[0.05, "61"]', '[0.15, "f09f"]', end))
    with TraceWriter(tmp_path / "copy", model="m", prompt="p", recorded="again") as writer:
        assert record(source, "p", 9, writer) == "length"
    copy = TraceSource(tmp_path / "copy")
    assert [token for _, token in copy.tokens] == [b"a", b"\xf0\x9f"]
    assert [seconds for seconds, _ in copy.tokens] == pytest.approx([0.05, 0.15], abs=0.1)


def test_writer_refuses_what_the_reader_would_refuse(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t", model="m", prompt="p", recorded="r") as writer:
        writer.token(1.0, b"a")
        refused = [(0.5, b"b"), (2.0, b""), (2.0, bytes(1025))]
        for seconds, data in (*refused, (float("nan"), b"b"), (float("inf"), b"b")):
            with pytest.raises(ValueError, match=r"of a trace|goes back"):
                writer.token(seconds, data)
    with pytest.raises(TraceError, match="end line is missing"):
        TraceSource(tmp_path / "t")
    with pytest.raises(FileExistsError):
        TraceWriter(tmp_path / "t", model="m", prompt="p", recorded="r")


def test_shipped_trace_is_long_english_with_characters_split_over_tokens() -> None:
    source = open_source("trace")
    assert isinstance(source, TraceSource)
    assert source.path == DEFAULT_TRACE
    assert len(source.tokens) >= 400
    text = b"".join(token for _, token in source.tokens).decode("utf-8")
    assert sum(word in text.split() for word in ("the", "of", "and", "you")) == 4
    assert any(ord(letter) > 0xFFFF for letter in text)
    split = [token for _, token in source.tokens if not _is_whole(token)]
    assert len(split) >= 10
    times = [seconds for seconds, _ in source.tokens]
    assert 5 < times[-1] < 120


def _is_whole(token: bytes) -> bool:
    try:
        token.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def test_open_source_opens_traces(tmp_path: Path) -> None:
    path = _write(tmp_path, HEADER, TOKEN, END)
    assert open_source(f"trace:{path}").name == "trace of m"


def test_record_command_says_what_is_wrong_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "t")
    status = main(["record", "--prompt", "p", "--out", out, "--model", str(tmp_path / "none")])
    assert status == 2
    assert capsys.readouterr().err.startswith("error: no model at")
    assert main(["record", "--prompt", "p", "--out", out, "--tokens", "0"]) == 2
    assert "at least 1 token" in capsys.readouterr().err
    (tmp_path / "t").write_text("mine")
    assert main(["record", "--prompt", "p", "--out", out]) == 2
    assert capsys.readouterr().err == f"error: cannot write {out}: File exists\n"
    assert (tmp_path / "t").read_text() == "mine"
