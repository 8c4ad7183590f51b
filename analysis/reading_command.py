"""The command line that asks how much a display at reading speed takes off the stalls.

Every finished run of a results folder is shown again, by calculation: at once as it was, and
paced at each speed. One and the same reader rates all of it (`analysis.qoe`).
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.qoe import (
    DISPLAYS,
    MEASURES,
    NO_BUFFER,
    UNTIL,
    Buffer,
    Display,
    Rater,
    readings,
)
from analysis.reader import READING_SPEED, SPOKEN_SPEED, ReaderError
from analysis.results import ResultsError, ResultsWarning, load, unfinished
from analysis.stalls import THETA
from analysis.summary import Estimate, estimate
from analysis.tables import NONE
from terminal import message, program
from terminal.arguments import Parser
from terminal.console import standard_output
from terminal.table import Table

_EXAMPLES = f"""examples:
  python -m analysis.reading_command results/wifi_loss/20250101-120000
  python -m analysis.reading_command FOLDER --speed 4.8 --speed 8 --buffer 3
  python -m analysis.reading_command FOLDER --speed text --buffer 0.5s --reader {SPOKEN_SPEED}
  python -m analysis.reading_command FOLDER --ttft 1 --json | jq '.results[].rows[].qoe.mean'

A paced display stalls where a token comes later than the one before it was read, by more than
theta. Its answer lasts longer, so compare seconds (waits) rather than shares (stall %) across
speeds; "saved" are the waits at once less these, run by run. "plain %" is the stall ratio without
regard to the schedule: gaps beyond theta.
"QoE" is that of a reader of --reader tokens/s by Andes (arXiv 2404.16283), 1 is perfect; "best" is
that of a network without delay or loss. "later" says how much later tokens are shown than at once
(mean, last one), "read later" how much later that reader has finished. A display slower than the
reader and a buffer cost QoE; one as fast, without a buffer, costs none.

exit status: 0 all shown, 1 shown, but something in a folder is damaged and was left out,
2 nothing usable in one of the folders
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(argv)
    displays = list(dict.fromkeys(options.speed or DISPLAYS))
    rater = Rater(options.reader, options.ttft, options.until)
    status = 0
    output: list[dict[str, Any]] = []
    console = standard_output()
    for path in options.folder:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("ignore")
                warnings.simplefilter("always", ResultsWarning)
                results = load(path)
            for warning in caught:
                message.warning(warning.message)
                status = max(status, 1)
            if results.tokens.empty:
                raise ResultsError(f"{path} holds no tokens: no run was finished")
            if (short := unfinished(results)) is not None:
                message.note(f"note: {path}: {short}")
            rows = readings(results, displays, options.buffer, rater, options.theta)
        except (ReaderError, ResultsError) as error:
            message.error(error)
            status = 2
            continue
        if options.json:
            output.append({"folder": str(path), "rows": _json(rows)})
        else:
            console.print(_table(path, rows, options.buffer, rater, options.theta))
    if options.json:
        print(json.dumps({"results": output}, indent=2))
    return status


