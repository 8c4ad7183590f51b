"""The command line that holds two results folders against each other, run by run where it can.

With the same seed a scheme meets the same bad moments in both folders. So runs of one seed are
compared with each other (a paired interval by Student's t); without common seeds, the means are
(Welch's interval, which lets the two spread differently).
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from rich.console import Console
from scipy.special import stdtrit

from analysis.report.measures import measure, measured_columns, number, scaled
from analysis.results import Results, ResultsError, ResultsWarning, load, unfinished
from analysis.summary import CONFIDENCE, SummaryError, estimate
from analysis.tables import NONE
from terminal import message, program
from terminal.arguments import Parser, did_you_mean
from terminal.console import standard_output
from terminal.table import Table

METRICS = ("stall_ratio", "gap_p99", "delay_p95", "ttft", "bytes_per_token")
_CONDITIONS = (
    *("scenario", "parameters", "network", "engine", "link", "datapath", "source", "prompts"),
    *("seed", "runs", "schemes", "tokens", "theta", "tcp", "commit", "versions", "machine"),
)
_EXAMPLES = """examples:
  python -m analysis compare results/wifi_loss/20250101-120000 results/wifi_loss/20250102-120000
  python -m analysis compare A B --metric stall_ratio --metric gap_p99
  python -m analysis compare A B --metric all --json | jq '.schemes.eloquent.stall_ratio'

B - A below 0 means less in B. Of many comparisons, one in twenty leaves 0 out by chance alone.

exit status: 0 compared, 1 compared, but something in a folder is damaged and was left out,
2 nothing can be compared
"""


class CompareError(ValueError):
    """The two folders cannot be compared; the message is one line."""


class Difference(NamedTuple):
    """B - A of one measure, with the means it is made of; NaN where a value is not known."""

    mean_a: float
    mean_b: float
    n_a: int
    n_b: int
    difference: float
    low: float
    high: float
    pairs: int
    """Runs that were compared seed by seed; 0 if the means were."""
    left_out: int = 0
    """Runs of both folders that are not in it, as they have no partner."""


def paired(a: npt.ArrayLike, b: npt.ArrayLike) -> Difference:
    """Of runs that belong together, element by element. The interval needs two pairs."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    mean, half, n = estimate(second - first)
    return Difference(
        *(float(first.mean()), float(second.mean()), n, n),
        *(mean, mean - half, mean + half, n),
    )


