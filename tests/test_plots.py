"""Figures: what they draw, not how it looks."""

import io
import math

import numpy as np
import pandas as pd
import pytest

from analysis import plots


def tokens(runs: int = 1) -> pd.DataFrame:
    """eloquent without a stall, tcp with one of 0.9 s after token 4, per run."""
    rows = []
    for run in range(runs):
        for scheme in ("eloquent", "tcp", "other"):
            for index in range(10):
                made = 0.1 * index
                shown = made + 0.05 + (1.0 if scheme == "tcp" and index > 4 else 0.0)
                rows.append((scheme, run, index, made, shown))
    return pd.DataFrame(rows, columns=["scheme", "run", "index", "generated_at", "rendered_at"])


OUTAGES = pd.DataFrame(
    [("down", 0.5, 1.4), ("up", 1.5, 99.0), ("down", 50.0, 60.0)],
    columns=["direction", "start", "end"],
)


def pixels(figure) -> tuple[int, int]:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    header = buffer.getvalue()[16:24]
    return int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")


def test_timeline():
    figure = plots.timeline(tokens(), OUTAGES)
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        *("model", "eloquent", "tcp", "other")
    ]
    notes = [text.get_text() for text in axes.texts]
    # tcp: the gap is 1.1 s, 0.9 s of it beyond 0.2, in 1.9 s.
    assert notes[2] == "stalled 47.4%\nlongest gap 1.10 s"
    assert notes[1].startswith("stalled 0.0%")
    assert len(axes.patches) == 2  # the third outage is after the run
    assert pixels(figure)[0] == 900


def test_timeline_with_losses_and_nothing_shown():
    table = tokens()
    table.loc[table["scheme"] == "tcp", "rendered_at"] = math.nan
    notes = [text.get_text() for text in plots.timeline(table).axes[0].texts]
    assert notes[2] == "no gaps"
    with pytest.raises(plots.PlotError, match="2 runs"):
        plots.timeline(tokens(2))
    with pytest.raises(plots.PlotError, match="empty"):
        plots.timeline(tokens(0))


def test_gaps():
    figure = plots.gaps(tokens(2))
    axes = figure.axes[0]
    labels = [text.get_text() for text in axes.texts]
    assert any(text == "tcp: 11% of 18 gaps stall" for text in labels)  # 1 in 9, over two runs
    curve = next(line for line in axes.lines if line.get_color() == plots._COLOURS["tcp"])
    x, y = np.asarray(curve.get_xdata()), np.asarray(curve.get_ydata())
    assert y[x < 1000].min() == pytest.approx(2 / 18)  # both stalls are longer than 1 s
    assert pixels(figure)[0] == 900
    with pytest.raises(plots.PlotError, match="no gaps"):
        plots.gaps(tokens().query("index == 0"))


def test_gaps_of_bursts_have_a_place_on_a_log_axis():
    table = tokens()
    table["rendered_at"] = 1.0
    assert pixels(plots.gaps(table))[0] == 900


def test_stall_bars():
    rows = [("tcp", 0, 0.3), ("tcp", 1, 0.5), ("eloquent", 0, 0.0), ("eloquent", 1, 0.0)]
    summary = pd.DataFrame(rows, columns=["scheme", "run", "stall_ratio"])
    figure = plots.stall_bars(summary)
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["eloquent", "tcp"]
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["0.0% ± 0.0", "40.0% ± 127.1"]  # t(0.975, 1) * s / sqrt(2)
    assert pixels(figure)[0] == 900
    one = plots.stall_bars(summary[summary["run"] == 0])
    assert "30.0%" in [text.get_text() for text in one.axes[0].texts]
    with pytest.raises(plots.PlotError, match="no rows"):
        plots.stall_bars(summary[:0])
