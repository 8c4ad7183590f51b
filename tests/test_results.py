"""Results folders: written, cut off, broken, on a full disk."""

import errno
import math
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis.capture_reader import PACKET_COLUMNS
from analysis.results import TOKEN_COLUMNS, ResultsError, ResultsFolder, ResultsWarning, load
from analysis.summary import SUMMARY_COLUMNS


def tokens(scheme: str, run: int, count: int = 3) -> pd.DataFrame:
    row = {"scenario": "clean", "scheme": scheme, "run": run, "n_bytes": 4}
    times = {"generated_at": 0.0, "sent_at": 0.1, "received_at": 0.2, "rendered_at": math.nan}
    return pd.DataFrame([row | times | {"index": i} for i in range(count)])


def packets(scheme: str, run: int, host: str) -> pd.DataFrame:
    row = dict.fromkeys(PACKET_COLUMNS, 1) | {"kind": "data", "protocol": "udp", "time": 0.5}
    return pd.DataFrame([row | {"scheme": scheme, "run": run, "host": host}])


def filled(path: Path) -> ResultsFolder:
    folder = ResultsFolder.create(path)
    for run in (0, 1):
        for scheme in ("tcp", "eloquent"):
            folder.write_tokens(scheme, run, tokens(scheme, run))
            for host in ("client", "server"):
                folder.write_packets(scheme, run, host, packets(scheme, run, host))
            folder.append_summary({"scenario": "clean", "scheme": scheme, "run": run, "ttft": 0.5})
    folder.write_manifest({"seed": 1, "out": path})
    return folder


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResultsWarning)
        yield


def test_a_finished_folder_reads_back(tmp_path):
    folder = filled(tmp_path / "a" / "b")
    folder.consolidate()
    assert sorted(path.name for path in folder.path.iterdir()) == [
        *("logs", "manifest.json", "packets.parquet", "pcap", "summary.csv", "tokens.parquet")
    ]
    found = load(folder.path)
    assert found.manifest == {"seed": 1, "out": str(folder.path)}
    assert list(found.summary) == SUMMARY_COLUMNS and len(found.summary) == 4
    assert found.summary["ttft"].tolist() == [0.5] * 4 and found.summary["seed"].isna().all()
    assert list(found.tokens) == TOKEN_COLUMNS and len(found.tokens) == 12
    assert found.tokens["run"].dtype == "int64" and found.tokens["rendered_at"].isna().all()
    assert list(found.packets) == PACKET_COLUMNS and len(found.packets) == 8


def test_a_cut_off_folder_has_what_was_finished(tmp_path):
    path = filled(tmp_path / "a").path
    with open(path / "summary.csv", "a") as file:
        file.write("clean,tcp,2,0.1")  # no end of line: the power went
    part = path / "parts" / "tokens-tcp-run01.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.warns(ResultsWarning) as caught:
        found = load(path)
    assert sorted(str(warning.message).split("/")[-1] for warning in caught) == [
        "summary.csv breaks off: its last row was left out",
        "tokens-tcp-run01.parquet is broken and was left out",
    ]
    assert (len(found.summary), len(found.tokens), len(found.packets)) == (4, 9, 8)
    with pytest.warns(ResultsWarning, match="broken"):
        ResultsFolder(path).consolidate()
    assert [left.name for left in (path / "parts").iterdir()] == [part.name]


def test_a_cut_between_merge_and_removal_counts_nothing_twice(tmp_path):
    folder = filled(tmp_path / "a")
    shutil.copytree(folder.path / "parts", tmp_path / "kept")
    folder.consolidate()
    shutil.copytree(tmp_path / "kept", folder.path / "parts")
    assert len(load(folder.path).tokens) == 12
    folder.write_tokens("tcp", 2, tokens("tcp", 2))  # and a run more
    folder.consolidate()
    found = load(folder.path)
    assert (len(found.tokens), len(found.packets)) == (15, 8)
    assert not (folder.path / "parts").exists()


def test_a_run_without_tokens_keeps_the_columns(tmp_path):
    folder = ResultsFolder.create(tmp_path / "a")
    folder.write_tokens("tcp", 0, tokens("tcp", 0, 0).reindex(columns=TOKEN_COLUMNS))
    folder.write_tokens("eloquent", 0, tokens("eloquent", 0))
    found = load(folder.path)
    assert len(found.tokens) == 3 and found.tokens["index"].dtype == "int64"
    assert found.packets.empty and list(found.packets) == PACKET_COLUMNS
    assert found.summary.empty and found.manifest == {}


def test_nothing_is_overwritten_and_mistakes_are_one_line(tmp_path):
    (tmp_path / "there" / "something").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    for path in ("there", "file"):
        with pytest.raises(ResultsError, match="already exists: results are never overwritten"):
            ResultsFolder.create(tmp_path / path)
    with pytest.raises(ResultsError, match=r"cannot write .*: Not a directory"):
        ResultsFolder.create(tmp_path / "file" / "a")
    with pytest.raises(ResultsError, match="is no folder"):
        load(tmp_path / "none")
    with pytest.raises(ResultsError, match="is no results folder"):
        load(tmp_path / "there")
    folder = ResultsFolder.create(tmp_path / "new")
    with pytest.raises(ResultsError, match="no column stall_rate"):
        folder.append_summary({"stall_rate": 1})
    with pytest.raises(ResultsError, match="lack the column index"):
        folder.write_tokens("tcp", 0, tokens("tcp", 0).drop(columns="index"))


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    folder = ResultsFolder.create(tmp_path / "a")
    folder.write_manifest({"version": 1})

    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResultsError, match=r"no space left while writing .*manifest.json"):
        folder.write_manifest({"version": 2})
    assert load(folder.path).manifest == {"version": 1}
    assert not list(folder.path.glob(".*"))


_ON_A_FULL_DISK = """
import sys, pandas as pd
from analysis.results import TOKEN_COLUMNS, ResultsError, ResultsFolder, load
folder = ResultsFolder.create(sys.argv[1] + "/a")
table = pd.DataFrame({column: range(3000) for column in TOKEN_COLUMNS})
try:
    for run in range(1000):
        folder.write_tokens("tcp", run, table.assign(run=run))
        folder.append_summary({"scheme": "tcp", "run": run})
except ResultsError as error:
    print(error)
    found = load(folder.path)
    assert len(found.tokens) in (3000 * run, 3000 * (run + 1)) and run > 0
    assert len(found.summary) == run
"""


def test_a_full_disk_keeps_finished_runs(tmp_path):
    shell = 'mount -t tmpfs -o size=1m none "$0" && exec "$1" -c "$2" "$0"'
    # The mount lives in a namespace of its own and ends with it.
    command = ["unshare", "-m", "sh", "-c", shell, str(tmp_path), sys.executable, _ON_A_FULL_DISK]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("needs root to mount a small disk")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no space left while writing")
    assert done.stdout.count("\n") == 1


def test_a_figure_becomes_a_png(tmp_path):
    path = ResultsFolder.create(tmp_path / "a").write_figure("timeline", Figure())
    assert path.name == "timeline.png" and path.read_bytes()[:4] == b"\x89PNG"
