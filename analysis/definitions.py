"""Other definitions of a stall, to show how much a result hangs on the one that was chosen.

The paper (arXiv 2401.12961) calls it the "proportion of token rendering wait time" and leaves open
what of a long gap counts. Here: its excess over theta (`excess`, the project's own), the whole gap
(`whole`), or only how many gaps are that long (`share`).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

THETAS = (0.1, 0.2, 0.3, 0.5)
KINDS = ("excess", "whole", "share")


def column(kind: str, theta: float) -> str:
    """The name of a definition in tables: `excess_200` for the excess over 200 ms."""
    return f"{kind}_{1000 * theta:g}"


def stall_definitions(rendered: npt.ArrayLike) -> dict[str, float]:
    """Every definition at every theta; NaN with fewer than two tokens. Times as in `stalls`."""
    shown = np.asarray(rendered, dtype=np.float64)
    shown = shown[~np.isnan(shown)]
    gaps = np.diff(shown)
    duration = float(gaps.sum())
    found: dict[str, float] = {}
    for theta in THETAS:
        long = gaps[gaps > theta + 1e-9]  # the same tolerance as in stalls
        values = {
            "excess": float((long - theta).sum()) / duration if duration else 0.0,
            "whole": float(long.sum()) / duration if duration else 0.0,
            "share": len(long) / len(gaps) if len(gaps) else 0.0,
        }
        for kind in KINDS:
            found[column(kind, theta)] = values[kind] if len(gaps) else math.nan
    return found
