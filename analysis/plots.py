"""Figures: what the reader saw over time, how long the gaps were, how much of it was waiting.

Functions from tables to matplotlib figures, 900 pixels wide, in the colours of Okabe and Ito
(Color Universal Design, 2008), which readers with colour vision deficiency can tell apart.
"""

from __future__ import annotations

from collections.abc import Iterable

import matplotlib.ticker
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from analysis.stalls import THETA, metrics, stall_intervals
from analysis.summary import means

WIDTH, DPI = 9.0, 100

_COLOURS = {"eloquent": "#0072B2", "duplicate": "#E69F00", "tcp": "#D55E00"}
_FURTHER = ["#009E73", "#CC79A7", "#56B4E9", "#8C6D31", "#000000"]
_MODEL = "#555555"
_DOWN, _UP = "#c4c4c4", "#ededed"


class PlotError(ValueError):
    """The table cannot be drawn."""


def timeline(
    tokens: pd.DataFrame, outages: pd.DataFrame | None = None, theta: float = THETA
) -> Figure:
    """One run: each token as a tick when it was shown, a lane per scheme, stalls as bars.

    tokens
        Rows of one run: scheme, index, generated_at, rendered_at (s).
    outages
        direction ("down" or "up"), start, end (s): shaded over all lanes, "up" lighter.
    """
    schemes = _schemes(tokens)
    if "run" in tokens and tokens["run"].nunique() > 1:
        raise PlotError(f"the tokens are of {tokens['run'].nunique()} runs: give those of one run")
    lanes = len(schemes) + 1
    figure, axes = _figure(0.75 * lanes + 1.25)
    first = tokens[tokens["scheme"] == schemes[0]].sort_values("index")
    _lane(axes, lanes - 1, first["generated_at"], _MODEL, theta)
    names, notes = ["model"], [_note(first["generated_at"], theta)]
    for lane, scheme in zip(range(lanes - 2, -1, -1), schemes, strict=True):
        shown = tokens[tokens["scheme"] == scheme].sort_values("index")["rendered_at"]
        _lane(axes, lane, shown, scheme_colour(scheme, schemes), theta)
        names.append(scheme)
        notes.append(_note(shown, theta))
    last = np.nanmax(tokens[["generated_at", "rendered_at"]].to_numpy(dtype=np.float64))
    axes.set_xlim(-0.01 * last, 1.01 * last)
    axes.set_ylim(-0.5, lanes - 0.5)
    positions = range(lanes - 1, -1, -1)
    axes.set_yticks(positions, names, fontsize=11)
    axes.tick_params(axis="y", length=0)
    for label, colour in zip(
        axes.get_yticklabels(), [_MODEL, *(scheme_colour(s, schemes) for s in schemes)], strict=True
    ):
        label.set_color(colour)
        label.set_fontweight("bold")
    for position, note in zip(positions, notes, strict=True):
        axes.annotate(
            note,
            (1.01, position),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=9,
            color="#333333",
        )
    _shade(axes, outages)
    axes.set_xlabel("seconds since the first token was generated")
    axes.set_title(_key(outages, theta), fontsize=9, loc="left", color="#333333")
    axes.spines[["left", "top", "right"]].set_visible(False)
    return figure


