"""Reading and writing a results folder, so that a cut-off run keeps all that it had finished.

A run appends its row to summary.csv and leaves its tables as files of their own in parts/; the
last step merges these into tokens.parquet and packets.parquet. Every file appears by renaming,
so it is there as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from analysis.capture_reader import PACKET_COLUMNS
from analysis.summary import SUMMARY_COLUMNS

TOKEN_COLUMNS = [
    *("scenario", "scheme", "run", "index", "n_bytes"),
    *("generated_at", "sent_at", "received_at", "rendered_at"),
]
"""Columns of the tokens table, in order. Seconds from the run's first generated token; NaN where
it never happened."""

_TABLES = {"tokens": TOKEN_COLUMNS, "packets": PACKET_COLUMNS}


class ResultsError(RuntimeError):
    """The results folder cannot be made, written or read."""


class ResultsWarning(UserWarning):
    """The results folder was read, but not all of it."""


class ResultsFolder:
    """A results folder that is being written. `path` is where it lies."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: str | PathLike[str]) -> ResultsFolder:
        """Make a new folder, or take an empty one. Raises ResultsError if anything is there."""
        folder = Path(path)
        with _writing(folder):
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                if not folder.is_dir() or os.listdir(folder):
                    raise ResultsError(
                        f"{folder} already exists: results are never overwritten, choose another "
                        "folder"
                    ) from None
            for part in ("parts", "pcap", "logs"):
                (folder / part).mkdir()
        return cls(folder)

    def append_summary(self, row: Mapping[str, Any]) -> None:
        """Add one run's row to summary.csv; on disk when this returns.

        Columns that the row lacks stay empty. Raises ResultsError on a column of no table.
        """
        unknown = [column for column in row if column not in SUMMARY_COLUMNS]
        if unknown:
            raise ResultsError(f"summary.csv has no column {unknown[0]}: see SUMMARY_COLUMNS")
        path = self.path / "summary.csv"
        text = io.StringIO()
        writer = csv.DictWriter(text, SUMMARY_COLUMNS, lineterminator="\n")
        if not path.exists():
            writer.writeheader()
        writer.writerow(dict(row))
        with _writing(path), open(path, "ab") as file:
            file.write(text.getvalue().encode())
            file.flush()
            os.fsync(file.fileno())

    def write_tokens(self, scheme: str, run: int, tokens: pd.DataFrame) -> None:
        """Keep the tokens of one run (columns `TOKEN_COLUMNS`)."""
        self._write_part("tokens", f"{scheme}-run{run:02}", tokens)

    def write_packets(self, scheme: str, run: int, host: str, packets: pd.DataFrame) -> None:
        """Keep what one host captured in one run (columns `PACKET_COLUMNS`)."""
        self._write_part("packets", f"{scheme}-run{run:02}-{host}", packets)

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Write manifest.json, replacing an earlier one."""
        text = json.dumps(manifest, indent=2, ensure_ascii=False, default=str)
        _write(self.path / "manifest.json", text.encode() + b"\n")

    def write_figure(self, name: str, figure: Figure) -> Path:
        """Write a picture as NAME.png and return its path."""
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
        path = self.path / f"{name}.png"
        _write(path, buffer.getvalue())
        return path

    def consolidate(self) -> None:
        """Merge the parts into tokens.parquet and packets.parquet, then remove them.

        May be called again after further runs. A part that cannot be read stays where it is,
        with a ResultsWarning.
        """
        for name in _TABLES:
            table, used = _merged(self.path, name)
            if used:
                _write(self.path / f"{name}.parquet", _parquet(table))
                for part in used:
                    part.unlink()
        with contextlib.suppress(OSError):  # missing, or a broken part is still in it
            (self.path / "parts").rmdir()

    def _write_part(self, name: str, part: str, table: pd.DataFrame) -> None:
        missing = [column for column in _TABLES[name] if column not in table]
        if missing:
            raise ResultsError(f"the {name} of {part} lack the column {missing[0]}")
        with _writing(self.path):
            (self.path / "parts").mkdir(exist_ok=True)
        _write(self.path / "parts" / f"{name}-{part}.parquet", _parquet(table[_TABLES[name]]))


class Results(NamedTuple):
    """What a results folder holds. Tables are empty, and the manifest too, if they are missing."""

    path: Path
    manifest: dict[str, Any]
    summary: pd.DataFrame
    tokens: pd.DataFrame
    packets: pd.DataFrame


def load(path: str | PathLike[str]) -> Results:
    """Read a results folder, finished or cut off.

    What is broken is left out with a ResultsWarning. Raises ResultsError if there is no folder,
    or nothing of ours in it.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ResultsError(f"{folder} is no folder: give a results folder")
    if not any((folder / name).exists() for name in ("manifest.json", "summary.csv", "parts")):
        raise ResultsError(
            f"{folder} is no results folder: neither manifest.json nor summary.csv is in it"
        )
    return Results(
        folder,
        _manifest(folder / "manifest.json"),
        _summary(folder / "summary.csv"),
        _merged(folder, "tokens")[0],
        _merged(folder, "packets")[0],
    )


def _manifest(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        manifest = json.loads(path.read_bytes())
    except ValueError:
        _warn(f"{path} is broken and was left out")
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _summary(path: Path) -> pd.DataFrame:
    text = path.read_text() if path.exists() else ""
    if text and not text.endswith("\n"):
        _warn(f"{path} breaks off: its last row was left out")
        text = text[: text.rfind("\n") + 1]
    if not text:
        return pd.DataFrame(columns=SUMMARY_COLUMNS)
    try:
        return pd.read_csv(io.StringIO(text))
    except pd.errors.ParserError as error:
        raise ResultsError(f"{path} is no table: {str(error).strip()}") from error


def _merged(folder: Path, name: str) -> tuple[pd.DataFrame, list[Path]]:
    """The table, and the parts it was made from."""
    columns = _TABLES[name]
    keys = [key for key in ("scheme", "run", "host") if key in columns]
    tables: list[pd.DataFrame] = []
    used: list[Path] = []
    seen: set[tuple[Any, ...]] = set()
    # The merged file first: a part is a duplicate if the run was cut off between merge and removal.
    for path in [folder / f"{name}.parquet", *sorted(folder.glob(f"parts/{name}-*.parquet"))]:
        if not path.exists():
            continue
        try:
            table = pd.read_parquet(path)[columns]
        except (ValueError, OSError, KeyError):
            _warn(f"{path} is broken and was left out")
            continue
        if path.parent.name == "parts":
            used.append(path)
        held = set(table[keys].drop_duplicates().itertuples(index=False, name=None))
        if held and held <= seen:
            continue
        seen |= held
        tables.append(table)
    # Empty tables have no types of their own, and would turn those of the others into object.
    filled = [table for table in tables if len(table)]
    if filled:
        return pd.concat(filled, ignore_index=True), used
    return (tables[0] if tables else pd.DataFrame(columns=columns)), used


def _parquet(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return buffer.getvalue()


def _write(path: Path, content: bytes) -> None:
    """Write a file as a whole: under another name first, then renamed once it is on disk."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    with _writing(path):
        try:
            with open(unfinished, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResultsError(
                f"no space left while writing {path}: free some, or choose a folder on another "
                "disk; finished runs are kept"
            ) from error
        raise ResultsError(f"cannot write {path}: {error.strerror}") from error


def _warn(text: str) -> None:
    warnings.warn(text, ResultsWarning, stacklevel=3)
