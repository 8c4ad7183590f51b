"""The main job, as a user runs it: real Mininet, Open vSwitch, Ryu, links, captures."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from analysis.results import load

pytestmark = [pytest.mark.emulation, pytest.mark.alone]
SCRIPT = Path(__file__).parent.parent / "scenarios" / "wifi_loss.py"
TOKENS = 80  # of an answer, by default
COLUMNS = {
    *("scenario", "scheme", "run", "seed", "stall_ratio", "gap_share", "gap_p50", "gap_p95"),
    *("gap_p99", "ttft", "tokens", "tokens_lost", "datagrams", "wire_bytes", "payload_bytes"),
    "link",
}


#: In the environment of all that a test here starts: nothing else on the machine has it.
MARK = f"eloquent-test-{os.getpid()}"


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"STARTED_BY": MARK},
    )


def running() -> set[str]:
    """Command lines of all processes that descend from a test here, in any namespace."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if MARK.encode() in (entry / "environ").read_bytes():
                    found.add((entry / "cmdline").read_text())
    return found


def system() -> tuple[set[str], set[str], set[str]]:
    """What a run might leave: interfaces, named namespaces, mounts."""
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    names = {path.name for path in Path("/run/netns").glob("*")}
    return set(os.listdir("/sys/class/net")), names, mounts


