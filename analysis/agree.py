"""Do the engines agree? Results of the same plan, same seeds, from several engines side by side.

A condition is a scenario with its parameters. For each condition and scheme the mean stall ratios
of two engines, over the seeds that both have, must differ by no more than 0.01 or 15% of the
larger, whichever is more. Kernel TCP and its stand-in in the simulator, `retransmit`, are set side
by side without a verdict: the one is a model of the other.
"""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.results import Results, ResultsError, load
from analysis.summary import estimate, json_rows
from terminal import message, program
from terminal.arguments import Parser
from terminal.console import standard_output
from terminal.table import Table

ABSOLUTE, RELATIVE = 0.01, 0.15
ENGINES = ("emulated", "virtual", "simulated")
#: The simulator's stand-in counts as the scheme that it stands for.
STANDS_FOR = {"retransmit": "tcp"}

_EXAMPLES = """examples:
  python -m analysis agree results/agree/*/*
  python -m analysis agree results/wifi_loss/simulated results/wifi_loss/virtual --json

exit status: 0 all agree, 1 some differ, 2 nothing to compare
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = Parser(
        prog="python -m analysis agree",
        description="Hold the results of several engines against each other, seed by seed.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("folder", nargs="+", type=Path, help="results folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object, not a table")
    options = parser.parse_args(arguments)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a folder in the making is compared as far as it is
            found = agreement(load(path) for path in options.folder)
    except ResultsError as error:
        message.error(error)
        return 2
    if found.empty:
        message.error(
            "no two folders have a condition, a scheme and seeds in common but different engines"
        )
        return 2
    if options.json:
        print(json.dumps({"rows": json_rows(found)}, indent=2))
    else:
        standard_output().print(table(found))
    return int((found["verdict"] == "differs").any())


def agreement(results: Iterable[Results]) -> pd.DataFrame:
    """One row per condition, scheme and pair of engines.

    Columns: condition, scheme, first and second (engines), runs (pairs), first_stall and
    second_stall (means), difference (mean of second - first), ci95 (half its 95% interval),
    allowed, verdict (agrees, differs, or model for TCP against its stand-in).
    """
    found = [result for result in results if not result.summary.empty]
    if not found:
        return pd.DataFrame()
    everywhere = set.intersection(*(set(_parameters(result)) for result in found))
    # A single condition keeps its parameters: they are all that tells it apart.
    common = everywhere if len({frozenset(_parameters(r)) for r in found}) > 1 else set()
    summaries = [_labelled(result, common) for result in found]
    everything = pd.concat(summaries, ignore_index=True)
    rows: list[dict[str, Any]] = []
    for condition, group in everything.groupby("condition", sort=False):
        by_seed = group.pivot_table(
            index="seed", columns=["engine", "scheme"], values="stall_ratio"
        )
        schemes = {
            engine: list(part["scheme"].unique())
            for engine, part in group.groupby("engine", sort=False)
        }
        present = [engine for engine in ENGINES if engine in schemes]
        for first, second in itertools.combinations(present, 2):
            for a, b in _partners(schemes[first], schemes[second]):
                pairs = by_seed[[(first, a), (second, b)]].dropna()
                pairs.columns = pd.Index([first, second])
                if len(pairs):
                    name = a if a == b else f"{a}/{b}"
                    rows.append(_row(str(condition), name, first, second, pairs, model=a != b))
    return pd.DataFrame(rows)


def _partners(first: Sequence[str], second: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Schemes of two engines to compare: the same, or TCP and the stand-in where it is missing."""
    for a, b in itertools.product(first, second):
        if (
            a == b
            or (STANDS_FOR.get(b) == a and a not in second)
            or (STANDS_FOR.get(a) == b and b not in first)
        ):
            yield a, b


def _parameters(result: Results) -> list[tuple[str, float]]:
    return list((result.manifest.get("parameters") or {}).items())


def _labelled(result: Results, common: set[tuple[str, float]]) -> pd.DataFrame:
    """The summary with its condition, named by what is not the same in all of them."""
    own = [item for item in _parameters(result) if item not in common]
    words = [f"{name} {value:g}" for name, value in own]
    summary = result.summary.copy()
    summary["condition"] = ", ".join([str(summary["scenario"].iloc[0]), *words])
    return summary


def _row(
    condition: str, scheme: str, first: str, second: str, pairs: pd.DataFrame, *, model: bool
) -> dict[str, Any]:
    a, b = float(pairs[first].mean()), float(pairs[second].mean())
    difference = estimate(pairs[second] - pairs[first])
    allowed = max(ABSOLUTE, RELATIVE * max(a, b))
    agrees = "agrees" if abs(difference.mean) <= allowed else "differs"
    return {
        "condition": condition,
        "scheme": scheme,
        "first": first,
        "second": second,
        "runs": len(pairs),
        "first_stall": a,
        "second_stall": b,
        "difference": difference.mean,
        "ci95": difference.ci95,
        "allowed": allowed,
        "verdict": "model" if model else agrees,
    }


def table(rows: pd.DataFrame) -> Table:
    """For the terminal: stall ratios in percent."""
    out = Table(
        title="Stall ratios of the engines, %: same seeds, mean difference ± 95% interval",
    )
    out.add_column("condition", key=True, prose=True, sparse=True)
    for header in ("scheme", "engines"):
        out.add_column(header, key=True)
    for header in ("runs", "stall %", "difference", "allowed", "verdict"):
        out.add_column(header, justify="right")
    for row in rows.to_dict("records"):
        out.add_row(
            row["condition"],
            row["scheme"],
            f"{row['first']}/{row['second']}",
            str(row["runs"]),
            f"{100 * row['first_stall']:.2f}/{100 * row['second_stall']:.2f}",
            f"{100 * row['difference']:+.2f}"
            + (f" ± {100 * row['ci95']:.2f}" if math.isfinite(row["ci95"]) else ""),
            f"{100 * row['allowed']:.2f}",
            row["verdict"],
        )
    return out


if __name__ == "__main__":
    program.run(main)
