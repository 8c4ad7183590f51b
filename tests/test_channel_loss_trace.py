"""Recorded losses in time: what the file says, again and again, and one line for a bad file."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topologies.channel import Channel, ChannelError, DelayModel, LossTrace
from topologies.channel import loss_from_dict as from_dict
from topologies.channel import loss_to_dict as to_dict
from topologies.profile import Direction, ProfileError

STEPS = st.lists(
    st.tuples(st.integers(1, 5000), st.sampled_from(["up", "down"])), min_size=1, max_size=12
)
WALK = "time,state\n0,up\n2,down\n2.5,up\n7,down\n8,end\n"


def trace(folder: Path, text: str) -> LossTrace:
    path = folder / "trace.csv"
    path.write_text(text)
    return LossTrace(str(path))


def channel(model: LossTrace, seed: int = 0, direction: str = "up") -> Channel:
    made = Channel(DelayModel(), model, "access", direction, seed)
    made.epoch = 0.0
    return made


def test_the_trace_is_played_and_starts_again(tmp_path: Path) -> None:
    model = trace(tmp_path, WALK)
    made = channel(model)
    assert made.outages(0, 20) == [(2, 2.5), (7, 8), (10, 10.5), (15, 16), (18, 18.5)]
    for t, lost in ((0, False), (2, True), (2.5, False), (7.9, True), (8, False), (10.2, True)):
        assert made.fate(float(t)).lost == lost
    assert model.mean_loss == pytest.approx(1.5 / 8)
    assert model.mean_outage == pytest.approx(0.75)
    assert model.length == 8
    assert model.in_time and model.memoryless


def test_the_seed_and_the_direction_do_not_matter(tmp_path: Path) -> None:
    model = trace(tmp_path, WALK)
    assert channel(model, 1).outages(0, 99) == channel(model, 2, "down").outages(0, 99)


def test_times_count_from_the_first_line_and_comments_are_left_out(tmp_path: Path) -> None:
    text = "# a walk\n\n 100.0 , good\n102,bad\n # half a second\n102.5,1\n107,0\n108,end\n"
    assert channel(trace(tmp_path, text)).outages(0, 8) == [(2, 2.5), (7, 8)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_means_and_outages_agree_with_the_file(
    tmp_path: Path, steps: list[tuple[int, str]]
) -> None:
    at, lines, down = 0, [], 0
    for length, state in steps:
        lines.append(f"{at / 100},{state}\n")
        at, down = at + length, down + length * (state == "down")
    model = trace(tmp_path, "".join(lines) + f"{at / 100},end\n")
    assert model.mean_loss == pytest.approx(down / at)
    made, seconds = channel(model), 3 * at / 100
    spells = made.outages(0, seconds)
    assert sum(end - start for start, end in spells) == pytest.approx(3 * down / 100)
    t = 0.0
    for _ in range(40):
        last, t = t, made.next_change(t)
        assert t > last
        if t == math.inf:
            break


def test_a_trace_without_an_outage_loses_nothing(tmp_path: Path) -> None:
    model = trace(tmp_path, "0,up\n10,end\n")
    made = channel(model)
    assert model.mean_loss == model.mean_outage == 0
    assert not any(made.fate(0.5 * i).lost for i in range(50))
    assert made.next_change(3.0) == math.inf
    assert made.outages(0, 100) == []


def test_an_outage_across_the_end_is_one(tmp_path: Path) -> None:
    model = trace(tmp_path, "0,down\n1,up\n9,down\n10,end\n")
    assert model.mean_outage == pytest.approx(2.0)
    made = channel(model)
    assert made.outages(0, 25) == [(0, 1), (9, 11), (19, 21)]
    assert made.next_change(9.5) == 11


def test_a_trace_without_an_end_of_its_outage_is_one_outage(tmp_path: Path) -> None:
    model = trace(tmp_path, "0,down\n4,down\n10,end\n")
    assert (model.mean_loss, model.mean_outage) == (1, math.inf)
    made = channel(model)
    assert made.outages(0, 25) == [(0, 25)]
    assert made.next_change(3.0) == math.inf
    assert made.fate(10.0).lost and made.fate(24.0).lost


def test_the_walk_along_the_changes_moves_on_with_odd_times(tmp_path: Path) -> None:
    made = channel(trace(tmp_path, "0,up\n0.2,down\n0.3,end\n"))
    t = 0.0
    for number in range(200):
        last, t = t, made.next_change(t)
        assert t > last
        assert t == pytest.approx(0.3 * (number // 2) + (0.2, 0.3)[number % 2])
        assert made.loss_at(t) == (number % 2 == 0)


def test_the_file_is_known_by_its_fingerprint(tmp_path: Path) -> None:
    model = trace(tmp_path, WALK)
    assert model.sha256 == hashlib.sha256(WALK.encode()).hexdigest()
    assert from_dict(to_dict(model), "x") == model
    Path(model.file).write_text(WALK.replace("2.5", "2.6"))
    with pytest.raises(ChannelError) as caught:
        from_dict(to_dict(model), "x")
    assert f"the trace {model.file} has changed" in str(caught.value)
    assert model.sha256 in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", None, "the trace is empty: it needs a state and an end"),
        ("# nothing\n\n", None, "the trace is empty: it needs a state and an end"),
        ("time,state\n0,up\n", None, "the trace is empty: it needs a state and an end"),
        ("0,up\n5,down\n3,up\n9,end\n", 3, "time goes back, from 5 to 3 s"),
        ("0,up\n5,down\n5,up\n9,end\n", 3, "time goes back, from 5 to 5 s"),
        ("0,up\n5,down\n", 2, "the last line must be the time and end"),
        ("0,up\n5,end\n6,up\n", 3, "nothing may follow the end"),
        ("0,up\n\n# x\n5,sideways\n", 4, "a state is up, down or end, not 'sideways'"),
        ("-1,up\n5,end\n", 1, "time must be a number of at least 0, not '-1'"),
        ("0,up\nnan,down\n5,end\n", 2, "time must be a number of at least 0, not 'nan'"),
        ("nan,down\n0,up\n5,end\n", 1, "time must be a number of at least 0, not 'nan'"),
        ("0,up\ninf,end\n", 2, "time must be a number of at least 0, not 'inf'"),
        ("0,up\nsoon,down\n", 2, "time must be a number of at least 0, not 'soon'"),
        ("0,up,1\n5,end\n", 1, "2 fields expected, not '0,up,1'"),
        ("0\n5,end\n", 1, "2 fields expected, not '0'"),
        ("0,up\n" + "5" * 140_000 + ",end\n", 2, ""),
    ],
)
def test_a_bad_file_is_named_with_its_line(
    tmp_path: Path, text: str, line: int | None, words: str
) -> None:
    with pytest.raises(ChannelError) as caught:
        trace(tmp_path, text)
    place = tmp_path / "trace.csv"
    assert str(caught.value).startswith(f"{place}:{line}: " if line else f"{place}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.csv"
    data = {"loss": {"model": "loss-trace", "file": str(path)}}
    with pytest.raises(ProfileError) as caught:
        Direction.from_dict(data, "access.up")
    line = f"access.up.loss: cannot read the trace {path}: No such file or directory"
    assert str(caught.value) == line
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ChannelError, match="it is no text"):
        LossTrace(str(path))