def wait_until_as_before(before: object, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while (running() or system() != before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running() == set()
    assert system() == before


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    out = tmp_path_factory.mktemp("wifi_loss") / "out"
    before = system()
    child = start("--quick", "--json", "--out", str(out))
    stdout, stderr = child.communicate(timeout=200)
    assert child.returncode == 0, stderr
    wait_until_as_before(before)
    return json.loads(stdout), out


def test_the_json_contract(quick: tuple[dict, Path]) -> None:
    summary, out = quick
    assert summary["scenario"] == "wifi_loss"
    assert summary["out"] == str(out)
    assert summary["link"] in ("netem", "user")
    assert set(summary["schemes"]) == {"eloquent", "duplicate", "tcp"}
    for columns in summary["schemes"].values():
        assert set(columns["stall_ratio"]) == {"mean", "ci95", "n"}
        assert columns["tokens_lost"]["mean"] == 0
        assert columns["stall_ratio"]["n"] == 1
        assert columns["stall_ratio"]["ci95"] is None  # one run has no interval


def test_the_results_folder(quick: tuple[dict, Path]) -> None:
    _, out = quick
    names = {path.name for path in out.iterdir()}
    assert {"manifest.json", "summary.csv", "tokens.parquet", "packets.parquet"} <= names
    assert {"timeline.png", "gaps.png", "stalls.png", "switch.csv"} <= names
    assert "parts" not in names
    pcaps = {path.name for path in (out / "pcap").iterdir()}
    assert pcaps == {
        f"{scheme}-run01-{host}.pcapng"
        for scheme in ("eloquent", "duplicate", "tcp")
        for host in ("client", "server")
    }
    with (out / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3
    assert set(rows[0]) >= COLUMNS
    assert {row["congestion_control"] for row in rows} == {"", "cubic"}
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["network"]["access"]["source"]
    assert all(detail["probe"]["count"] == 250 for detail in manifest["run_details"])


def test_tokens_arrive_in_order_and_none_before_it_was_made(quick: tuple[dict, Path]) -> None:
    _, out = quick
    tokens = load(out).tokens
    texts = {scheme: group["n_bytes"].tolist() for scheme, group in tokens.groupby("scheme")}
    assert texts["eloquent"] == texts["duplicate"] == texts["tcp"]
    for _, group in tokens.groupby("scheme"):
        assert group["index"].tolist() == list(range(TOKENS))
        assert group["rendered_at"].is_monotonic_increasing
        # One way is 21 ms; clocks are the same, so nothing can be faster.
        assert (group["received_at"] - group["sent_at"]).min() > 0.015
        assert (group["generated_at"] <= group["sent_at"]).all()
        assert (group["received_at"] <= group["rendered_at"]).all()
    # The user got the very text that the trace holds.
    answers = [(out / "logs" / f"{s}-run01.txt").read_bytes() for s in texts]
    assert answers[0] == answers[1] == answers[2]


def test_schemes_on_the_wire(quick: tuple[dict, Path]) -> None:
    _, out = quick
    results = load(out)
    rows = results.summary.set_index("scheme")
    assert rows.loc["eloquent", "wire_bytes"] < rows.loc["duplicate", "wire_bytes"]
    packets = results.packets
    sent = packets[(packets["direction"] == "sent") & (packets["host"] == "server")]
    data = sent[sent["kind"] == "data"].groupby("scheme").size()
    assert TOKENS <= data["eloquent"] <= 1.5 * TOKENS
    assert 2 * TOKENS <= data["duplicate"] <= 3 * TOKENS
    # What the links lost is what one host sent and the other did not receive.
    for scheme in ("eloquent", "duplicate"):
        both = packets[packets["scheme"] == scheme].groupby(["host", "direction"]).size()
        assert both["client", "received"] < both["server", "sent"]


def test_the_capture_alone_gives_the_same_table(quick: tuple[dict, Path]) -> None:
    _, out = quick
    summary = load(out).summary.set_index("scheme")
    for scheme in ("eloquent", "duplicate", "tcp"):
        pcap = out / "pcap" / f"{scheme}-run01-client.pcapng"
        done = subprocess.run(
            [sys.executable, "-m", "analysis", str(pcap), "--json"],
            capture_output=True,
            text=True,
            check=True,
        )
        (row,) = json.loads(done.stdout)["streams"]
        assert row["tokens"] == TOKENS
        assert row["complete"]
        # Each token agrees within 2 ms (checked in the run), so sums over few stalls do as well.
        assert row["stall_ratio"] == pytest.approx(summary.loc[scheme, "stall_ratio"], abs=0.01)


def test_the_same_seed_meets_the_same_outages(quick: tuple[dict, Path], tmp_path: Path) -> None:
    _, out = quick
    fates = {
        scheme: pd.read_csv(out / "logs" / f"{scheme}-run01-access.fates.csv")
        for scheme in ("eloquent", "duplicate")
    }
    manifest = json.loads((out / "manifest.json").read_text())
    assert len({detail["seed"] for detail in manifest["run_details"]}) == 1
    # eloquent sends once where duplicate sends twice: shares of lost frames are close, and
    # not zero.
    shares = [(f[f["direction"] == "down"]["fate"] == "lost").mean() for f in fates.values()]
    assert all(share > 0 for share in shares)
    assert abs(shares[0] - shares[1]) < 0.1


@pytest.mark.parametrize("delay", [0.2, 0.5, 1.0, 2.0, 4.0, 9.0])
def test_ctrl_c_ends_it_within_5_seconds(tmp_path: Path, delay: float) -> None:
    before = system()
    child = start("--source", "trace", "--runs", "20", "--out", str(tmp_path / "out"))
    time.sleep(delay)
    child.send_signal(signal.SIGINT)
    pressed = time.monotonic()
    _, stderr = child.communicate(timeout=30)
    assert time.monotonic() - pressed < 6
    assert child.returncode == 130, stderr
    assert "Traceback" not in stderr
    wait_until_as_before(before)


def test_kill_9_leaves_nothing_but_the_results(tmp_path: Path) -> None:
    before = system()
    out = tmp_path / "out"
    child = start("--source", "trace", "--tokens", "10", "--runs", "50", "--out", str(out))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (out / "summary.csv").exists():
        time.sleep(0.1)
    time.sleep(1)
    child.kill()
    child.communicate(timeout=30)
    wait_until_as_before(before)
    kept = load(out)  # parts included
    assert len(kept.summary) >= 1
    assert set(kept.tokens["scheme"]) >= set(kept.summary["scheme"])


def test_two_testbeds_at_the_same_time(tmp_path: Path) -> None:
    before = system()
    common = ("--source", "trace", "--runs", "1", "--tokens", "40", "--schemes", "eloquent")
    children = [start(*common, "--json", "--out", str(tmp_path / str(n))) for n in range(2)]
    for child in children:
        stdout, stderr = child.communicate(timeout=200)
        assert child.returncode == 0, stderr
        assert json.loads(stdout)["schemes"]["eloquent"]["tokens_lost"]["mean"] == 0
    wait_until_as_before(before)


def test_a_full_disk_is_one_line_and_keeps_what_was_measured(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", str(small)], check=True)
    try:
        out = small / "out"
        child = start("--source", "trace", "--tokens", "60", "--runs", "20", "--out", str(out))
        _, stderr = child.communicate(timeout=250)
        assert child.returncode == 1, stderr
        assert "Traceback" not in stderr
        errors = [line for line in stderr.splitlines() if line.startswith("error: ")]
        assert errors and len(set(errors)) == len(errors)
        assert "space" in errors[0]
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
