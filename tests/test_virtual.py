"""The engine virtual by the command line: repeatable to the byte, and for anybody.

Each run boots a guest, so there are four: two alike, one with another seed, one as an ordinary
user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from topologies.guest import kernel

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scenarios" / "wifi_loss.py"
WORDS = ("--engine", "virtual", "--quick", "--tokens", "20", "--schemes", "eloquent")
PATIENCE = 280


def run(
    *words: str, user: tuple[str, ...] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*user, sys.executable, str(SCRIPT), *words],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def results(place: Path, name: str, seed: int) -> tuple[Path, str]:
    """Always the same --out, as it is in the guest's command line; moved away afterwards."""
    out = place / "results" / "out"
    done = run(*WORDS, "--seed", str(seed), "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    return out.rename(place / name), done.stderr


@pytest.fixture(scope="module")
def first(place: Path) -> tuple[Path, str]:
    return results(place, "first", 1)


@pytest.mark.guest
def test_the_engine_and_its_link_are_named(first: tuple[Path, str]) -> None:
    folder, printed = first
    summary = pd.read_csv(folder / "summary.csv")
    assert list(summary["engine"]) == ["virtual"]
    assert list(summary["link"]) == ["netem"]
    assert list(summary["tokens"]) == [20] and list(summary["tokens_lost"]) == [0]
    assert summary["agree_max"].max() < 0.002
    assert "Guest, virtual time: " in printed


@pytest.mark.guest
@pytest.mark.alone  # beside two other guests the files differed in one run of many
@pytest.mark.timeout(2 * PATIENCE)
def test_the_same_seed_gives_the_same_bytes_in_every_file(
    place: Path, first: tuple[Path, str]
) -> None:
    one, other = files(first[0]), files(results(place, "second", 1)[0])
    assert sorted(one) == sorted(other)
    assert [name for name in one if one[name] != other[name]] == []
    expected = {"manifest.json", "summary.csv", "tokens.parquet", "packets.parquet"}
    expected |= {f"pcap/eloquent-run01-{host}.pcapng" for host in ("client", "server")}
    assert expected <= set(one)


@pytest.mark.guest
@pytest.mark.timeout(2 * PATIENCE)
def test_another_seed_gives_other_results(place: Path, first: tuple[Path, str]) -> None:
    other, _ = results(place, "other", 2)
    for name in ("summary.csv", "tokens.parquet", "packets.parquet"):
        assert (first[0] / name).read_bytes() != (other / name).read_bytes()
    assert list(pd.read_csv(other / "summary.csv")["tokens_lost"]) == [0]


@pytest.mark.guest
@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.nobody
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_needs_no_more(first: tuple[Path, str]) -> None:
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all")
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        home.chmod(0o755)
        folder = kernel.find().program.parent
        cache = home / "cache" / "eloquent-testbed" / "guest-kernel"
        shutil.copytree(folder, cache / folder.name)
        (home / "own").mkdir()
        (home / "own").chmod(0o777)
        own = {"HOME": str(home / "own"), "XDG_CACHE_HOME": str(home / "cache")}
        own["PYTHONIOENCODING"] = "ascii"  # what the guest prints has to go out here
        out = home / "own" / "out"
        done = run(*WORDS, "--seed", "1", "--out", str(out), user=user, **own)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (done.stdout + done.stderr).isascii() and "+/- 95%" in done.stdout
        assert {path.stat().st_uid for path in [out, *out.rglob("*")]} == {65534}
        own_row = pd.read_csv(out / "summary.csv").iloc[0]
        row = pd.read_csv(first[0] / "summary.csv").iloc[0]
        for column in ("scheme", "seed", "tokens", "tokens_lost", "payload_bytes", "link"):
            assert own_row[column] == row[column]
        # Paths and variables of another length move the guest's clock a little, not the channel.
        assert own_row["engine"] == "virtual"
        assert own_row["ttft"] == pytest.approx(row["ttft"], abs=0.02)


def test_an_existing_folder_is_never_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    done = run(*WORDS, "--out", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "already exists" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("engine", ["emulated", "simulated"])
def test_real_time_is_for_the_guest_alone(tmp_path: Path, engine: str) -> None:
    out = tmp_path / "out"
    done = run("--engine", engine, "--quick", "--time", "real", "--out", str(out))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: --time real is for --engine virtual: emulated is always in real time\n"
    )
    assert not out.exists()


def test_without_a_guest_kernel_it_says_what_to_do(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(*WORDS, "--out", str(out), XDG_CACHE_HOME=str(tmp_path / "empty"))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "run ./setup.sh --virtual" in done.stderr
    assert not out.exists()
