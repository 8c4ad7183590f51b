"""Figures that only the report has: stall against overhead, ratio to the limit, packet fates."""

from __future__ import annotations

import matplotlib.ticker
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from analysis.plots import DPI, WIDTH, PlotError, scheme_colour
from analysis.summary import estimate

_NEWS, _OLD, _LOST = "#0072B2", "#9a9a9a", "#D55E00"
_TEXT, _GRID, _WAITING = "#333333", "#e6e6e6", "#dcdfe3"
_UNLOCKED = ("unlocked_from", "unlocked_to")


def overhead(summary: pd.DataFrame) -> Figure:
    """Stall ratio against wire bytes per token: a dot per run, a large one for each mean.

    summary: rows of summary.csv.
    """
    runs = summary.dropna(subset=["stall_ratio", "bytes_per_token"])
    if runs.empty:
        raise PlotError("no run has both a stall ratio and wire bytes per token")
    schemes = [str(scheme) for scheme in summary["scheme"].unique()]
    figure, axes = _figure(4.2)
    tops, rights = [], []
    for scheme, mine in runs.groupby("scheme", sort=False):
        colour = scheme_colour(str(scheme), schemes)
        x, y = mine["bytes_per_token"].to_numpy(float), 100 * mine["stall_ratio"].to_numpy(float)
        axes.plot(x, y, "o", color=colour, markersize=4, alpha=0.5, markeredgewidth=0)
        bytes_, stall = estimate(x), estimate(y)
        for half, low, vertical in ((stall.ci95, stall.mean, True), (bytes_.ci95, np.inf, False)):
            if half > 0:
                below = [[min(half, low)], [half]]  # a share is not below 0
                error = {"yerr": below} if vertical else {"xerr": half}
                axes.errorbar(bytes_.mean, stall.mean, color=colour, linewidth=1.2, **error)
        axes.plot(bytes_.mean, stall.mean, "o", color=colour, markersize=10)
        axes.annotate(
            str(scheme),
            (bytes_.mean, stall.mean),
            xytext=(9, 7),
            textcoords="offset points",
            color=colour,
            fontsize=10.5,
            fontweight="bold",
        )
        tops.append(float(y.max()))
        rights.append(float(x.max()))
    # Few runs have intervals far wider than the runs are apart: the axis follows the runs.
    axes.set_ylim(0, 1.25 * max(*tops, 1.0))
    axes.set_xlim(0, 1.15 * max(rights))
    axes.set_xlabel("wire bytes per token, both directions (95% interval; small dots: runs)")
    axes.set_ylabel("stall ratio, %")
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def limit_ratios(ratios: pd.DataFrame) -> Figure:
    """Ratio of each scheme's stall ratio to that of the best possible sender.

    ratios: scheme, ratio, low, high (NaN: no interval).
    """
    known = ratios.dropna(subset=["ratio"]).iloc[::-1].reset_index(drop=True)
    if known.empty:
        raise PlotError("no scheme has a ratio to the limit")
    schemes = [str(scheme) for scheme in ratios["scheme"]]
    figure, axes = _figure(0.5 * len(known) + 1.2)
    for lane, row in enumerate(known.to_dict("records")):
        colour = scheme_colour(str(row["scheme"]), schemes)
        if np.isfinite(row["low"]):
            axes.plot([row["low"], row["high"]], [lane, lane], color=colour, linewidth=1.6)
        axes.plot(row["ratio"], lane, "o", color=colour, markersize=9)
        axes.annotate(
            f"{row['ratio']:.2f}",
            (row["ratio"], lane),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=10,
            color=colour,
            fontweight="bold",
        )
    axes.axvline(1, color=_TEXT, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xlim(0, 1.3 * max(1.0, float(known["ratio"].max())))
    axes.set_ylim(-0.6, len(known) - 0.3)
    axes.set_yticks(range(len(known)), list(known["scheme"]), fontsize=11)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("stall ratio as a multiple of the limit (dashed: the limit itself)")
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def packet_picture(
    fates: pd.DataFrame, tokens: pd.DataFrame, span: tuple[float, float] | None = None
) -> Figure:
    """Every packet of one run of one scheme, at the moment it was sent.

    A bar covers the tokens that the packet carried, counted back from the newest that the model
    had made by then; the area is what the reader did not see yet, counted in the same way.

    fates
        As `fates.packet_fates` gives them.
    tokens
        index, generated_at, rendered_at (s) of that run.
    span
        Seconds to be drawn; without it, all.
    """
    if fates.empty:
        raise PlotError("no packet was captured in this run")
    left, right = span or (float(fates["sent_at"].min()), float(fates["sent_at"].max()))
    seen = fates[fates["sent_at"].between(left, right)]
    figure = Figure(figsize=(WIDTH, 3.6), dpi=DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    made = np.sort(tokens["generated_at"].dropna().to_numpy(dtype=np.float64))
    shown = np.sort(tokens["rendered_at"].dropna().to_numpy(dtype=np.float64))
    moments = np.concatenate(([left], np.sort(np.concatenate((made, shown)))))
    moments = moments[moments <= right]
    missing = np.searchsorted(made, moments, "right") - np.searchsorted(shown, moments, "right")
    above.fill_between(moments, missing, step="post", color=_WAITING, linewidth=0)
    carriers = seen[seen["low"] >= 0]
    newest = np.searchsorted(made, carriers["sent_at"], "right")
    newest = np.maximum(newest, carriers["high"].cummax())  # without generation times, what is sent
    width = float(np.clip(350 / max(len(carriers), 1), 0.6, 2.5))
    lost = carriers["fate"] != "arrived"
    for which, low, high, colour in (
        (~lost, "low", "high", _OLD),
        (lost, "low", "high", _LOST),
        (~lost & (carriers["unlocked_to"] > carriers["unlocked_from"]), *_UNLOCKED, _NEWS),
    ):
        bars, top = carriers[which], newest[which]
        _bars(above, bars["sent_at"], top - bars[high], top - bars[low], colour, width)
    crosses = (newest - carriers["high"])[lost]
    above.plot(carriers["sent_at"][lost], crosses, "x", color=_LOST, markersize=4, clip_on=False)
    above.set_ylabel("tokens back from\nthe newest")
    deepest = max(int((newest - carriers["low"]).max()) if len(carriers) else 1, *missing, 4)
    above.set_ylim(deepest + 0.5, 0)
    above.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    lanes = {"server": 1.0, "client": 0.0}
    for side, lane in lanes.items():
        mine = seen[(seen["side"] == side) & (seen["low"] < 0)]
        for gone, colour in ((False, _OLD), (True, _LOST)):
            times = mine[(mine["fate"] != "arrived") == gone]["sent_at"]
            below.vlines(times, lane - 0.3, lane + 0.3, color=colour, linewidth=max(width, 0.9))
    below.set_yticks(list(lanes.values()), ["server, no token", "client"])
    below.tick_params(axis="y", length=0)
    below.set_ylim(-0.5, 1.5)
    below.set_xlim(left - 0.01 * (right - left), right + 0.01 * (right - left))
    below.set_xlabel("sent, seconds since the first token was generated")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    below.spines["left"].set_visible(False)
    return figure


def _bars(
    axes: Axes, x: pd.Series, low: pd.Series, high: pd.Series, colour: str, width: float
) -> None:
    """A vertical line per packet."""
    ends = [np.column_stack([x, y]) for y in (low, high)]
    segments = list(np.stack(ends, axis=1).astype(np.float64))
    lines = LineCollection(segments, colors=colour, linewidths=width, capstyle="butt")
    axes.add_collection(lines)


def _figure(height: float) -> tuple[Figure, Axes]:
    # As in analysis.plots: not by pyplot, which keeps every figure alive.
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()
