"""A summary.csv that a spreadsheet has saved: read where it says the same, else one line."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from analysis.__main__ import main as analysis
from analysis.compare import main as compare
from analysis.report.command import main as report
from analysis.results import ResultsError, ResultsFolder, load

ROWS = (
    ("wifi_loss", "eloquent", 1, 4123456789, 0.125, 900, None),
    ("wifi_loss", "tcp", 1, 4123456789, 0.25, 1200, 1e-05),
)
NAMES = ("scenario", "scheme", "run", "seed", "stall_ratio", "wire_bytes", "agree_max")


def folder(path: Path, content: bytes | None = None) -> Path:
    made = ResultsFolder.create(path)
    made.write_manifest({"runs": 2, "schemes": ["eloquent", "tcp"], "baseline": "tcp"})
    for row in ROWS:
        made.append_summary(dict(zip(NAMES, row, strict=True)))
    if content is not None:
        (path / "summary.csv").write_bytes(content)
    return path


def text(separator: str = ",", point: str = ".", *, names: tuple[str, ...] = NAMES) -> str:
    lines = [separator.join(names)]
    for row in ROWS:
        values = dict(zip(NAMES, row, strict=True))
        cells = ("" if values.get(n) is None else str(values.get(n)) for n in names)
        lines.append(separator.join(cell.replace(".", point) for cell in cells))
    return "\n".join(lines) + "\n"


EXCEL = "\ufeff" + text(";", ",").replace("\n", "\r\n")


@pytest.mark.parametrize(
    "content",
    [
        text().encode(),
        EXCEL.encode(),
        ("sep=;\n" + text(";", ",")).encode(),
        text("\t", ",").encode("utf-16"),
        text(";").encode(),
        text().replace("0.125", '"0,125"').replace("eloquent", ' "eloquent" '.strip()).encode(),
        text(names=NAMES[::-1]).encode(),
        (text(";", ",") + ";;;;;;\n").encode(),
        text().replace("\n", ",\n").encode(),
        text().replace("\n", "\r").encode(),
    ],
    ids=(
        *("ours", "excel", "sep", "utf-16", "points", "quoted", "reordered", "empty row"),
        *("empty column", "old mac"),
    ),
)
def test_what_says_the_same_is_read(tmp_path: Path, content: bytes) -> None:
    found = load(folder(tmp_path / "a", content)).summary
    assert sorted(found.columns) == sorted(NAMES)
    for number, row in enumerate(ROWS):
        for name, value in zip(NAMES, row, strict=True):
            seen = found[name].iloc[number]
            assert pd.isna(seen) if value is None else seen == value, name


def test_columns_of_ones_own_stay(tmp_path: Path) -> None:
    content = text().replace("agree_max\n", "agree_max,note,mine\n")
    content = content.replace("900,\n", "900,,good,1\n").replace("1e-05\n", "1e-05,bad,2\n")
    found = load(folder(tmp_path / "a", content.encode())).summary
    assert list(found["note"]) == ["good", "bad"]
    assert list(found["mine"]) == [1, 2]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("0.125", "#DIV/0!", "line 2: stall_ratio is '#DIV/0!', no number"),
        ("0.25", "1e400", "line 3: stall_ratio is '1e400', which no measure can be"),
        ("0.25", "25%", "line 3: stall_ratio is '25%', no number"),
        ("0.25", "Jan 25", "line 3: stall_ratio is 'Jan 25', no number"),
        ("4123456789", "4.12E+09", "line 2: seed is '4.12E+09', no whole number with all"),
        ("1200", '"1,200"', "line 3: wire_bytes is '1,200': is the comma a decimal one?"),
        ("1200", "1200.5", "line 3: wire_bytes is '1200.5', no whole number"),
        ("eloquent", "", "line 2: scheme is empty"),
        ("scheme", "Scheme", "has no column 'scheme': did you mean 'Scheme'?"),
        ("scheme", "Verfahren", "has no column 'scheme'; the first are scenario, Verfahren, run"),
        ("agree_max", "run", "has the column 'run' twice"),
        ("1e-05", "1e-05,7", "is no table: line 3 has 8 values for 7 columns"),
        ("eloquent", "elo\xffquent", "is not text in UTF-8"),
        ("eloquent", '"eloquent', "is no table"),
    ],
)
def test_what_does_not_is_one_line_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    good = folder(tmp_path / "good")
    bad = folder(tmp_path / "bad", text().replace(old, new, 1).encode("latin-1"))
    with pytest.raises(ResultsError):
        load(bad)
    for command, words in ((analysis, [bad]), (compare, [good, bad]), (compare, [bad, good])):
        assert command([str(word) for word in words]) == 2
        seen = capsys.readouterr()
        lines = [line for line in seen.err.splitlines() if not line.startswith("note: ")]
        assert len(lines) == 1
        assert lines[0].startswith(f"error: {bad / 'summary.csv'}")
        assert said in lines[0]


def test_how_many_runs_there_are_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(folder(tmp_path / "a"))
    assert analysis([path]) == 0
    assert f"note: {path}: 2 of 4 planned runs were finished\n" in capsys.readouterr().err
    compare([path, path])
    assert capsys.readouterr().err.count("2 of 4 planned runs were finished") == 2


def test_a_missing_measure_names_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = folder(tmp_path / "bad", text(names=NAMES[:4]).encode())
    assert analysis([str(bad)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {bad / 'summary.csv'}: ")
    assert "stall_ratio" in line


def test_a_column_that_is_missing_is_left_out(tmp_path: Path) -> None:
    content = text(names=(*NAMES[:4], "wire_bytes")).replace("wire_bytes", "limit_stall_ratio")
    assert report([str(folder(tmp_path / "no-stalls", content.encode()))]) == 0
    assert "tokens_lost" not in text()
    assert analysis([str(folder(tmp_path / "no-losses", text().encode()))]) == 0
