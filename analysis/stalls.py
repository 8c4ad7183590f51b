"""How long did the reader wait? Every metric of a token stream, defined once.

A stall is a gap of more than theta between two rendered tokens; its length is what exceeds
theta. With rendered times r_0 ... r_N:

    stall_ratio = sum of max(0, r_i - r_{i-1} - theta) / (r_N - r_0)

theta = 200 ms by default, as in the Eloquent paper (arXiv 2401.12961).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

THETA = 0.2
"""Seconds between two tokens above which the reader waits."""

Times = npt.NDArray[np.float64]


class StallError(ValueError):
    """The token times cannot be those of a stream that is shown in order."""


def metrics(
    rendered: npt.ArrayLike,
    generated: npt.ArrayLike | None = None,
    theta: float = THETA,
    requested: float | None = None,
) -> dict[str, float]:
    """All metrics of one answer. Times are seconds on one clock, percentiles are numpy's default.

    rendered
        Shape (N,): when each token was shown, by token index; NaN for tokens never shown. As
        tokens are shown in order, NaN may only stand at the end.
    generated
        Shape (N,): when each token left the model, on the same clock. Without it, `delay_*` and
        `generation_stall_ratio` are NaN.
    requested
        When the request left the client. Without it, `ttft` is NaN.

    Returns `tokens` (shown), `tokens_lost` (not shown), `duration`, `stalls` (their number),
    `stall_time`, `stall_ratio`, `gap_share` (share of gaps > theta), `gap_p50`, `gap_p95`,
    `gap_p99`, `gap_max`, `ttft`, `delay_p50`, `delay_p95` (rendered - generated) and
    `generation_stall_ratio` (the stall ratio of the generation times: what the model itself
    caused).

    Edge cases: with 0 or 1 token shown there is no gap, so `stall_ratio`, `gap_share` and all
    gap percentiles are NaN; with 0 tokens `ttft`, `delay_*` and `duration` are NaN too. If all
    tokens are shown at one instant, nobody waited: `stall_ratio` is 0.

    Raises StallError if times are unsorted or infinite, or the two arrays differ in length.
    """
    if not theta >= 0:
        raise StallError(f"theta is {theta}: it must be a number of seconds >= 0")
    shown_at = _checked(rendered, "rendered")
    shown = shown_at[~np.isnan(shown_at)]
    gaps = np.diff(shown)
    stalled = _excess(gaps, theta)
    result: dict[str, float] = {
        "tokens": len(shown),
        "tokens_lost": len(shown_at) - len(shown),
        "duration": float(shown[-1] - shown[0]) if len(shown) else math.nan,
        "stalls": int(np.count_nonzero(stalled)),
        "stall_time": float(stalled.sum()),
        "stall_ratio": _stall_ratio(shown, theta),
        "gap_share": float(np.mean(stalled > 0)) if len(gaps) else math.nan,
        "gap_p50": _percentile(gaps, 50),
        "gap_p95": _percentile(gaps, 95),
        "gap_p99": _percentile(gaps, 99),
        "gap_max": float(gaps.max()) if len(gaps) else math.nan,
        "ttft": float(shown[0] - requested) if len(shown) and requested is not None else math.nan,
        "delay_p50": math.nan,
        "delay_p95": math.nan,
        "generation_stall_ratio": math.nan,
    }
    if generated is not None:
        made_at = _checked(generated, "generated")
        if len(made_at) != len(shown_at):
            raise StallError(
                f"{len(made_at)} generation times for {len(shown_at)} rendered times: "
                "give one of each per token"
            )
        delays = (shown_at - made_at)[~np.isnan(shown_at - made_at)]
        result["delay_p50"] = _percentile(delays, 50)
        result["delay_p95"] = _percentile(delays, 95)
        result["generation_stall_ratio"] = _stall_ratio(made_at[~np.isnan(made_at)], theta)
    return result


def stall_intervals(rendered: npt.ArrayLike, theta: float = THETA) -> pd.DataFrame:
    """The stalls of one answer, for plots: one row each, seconds.

    Columns: `index` (the token that was waited for), `gap_start` (when the token before it was
    shown), `start` = gap_start + theta (from when on the reader waits), `end` (when the token
    came). The sum of end - start is the numerator of the stall ratio.
    """
    shown_at = _checked(rendered, "rendered")
    shown = shown_at[~np.isnan(shown_at)]
    late = np.flatnonzero(_excess(np.diff(shown), theta))
    columns: dict[str, Any] = {
        "index": late + 1,
        "gap_start": shown[late],
        "start": shown[late] + theta,
        "end": shown[late + 1],
    }
    return pd.DataFrame(columns)


def _checked(times: npt.ArrayLike, name: str) -> Times:
    array = np.asarray(times, dtype=np.float64)
    if array.ndim != 1:
        raise StallError(f"{name} times have shape {array.shape}: one time per token is needed")
    if np.isinf(array).any():
        index = int(np.flatnonzero(np.isinf(array))[0])
        raise StallError(f"{name} time of token {index} is infinite: use NaN for 'never'")
    missing = np.isnan(array)
    if name == "rendered" and missing.any() and not missing[int(missing.argmax()) :].all():
        index = int(missing.argmax())
        raise StallError(
            f"token {index} was never rendered but a later one was: tokens are shown in order"
        )
    known = np.flatnonzero(~missing)
    backwards = np.flatnonzero(np.diff(array[known]) < 0)
    if len(backwards):
        before, after = known[backwards[0]], known[backwards[0] + 1]
        raise StallError(
            f"{name} times are unsorted: token {after} at {array[after]:.6f} s comes before "
            f"token {before} at {array[before]:.6f} s; sort the tokens by index"
        )
    return array


def _excess(gaps: Times, theta: float) -> Times:
    # The tolerance keeps a gap of exactly theta from becoming a stall of 1e-17 s by rounding
    # (0.7 - 0.5 > 0.2 in floating point); a nanosecond is the best any capture resolves.
    excess = gaps - theta
    return np.where(excess > 1e-9, excess, 0.0)


def _stall_ratio(times: Times, theta: float) -> float:
    if len(times) < 2:
        return math.nan
    duration = float(times[-1] - times[0])
    if duration == 0:
        return 0.0
    return float(_excess(np.diff(times), theta).sum()) / duration


def _percentile(values: Times, percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else math.nan
