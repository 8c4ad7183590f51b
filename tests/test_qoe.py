"""QoE by hand, against brute force, and as rules; and the command that shows runs again."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from analysis.qoe import UNTIL, Buffer, Display, Rater, digestion, qoe, readings
from analysis.reader import ReaderError, paced, per_token
from analysis.reading_command import main
from analysis.results import TOKEN_COLUMNS, ResultsFolder, load

NEVER = math.nan
TICKS = st.integers(0, 10_000).map(lambda ticks: ticks / 1024)
SHOWN = st.lists(TICKS, min_size=1, max_size=20).map(sorted)
SPEEDS = st.sampled_from([0.5, 1.0, 4.0, 16.0])
LIMITS = st.sampled_from(UNTIL)


def test_perfect_by_hand():
    # One token a second, wanted from 0 on: at 0 and 1, or sooner.
    for shown, first in (([0, 1], 0), ([0, 0], 0), ([-5, 0.5], 0), ([7, 8], 7)):
        assert qoe(shown, 1.0, expected_first=first) == 1


def test_late_as_a_whole_by_hand():
    # Read from 1 on. Until 2: T has 2 * 2 / 2 = 2, A has 1 * 1 / 2, which is (1 - 1/2)^2.
    assert qoe([1.0, 1.0], 1.0) == pytest.approx(0.25)
    # Until 3, when all is read: A has 3 - 1 - 1/2 and 3 - 2 - 1/2; T has 5/2 + 3/2.
    assert qoe([1.0, 1.0], 1.0, until="digested") == pytest.approx(2 / 4)
    assert qoe([1.0, 1.0], 1.0, until=3.0) == pytest.approx(2 / 4)
    # Until 1, when the last was shown: nothing is read yet.
    assert qoe([1.0, 1.0], 1.0, until="shown") == 0
    assert qoe([5.0, 5.0], 1.0) == 0  # later than reading would have ended


def test_a_stall_by_hand():
    # Two tokens a second, three tokens, the second comes at 1 instead of 0.5: read at 0, 1, 1.5.
    shown = [0.0, 1.0, 1.0]
    assert list(digestion(shown, 0.5)) == [0.0, 1.0, 1.5]
    # Until 1.5: T has 1.25 + 0.75 + 0.25 = 2.25; A has 1.25 + 0.25 + 0.
    assert qoe(shown, 0.5) == pytest.approx(1.5 / 2.25)
    # Early tokens are a buffer: nobody reads before 0.5, and then nothing is missing.
    assert qoe(shown, 0.5, expected_first=0.5) == 1


def test_a_token_never_shown_by_hand():
    # Until 2: T has 2, A of the first token 1.5.
    assert qoe([0.0, NEVER], 1.0) == pytest.approx(1.5 / 2)
    assert qoe([0.0, NEVER], 1.0, until="digested") == pytest.approx(1.5 / 2)
    assert qoe([NEVER, NEVER], 1.0) == 0


def test_a_reading_time_for_each_token():
    # 1 s and 3 s: T until 4 has 3.5 + 1.5. Late by 1 s: 2.5, and 2 s of the second: 2^2 / 6.
    assert qoe([1.0, 1.0], [1.0, 3.0]) == pytest.approx((2.5 + 4 / 6) / 5)
    assert qoe([0.0, 1.0], [1.0, 0.0], until=2.0) == pytest.approx(1)  # 1.5 + 1 of 1.5 + 1


def test_nothing_expected_is_not_a_number():
    assert math.isnan(qoe([])) and math.isnan(qoe([0.0, 1.0], 0.0))
    assert math.isnan(qoe([0.0], 1.0, until=0.0))  # nothing can be read by then
    assert all(math.isnan(qoe([time], 1.0, until="shown")) for time in (0.0, NEVER))


def test_limits_that_move_can_reward_delay():
    # Why they are not the default: the last token comes later, and the answer is said to be better.
    late, later = [2.0, 2.0, 2.0], [2.0, 2.0, 10.0]
    # Until 5: 2.5 + 1.5 + 0.5 of 4.5 + 3.5 + 2.5. Until 11: 8.5 + 7.5 + 0.5 of 10.5 + 9.5 + 8.5.
    assert qoe(late, 1.0, until="digested") == pytest.approx(4.5 / 10.5)
    assert qoe(later, 1.0, until="digested") == pytest.approx(16.5 / 28.5)
    assert qoe(later, 1.0, until="shown") > qoe(late, 1.0, until="shown") == 0
    assert qoe(later, 1.0) == qoe(late, 1.0)  # beyond the limit, which is 3


@given(
    st.lists(TICKS, min_size=1, max_size=12).map(sorted),
    st.sampled_from([0.5, 1.0, 4.0]),
    st.sampled_from([0.0, 0.5, 3.0]),
    LIMITS,
)
def test_against_brute_force(shown, speed, first, until):
    found = qoe(shown, per_token(speed), first, until)
    assume(not math.isnan(found))
    ends = digestion(shown, per_token(speed), first) + per_token(speed)
    wanted_end = first + len(shown) / speed
    finished = max(wanted_end, ends[-1])
    end = {"expected": wanted_end, "digested": finished, "shown": shown[-1]}[until]
    assume(end > first + 0.25)
    # A reader in small steps, who knows nothing of tokens' starts: reads on if something is there.
    steps = 20_000
    times = np.linspace(min(0.0, first), end, steps)
    there = np.searchsorted(shown, times, side="right")
    read, area = 0.0, 0.0
    step = times[1] - times[0]
    for time, count in zip(times, there, strict=True):
        if time >= first:
            read = min(float(count), read + speed * step)
        area += read * step
    whole = np.clip(speed * (times - first), 0, len(shown)).sum() * step
    assert found == pytest.approx(area / whole, abs=0.01)


@given(SHOWN, SPEEDS, TICKS, LIMITS, st.integers(0, 20))
def test_within_0_and_1(shown, speed, first, until, lost):
    shown = [*shown, *[NEVER] * lost]
    found = qoe(shown, per_token(speed), first, until)
    assert math.isnan(found) or 0 <= found <= 1


@given(st.lists(st.tuples(TICKS, TICKS), min_size=1, max_size=20), SPEEDS, TICKS, TICKS)
def test_later_never_feels_better(times, speed, first, until):
    # Arrivals in any order, each put off by something; with the default limit and any fixed one.
    sooner = [arrival for arrival, _ in times]
    later = [arrival + delay for arrival, delay in times]
    for limit in ("expected", first + until + 0.5):
        better = qoe(sooner, per_token(speed), first, limit)
        assert qoe(later, per_token(speed), first, limit) <= better + 1e-12
        assert qoe([*sooner[:-1], NEVER], per_token(speed), first, limit) <= better + 1e-12


@given(SHOWN, SPEEDS, SPEEDS, TICKS, LIMITS)
def test_a_display_as_fast_as_the_reader_costs_nothing(shown, one, other, first, until):
    reader, display = sorted([one, other])
    again = paced(shown, per_token(display))
    assert list(digestion(again, per_token(reader), first)) == list(
        digestion(shown, per_token(reader), first)
    )
    if until != "shown":
        found = [qoe(times, per_token(reader), first, until) for times in (again, shown)]
        assert found[0] == found[1]


@given(SHOWN, SPEEDS, TICKS, st.integers(-100, 100))
def test_the_clock_may_start_anywhere(shown, speed, first, shift):
    moved = [time + shift for time in shown]
    assert qoe(moved, per_token(speed), first + shift) == pytest.approx(
        qoe(shown, per_token(speed), first)
    )


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"reading": [1.0]}, "1 reading times for 2 tokens"),
        ({"expected_first": math.inf}, "expected at inf"),
        ({"until": "later"}, "no limit 'later'"),
        ({"until": math.inf}, "the limit is inf"),
    ],
)
def test_mistakes_are_one_line(options, line):
    with pytest.raises(ReaderError, match=line) as error:
        qoe([0.0, 1.0], **options)
    assert "\n" not in str(error.value)


# The runs of a results folder: 4 tokens, 0.1 s apart, but the second one lost for 0.6 s.
SHOWN_AT = {"eloquent": [0.0, 0.1, 0.2, 0.3], "tcp": [0.0, 0.7, 0.7, 0.7]}
TEXT = b"on reading it all\n"
SIZES = [3, 7, 4, 3]  # "on ", "reading", " it ", "all"


def folder(path, shown=SHOWN_AT, runs=2, ttft=0.4, text=TEXT):
    made = ResultsFolder.create(path)
    made.write_manifest({"scenario": "wifi_loss"})
    for scheme, times in shown.items():
        for run in range(1, runs + 1):
            label = {"scenario": "wifi_loss", "scheme": scheme, "run": run}
            rows = [
                {**label, "index": index, "n_bytes": SIZES[index], "generated_at": 0.1 * index}
                | {"sent_at": 0.1 * index, "received_at": time, "rendered_at": time}
                for index, time in enumerate(times)
            ]
            made.write_tokens(scheme, run, pd.DataFrame(rows)[TOKEN_COLUMNS])
            made.append_summary({**label, "ttft": ttft})
            if text is not None:
                (path / "logs" / f"{scheme}-run{run:02}.txt").write_bytes(text)
    made.consolidate()
    return path


def test_readings_by_hand(tmp_path):
    results = load(folder(tmp_path / "a", runs=1))
    rows = readings(results, [Display("4/s", 4.0)], rater=Rater(speed=4.0))
    rows = rows.set_index(["scheme", "display"])
    once, slow = rows.loc[("tcp", "at once")], rows.loc[("tcp", "4/s")]
    assert once["stall_ratio"] == once["plain_stall_ratio"] == pytest.approx(0.5 / 0.7)
    # Shown at 0, 0.7, 0.95, 1.2; the second was due at 0.25: 0.45 - 0.2 s late.
    assert [slow["stall_time"], slow["saved"]] == pytest.approx([0.25, 0.25])
    assert slow["stall_ratio"] == pytest.approx(0.25 / 1.2)
    assert slow["later_mean"] == pytest.approx((0.25 + 0.5) / 4)
    assert slow["later_last"] == pytest.approx(0.5) and slow["read_later"] == 0
    # Until 1: T has 0.875 + 0.625 + 0.375 + 0.125 = 2; A has 0.875, 0.3 - 0.125, 0.05^2 * 2, 0.
    assert once["qoe"] == slow["qoe"] == pytest.approx((0.875 + 0.175 + 0.005) / 2)
    assert once["qoe_best"] == 1 and rows.loc[("eloquent", "at once")]["qoe"] == 1


def test_buffer_and_expected_first_token(tmp_path):
    results = load(folder(tmp_path / "a", runs=1))
    display = [Display("4/s", 4.0)]
    rows = readings(results, display, Buffer(tokens=2), Rater(speed=4.0))
    held = rows.set_index(["scheme", "display"]).loc[("tcp", "4/s")]
    assert held["stall_time"] == 0
    assert held["read_later"] == pytest.approx(0.25)  # 1.45 for 1.2
    # The request left 0.4 s before the first token was shown, at -0.4.
    for ttft, felt in ((0.4, 1.055 / 2), (1.0, 1)):
        rows = readings(results, display, rater=Rater(speed=4.0, ttft=ttft))
        once = rows.set_index(["scheme", "display"]).loc[("tcp", "at once")]
        assert once["qoe"] == pytest.approx(felt)


def test_display_by_text(tmp_path):
    results = load(folder(tmp_path / "a", runs=1))
    # One syllable in 0.1 s: "on" 0.1 s, "reading" 0.2 s, "it" 0.1 s.
    rows = readings(results, [Display("text", 10 / 1.125, by_text=True)])
    text = rows.set_index(["scheme", "display"]).loc[("eloquent", "text")]
    assert text["later_last"] == pytest.approx(0.1)  # shown at 0, 0.1, 0.3, 0.4
    assert text["later_mean"] == pytest.approx(0.05)


def test_command_table(tmp_path, capsys):
    path = folder(tmp_path / "a")
    assert main([str(path), "--speed", "4", "--speed", "text", "--buffer", "2"]) == 0
    out = capsys.readouterr().out
    assert "buffer: 2 tokens; QoE of 4.8 tokens/s" in " ".join(out.split())
    line = next(line for line in out.splitlines() if line.startswith("tcp"))
    assert line.split()[:7] == ["tcp", "at", "once", "71.4", "±", "0.0", "(2)"]


def test_command_json(tmp_path, capsys):
    path = folder(tmp_path / "a", runs=1)
    assert main([str(path), "--json", "--speed", "4", "--reader", "4", "--buffer", "0.5s"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["results"]
    assert found["folder"] == str(path)
    rows = {(row["scheme"], row["display"]): row for row in found["rows"]}
    assert list(rows)[:2] == [("eloquent", "at once"), ("eloquent", "4/s")]
    once = rows["tcp", "at once"]["qoe"]
    assert once == {"mean": pytest.approx(1.055 / 2), "ci95": None, "n": 1}
    assert rows["eloquent", "4/s"]["later_mean"]["mean"] > 0


def test_answers_of_one_token_have_no_ratio(tmp_path, capsys):
    path = folder(tmp_path / "a", {"eloquent": [0.0], "tcp": [NEVER]})
    assert main([str(path)]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "at once" in line)
    assert line.split()[3:5] == ["-", "(0)"]


@pytest.mark.parametrize(
    ("made", "arguments", "line"),
    [
        ({}, ["--ttft", "1"], "eloquent, run 1: --ttft needs the time of the request"),
        ({"text": None}, ["--speed", "text"], "--speed text needs"),
        ({"text": b"on"}, ["--speed", "text"], "has 2 bytes, but the tokens shown have 17"),
        ({"shown": {"tcp": [0.5, 0.1]}}, [], "tcp, run 1: rendered times are unsorted"),
        ({"shown": {}}, [], "holds no tokens: no run was finished"),
    ],
)
def test_folder_errors_are_one_line(tmp_path, capsys, made, arguments, line):
    path = folder(tmp_path / "a", **{"ttft": NEVER, **made})
    assert main([str(path), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and line in captured.err
    assert captured.err.count("\n") == 1 and not captured.out


def test_one_bad_folder_of_two(tmp_path, capsys):
    path = folder(tmp_path / "a")
    (path / "parts").mkdir(exist_ok=True)
    (path / "parts" / "tokens-x.parquet").write_bytes(b"broken")
    assert main([str(tmp_path / "none"), str(path), "--json"]) == 2
    captured = capsys.readouterr()
    assert "error: " in captured.err and "warning: " in captured.err
    assert len(json.loads(captured.out)["results"]) == 1 and main([str(path)]) == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--speed", "0"], "a speed must be above 0"),
        (["--speed", "text:x"], "'x' is no number"),
        (["--speed", "inf"], "'inf' is no number"),
        (["--buffer", "many"], "'many' is neither tokens"),
        (["--buffer", "xs"], "'x' is no number"),
    ],
)
def test_usage_errors(capsys, arguments, line):
    with pytest.raises(SystemExit) as error:
        main(["folder", *arguments])
    assert error.value.code == 2 and line in capsys.readouterr().err


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "examples:" in capsys.readouterr().out
