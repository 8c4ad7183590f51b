"""Results folders: each run has its own, and what root makes for somebody is theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.folders import FolderError, results_folder

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scenarios" / "wifi_loss.py"
SIMULATED = ("--engine", "simulated", "--quick", "--tokens", "5", "--executor", "local:1")
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="files of others are made, so it needs root")


def test_runs_of_the_same_second_have_a_folder_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("scenarios.folders._stamp", lambda: "20260102-030405")
    with (
        results_folder(None, "a") as one,
        results_folder(None, "a") as two,
        results_folder(None, "a") as three,
    ):
        assert one == Path("results/a/20260102-030405")
        assert [two.name, three.name] == ["20260102-030405-2", "20260102-030405-3"]
        (two / "file").touch()
        (three / "logs").mkdir()
    # What stayed empty is gone again.
    assert [path.name for path in Path("results/a").iterdir()] == ["20260102-030405-2"]


def test_what_is_there_is_never_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("mine", "mine/file", "link"):
        with (
            pytest.raises(FolderError, match="already exists"),
            results_folder(tmp_path / name, "a"),
        ):
            raise AssertionError
    with (
        pytest.raises(FolderError, match="Not a directory; choose another"),
        results_folder(tmp_path / "mine" / "file" / "below", "a"),
    ):
        raise AssertionError
    with results_folder(tmp_path / "mine", "a", goes_on=True) as folder:
        assert folder == tmp_path / "mine"
    (tmp_path / "empty").mkdir()
    with results_folder(tmp_path / "empty", "a"):
        pass
    assert (tmp_path / "empty").is_dir()  # not ours to remove


def owners(folder: Path) -> dict[str, int]:
    paths = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder.parent)): path.lstat().st_uid for path in paths}


@as_root
@pytest.mark.parametrize("ending", [None, ValueError, KeyboardInterrupt])
def test_results_belong_to_who_called_sudo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: type[BaseException] | None
) -> None:
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    monkeypatch.setenv("SUDO_GID", str(NOBODY))
    outside = tmp_path / "outside"
    outside.touch()
    try:
        with results_folder(tmp_path / "results" / "a" / "b", "a") as folder:
            (folder / "logs").mkdir()
            (folder / "logs" / "x").touch()
            (folder / "link").symlink_to(outside)
            os.link(outside, folder / "second-name")
            if ending is not None:
                raise ending
    except (ValueError, KeyboardInterrupt):
        pass
    found = owners(tmp_path / "results")
    # A hard link is another name of a file that was there before.
    assert {name for name, owner in found.items() if owner == 0} == {"results/a/b/second-name"}
    assert set(found.values()) == {0, NOBODY}
    assert (outside.stat().st_uid, tmp_path.stat().st_uid) == (0, 0)


@as_root
def test_what_was_there_before_stays_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    monkeypatch.delenv("SUDO_GID", raising=False)
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "old").touch()
    with results_folder(tmp_path / "sweep", "a", goes_on=True) as folder:
        (folder / "new").touch()
    assert owners(folder) == {"sweep": 0, "sweep/old": 0, "sweep/new": NOBODY}


@as_root
@pytest.mark.parametrize("variables", [{}, {"SUDO_UID": "0"}, {"SUDO_UID": "me"}])
def test_without_sudo_all_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with results_folder(tmp_path / "results" / "b", "a") as folder:
        (folder / "file").touch()
    assert set(owners(tmp_path / "results").values()) == {0}


@as_root
def test_the_next_run_without_root_can_write_beside(tmp_path: Path) -> None:
    """The README's two commands, one after the other, in one folder."""
    tmp_path.chmod(0o755)
    sudo = {"SUDO_UID": str(NOBODY), "SUDO_GID": str(NOBODY)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *SIMULATED, "--schemes", "eloquent"],
        cwd=tmp_path,
        env=os.environ | sudo,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(owners(tmp_path / "results").values()) == {NOBODY}


@as_root
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    code = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from scenarios.folders import FolderError, results_folder
os.chdir({str(tmp_path)!r})
os.chmod(".", 0o755)
os.setgid({NOBODY}); os.setuid({NOBODY})
for out in (None, Path("x/y")):
    try:
        with results_folder(out, "a"):
            pass
    except FolderError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"cannot make {name}: Permission denied; choose another folder with --out"
        for name in ("results", "x")
    ]
