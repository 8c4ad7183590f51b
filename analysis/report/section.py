"""What the page says about one results folder, ready for the template."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from typing import NamedTuple

import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from analysis import plots
from analysis.report import conditions, figures, rows
from analysis.report.fates import packet_fates
from analysis.report.svg import draw, inline
from analysis.results import Results
from analysis.stalls import StallError

#: More packets than this make a picture of bars that nobody can tell apart, and a large page.
_PACKETS = 1500


class Picture(NamedTuple):
    """A figure and its caption."""

    svg: Markup
    caption: str


class Section(NamedTuple):
    """Everything about one folder. `name` is its anchor."""

    name: str
    path: str
    title: str
    scenario: str
    word: str
    """The path as a word of a shell command."""
    shortcomings: list[str]
    notes: list[str]
    facts: list[tuple[str, str]]
    prompts: list[str]
    network: rows.Table | None
    machine: list[tuple[str, str]]
    checks: rows.Table | None
    command: str | None
    commit: str
    seed: str
    stalls: dict[str, str]
    limits: dict[str, str]
    runs: int
    results: list[rows.Table]
    ratios: rows.Table | None
    pictures: list[Picture]
    fates: rows.Table | None
    fate_pictures: list[Picture]
    fates_of: str
    every_run: rows.Table | None


def section(results: Results, name: str, warnings: list[str], baseline: str) -> Section:
    """Evaluate one folder. Raises SummaryError if its summary cannot be one of an experiment."""
    rows.check(results.summary)
    results = in_order(results)
    manifest, summary = results.manifest, results.summary
    whole = len(summary) > 0
    ratios = rows.limit_ratios(summary) if whole else None
    reductions = rows.reduction_rows(summary, baseline) if whole else None
    tables = [rows.summary_rows(summary)] if whole else []
    if reductions is not None:
        tables.append(reductions)
    notes: list[str] = []
    if whole and reductions is None and summary["scheme"].nunique() > 1:
        notes.append(f"The baseline {baseline} was not run: there are no reductions against it")
    pictures = _pictures(results, ratios, name, notes)
    facts = conditions.facts(manifest)
    run = common_run(results.tokens if len(results.tokens) else results.packets)
    fates = {} if run is None else _fates(results, run)
    titles = [manifest.get("title"), manifest.get("scenario"), results.path.name]
    return Section(
        name=name,
        path=str(results.path),
        title=next(str(title) for title in [*titles, "Results"] if title),
        word=shlex.quote(str(results.path)),
        shortcomings=conditions.shortcomings(results) + warnings,
        notes=notes,
        scenario=str(manifest.get("scenario") or ""),
        facts=facts,
        prompts=conditions.prompts(manifest),
        network=conditions.network(manifest),
        machine=conditions.machine(manifest),
        checks=conditions.link_checks(manifest),
        command=conditions.command(manifest),
        commit=dict(facts).get("commit", ""),
        seed=dict(facts).get("seed", ""),
        stalls=rows.stall_cells(summary),
        limits=rows.limit_cells(ratios) if ratios is not None else {},
        runs=len(summary),
        results=tables,
        ratios=rows.limit_rows(ratios) if ratios is not None else None,
        pictures=pictures,
        fates=rows.fate_rows(fates) if fates else None,
        fate_pictures=_fate_pictures(results, fates, run, name),
        fates_of=f"run {run}",
        every_run=rows.run_rows(summary) if whole else None,
    )


def in_order(results: Results) -> Results:
    """The results with all tables by scheme as the manifest names them, others after these."""
    named = results.manifest.get("schemes")
    order = [str(scheme) for scheme in named] if isinstance(named, list) else []

    def place(schemes: pd.Series) -> pd.Series:
        return schemes.map(lambda scheme: order.index(scheme) if scheme in order else len(order))

    summary, tokens, packets = (
        table.sort_values("scheme", key=place, kind="stable", ignore_index=True)
        for table in (results.summary, results.tokens, results.packets)
    )
    return results._replace(summary=summary, tokens=tokens, packets=packets)


def common_run(table: pd.DataFrame) -> int | None:
    """The first run that most schemes have: its pictures can be held against each other."""
    if table.empty:
        return None
    schemes = table.groupby("run")["scheme"].nunique()
    return int(schemes.index[schemes.to_numpy().argmax()])


def _pictures(
    results: Results, ratios: pd.DataFrame | None, name: str, notes: list[str]
) -> list[Picture]:
    summary, tokens = results.summary, results.tokens
    theta = conditions.theta(results.manifest)
    gap = f"{1000 * theta:g} ms"
    run = common_run(tokens)
    wanted: list[tuple[str, str, Callable[[], Figure]]] = []
    if len(summary) and "stall_ratio" in summary and summary["stall_ratio"].notna().any():
        text = f"How much of the answer's time the reader waits, beyond gaps of {gap}."
        wanted.append(("stalls", text, lambda: plots.stall_bars(summary)))
    if run is not None:
        text = f"Run {run}: when each token was shown."
        one = tokens[tokens["run"] == run]
        wanted.append(("timeline", text, lambda: plots.timeline(one, theta=theta)))
        text = "How long the gaps between two shown tokens were, over all runs."
        wanted.append(("gaps", text, lambda: plots.gaps(tokens, theta)))
    if len(summary) and {"stall_ratio", "bytes_per_token"} <= set(summary):
        text = "What a shorter wait costs: stall ratio against wire bytes. Lower left is better."
        wanted.append(("overhead", text, lambda: figures.overhead(summary)))
    if ratios is not None:
        text = "How far every scheme is from a sender that sends without pause."
        wanted.append(("limit", text, lambda: figures.limit_ratios(ratios)))
    made = []
    for kind, text, make in wanted:
        try:
            made.append(Picture(inline(draw(make), f"{name}-{kind}", text), text))
        except (plots.PlotError, StallError) as error:
            notes.append(f"The figure of {kind} is left out: {error}")
    return made


def _fates(results: Results, run: int) -> dict[str, pd.DataFrame]:
    """By scheme, the fates of the packets of one run."""
    packets, tokens = results.packets, results.tokens
    found = {}
    for scheme in packets[packets["run"] == run]["scheme"].unique():
        mine, shown = (
            table[(table["run"] == run) & (table["scheme"] == scheme)]
            for table in (packets, tokens)
        )
        found[str(scheme)] = packet_fates(mine, shown, results.path / "logs")
    return {scheme: table for scheme, table in found.items() if len(table)}


def _fate_pictures(
    results: Results, fates: dict[str, pd.DataFrame], run: int | None, name: str
) -> list[Picture]:
    if not fates:
        return []
    tokens = results.tokens
    times = [table["sent_at"] for table in fates.values()]
    start = min(float(sent.min()) for sent in times)
    # One span for all schemes, as all of them met the same bad moments.
    end = max(float(sent.max()) for sent in times)
    end = min([end, *(float(sent.iloc[_PACKETS]) for sent in times if len(sent) > _PACKETS)])
    made = []
    for number, (scheme, table) in enumerate(fates.items()):
        shown = tokens[(tokens["run"] == run) & (tokens["scheme"] == scheme)]
        text = f"{scheme}, run {run}: {len(table)} packets."
        later = int((table["sent_at"] > end).sum())
        if later:
            text += f" Drawn until {end:.1f} s; {later} packets came later."
        span = (start, end)
        figure = draw(functools.partial(figures.packet_picture, table, shown, span))
        made.append(Picture(inline(figure, f"{name}-fates{number}", text), text))
    return made
