"""The command line: the stall table of captures, or of a results folder."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from analysis.capture_reader import CaptureError, CaptureNote, CaptureWarning, Counts
from analysis.delivery import deliveries
from analysis.results import ResultsError, ResultsWarning, load
from analysis.stalls import THETA, StallError, metrics
from analysis.summary import SummaryError, to_json
from analysis.tables import stream_table, summary_table

_MEASURES = ("duration", "stall_ratio", "gap_share", "gap_p50", "gap_p95", "gap_p99", "ttft")

#: Commands of their own: module, what it does.
COMMANDS = {
    "pcap": ("analysis.pcap.command", "losses, blocking and stalls in captures of TCP, TLS, QUIC"),
    "report": ("analysis.report.command", "one self-contained HTML page from results folders"),
    "compare": ("analysis.compare", "two results folders, paired where their seeds agree"),
    "agree": ("analysis.agree", "results of several engines held against each other"),
    "reading": ("analysis.reading_command", "paced rendering and quality of experience"),
}

_EXAMPLES = """examples:
  python -m analysis client.pcapng
  python -m analysis --theta 0.5 results/wifi_loss/*/pcap/*-client.pcapng
  python -m analysis --json capture.pcap.gz | jq '.streams[].stall_ratio'
  python -m analysis results/wifi_loss/20250101-120000

  python -m analysis report results/wifi_loss/20250101-120000
  python -m analysis COMMAND --help

commands: {commands}

exit status: 0 all read, 1 a capture or folder is damaged and what is readable was used,
2 nothing usable in one of the arguments
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in COMMANDS:
        module = importlib.import_module(COMMANDS[words[0]][0])
        return int(module.main(words[1:]))
    told = "".join(f"\n  {name:8} {text}" for name, (_, text) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m analysis",
        description="Print how long the reader of each answer in a capture (pcap, pcapng, also "
        "gzipped; Eloquent over UDP or token records over TCP) had to wait for tokens; or print "
        "the summary table of a results folder again. Capture on the client: a capture from the "
        "server shows when tokens were sent.",
        epilog=_EXAMPLES.format(commands=told),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", nargs="+", type=Path, help="capture file or results folder")
    parser.add_argument(
        "--theta",
        type=_seconds,
        help=f"gap in seconds beyond which the reader waits (default {THETA}; captures only)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, not a table")
    options = parser.parse_args(words)
    theta = THETA if options.theta is None else options.theta

    status = 0
    rows: list[dict[str, Any]] = []
    summaries: list[pd.DataFrame] = []
    for path in options.path:
        try:
            with _warnings_to_stderr() as damaged:
                if path.is_dir():
                    if options.theta is not None:
                        raise ResultsError(
                            f"{path} is a results folder, whose summary is fixed: "
                            "--theta is for captures"
                        )
                    results = load(path)
                    summary = results.summary
                    summary.attrs["baseline"] = str(results.manifest.get("baseline") or "tcp")
                    if summary.empty:
                        raise ResultsError(f"{path} holds no finished run")
                    summaries.append(summary)
                else:
                    rows += _streams(path, theta)
            status = max(status, 1 if damaged else 0)
        except (CaptureError, ResultsError, StallError, SummaryError) as error:
            print(f"error: {error}", file=sys.stderr)
            status = 2
    try:
        _print(rows, summaries, theta, options.json)
    except SummaryError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return status


def _streams(path: Path, theta: float) -> list[dict[str, Any]]:
    """One row per answer in a capture. Times in seconds."""
    counts = Counts()
    found = deliveries(path, counts)
    if found.streams.empty:
        fragments = f", {counts.fragments} IP fragments" if counts.fragments else ""
        raise CaptureError(
            f"no Eloquent or token-record streams found in {path}: {counts.packets} packets, "
            f"{counts.udp} UDP, {counts.tcp} TCP{fragments}"
            + (f", {counts.others}" if counts.others else "")
        )
    rendered = dict(list(found.tokens.groupby("stream")["rendered_at"]))
    rows = []
    for stream in found.streams.to_dict("records"):
        asked = stream["requested_at"]
        measured = metrics(
            rendered.get(stream["stream"], pd.Series(dtype="float64")),
            theta=theta,
            requested=None if math.isnan(asked) else asked,
        )
        row = {
            "file": path.name,
            "scheme": stream["scheme"],
            "stream": stream["id"],
            "tokens": stream["tokens"],
            "total": stream["total"] if stream["total"] >= 0 else None,
            "complete": stream["complete"],
            "sure": stream["sure"],
        }
        rows.append(row | {name: _known(measured[name]) for name in _MEASURES})
    return rows


def _print(
    rows: list[dict[str, Any]], summaries: list[pd.DataFrame], theta: float, as_json: bool
) -> None:
    if as_json:
        output: dict[str, Any] = {}
        if rows or not summaries:
            output["streams"] = rows
        if summaries:
            output["results"] = [to_json(summary) for summary in summaries]
        print(json.dumps(output, indent=2))
        return
    # When not shown to a terminal, never wrap at 80 columns: a file or pager scrolls.
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    for summary in summaries:
        console.print(summary_table(summary, summary.attrs["baseline"]))
    if rows:
        console.print(stream_table(rows, theta))


@contextlib.contextmanager
def _warnings_to_stderr() -> Iterator[list[str]]:
    """Print our warnings as one line each; the list tells afterwards what was said."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        for ours in (CaptureWarning, ResultsWarning):
            warnings.simplefilter("always", ours)
        try:
            yield said
        finally:
            for warning in caught:
                if issubclass(warning.category, CaptureNote):
                    print(f"note: {warning.message}", file=sys.stderr)
                    continue
                said.append(str(warning.message))
                print(f"warning: {warning.message}", file=sys.stderr)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds >= 0")
    return value


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader of our output, head for one, has left
        sys.stderr.close()
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
