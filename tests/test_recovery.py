"""Recovery from a disruption, on answers of a few tokens, by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
import pytest

from analysis.recovery import recovery_text, recovery_times

#: (made, shown), 50 ms on their way when all is well. Nothing passes from 2 to 32 s.
CUT_OFF = (
    (1.90, 1.95),
    (2.00, 32.10),
    (2.50, 32.10),
    (31.95, 32.30),
    (32.20, 32.40),  # made while the backlog was shown: it is part of it
    (32.50, 32.55),
)
WELL = tuple((0.1 * n, 0.1 * n + 0.05) for n in range(20))


def table(
    times: Sequence[tuple[float, float]], scheme: str = "eloquent", run: int = 1
) -> pd.DataFrame:
    made, shown = zip(*times, strict=True)
    return pd.DataFrame(
        {
            "scheme": scheme,
            "run": run,
            "index": range(len(times)),
            "generated_at": made,
            "rendered_at": shown,
        }
    )


def test_a_disruption_by_hand() -> None:
    (row,) = recovery_times(table(CUT_OFF), 2.0, 32.0).to_dict("records")
    assert (row["scheme"], row["run"], row["missed"]) == ("eloquent", 1, 3)
    assert row["first"] == pytest.approx(0.1)
    assert row["recovery"] == pytest.approx(0.4)
    assert row["utilisation"] == 1 / 4


def test_the_order_of_the_rows_does_not_matter() -> None:
    shuffled = table(CUT_OFF).iloc[::-1]
    expected = recovery_times(table(CUT_OFF), 2.0, 32.0)
    pd.testing.assert_frame_equal(recovery_times(shuffled, 2.0, 32.0), expected)


def test_where_nothing_was_missed_there_is_no_recovery() -> None:
    (row,) = recovery_times(table(WELL), 0.56, 1.46).to_dict("records")
    assert row["missed"] == 0
    assert math.isnan(row["first"]) and math.isnan(row["recovery"])
    assert row["utilisation"] == 1


def test_an_answer_that_begins_after_the_disruption_has_no_share() -> None:
    (row,) = recovery_times(table([(5.0, 5.1), (5.2, 5.3)]), 1.0, 2.0).to_dict("records")
    assert row["missed"] == 0
    assert math.isnan(row["utilisation"])


def test_tokens_on_their_usual_way_are_not_missing() -> None:
    """20 ms a token over a path of 100 ms: five are always under way."""
    times = []
    for number in range(250):
        made = 0.02 * number
        held = 1.0 <= made < 2.0
        times.append((made, 2.1 if held else made + 0.1))
    (row,) = recovery_times(table(times), 1.0, 2.0).to_dict("records")
    assert row["missed"] == 50
    assert row["first"] == pytest.approx(0.1)
    assert row["recovery"] == pytest.approx(0.1)


def test_one_row_per_scheme_and_run() -> None:
    tables = [table(CUT_OFF, scheme, run) for run in (1, 2) for scheme in ("tcp", "eloquent")]
    found = recovery_times(pd.concat(tables), 2.0, 32.0)
    rows = list(zip(found["scheme"], found["run"], strict=True))
    assert rows == [("tcp", 1), ("eloquent", 1), ("tcp", 2), ("eloquent", 2)]


def test_the_text_has_means_over_runs() -> None:
    slower = [(made, shown + 0.2 if shown > 32.2 else shown) for made, shown in CUT_OFF]
    slower[-1] = (33.0, 33.05)
    tables = [table(CUT_OFF, run=1), table(slower, run=2)]
    tables += [table(WELL, "mosh", run=1)]
    lines = recovery_text(pd.concat(tables), 2.0, 32.0).splitlines()
    assert lines[0].startswith("After 30 s without a network, seconds until the reader had it all")
    # 0.4 and 0.6 s: t(0.975, 1) = 12.7062, so 12.7062 * 0.141421 / sqrt(2) = 1.27.
    assert lines[1] == (
        "  eloquent           0.50 ± 1.27 (2 runs); the first token after 0.10; "
        "shown by the end of it 25% of what was generated"
    )
    assert lines[2] == "  mosh               nothing was missed"
    assert len(lines) == 3


def test_the_text_of_one_run_has_no_interval() -> None:
    assert "eloquent           0.40 (1 runs); " in recovery_text(table(CUT_OFF), 2.0, 32.0)
