"""How a reader is shown an answer: each token at once, or at the speed of reading.

The Eloquent paper renders a token the moment it arrives (`at_once`). A client may as well hold
early tokens back and show them at the speed at which people read (`paced`), as the client of
Andes does (arXiv 2404.16283). A model that is faster than the reader then fills a buffer, and an
outage shorter than what is in it is not seen. Pure functions over times in seconds on one clock.

What a stall is. Plainly, a gap of more than theta between two shown tokens (`analysis.stalls`).
That fits a display that wants to show each token now. At 4.8 tokens/s, every gap is 208 ms by
intention, and the plain definition would call all of them stalls. So a paced display is held to
its own schedule: token i is due when token i-1 was shown and has been read,

    wait_i      = shown_i - (shown_{i-1} + reading_{i-1})
    stall_ratio = sum of max(0, wait_i - theta) / (shown_N - shown_0)

The schedule goes on from what was shown, not from the start: one outage must not count again for
every token after it. Theta is kept, so that reading times of 0 give the plain definition.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from analysis.stalls import THETA, Times, metrics

READING_SPEED = 4.8
"""Tokens/s of somebody who reads silently (Andes, arXiv 2404.16283)."""

READING_TIME = 1 / READING_SPEED
"""Seconds of such a reader for a token."""

SPOKEN_SPEED = 3.3
"""Tokens/s of speech (the same)."""

SYLLABLES_PER_TOKEN = 0.75 * 1.5
"""Of plain English: a token is about 3/4 of a word, a word 1.5 syllables. Rules of thumb, which
only set the scale: ordinary text is read at the speed in tokens/s that was asked for."""

_WORD = re.compile(r"[^\W\d_]+")
_VOWELS = re.compile(r"[aeiouy]+")
_SILENT = re.compile(r"([aeiouy]l|[^aeiouyl])e$")
_ROUNDING = 1e-9  # as in analysis.stalls: nothing is measured more finely


class ReaderError(ValueError):
    """There is no such reader: the message is one line."""


def per_token(speed: float) -> float:
    """Seconds to read a token at `speed` tokens/s; 0 if it is infinite."""
    if not speed > 0:
        raise ReaderError(f"a reading speed of {speed} tokens/s: it must be above 0")
    return 1 / speed


def at_once(arrivals: npt.ArrayLike) -> Times:
    """When each token is shown: once it and all before it are there. NaN stands for never."""
    return np.asarray(np.maximum.accumulate(_times(arrivals)), dtype=np.float64)


def paced(
    arrivals: npt.ArrayLike,
    reading: npt.ArrayLike,
    buffer_tokens: int = 0,
    buffer_seconds: float = 0.0,
) -> Times:
    """When each token is shown, one not before the one before it was read.

    arrivals
        Shape (N,): when each token reached the client, by token index; NaN for never.
    reading
        Seconds to read a token (`per_token`), or shape (N,): seconds for each of them
        (`text_reading`). 0 everywhere is `at_once`.
    buffer_tokens, buffer_seconds
        The first token is shown when so many tokens are there and so much time has passed since
        it came; in any case when the last token is there, as nothing is left to wait for.

    After an outage that empties the buffer, tokens are shown as they come: the buffer is not
    filled again, which would prolong the wait.
    """
    if buffer_tokens < 0 or not 0 <= buffer_seconds < math.inf:
        raise ReaderError("a buffer is a number of tokens or seconds, 0 or more")
    ready = at_once(arrivals)
    seconds = reading_times(reading, len(ready))
    shown = np.full(len(ready), math.nan)
    there = ready[~np.isnan(ready)]
    if not len(there):
        return shown
    filled = there[min(max(buffer_tokens, 1), len(there)) - 1]
    now = min(max(filled, there[0] + buffer_seconds), there[-1])
    for index, arrival in enumerate(there):
        now = max(arrival, now)
        shown[index] = now
        now += seconds[index]
    return shown


def reading_stalls(
    shown: npt.ArrayLike, reading: npt.ArrayLike, theta: float = THETA
) -> dict[str, float]:
    """How long the reader waited, against the schedule of reading (see the top of the module).

    Returns `stalls` (their number), `stall_time`, `stall_max` (the longest), `stall_ratio`, and
    `plain_stall_ratio`, the ratio by the plain definition. With fewer than two tokens shown the
    ratios are NaN. Raises StallError as `analysis.stalls.metrics` does.

    A slow display lasts longer, so its ratio falls by the denominator alone: between speeds,
    compare seconds. A larger buffer never makes a stall longer or adds one; it may raise the
    ratio a little where it takes away waits of less than theta, which only the denominator has.
    """
    plain = metrics(shown, theta=theta)
    times = _times(shown)
    seconds = reading_times(reading, len(times))
    times = times[~np.isnan(times)]
    late = np.diff(times) - seconds[: max(0, len(times) - 1)] - theta
    late = np.where(late > _ROUNDING, late, 0.0)
    ratio = math.nan
    if len(late):
        ratio = float(late.sum()) / plain["duration"] if plain["duration"] else 0.0
    return {
        "stalls": int(np.count_nonzero(late)),
        "stall_time": float(late.sum()),
        "stall_max": float(late.max(initial=0.0)),
        "stall_ratio": ratio,
        "plain_stall_ratio": plain["stall_ratio"],
    }


def text_reading(tokens: Sequence[bytes], speed: float = READING_SPEED) -> Times:
    """Seconds to read each token of a text, longer words more slowly.

    Readers slow down where a text is hard, and streams may do so too (Xiao and Yang, arXiv
    2504.17999, who infer the load). Here is a rule without a model: reading takes the same time
    for each syllable, speed * SYLLABLES_PER_TOKEN of them a second. A word's time is spread evenly
    over its letters and so over its tokens; a digit and a symbol count as a syllable, spaces and
    punctuation as nothing. A character that is cut belongs to the token that completes it.

    The rule is made for English. A display that runs it must have a word's last token before it
    knows the time of its first one.
    """
    pace = per_token(speed) / SYLLABLES_PER_TOKEN
    # Broken UTF-8 (an answer cut off inside a character) becomes one surrogate for each byte, so
    # that characters and bytes can still be counted against each other.
    text = b"".join(tokens).decode("utf-8", "surrogateescape")
    load = np.array([float(unicodedata.category(char)[0] in "NS") for char in text])
    for word in _WORD.finditer(text):
        load[word.start() : word.end()] = syllables(word[0]) / len(word[0])
    ends = np.cumsum([len(char.encode("utf-8", "surrogateescape")) for char in text])
    owner = np.searchsorted(np.cumsum([len(token) for token in tokens]), ends)
    loads = np.bincount(owner, load, minlength=len(tokens))
    return np.asarray(loads * pace, dtype=np.float64)


def syllables(word: str) -> int:
    """Of an English word, about: groups of vowels, without a silent e at the end; at least 1.

    In a word without a Latin vowel, every second letter is one.
    """
    letters = unicodedata.normalize("NFD", word.lower())
    plain = "".join(char for char in letters if not unicodedata.combining(char))
    found = len(_VOWELS.findall(plain))
    if not found:
        return max(1, math.ceil(len(plain) / 2))
    silent = _SILENT.search(word.lower())  # in "made", but not in "table", "tree" or "café"
    return max(1, found - 1 if silent else found)


def reading_times(reading: npt.ArrayLike, count: int) -> Times:
    """`reading` as an array of `count` seconds; a single number holds for every token."""
    seconds = np.asarray(reading, dtype=np.float64)
    if seconds.ndim == 0:
        seconds = np.full(count, float(seconds))
    if seconds.shape != (count,):
        raise ReaderError(f"{seconds.size} reading times for {count} tokens: give one of each")
    if not np.all((seconds >= 0) & np.isfinite(seconds)):
        raise ReaderError("a reading time is a number of seconds, 0 or more")
    return seconds


def _times(times: npt.ArrayLike) -> Times:
    array = np.asarray(times, dtype=np.float64)
    if array.ndim != 1:
        raise ReaderError(f"times have shape {array.shape}: one time per token is needed")
    if np.isinf(array).any():
        raise ReaderError("a time is infinite: use NaN for 'never'")
    return array
