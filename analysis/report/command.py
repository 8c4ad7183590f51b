"""The command line of the report."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from analysis.plots import PlotError
from analysis.report.page import render
from analysis.report.section import Section, section
from analysis.results import ResultsError, ResultsWarning, load, write_whole
from analysis.stalls import StallError
from analysis.summary import SummaryError
from terminal import message
from terminal.arguments import Parser, did_you_mean
from terminal.text import one_line, visible

_EXAMPLES = """examples:
  python -m analysis report results/wifi_loss/20250101-120000
  python -m analysis report results/*/* --out all.html --force

exit status: 0 written, 1 written, but something in a folder is damaged and was left out,
2 nothing written
"""


class ReportError(RuntimeError):
    """The page cannot be made or written; the message is one line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = Parser(
        prog="python -m analysis report",
        description="Write one HTML page about results folders: setup, tables with intervals, "
        "figures, the fate of every packet of one run, and how to repeat it. The page needs no "
        "other file and no network. A folder that was cut off is shown with what it has.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS", help="results folder")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the page (report.html in the folder; of several folders, in the current one)",
    )
    parser.add_argument("--force", action="store_true", help="replace FILE if it is there")
    parser.add_argument(
        "--baseline", metavar="SCHEME", help="of the reductions (the scenario's own, or tcp)"
    )
    options = parser.parse_args(argv)
    folders = list({path.resolve(): path for path in options.results}.values())
    out = options.out or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    try:
        _check(out, options.force)
        found = [
            _evaluated(path, f"experiment-{number}", options.baseline)
            for number, path in enumerate(folders, 1)
        ]
        _write(out, render([one for one, _ in found]))
    except (ReportError, ResultsError, SummaryError) as error:
        message.error(error)
        return 2
    schemes = {name for one, _ in found for name in one.stalls}
    if options.baseline is not None and options.baseline not in schemes:
        meant = did_you_mean(options.baseline, schemes)
        message.note(f"note: --baseline: {options.baseline!r} was not run{meant}")
    for one, _ in found:
        for text in one.shortcomings:
            message.note(f"note: {one.path}: {text}")
    print(f"Report: {visible(str(out))}")
    return 1 if any(damaged for _, damaged in found) else 0


def _evaluated(path: Path, name: str, baseline: str | None) -> tuple[Section, bool]:
    """What the page says about a folder, and whether something in it is damaged."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", ResultsWarning)
        try:
            results = load(path)
        except (OSError, ValueError) as error:
            raise ReportError(f"{path} cannot be read: {one_line(error)}") from error
    said = [str(warning.message) for warning in caught]
    try:
        chosen = baseline or str(results.manifest.get("baseline") or "tcp")
        return section(results, name, said, chosen), bool(said)
    except SummaryError as error:
        raise ReportError(f"{path}: {error}") from error
    except (PlotError, StallError, ValueError, TypeError) as error:
        raise ReportError(f"{path} holds values that make no sense: {one_line(error)}") from error


def _check(out: Path, force: bool) -> None:
    """Before any work is done: may the page be written there?"""
    if out.is_dir():
        raise ReportError(f"--out: {out} is a folder, a file is expected")
    if out.exists() and not out.is_file():  # /dev/null would become a file
        raise ReportError(f"--out: {out} is no file that could be replaced")
    if out.exists() and not force:
        raise ReportError(f"{out} already exists: give --force to replace it, or another --out")


def _write(out: Path, text: str) -> None:
    """As a whole or not at all, so that no reader finds half a page."""
    try:
        write_whole(out, text.encode())
    except ResultsError as error:
        raise ReportError(str(error)) from error
