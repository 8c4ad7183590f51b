"""How an answer feels, as Andes defines it (arXiv 2404.16283): quality of experience, 0 to 1.

A reader wants the first token at a certain time, and reads TDS tokens a second. Without any wait
the tokens read by time t are T(t) = min(TDS * (t - TTFT_expected), l), of l tokens in all, and
0 before TTFT_expected. What was shown allows A(t): the reader can neither read what is not there,
nor faster than TDS. The quality is the ratio of the areas under the two curves:

    QoE = integral of A(t) dt / integral of T(t) dt

A fluid reader, token by token: reading token i starts at s_i = max(shown_i, s_{i-1} + 1/TDS) and
takes 1/TDS, in which A grows by 1. So A is a sum of ramps, and the area up to U is exact:

    sum over i of  0                     if U <= s_i
                   (U - s_i)^2 * TDS / 2 if U <= s_i + 1/TDS
                   U - s_i - 1/(2 TDS)   otherwise

T is the same with s_i = TTFT_expected + i/TDS. What we had to interpret, as we know the formula
but not the paper's fine print:

- **The upper limit of both integrals.** By default the moment at which T reaches l ("expected").
  It does not depend on what was shown, and so a token that comes later never raises the QoE;
  what is late beyond that moment counts no more. The other choices move with the answer:
  "shown" (when the last token was shown) and "digested" (when it was read, but not before T
  reaches l). Both can reward delay: a longer wait for the last token of an answer that began
  late lets the bad begin weigh less. While delays are small, "expected" and "digested" agree: an
  answer that is late by d as a whole, with T = l/TDS, has (1 - d/T)^2 and 1/(1 + 2 d/T).
- **Tokens before TTFT_expected.** Reading does not start before it, so that QoE stays within 1;
  early tokens are a buffer. Cutting A off at T instead gives the same.
- **TTFT_expected** is a time on the clock of the tokens, the caller's choice. Where that clock
  starts does not matter: both curves are 0 before their first token.
- **A reading time for each token** may take the place of 1/TDS (`analysis.reader.text_reading`).

A display paced at the reader's own speed, without a buffer, has the QoE of showing all at once:
A has the cap on its slope already. QoE sees time lost, not how smooth the text runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.reader import (
    READING_SPEED,
    READING_TIME,
    SPOKEN_SPEED,
    ReaderError,
    at_once,
    paced,
    per_token,
    reading_stalls,
    reading_times,
    text_reading,
)
from analysis.results import Results
from analysis.stalls import THETA, StallError, Times, metrics

Until = Literal["expected", "digested", "shown"]
UNTIL: tuple[Until, ...] = ("expected", "digested", "shown")


class Display(NamedTuple):
    """How tokens are shown: at `speed` tokens/s (inf is at once), word by word if `by_text`."""

    name: str
    speed: float
    by_text: bool = False


class Rater(NamedTuple):
    """Who rates: a reader of `speed`, who expects the first token `ttft` after the request.

    Without `ttft`, at the moment the first token exists: it is the network that is rated then.
    """

    speed: float = READING_SPEED
    ttft: float | None = None
    until: Until = "expected"


class Buffer(NamedTuple):
    """What has to be there before the first token is shown."""

    tokens: int = 0
    seconds: float = 0.0


AT_ONCE = Display("at once", math.inf)
NO_BUFFER = Buffer()
RATER = Rater()
DISPLAYS = tuple(Display(f"{speed:g}/s", speed) for speed in (SPOKEN_SPEED, READING_SPEED, 10.0))
MEASURES = (
    *("stall_ratio", "stall_time", "saved", "stalls", "stall_max", "plain_stall_ratio"),
    *("qoe", "qoe_best", "later_mean", "later_last", "read_later"),
)


def qoe(
    shown: npt.ArrayLike,
    reading: npt.ArrayLike = READING_TIME,
    expected_first: float = 0.0,
    until: Until | float = "expected",
) -> float:
    """The quality of one answer's experience, 0 to 1.

    shown
        Shape (l,): when each token was shown, by token index; NaN for tokens never shown, which
        count in l and are never read.
    reading
        Seconds that the reader takes for a token, 1/TDS; or one number for each token.
    expected_first
        When the reader expects the first token, on the clock of `shown`.
    until
        The upper limit of the integrals, by name (see the top of the module) or as a time.

    NaN if nothing can be expected in that time: without tokens, with a limit that is not after
    `expected_first`, or with reading times of 0 throughout and the limit "expected".
    """
    seconds = reading_times(reading, np.asarray(shown).size)
    starts = digestion(shown, seconds, expected_first)
    wanted = expected_first + np.concatenate(([0.0], np.cumsum(seconds)))
    end = _limit(until, shown, starts + seconds, float(wanted[-1]))
    whole = _area(wanted[:-1], seconds, end)
    if not whole > 0:
        return math.nan
    # Rounding must not make a perfect answer better than perfect.
    return min(1.0, _area(starts, seconds, end) / whole)


def digestion(
    shown: npt.ArrayLike,
    reading: npt.ArrayLike = READING_TIME,
    expected_first: float = 0.0,
) -> Times:
    """When the reader starts to read each token: s_i above. NaN for tokens never shown."""
    if not math.isfinite(expected_first):
        raise ReaderError(f"the first token is expected at {expected_first}: give a finite time")
    # A reader is a display with no room for a second token: it takes them one after another.
    return paced(np.maximum(at_once(shown), expected_first), reading)


def _limit(until: Until | float, shown: npt.ArrayLike, ends: Times, expected: float) -> float:
    if isinstance(until, str):
        if until not in UNTIL:
            raise ReaderError(f"no limit {until!r}: {', '.join(UNTIL)}, or a time")
        if until == "expected":
            return expected
        if until == "digested":
            return float(np.max(ends[~np.isnan(ends)], initial=expected))
        times = np.asarray(shown, dtype=np.float64)
        return float(np.max(times[~np.isnan(times)], initial=-math.inf))
    if not math.isfinite(until):
        raise ReaderError(f"the limit is {until}: give a finite time")
    return float(until)


def _area(starts: Times, seconds: Times, end: float) -> float:
    known = ~np.isnan(starts)
    length = seconds[known]
    elapsed = np.maximum(0.0, end - starts[known])
    ramp = elapsed**2 / np.where(length > 0, 2 * length, 1.0)
    return float(np.where(elapsed < length, ramp, elapsed - length / 2).sum())


def readings(
    results: Results,
    displays: Sequence[Display] = DISPLAYS,
    buffer: Buffer = NO_BUFFER,
    rater: Rater = RATER,
    theta: float = THETA,
) -> pd.DataFrame:
    """One row per scheme, run and display, the first of which is at once; columns MEASURES.

    Those of `analysis.reader.reading_stalls`; `saved` (stall time at once, less that of the
    display), `qoe`, `qoe_best` (of the generation times: a network without delay or loss),
    `later_mean` and `later_last` (tokens shown later than at once), `read_later` (the reader
    begins the last token later than at once). Seconds and shares.

    Raises ReaderError, in one line that names the run, if it cannot be shown.
    """
    rows = []
    for (scheme, run), tokens in results.tokens.groupby(["scheme", "run"], sort=False):
        try:
            found = _run(results, tokens.sort_values("index"), displays, buffer, rater, theta)
        except (ReaderError, StallError) as error:
            raise ReaderError(f"{scheme}, run {run}: {error}") from error
        rows += [{"scheme": scheme, "run": run, **row} for row in found]
    return pd.DataFrame(rows, columns=["scheme", "run", "display", *MEASURES])


def _run(
    results: Results,
    tokens: pd.DataFrame,
    displays: Sequence[Display],
    buffer: Buffer,
    rater: Rater,
    theta: float,
) -> list[dict[str, Any]]:
    once = tokens["rendered_at"].to_numpy(dtype=np.float64)
    metrics(once, theta=theta)  # refuses impossible times, which `at_once` would put in order
    scheme, run = tokens[["scheme", "run"]].iloc[0]
    first = 0.0 if rater.ttft is None else _asked(results, scheme, run, once) + rater.ttft
    reader = per_token(rater.speed)
    best = qoe(tokens["generated_at"].to_numpy(dtype=np.float64), reader, first, rater.until)
    finished = _last(digestion(once, reader, first))
    rows: list[dict[str, Any]] = []
    for display in (AT_ONCE, *displays):
        seconds: float | Times = per_token(display.speed)
        if display.by_text:
            seconds = text_reading(_texts(results, tokens), display.speed)
        held = NO_BUFFER if display is AT_ONCE else buffer
        shown = paced(once, seconds, held.tokens, held.seconds)
        later = (shown - once)[~np.isnan(shown)]
        stalls = reading_stalls(shown, seconds, theta)
        waited = (rows[0] if rows else stalls)["stall_time"]
        rows.append(
            {
                "display": display.name,
                **stalls,
                "saved": waited - stalls["stall_time"],
                "qoe": qoe(shown, reader, first, rater.until),
                "qoe_best": best,
                "later_mean": float(later.mean()) if len(later) else math.nan,
                "later_last": _last(later),
                "read_later": _last(digestion(shown, reader, first)) - finished,
            }
        )
    return rows


def _asked(results: Results, scheme: str, run: int, once: Times) -> float:
    """When the request left, on the clock of the tokens table; summary.csv knows the wait."""
    summary = results.summary
    row = summary[(summary["scheme"] == scheme) & (summary["run"] == run)]
    wait = float(row["ttft"].iloc[0]) if len(row) and "ttft" in row else math.nan
    if math.isnan(wait) or not len(once) or math.isnan(once[0]):
        raise ReaderError("--ttft needs the time of the request, and summary.csv has no ttft")
    return float(once[0]) - wait


def _texts(results: Results, tokens: pd.DataFrame) -> list[bytes]:
    """The bytes of each token: the run's answer as the client printed it, cut by the table."""
    scheme, run = tokens[["scheme", "run"]].iloc[0]
    path = results.path / "logs" / f"{scheme}-run{int(run):02}.txt"
    shown = tokens[tokens["rendered_at"].notna()]
    ends = np.cumsum(shown["n_bytes"].to_numpy(dtype=np.int64)).tolist()
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ReaderError(f"--speed text needs the answer, {path}: {error.strerror}") from error
    if ends and len(text) < ends[-1]:
        raise ReaderError(f"{path} has {len(text)} bytes, but the tokens shown have {ends[-1]}")
    parts = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return parts + [b""] * (len(tokens) - len(parts))


def _last(times: Times) -> float:
    known = times[~np.isnan(times)]
    return float(known[-1]) if len(known) else math.nan