def _means(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """One row per scheme and display, in the order of their first appearance."""
    return [
        {"scheme": scheme, "display": display}
        | {name: estimate(group[name].astype("float64")) for name in MEASURES}
        for (scheme, display), group in rows.groupby(["scheme", "display"], sort=False)
    ]


def _table(path: Path, rows: pd.DataFrame, buffer: Buffer, rater: Rater, theta: float) -> Table:
    wanted = [f"{buffer.tokens} tokens"] * (buffer.tokens > 0)
    wanted += [f"{buffer.seconds:g} s"] * (buffer.seconds > 0)
    table = Table(
        title=(
            str(path),
            "mean ± 95% interval over runs; waits and delays in s; "
            f"buffer: {', '.join(wanted) or 'none'}; QoE of {rater.speed:g} tokens/s",
        ),
    )
    table.add_column("scheme", key=True, sparse=True)
    table.add_column("shown", key=True)
    for header in (
        *("stall %\n(runs)", "waits", "saved", "longest", f"plain %\n> {1000 * theta:g} ms", "QoE"),
        *("QoE\nbest", "later\nmean", "later\nlast", "read\nlater"),
    ):
        table.add_column(header, justify="right")
    before = None
    for row in _means(rows):
        if before not in (None, row["scheme"]):
            table.add_section()
        table.add_row(
            str(row["scheme"]),
            row["display"],
            f"{_plus(row['stall_ratio'], 100, 1)} ({row['stall_ratio'].n})",
            _plus(row["stall_time"], 1, 2),
            _plus(row["saved"], 1, 2),
            _plus(row["stall_max"], 1, 2),
            _plus(row["plain_stall_ratio"], 100, 1),
            _plus(row["qoe"], 1, 3),
            _plus(row["qoe_best"]._replace(ci95=math.nan), 1, 3),
            _plus(row["later_mean"], 1, 2),
            _plus(row["later_last"], 1, 2),
            _plus(row["read_later"], 1, 2),
        )
        before = row["scheme"]
    return table


def _plus(value: Estimate, factor: float, digits: int) -> str:
    if not math.isfinite(value.mean):
        return NONE
    half = f" ± {factor * value.ci95:.{digits}f}" if math.isfinite(value.ci95) else ""
    return f"{factor * value.mean:.{digits}f}{half}"


def _json(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Seconds and shares; null where a value is not known."""

    def known(value: Any) -> Any:
        if isinstance(value, Estimate):
            return {name: known(part) for name, part in value._asdict().items()}
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return [{name: known(value) for name, value in row.items()} for row in _means(rows)]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m analysis.reading_command",
        description="How much does it help to show tokens at the speed of reading instead of at "
        "once? Shows every run of results folders again, both ways, and prints what the reader "
        "waited and how it felt, per scheme.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("folder", nargs="+", type=Path, help="results folder")
    parser.add_argument(
        "--speed",
        action="append",
        type=_display,
        metavar="SPEED",
        help="tokens/s of the paced display, or text[:SPEED]: by the syllables of its words; may "
        f"be given again (default {', '.join(f'{display.speed:g}' for display in DISPLAYS)})",
    )
    parser.add_argument(
        "--buffer",
        type=_buffer,
        default=NO_BUFFER,
        help="tokens (3) or seconds (0.5s) to hold back before the first is shown (default none)",
    )
    parser.add_argument(
        "--reader",
        type=_positive,
        default=READING_SPEED,
        metavar="SPEED",
        help=f"tokens/s of the reader who rates (default {READING_SPEED}; speech {SPOKEN_SPEED})",
    )
    parser.add_argument(
        "--ttft",
        type=_seconds,
        metavar="SECONDS",
        help="the reader expects the first token so long after the request (default: when the "
        "first token was generated, so that the network alone is rated)",
    )
    parser.add_argument(
        "--until",
        choices=UNTIL,
        default="expected",
        help="upper limit of the QoE's integrals: when reading would end without any wait "
        "(default), when it did end, or when the last token was shown",
    )
    parser.add_argument(
        "--theta",
        type=_seconds,
        default=THETA,
        metavar="SECONDS",
        help=f"wait beyond which the reader notices (default {THETA})",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, seconds and shares")
    return parser


def _display(text: str) -> Display:
    kind, _, speed = text.partition(":")
    if kind == "text":
        pace = _positive(speed) if speed else READING_SPEED
        return Display(f"text {pace:g}/s", pace, by_text=True)
    pace = _positive(text)
    return Display(f"{pace:g}/s", pace)


def _buffer(text: str) -> Buffer:
    if text.endswith("s"):
        return Buffer(seconds=_seconds(text[:-1]))
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither tokens, as 3, nor seconds, as 0.5s")
    return Buffer(tokens=int(text))


def _positive(text: str) -> float:
    if (value := _seconds(text)) == 0:
        raise argparse.ArgumentTypeError("a speed must be above 0")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number >= 0")
    return value


if __name__ == "__main__":
    program.run(main)
