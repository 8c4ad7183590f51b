"""`compare`: intervals against hand computation and scipy, pairs by seed, one line per mistake."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.compare import CompareError, compare, difference, main, paired, unpaired
from analysis.results import ResultsFolder


def rows(values, seeds=None, scheme="eloquent", column="stall_ratio") -> pd.DataFrame:
    seeds = range(len(values)) if seeds is None else seeds
    return pd.DataFrame(
        [
            {"scenario": "wifi_loss", "scheme": scheme, "run": run, "seed": seed, column: value}
            for run, (value, seed) in enumerate(zip(values, seeds, strict=True), 1)
        ]
    )


def folder(path: Path, *tables: pd.DataFrame, **manifest) -> str:
    made = ResultsFolder.create(path)
    for table in tables:
        for row in table.to_dict("records"):
            made.append_summary(row)
    made.write_manifest({"scenario": "wifi_loss", **manifest})
    return str(path)


def test_pairs_by_hand():
    # Differences 1, 2, 3: mean 2, standard deviation 1, t(0.975, 2) = 4.302653 (any table).
    found = paired([1, 1, 1], [2, 3, 4])
    assert found[:4] == (1.0, 3.0, 3, 3)
    assert found.difference == 2 and found.pairs == 3
    assert (found.low, found.high) == pytest.approx((2 - 2.484138, 2 + 2.484138), rel=1e-5)
    assert math.isnan(paired([1], [2]).low)


def test_welch_by_scipy():
    rng = np.random.default_rng(3)
    a, b = rng.normal(5, 1, 9), rng.normal(6, 3, 5)
    found = unpaired(a, b)
    expected = stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert (found.n_a, found.n_b, found.pairs) == (9, 5, 0)
    assert unpaired([1, 1], [2, 2])[4:7] == (1, 1, 1)  # nothing spreads
    assert math.isnan(unpaired([1, 2], [2]).low) and unpaired([1, 2], [2]).difference == 0.5
    assert math.isnan(unpaired([], [2]).difference)


def test_pairs_are_found_by_seed_not_by_place():
    a = rows([0.1, 0.2, 0.9], seeds=[7, 8, 9])
    b = rows([0.5, 0.3, 0.4], seeds=[5, 8, 7])
    found = difference(a, b, "stall_ratio")
    # 7: 0.4 - 0.1, 8: 0.3 - 0.2; one run of each is left out.
    assert found.pairs == 2 and found.left_out == 2
    assert found.difference == pytest.approx(0.2)
    assert (found.mean_a, found.mean_b) == pytest.approx((0.15, 0.35))


@pytest.mark.parametrize(
    "seeds",
    [
        [1, 2],  # none in common with 3, 4
        [3, 5],  # a single one, which would throw half of the runs away
        [3, 3],  # which of them is the partner?
        [math.nan, math.nan],
    ],
)
def test_without_pairs_the_means_are_compared(seeds):
    found = difference(rows([0.1, 0.3], seeds), rows([0.5, 0.7], [3, 4]), "stall_ratio")
    assert (found.pairs, found.n_a, found.n_b, found.left_out) == (0, 2, 2, 0)
    assert found.difference == pytest.approx(0.4)


def test_unknown_values_and_a_single_run():
    a, b = rows([0.1, math.nan, 0.3]), rows([0.2, 0.9, 0.3])
    found = difference(a, b, "stall_ratio")
    assert found.pairs == 2 and found.difference == pytest.approx(0.05)
    one = difference(rows([0.1]), rows([0.3]), "stall_ratio")
    assert one.pairs == 1 and one.difference == pytest.approx(0.2) and math.isnan(one.low)
    # A folder of a version without seeds.
    assert difference(a.drop(columns="seed"), b, "stall_ratio").pairs == 0


def test_schemes_in_common_only():
    a = pd.concat([rows([0.1]), rows([0.2], scheme="tcp")])
    b = pd.concat([rows([0.2], scheme="tcp"), rows([0.2], scheme="mosh")])
    assert list(compare(a, b, ["stall_ratio"])) == ["tcp"]
    with pytest.raises(CompareError, match="no scheme is in both: A has eloquent; B has mosh"):
        compare(rows([0.1]), rows([0.1], scheme="mosh"), ["stall_ratio"])
    with pytest.raises(CompareError, match="B holds no finished run"):
        compare(a, b[:0], ["stall_ratio"])
    with pytest.raises(CompareError, match="A has no metric ttft"):
        compare(a, b, ["ttft"])


def test_table(tmp_path, capsys):
    a = folder(tmp_path / "a", rows([0.10, 0.20, 0.30]), rows([0.4], scheme="[b]tcp"), seed=1)
    b = folder(tmp_path / "b", rows([0.05, 0.13, 0.24]), rows([0.4], scheme="[b]tcp"), seed=2)
    assert main([a, b]) == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith("eloquent"))
    # -5, -7, -6: mean -6, s 1, so -6 ± 2.48; -6 / 20 = -30%.
    assert line.replace("\N{MINUS SIGN}", "-").split() == [
        *("eloquent", "20.0", "14.0", "-6.0", "[-8.5,", "-3.5]", "-30.0", "3", "pairs", "less")
    ]
    assert "[b]tcp" in out and "stall ratio, %" in out and "gap P99" not in out
    assert f"A: {a}\n" in out and "The conditions differ in: seed\n" in out


def test_json(tmp_path, capsys):
    a = folder(tmp_path / "a", rows([0.1, 0.2]), machine={"load": [1, 2, 3], "cores": 2})
    b = folder(tmp_path / "b", rows([0.1, 0.2], [8, 9]), machine={"load": [0, 0, 0], "cores": 2})
    assert main([a, b, "--json", "--metric", "stall_ratio"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["a"] == a and found["conditions_differ"] == []
    row = found["schemes"]["eloquent"]["stall_ratio"]
    # Welch with equal spreads: s = 0.0707107, t(0.975, 2) = 4.302653, * 0.0707107.
    assert row["pairs"] == 0 and row["n_a"] == 2 and row["difference"] == 0
    assert row["high"] == pytest.approx(0.304243, rel=1e-5) and row["low"] == -row["high"]
    single = folder(tmp_path / "c", rows([0.1]))
    assert main([a, single, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["schemes"]["eloquent"]["stall_ratio"]
    assert row["low"] is None


def test_metrics(tmp_path, capsys):
    both = rows([0.1, 0.2]).assign(ttft=[0.3, 0.4])
    a, b = folder(tmp_path / "a", both), folder(tmp_path / "b", both)
    assert main([a, b, "--metric", "ttft", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["schemes"]["eloquent"]) == ["ttft"]
    assert main([a, b, "--metric", "all", "--json"]) == 0
    assert {"ttft", "stall_ratio"} <= set(
        json.loads(capsys.readouterr().out)["schemes"]["eloquent"]
    )


def test_mistakes_are_one_line_each(tmp_path, capsys):
    good = folder(tmp_path / "good", rows([0.1, 0.2]))
    empty = folder(tmp_path / "empty")
    other = folder(tmp_path / "other", rows([0.1], scheme="mosh"))
    (tmp_path / "bytes").mkdir()
    (tmp_path / "bytes" / "summary.csv").write_bytes(b"\xff\xfe\n")
    for arguments, line in (
        ([good, str(tmp_path / "none")], "is no folder"),
        ([good, str(tmp_path)], "is no results folder"),
        ([good, empty], "empty holds no finished run"),
        ([good, other], "no scheme is in both"),
        ([good, str(tmp_path / "bytes")], "summary.csv is not text in UTF-8"),
        ([good, good, "--metric", "speed"], "--metric: 'speed' is not in both folders: stall"),
    ):
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
        assert line in captured.err


def test_a_damaged_folder_is_used_and_told(tmp_path, capsys):
    a = folder(tmp_path / "a", rows([0.1, 0.2]))
    with open(tmp_path / "a" / "summary.csv", "a") as file:
        file.write("wifi_loss,eloq")
    assert main([a, a, "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["schemes"] and "breaks off" in captured.err


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0 and "examples:" in capsys.readouterr().out
