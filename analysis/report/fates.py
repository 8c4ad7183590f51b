"""The fate of every packet of one run: sent, lost, arrived, and which tokens it unlocked."""

from __future__ import annotations

import bisect
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.report.link_logs import trace
from eloquent import records

_OTHER = {"server": "client", "client": "server"}
_SIGNATURE = ["kind", "first", "count", "end", "seq", "ack", "size"]
FATE_COLUMNS = [
    *("sent_at", "side", "kind", "size", "low", "high"),
    *("arrived_at", "fate", "link", "unlocked_from", "unlocked_to", "known_by"),
]


def packet_fates(packets: pd.DataFrame, tokens: pd.DataFrame, logs: Path | None) -> pd.DataFrame:
    """One row per packet that one of the hosts sent in one run of one scheme, by time of sending.

    packets, tokens
        That run's rows of the results' tables.
    logs
        The folder with the links' fate logs, if there is one.

    `low` to `high` (exclusive) are the tokens of which the packet carries something, `low` is -1
    if of none. `arrived_at` is NaN if it never did. `fate` is "arrived", "lost" (or what else the
    link's log says), or "unknown" where only one host was captured. `unlocked_from` to
    `unlocked_to` are the tokens that could be shown because of it; equal if none. `known_by` is
    "link log" or "captures".
    """
    sides = [_side(packets, side, logs) for side in ("server", "client")]
    made = [side for side in sides if len(side)]
    if not made:
        return pd.DataFrame(columns=FATE_COLUMNS)
    fates = pd.concat(made, ignore_index=True)
    fates = fates.sort_values("time", kind="stable", ignore_index=True)
    unit_ends = _unit_ends(fates, tokens)
    starts, stops = _units(fates)
    # Of the units that a packet carries, find the tokens they belong to.
    carries = stops > starts
    low = np.searchsorted(unit_ends, starts, side="right")
    high = np.searchsorted(unit_ends, stops, side="left") + 1
    fates["low"] = np.where(carries, low, -1)
    fates["high"] = np.where(carries, np.minimum(high, len(unit_ends)), -1)
    fates["unlocked_from"], fates["unlocked_to"] = _unlocked(fates, starts, stops, unit_ends)
    return fates.rename(columns={"time": "sent_at"})[FATE_COLUMNS]


def _side(packets: pd.DataFrame, side: str, logs: Path | None) -> pd.DataFrame:
    """What `side` sent, with what became of it."""
    mine = packets[packets["host"] == side]
    sent = mine[mine["direction"] == "sent"].sort_values("time", kind="stable", ignore_index=True)
    if sent.empty:
        return sent
    sent = sent.assign(side=side)
    scheme, run = str(sent["scheme"].iloc[0]), int(sent["run"].iloc[0])
    found = None
    if logs is not None and "/" not in scheme:
        found = trace(sent, side, logs, f"{scheme.replace(':', '_')}-run{run:02}")
    if found is not None:
        return sent.assign(known_by="link log", **{name: found[name] for name in found})
    other = packets[packets["host"] == _OTHER[side]]
    received = other[other["direction"] == "received"]
    arrived = _matched(sent, received)
    fate = np.where(np.isnan(arrived), "lost" if len(other) else "unknown", "arrived")
    return sent.assign(known_by="captures", arrived_at=arrived, fate=fate, link="")


def _matched(sent: pd.DataFrame, received: pd.DataFrame) -> npt.NDArray[np.float64]:
    """When each packet sent was captured at the other host; NaN if it was not.

    Packets of one content (acknowledgements, repeats) are told apart by the usual delay: each
    arrival belongs to the one not yet taken that was sent closest to so long before it.
    """
    arrived = np.full(len(sent), np.nan)
    once = sent.drop_duplicates(_SIGNATURE, keep=False)
    pairs = once.merge(
        received.drop_duplicates(_SIGNATURE, keep=False), on=_SIGNATURE, suffixes=("", "_there")
    )
    delays = (pairs["time_there"] - pairs["time"]).to_numpy()
    usual = float(np.median(delays[delays > 0])) if (delays > 0).any() else 0.0
    waiting: dict[tuple[Any, ...], list[tuple[float, int]]] = {}
    for row, packet in enumerate(sent[[*_SIGNATURE, "time"]].itertuples(index=False, name=None)):
        waiting.setdefault(packet[:-1], []).append((packet[-1], row))
    in_order = received.sort_values("time")[[*_SIGNATURE, "time"]]
    for packet in in_order.itertuples(index=False, name=None):
        time = packet[-1]
        left = waiting.get(packet[:-1], [])
        known = bisect.bisect_right(left, (time, len(sent)))  # what was sent before it arrived
        if known:
            guess = bisect.bisect_left(left, (time - usual, -1), 0, known)
            near = range(max(guess - 1, 0), min(guess + 1, known))
            best = min(near, key=lambda place: abs(time - usual - left[place][0]))
            arrived[left.pop(best)[1]] = time
    return arrived


def _unit_ends(fates: pd.DataFrame, tokens: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Where each token ends, in what packets count: tokens, or in TCP bytes of the stream."""
    sizes = tokens.sort_values("index")["n_bytes"].to_numpy(dtype=np.int64)
    if (fates["protocol"] == "tcp").any():
        head = len(records.encode(b""))
        return np.cumsum(sizes + head)
    return np.arange(1, len(sizes) + 1, dtype=np.int64)


def _units(fates: pd.DataFrame) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """First unit that each packet carries, and the one after its last; equal if none."""
    answer = (fates["side"] == "server").to_numpy()
    tcp = (fates["protocol"] == "tcp").to_numpy()
    first = fates["first"].to_numpy(dtype=np.int64)
    count = np.maximum(fates["count"].to_numpy(dtype=np.int64), 0)
    payload = fates["payload"].to_numpy(dtype=np.int64)
    if tcp.any():
        seq = fates["seq"].to_numpy(dtype=np.int64)
        holds = np.flatnonzero(answer & (payload > 0))
        origin = int(seq[holds[0]]) if len(holds) else 0
        first, count = (seq - origin) % 2**32, payload
    return np.where(answer, first, 0), np.where(answer, first + count, 0)


def _unlocked(
    fates: pd.DataFrame,
    starts: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
    unit_ends: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Replay the arrivals: tokens are shown in order, so a hole holds back all behind it."""
    before, after = np.zeros(len(fates), np.int64), np.zeros(len(fates), np.int64)
    total = int(unit_ends[-1]) if len(unit_ends) else 0
    have = np.zeros(total + 1, dtype=bool)  # the last one stays missing: every search ends there
    times = np.where(fates["fate"] == "arrived", fates["arrived_at"], np.nan).astype(np.float64)
    frontier = shown = 0
    for packet in np.argsort(times, kind="stable"):  # NaN comes last
        if np.isnan(times[packet]):
            break
        have[starts[packet] : min(stops[packet], total)] = True
        frontier += int(np.argmin(have[frontier:]))
        complete = int(np.searchsorted(unit_ends, frontier, side="right"))
        before[packet], after[packet] = shown, complete
        shown = complete
    return before, after
