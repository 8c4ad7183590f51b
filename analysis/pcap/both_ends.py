"""Two captures of the same flows, one at each end: losses, bursts of losses, one-way delays.

Two clocks never agree. Their offset is estimated as NTP does it, from the fastest packet each way
and the assumption that both ways are equally fast at best: half of what that is wrong by moves
delays from one direction to the other. Their sum is exact. Drift between the clocks is not
corrected; it shows as a wider spread.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.pcap.matching import direction_names, matched
from analysis.pcap.packet_table import Capture

Mask = npt.NDArray[np.bool_]


class BothEnds(NamedTuple):
    """What lies between two points of capture. Times in seconds."""

    directions: pd.DataFrame
    """One row per direction of a flow, after one row each for everything A → B and B → A (flow
    empty): way ("A → B", "B → A"), protocol, source, destination, sent (packets seen by the
    sender's side while the receiver's side captured), lost, runs (of losses), run_mean, run_max,
    run_lengths ({length: number}), outside (packets sent while the other side did not capture),
    new (packets that only the receiver's side has), delay_p50, delay_p95, delay_p99, delay_min,
    delay_max (over certain pairs)."""
    offset: float
    """Clock of B minus clock of A, by the estimate above; NaN if nothing was matched."""
    symmetric: bool
    """Whether packets both ways gave the offset. If not, the fastest packet counts as delay 0."""
    matched: int
    ambiguous: int
    """Pairs of packets that copies make uncertain: they count as arrived, without a delay."""


def both_ends(a: Capture, b: Capture) -> BothEnds:
    """Compare two captures of the same flows."""
    pairs = matched(a, b)
    names = direction_names(a, b)
    certain = pairs[(pairs["row_a"] >= 0) & (pairs["row_b"] >= 0)]
    difference = (certain["time_b"] - certain["time_a"])[~certain["alike"]]
    from_a = _from_a(pairs, names, difference.groupby(certain["direction"]).median())
    ways = certain["direction"].map(from_a)[difference.index].astype(bool)
    there, back = difference[ways], difference[~ways]
    symmetric = len(there) > 0 and len(back) > 0
    if symmetric:
        offset = (float(there.min()) + float(back.max())) / 2
    elif len(difference):
        offset = float(there.min()) if len(there) else float(back.max())
    else:
        offset = math.nan

    rows = []
    direction = pairs["direction"].to_numpy()
    way = from_a.reindex(range(len(names)), fill_value=True).to_numpy(dtype=bool)
    for is_from_a in (True, False):
        part = pairs[way[direction] == is_from_a] if len(pairs) else pairs
        sides = (a, b) if is_from_a else (b, a)
        packets = _sent_and_received(part, is_from_a, offset, sides)
        label = "A → B" if is_from_a else "B → A"
        if packets.empty:
            continue
        rows.append({"way": label, "protocol": "", "source": "", "destination": ""} | _row(packets))
        for which, own in packets.groupby("direction", sort=True):
            name = names.loc[which]
            ends = {
                "source": _text(name["source"], name["from"]),
                "destination": _text(name["destination"], name["to"]),
            }
            rows.append({"way": label, "protocol": name["protocol"]} | ends | _row(own))
    columns = ["way", "protocol", "source", "destination", *_row(_NOTHING)]
    return BothEnds(
        pd.DataFrame(rows, columns=columns),
        offset,
        symmetric,
        len(certain),
        int(certain["alike"].sum()),
    )


_NOTHING = pd.DataFrame(
    {"sent": [], "received": [], "covered": [], "delay": []}, dtype="float64"
).astype({"sent": bool, "received": bool, "covered": bool})


def _from_a(pairs: pd.DataFrame, names: pd.DataFrame, median: pd.Series) -> pd.Series:
    """Per direction with packets: whether the side of A sends it.

    The difference of the clocks holds plus the delay one way, minus the delay the other way: of
    two hosts' directions, the one with the larger difference comes from A. Hosts that were heard
    one way only are judged by who lost packets: nobody receives more than was sent.
    """
    hosts = list(zip(names["source"], names["destination"], strict=True))
    by_hosts: dict[tuple[Any, Any], list[float]] = {}
    for direction, value in median.items():
        by_hosts.setdefault(hosts[int(direction)], []).append(float(value))
    only_a = ((pairs["row_b"] < 0) * 1 - (pairs["row_a"] < 0) * 1).groupby(pairs["direction"]).sum()
    surplus: Counter[tuple[Any, Any]] = Counter()
    for direction, value in only_a.items():
        surplus[hosts[int(direction)]] += int(value)
    result = {}
    for direction in only_a.index:
        way = hosts[int(direction)]
        there, back = (by_hosts.get(key) for key in (way, way[::-1]))
        if there and back and way[0] != way[1]:
            result[direction] = float(np.median(there)) >= float(np.median(back))
        elif surplus[way] or not surplus[way[::-1]]:
            result[direction] = surplus[way] >= 0
        else:
            result[direction] = surplus[way[::-1]] < 0
    return pd.Series(result, dtype=bool)


def _sent_and_received(
    pairs: pd.DataFrame, from_a: bool, offset: float, sides: tuple[Capture, Capture]
) -> pd.DataFrame:
    """One row per packet one way, in order of sending: sent, received, covered, delay."""
    sender, receiver = ("a", "b") if from_a else ("b", "a")
    shift = offset if from_a else -offset
    table = pd.DataFrame(
        {
            "direction": pairs["direction"],
            "sent": pairs[f"row_{sender}"] >= 0,
            "received": pairs[f"row_{receiver}"] >= 0,
            "time": pairs[f"time_{sender}"],
            "delay": (pairs[f"time_{receiver}"] - pairs[f"time_{sender}"] - shift).where(
                ~pairs["alike"]
            ),
        }
    )
    times = sides[1].packets["time"]
    usual = table["delay"].median()
    arrival = table["time"] + shift + (usual if usual > 0 else 0.0)
    covered = (arrival >= times.min()) & (arrival <= times.max()) if len(times) else False
    table["covered"] = table["sent"] & (table["received"] | covered)
    return table.sort_values("time", kind="stable")


def _row(packets: pd.DataFrame) -> dict[str, Any]:
    covered = packets[packets["covered"]]
    lost = ~covered["received"].to_numpy(dtype=bool)
    runs = loss_runs(lost)
    delay = packets["delay"].dropna()
    percentiles = np.percentile(delay, (50, 95, 99, 0, 100)) if len(delay) else [math.nan] * 5
    names = ("delay_p50", "delay_p95", "delay_p99", "delay_min", "delay_max")
    return {
        "sent": len(covered),
        "lost": int(lost.sum()),
        "runs": len(runs),
        "run_mean": float(runs.mean()) if len(runs) else math.nan,
        "run_max": int(runs.max()) if len(runs) else 0,
        "run_lengths": {int(k): v for k, v in sorted(Counter(runs.tolist()).items())},
        "outside": int((packets["sent"] & ~packets["covered"]).sum()),
        "new": int((~packets["sent"]).sum()),
        **dict(zip(names, map(float, percentiles), strict=True)),
    }


def loss_runs(lost: Mask) -> npt.NDArray[np.int64]:
    """Lengths of the runs of True, in order."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], lost, [False])).astype(np.int8)))
    return np.asarray(edges[1::2] - edges[::2], dtype=np.int64)


def _text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