def unpaired(a: npt.ArrayLike, b: npt.ArrayLike) -> Difference:
    """Of runs that have nothing in common (Welch). The interval needs two runs of each."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    n_a, n_b = len(first), len(second)
    mean_a = float(first.mean()) if n_a else math.nan
    mean_b = float(second.mean()) if n_b else math.nan
    half = math.nan
    if n_a > 1 and n_b > 1:
        parts = np.array([first.var(ddof=1) / n_a, second.var(ddof=1) / n_b])
        spread = float(parts.sum())
        half = 0.0
        if spread > 0:
            freedom = spread**2 / float((parts**2 / np.array([n_a - 1, n_b - 1])).sum())
            half = float(stdtrit(freedom, 0.5 + CONFIDENCE / 2)) * math.sqrt(spread)
    middle = mean_b - mean_a
    return Difference(mean_a, mean_b, n_a, n_b, middle, middle - half, middle + half, 0)


def difference(a: pd.DataFrame, b: pd.DataFrame, column: str) -> Difference:
    """Of one scheme's rows in two summaries: paired if at least two runs have a seed in common.

    A single pair is taken too if neither folder has more. Runs without a partner are left out
    then. Seeds that a folder has twice pair nothing: which run would belong to which?
    """
    ours, theirs = (table.dropna(subset=[column]) for table in (a, b))
    if "seed" in ours and "seed" in theirs:
        once = [
            table.dropna(subset=["seed"]).drop_duplicates("seed", keep=False).set_index("seed")
            for table in (ours, theirs)
        ]
        both = once[0].index.intersection(once[1].index)
        if len(both) > 1 or (len(both) == 1 and max(len(ours), len(theirs)) == 1):
            found = paired(*(table.loc[both, column] for table in once))
            return found._replace(left_out=len(ours) + len(theirs) - 2 * len(both))
    return unpaired(ours[column], theirs[column])


def compare(
    a: pd.DataFrame, b: pd.DataFrame, metrics: Sequence[str]
) -> dict[str, dict[str, Difference]]:
    """By scheme and metric, for the schemes that both summaries have, in the order of the first.

    Raises CompareError if they have none in common, or a metric is not in both.
    """
    for name, table in (("A", a), ("B", b)):
        if table.empty:
            raise CompareError(f"{name} holds no finished run")
        for column in ("scheme", *metrics):
            if column not in table:
                raise CompareError(
                    f"{name} has no metric {column}: {', '.join(measured_columns(table))}"
                )
    schemes = [scheme for scheme in a["scheme"].unique() if (b["scheme"] == scheme).any()]
    if not schemes:
        raise CompareError(
            f"no scheme is in both: A has {', '.join(map(str, a['scheme'].unique()))}; "
            f"B has {', '.join(map(str, b['scheme'].unique()))}"
        )
    return {
        str(scheme): {
            column: difference(a[a["scheme"] == scheme], b[b["scheme"] == scheme], column)
            for column in metrics
        }
        for scheme in schemes
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = Parser(
        prog="python -m analysis compare",
        description="Compare two results folders: the means of every scheme in both, and their "
        "difference with a 95% interval. Runs of the same seed are compared with each other.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("a", type=Path, metavar="A", help="results folder")
    parser.add_argument("b", type=Path, metavar="B", help="results folder")
    parser.add_argument(
        "--metric",
        action="append",
        metavar="NAME",
        help=f"column of summary.csv, may be given again; or all ({', '.join(METRICS)})",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object, in seconds and shares"
    )
    options = parser.parse_args(argv)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", ResultsWarning)
            a, b = _load(options.a), _load(options.b)
        for warning in caught:
            message.warning(warning.message)
        for path, results in ((options.a, a), (options.b, b)):
            if (short := unfinished(results)) is not None:
                message.note(f"note: {path}: {short}")
            if results.summary.empty:
                raise CompareError(f"{path} holds no finished run")
        metrics = _metrics(a.summary, b.summary, options.metric)
        found = compare(a.summary, b.summary, metrics)
    except (CompareError, ResultsError, SummaryError) as error:
        message.error(error)
        return 2
    differing = [name for name in _CONDITIONS if _condition(a, name) != _condition(b, name)]
    if options.json:
        print(json.dumps(_json(options.a, options.b, differing, found), indent=2))
        return 1 if caught else 0
    console = standard_output()
    for column in metrics:
        console.print()
        console.print(_table(column, {name: row[column] for name, row in found.items()}))
    _explain(console, options.a, options.b, a, b, differing)
    return 1 if caught else 0


def _load(path: Path) -> Results:
    try:
        return load(path)
    except (OSError, ValueError) as error:
        raise CompareError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


def _condition(results: Results, name: str) -> Any:
    value = results.manifest.get(name)
    if isinstance(value, dict):  # the machine's load is never twice the same
        return {key: item for key, item in value.items() if key != "load"}
    return value


def _metrics(a: pd.DataFrame, b: pd.DataFrame, asked: Sequence[str] | None) -> list[str]:
    known = [column for column in measured_columns(a) if a[column].notna().any()]
    shared = [column for column in known if column in b and b[column].notna().any()]
    if asked is None:
        return [column for column in METRICS if column in shared] or list(METRICS[:1])
    if "all" in asked:
        return shared
    missing = [name for name in asked if name not in shared]
    if missing:
        meant = did_you_mean(missing[0], shared)
        meant = meant or f": {', '.join(shared)}"
        raise CompareError(f"--metric: {missing[0]!r} is not in both folders{meant}")
    return list(dict.fromkeys(asked))


def _table(column: str, found: Mapping[str, Difference]) -> Table:
    """One row per scheme, in the unit of the metric."""
    table = Table(
        title=measure(column).heading,
    )
    table.add_column("scheme", key=True)
    for header in ("A", "B", "B - A", "95% interval", "B - A, %", "runs", "B has"):
        table.add_column(header, justify="right")
    for scheme, row in found.items():
        known = math.isfinite(row.low)
        runs = f"{row.pairs} pairs" if row.pairs else f"{row.n_a} and {row.n_b}"
        runs += f", {row.left_out} left out" if row.left_out else ""
        table.add_row(
            scheme,
            *(scaled(column, value) for value in (row.mean_a, row.mean_b, row.difference)),
            f"[{scaled(column, row.low)}, {scaled(column, row.high)}]" if known else NONE,
            number(100 * row.difference / row.mean_a, 1) if row.mean_a else NONE,
            runs,
            _verdict(row),
        )
    return table


def _verdict(row: Difference) -> str:
    if not math.isfinite(row.low):
        return NONE
    if row.low == row.high == 0:
        return "the same"
    return "less" if row.high < 0 else "more" if row.low > 0 else "not clear"


def _explain(
    console: Console, path_a: Path, path_b: Path, a: Results, b: Results, differing: Sequence[str]
) -> None:
    """What the tables do not say: which folder is which, and what else is not the same."""
    lines = ["", f"A: {path_a}", f"B: {path_b}"]
    for name, one, other in (("A", a, b), ("B", b, a)):
        only = [s for s in one.summary["scheme"].unique() if s not in set(other.summary["scheme"])]
        if only:
            lines.append(f"Only in {name}: {', '.join(map(str, only))}")
    if differing:
        lines.append(f"The conditions differ in: {', '.join(differing)}")
    lines += ["Pairs are runs of the same seed (paired t); otherwise means are compared (Welch)."]
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _json(
    a: Path, b: Path, differing: Sequence[str], found: Mapping[str, Mapping[str, Difference]]
) -> dict[str, Any]:
    return {
        "a": str(a),
        "b": str(b),
        "conditions_differ": list(differing),
        "schemes": {
            scheme: {
                column: {
                    name: (value if not isinstance(value, float) or math.isfinite(value) else None)
                    for name, value in row._asdict().items()
                }
                for column, row in rows.items()
            }
            for scheme, rows in found.items()
        },
    }


if __name__ == "__main__":
    program.run(main)