def gaps(tokens: pd.DataFrame, theta: float = THETA) -> Figure:
    """Share of the gaps between shown tokens that exceed a length, per scheme, over all runs.

    Log axes. tokens: scheme, index, rendered_at (s), and run where there are several.
    """
    schemes = _schemes(tokens)
    figure, axes = _figure(4.6)
    curves = {scheme: _gaps_of(tokens[tokens["scheme"] == scheme]) for scheme in schemes}
    curves = {scheme: values for scheme, values in curves.items() if len(values)}
    if not curves:
        raise PlotError("no scheme has two shown tokens: there are no gaps to draw")
    floor = min(0.7 / len(values) for values in curves.values())
    for scheme, values in curves.items():
        lengths = 1000 * np.maximum(np.sort(values), 1e-3)  # a burst's gaps of 0 have no logarithm
        # P(gap > x) at each x; the last step, to 0, is drawn down to the axis.
        share = 1 - np.arange(1, len(values) + 1) / len(values)
        x = np.concatenate(([lengths[0]], lengths))
        y = np.concatenate(([1.0], np.maximum(share, floor)))
        axes.step(x, y, where="post", color=scheme_colour(scheme, schemes), linewidth=1.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(floor, 1.15)
    # From a fifth of the usual gap on: what is shorter comes in bursts and delays nobody.
    usual = 1000 * min(float(np.median(values)) for values in curves.values())
    longest = 1000 * max(float(values.max()) for values in curves.values())
    axes.set_xlim(max(min(usual, 500 * theta) / 5, 1.0), 1.5 * max(longest, 1000 * theta))
    axes.axvline(1000 * theta, color="#333333", linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate(
        f"stall: beyond {1000 * theta:g} ms",
        (1000 * theta, floor),
        xytext=(-5, 5),
        textcoords="offset points",
        ha="right",
        fontsize=9,
        color="#333333",
    )
    _label_curves(axes, curves, schemes, theta)
    axes.xaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axes.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axes.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda y, _: f"{100 * y:g}%"))
    axes.grid(which="major", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("gap between two shown tokens, ms")
    axes.set_ylabel("share of gaps longer than that")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def stall_bars(summary: pd.DataFrame) -> Figure:
    """Mean stall ratio per scheme with its 95% interval, each run as a dot.

    summary: rows of summary.csv.
    """
    if summary.empty:
        raise PlotError("the summary has no rows: there is nothing to draw")
    stalls = means(summary, ["stall_ratio"]).sort_values("mean", ascending=False)
    schemes = list(summary["scheme"].unique())
    figure, axes = _figure(0.55 * len(stalls) + 1.1)
    for lane, row in enumerate(stalls.iloc[::-1].itertuples()):
        scheme, mean, half = str(row.scheme), float(row.mean), float(row.ci95)
        colour = scheme_colour(scheme, schemes)
        runs = summary[summary["scheme"] == scheme]["stall_ratio"].dropna().to_numpy(dtype=float)
        axes.barh(lane, 100 * mean, height=0.55, color=colour, alpha=0.85)
        if half > 0:
            low = min(half, mean)  # a share is not below 0
            error = [[100 * low], [100 * half]]
            axes.errorbar(100 * mean, lane, xerr=error, color="black", capsize=4, linewidth=1.3)
        if len(runs) > 1:
            axes.plot(
                *(100 * runs, np.full(len(runs), lane - 0.36)),
                *("|",),
                color=colour,
                markersize=5,
                markeredgewidth=1.2,
            )
        right = 100 * max([mean + (half if half > 0 else 0), *runs])
        text = f"{100 * mean:.1f}%" + (f" ± {100 * half:.1f}" if half >= 0 else "")
        axes.annotate(
            text,
            (right, lane),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
        )
    axes.set_yticks(range(len(stalls)), list(stalls["scheme"])[::-1], fontsize=11)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-0.6, len(stalls) - 0.5)
    axes.set_xlim(0, axes.get_xlim()[1] * 1.12)
    axes.set_xlabel("stall ratio, % of the answer's time (95% interval; ticks: single runs)")
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def _figure(height: float) -> tuple[Figure, Axes]:
    # Not by pyplot: it keeps every figure alive and may ask for a display.
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _schemes(tokens: pd.DataFrame) -> list[str]:
    schemes = list(tokens["scheme"].unique())
    if not schemes:
        raise PlotError("the tokens table is empty: there is nothing to draw")
    return schemes


def scheme_colour(scheme: str, schemes: Iterable[str]) -> str:
    further = [name for name in schemes if name not in _COLOURS]
    return _COLOURS.get(scheme) or _FURTHER[further.index(scheme) % len(_FURTHER)]


def _lane(axes: Axes, lane: int, times: pd.Series, colour: str, theta: float) -> None:
    shown = times.dropna().to_numpy(dtype=np.float64)
    stalls = stall_intervals(times, theta)
    spans = [(row.start, row.end - row.start) for row in stalls.itertuples()]
    axes.broken_barh(spans, (lane - 0.36, 0.22), facecolor=colour, zorder=2)
    axes.vlines(shown, lane - 0.08, lane + 0.36, color=colour, linewidth=0.9, zorder=3)


def _note(times: pd.Series, theta: float) -> str:
    measured = metrics(times, theta=theta)
    if np.isnan(measured["stall_ratio"]):
        return "no gaps"
    return f"stalled {100 * measured['stall_ratio']:.1f}%\nlongest gap {measured['gap_max']:.2f} s"


def _shade(axes: Axes, outages: pd.DataFrame | None) -> None:
    if outages is None:
        return
    left, right = axes.get_xlim()
    for direction, colour, order in (("up", _UP, 0.1), ("down", _DOWN, 0.2)):
        for row in outages[outages["direction"] == direction].itertuples():
            start, end = max(float(row.start), left), min(float(row.end), right)
            if start < end:
                axes.axvspan(start, end, color=colour, linewidth=0, zorder=order)


def _key(outages: pd.DataFrame | None, theta: float) -> str:
    key = f"tick: a token is shown · bar: the reader waits (beyond {1000 * theta:g} ms)"
    if outages is not None and len(outages):
        key += " · dark shade: downlink out"
        if (outages["direction"] == "up").any():
            key += " · light shade: uplink out"
    return key


def _gaps_of(tokens: pd.DataFrame) -> np.ndarray:
    runs = tokens.groupby("run") if "run" in tokens else [(0, tokens)]
    found = [np.diff(run.sort_values("index")["rendered_at"].dropna()) for _, run in runs]
    return np.concatenate(found) if found else np.empty(0)


def _label_curves(
    axes: Axes, curves: dict[str, np.ndarray], schemes: list[str], theta: float
) -> None:
    """Names at the upper right, ordered by the share of stalls as the curves are, with colours."""
    shares = {scheme: float(np.mean(values > theta)) for scheme, values in curves.items()}
    ordered = sorted(curves, key=lambda scheme: -shares[scheme])
    for line, scheme in enumerate(ordered):
        axes.annotate(
            f"{scheme}: {100 * shares[scheme]:.2g}% of {len(curves[scheme])} gaps stall",
            (0.995, 0.97),
            xycoords="axes fraction",
            xytext=(0, -16 * line),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=10.5,
            fontweight="bold",
            color=scheme_colour(scheme, schemes),
        )
