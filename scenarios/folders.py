"""Where results go: a new folder of its own for each run, and whose it is afterwards.

What a run under sudo makes belongs to the user who called it, so that the next run without sudo
can write beside it. That is said when the run ends, in whatever way.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("results")


class FolderError(ValueError):
    """The folder cannot be used; the message is one line."""


@contextlib.contextmanager
def results_folder(out: Path | None, name: str, *, goes_on: bool = False) -> Iterator[Path]:
    """The folder for this run, there when this begins; one without a file is removed again.

    ``out`` must not exist or be empty, unless the run ``goes_on`` with what is there. Without it
    the folder is called after the time, in ``results/NAME``, and is nobody else's. Raises
    FolderError.
    """
    made: list[Path] = []
    try:
        if out is None:
            folder = _dated(ROOT / name, made)
        else:
            folder = out
            if not goes_on and not is_free(folder):
                raise FolderError(
                    f"{folder} already exists: results are never overwritten, choose another folder"
                )
            _make(folder, made)
    except OSError as error:
        _hand_over(made, None, set())
        place = error.filename or out or ROOT
        raise FolderError(
            f"cannot make {place}: {error.strerror or error}; choose another folder with --out"
        ) from None
    before = set() if folder in made else _inodes(folder)
    try:
        yield folder
    finally:
        if folder in made and not any(files for _, _, files in os.walk(folder)):
            shutil.rmtree(folder, ignore_errors=True)  # nor would it refuse the next try
        _hand_over(made, folder, before)


def is_free(folder: Path) -> bool:
    """Is nothing there, or an empty folder?"""
    if not os.path.lexists(folder):
        return True
    try:
        return not os.listdir(folder)
    except OSError:  # no folder, or one that is nobody's to read
        return False


def _stamp() -> str:
    return f"{datetime.datetime.now():%Y%m%d-%H%M%S}"


def _dated(parent: Path, made: list[Path]) -> Path:
    stamp = _stamp()
    _make(parent, made)
    for number in itertools.count(1):
        folder = parent / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            folder.mkdir()  # of two runs in the same second only one succeeds
        except FileExistsError:
            continue
        made.append(folder)
        return folder
    raise AssertionError


def _make(folder: Path, made: list[Path]) -> None:
    """Make a folder and its parents; those that were missing go to ``made``, and to their owner."""
    for path in reversed([folder, *folder.parents]):
        try:
            path.mkdir()
        except FileExistsError:
            continue
        except OSError:
            if path.is_dir():  # such as / on a read-only system
                continue
            raise
        made.append(path)
        _give([path])
    if not folder.is_dir():
        raise NotADirectoryError(20, "it is no folder", str(folder))


def _owner() -> tuple[int, int] | None:
    """Who called sudo, if somebody did."""
    user, group = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if os.geteuid() != 0 or not user.isdecimal() or user == "0":
        return None
    return int(user), int(group) if group.isdecimal() else -1


def _give(paths: list[Path]) -> None:
    owner = _owner()
    if owner is not None:
        for path in paths:
            with contextlib.suppress(OSError):
                os.chown(path, *owner, follow_symlinks=False)


def _inodes(folder: Path) -> set[tuple[int, int]]:
    found = set()
    if _owner() is not None:
        for _, folders, files, place in os.fwalk(folder):
            for name in (*folders, *files):
                facts = os.stat(name, dir_fd=place, follow_symlinks=False)
                found.add((facts.st_dev, facts.st_ino))
    return found


def _hand_over(made: list[Path], folder: Path | None, before: set[tuple[int, int]]) -> None:
    """Give away what this run made: files of root that were not there before, and no others."""
    owner = _owner()
    if owner is None:
        return
    _give(made)
    if folder is None:
        return
    for _, folders, files, place in os.fwalk(folder):
        for name in (*folders, *files):
            with contextlib.suppress(OSError):
                facts = os.stat(name, dir_fd=place, follow_symlinks=False)
                shared = stat.S_ISREG(facts.st_mode) and facts.st_nlink > 1  # by a hard link
                if facts.st_uid == 0 and not shared and (facts.st_dev, facts.st_ino) not in before:
                    os.chown(name, *owner, dir_fd=place, follow_symlinks=False)
