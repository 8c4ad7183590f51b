"""The report: what it says about known folders, whole or not, and what it escapes."""

import csv
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from report_folders import (  # type: ignore[import-not-found, unused-ignore]
    MANIFEST,
    RUN,
    Page,
    add_columns,
    folder,
    report,
    token_table,
)

from analysis.report.command import main
from analysis.results import ResultsFolder


def test_the_page_needs_nothing_but_itself(tmp_path):
    page = report(folder(tmp_path / "a"))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "img", "iframe", "object", "base")
        assert "src" not in attributes
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name.endswith("href"):
                assert value.startswith("#") and value[1:] in ids
            for target in re.findall(r"url\(([^)]*)\)", value):
                assert target.startswith("#") and target[1:] in ids
    style = page.text[page.text.index("<style>") : page.text.index("</style>")]
    assert "@import" not in page.text and "url(" not in style and "://" not in page.text
    assert page.text.startswith("<!doctype html>")
    kinds = ("stalls", "timeline", "gaps", "overhead", "fates0", "fates1")
    for kind in kinds:
        assert any(name.startswith(f"experiment-1-{kind}-") for name in ids), kind
    assert sum(tag == "svg" for tag, _ in page.tags) == len(kinds)


def test_every_value_of_the_summary_is_there(tmp_path):
    path = folder(tmp_path / "a")
    page = report(path)
    with open(path / "summary.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(page.tables["Every run"]) == len(rows) + 1
    for row in rows:
        shown = page.row("Every run", row["scheme"], row["scenario"], row["run"])
        assert shown["seed"] == row["seed"] and shown["link"] == row["link"]
        assert shown["stall ratio, %"] == f"{100 * float(row['stall_ratio']):.1f}"
        assert shown["gap P99, ms"] == f"{1000 * float(row['gap_p99']):.0f}"
        assert shown["wire bytes"] == row["wire_bytes"] and shown["tokens"] == row["tokens"]
        assert shown["delay P50, ms"] == "-"  # empty in the file


def test_means_and_reductions_by_hand(tmp_path):
    page = report(folder(tmp_path / "a"))
    # Two runs: t(0.975, 1) = 12.7062; s / sqrt(2) is half of what they are apart.
    row = page.row("Every scheme", "eloquent")
    assert row["runs"] == "2" and row["stall ratio, %"] == "15.0 ± 63.5"
    assert row["first token, ms"] == "300 ± 0" and row["wire bytes per token"] == "152 ± 6"
    assert page.row("Every scheme", "tcp")["stall ratio, %"] == "40.0 ± 127.1"
    below = page.row("Below tcp, %", "eloquent")
    assert below["pairs"] == "2" and below["stall ratio"] == "62.5"  # 1 - 15 / 40
    assert below["first token"] == "0.0 [0.0, 0.0]"
    assert page.says("wifi_loss: WiFi with bursts of outages") and page.says("a gap beyond 200 ms")


def test_another_baseline(tmp_path, capsys):
    path = folder(tmp_path / "a")
    page = report(path, "--baseline", "eloquent")
    # 1 - 40 / 15
    assert page.row("Below eloquent, %", "tcp")["stall ratio"] == "-166.7"
    page = report(path, "--baseline", "quic", "--force")
    assert page.says("The baseline quic was not run") and not page.says("not whole")
    capsys.readouterr()
    report(path, "--baseline", "eloqent", "--force")
    line = "note: --baseline: 'eloqent' was not run: did you mean 'eloquent'?\n"
    assert capsys.readouterr().err == line


def test_setup_and_how_to_repeat_it(tmp_path):
    page = report(folder(tmp_path / "a"))
    row = page.row("Network", "access (wifi)", "down")
    assert row["delay"] == "3.0 ms" and row["loss"] == "model: bernoulli, loss: 0.1"
    assert row["source of the numbers"] == "assumed"
    assert page.row("Network", "access (wifi)", "up")["loss"] == "-"
    assert page.says("2.4.6") and page.says("abcdef1") and page.says("The seed is 7.")
    # --out is left out: a folder is never overwritten.
    assert page.says("sudo .venv/bin/python scenarios/wifi_loss.py --runs 2")
    assert not page.says("my results")


def test_the_packets_of_a_run_are_counted(tmp_path):
    row = report(folder(tmp_path / "a")).row("Packets of this run", "eloquent")
    assert list(row.values())[1:] == [
        *("5", "2", "2", "1", "3"),  # server packets with tokens: lost, news, nothing new, most
        *("0", "0", "3", "1", "captures"),
    ]


@pytest.mark.parametrize("column", ["ratio_to_limit", "limit_stall_ratio"])
def test_the_limit_if_it_is_known(tmp_path, column):
    path = folder(tmp_path / "a")
    assert "Ratio to the limit" not in report(path).tables
    stalls = pd.read_csv(path / "summary.csv")["stall_ratio"]
    add_columns(path, **{column: stalls / (0.05 if column == "ratio_to_limit" else 2)})
    page = report(path, "--force")
    expected = {"ratio_to_limit": "3.00 [-9.71, 15.71]", "limit_stall_ratio": "2.00"}[column]
    assert page.row("Ratio to the limit", "eloquent")["stall ratio / limit"].startswith(expected)
    assert any(a.get("id", "").startswith("experiment-1-limit-") for _, a in page.tags)
    folder(tmp_path / "b")
    assert main([str(path), str(tmp_path / "b"), "--out", str(tmp_path / "both.html")]) == 0
    both = Page((tmp_path / "both.html").read_text())
    title = "All folders: ratio to the limit"
    assert both.row(title, str(path))["eloquent"].startswith(expected)
    assert both.row(title, str(tmp_path / "b"))["eloquent"] == "-"


def test_several_folders_make_one_page(tmp_path, monkeypatch, capsys):
    first = folder(tmp_path / "a")
    second = folder(tmp_path / "b", MANIFEST | {"runs": 3, "title": "Second"})
    monkeypatch.chdir(tmp_path)
    assert main(["a", "b", "a"]) == 0
    assert capsys.readouterr().out == "Report: report.html\n"
    page = Page(Path("report.html").read_text())
    states = [row[:2] for row in page.tables["All folders"][1:]]
    assert states == [["a", "whole"], ["b", "not whole"]]
    assert page.row("All folders", "b")["tcp: stall, %"] == "40.0 ± 127.1 (2)"
    assert [a["href"] for tag, a in page.tags if tag == "a"] == ["#experiment-1", "#experiment-2"]
    assert [a["id"] for tag, a in page.tags if tag == "section"] == [
        *("overview", "experiment-1", "experiment-2")
    ]
    assert page.says("4 of 6 planned runs") and page.says("Second")
    assert first.exists() and second.exists()


# -- folders that are not whole -----------------------------------------------------------------


def test_a_folder_that_was_cut_off(tmp_path, capsys):
    path = folder(tmp_path / "a", consolidate=False)
    with open(path / "summary.csv", "a") as file:
        file.write("wifi_loss,tcp,3,0.1")
    (path / "parts" / "tokens-tcp-run02.parquet").write_bytes(b"PAR1 and no more")
    for part in (path / "parts").glob("packets-eloquent-*"):
        part.unlink()
    (path / "manifest.json").unlink()
    page = report(path, status=1)
    assert page.says("This folder is not whole.")
    for text in (
        *("cut off before its tables were merged", "manifest.json is missing"),
        *("No token times of tcp run 2", "No packets of eloquent run 1, eloquent run 2"),
        *("summary.csv breaks off", "tokens-tcp-run02.parquet is broken"),
        "The command line is not known",
    ):
        assert page.says(text), text
    assert page.row("Every scheme", "tcp")["stall ratio, %"] == "40.0 ± 127.1"
    assert [row[0] for row in page.tables["Packets of this run"][1:]] == ["tcp"]
    captured = capsys.readouterr()
    assert "note: " in captured.err and "broken" in captured.err


def test_before_the_first_run_was_finished(tmp_path):
    path = folder(tmp_path / "a", stalls={})
    page = report(path)
    for text in ("0 of 4 planned runs", "summary.csv is missing", "No run was finished"):
        assert page.says(text), text
    assert "svg" not in [tag for tag, _ in page.tags]
    assert page.row("Network", "access (wifi)", "up")


def test_tables_without_a_summary(tmp_path):
    path = folder(tmp_path / "a")
    (path / "summary.csv").unlink()
    page = report(path)
    assert page.says("summary.csv is missing") and "Packets of this run" in page.tables
    (path / "tokens.parquet").unlink()
    page = report(path, "--force")
    assert page.says("There are no token times") and "Packets of this run" in page.tables


def test_an_older_folder(tmp_path):
    path = folder(tmp_path / "a", {"scenario": "wifi_loss", "prompt": "Why?"})
    table = pd.read_csv(path / "summary.csv")
    table[["scenario", "scheme", "run", "stall_ratio"]].to_csv(path / "summary.csv", index=False)
    page = report(path)
    assert page.tables["Every scheme"][0] == ["scheme", "runs", "stall ratio, %"]
    assert page.row("Every scheme", "eloquent")["stall ratio, %"] == "15.0 ± 63.5"
    assert not page.says("not whole")
    table[["scenario", "scheme", "run", "ttft"]].to_csv(path / "summary.csv", index=False)
    assert report(path, "--force").row("Every scheme", "tcp")["first token, ms"] == "300 ± 0"


def test_answers_of_one_token_have_no_gaps(tmp_path):
    made = ResultsFolder.create(tmp_path / "a")
    made.write_tokens("eloquent", 1, token_table([0.02]))
    made.append_summary({**RUN, "seed": 1, "stall_ratio": math.nan, "bytes_per_token": 70.0})
    made.consolidate()
    page = report(tmp_path / "a")
    assert page.row("Every scheme", "eloquent")["stall ratio, %"] == "-"
    assert page.says("The figure of gaps is left out")


HOSTILE = "</pre></style><script>alert(1)</script><img src=x onerror=alert(2)>"


def test_hostile_text_is_text(tmp_path):
    scheme = "$\\frac{<b>x</b>\"'&amp;"
    names = ("title", "scenario", "commit", "engine", "seed", "started", "link")
    hostile: dict[str, Any] = dict.fromkeys(names, HOSTILE)
    hostile |= {"command_line": ["a.py", HOSTILE], "versions": {HOSTILE: HOSTILE}}
    hostile |= {"prompts": {"name": HOSTILE, "prompts": [HOSTILE, "{{ 7 * 7 }}"]}}
    hostile |= {"network": {HOSTILE: {"name": HOSTILE, "up": {HOSTILE: HOSTILE}}}}
    hostile |= {"run_details": [{"scheme": HOSTILE, "links": {"a": {"lateness": HOSTILE}}}]}
    path = folder(tmp_path / "a", hostile, {(scheme.replace("/", "|"), 1): 0.1, ("tcp", 1): 0.2})
    page = report(path)
    assert {"script", "img", "b"}.isdisjoint(tag for tag, _ in page.tags)
    assert not [a for _, attributes in page.tags for a in attributes if a.startswith("on")]
    assert page.text.count("</style>") == 1
    assert page.says(HOSTILE) and page.says("{{ 7 * 7 }}") and not page.says("49")
    # Drawn as well: matplotlib would take what stands between dollars for a formula.
    name = scheme.replace("/", "|")
    assert page.words.count(name) > 3 and page.row("Every scheme", name)


@pytest.mark.parametrize("value", [None, 3, "text", [1], {"a": 1}, [[{"b": None}]], True, 1e999])
def test_a_manifest_of_any_shape(tmp_path, value):
    names = (
        *("scenario", "title", "command_line", "started", "engine", "seed", "runs", "schemes"),
        *("tokens", "prompts", "theta", "parameters", "network", "machine", "versions", "commit"),
        *("run_details", "link", "link_reason", "datapath", "source", "tcp"),
    )
    path = folder(tmp_path / "a", dict.fromkeys(names, value))
    page = report(path)
    assert page.row("Every scheme", "tcp")["stall ratio, %"] == "40.0 ± 127.1"
