"""TCP directions as a table: retransmissions, reordering, waiting for holes, and token times.

Without the application's own format, a token is not visible. A TLS record, or else a segment, is
taken for one: servers that stream tokens write each one as it comes, mostly. A server that
gathers several, or a middlebox that joins segments, makes fewer and larger ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.pcap.byte_stream import Streams
from analysis.pcap.holes import Kind
from analysis.pcap.packet_table import Capture, ends
from analysis.pcap.tls_records import APPLICATION_DATA, looks_like, pieces, records
from analysis.stalls import THETA, metrics

LEAST_UNITS = 10
"""Fewer units are no stream of tokens: gaps are not computed."""

MOST_MEASURED = 4000
"""Gaps are computed for so many directions, those with the most units first."""

GAPS = ("duration", "stall_ratio", "gap_share", "gap_p50", "gap_p95", "gap_p99", "gap_max")
"""Measures of `analysis.stalls` that are given per direction."""

_FIRST_SEGMENTS = 5
"""A capture that begins in the middle of a record shows the start of one soon after."""

Times = npt.NDArray[np.float64]


def tcp_flows(capture: Capture, streams: Streams, theta: float = THETA) -> pd.DataFrame:
    """One row per TCP direction with data, most bytes first. Times in seconds.

    Columns: flow (2 * connection + to_server), protocol (tcp, tls), client, server, to (client,
    server: where the data went), segments, bytes (without repetitions), repeated (segments seen
    before), resent and reordered (segments that filled a hole late or soon, `byte_stream.Kind`),
    unseen (bytes that the receiver acknowledged but the capture has not), open (bytes that still
    waited at the end), holes, blocked (time in which any byte waited for an earlier one),
    waiting (segments that waited), wait_p50, wait_p95, wait_max (for how long), unit (segment,
    record), units, lost_records (times that record headers were missing) and `GAPS`, the
    gaps between units as they could be read in order (NaN below `LEAST_UNITS` units).
    """
    segments = streams.segments
    flows, code = np.unique(segments["flow"].to_numpy(), return_inverse=True)
    kind = segments["kind"].to_numpy()
    columns: dict[str, Any] = {"flow": flows, "segments": np.bincount(code, minlength=len(flows))}
    columns["bytes"] = np.bincount(
        code, weights=segments["fresh"].to_numpy(), minlength=len(flows)
    ).astype(np.int64)
    for name, which in (
        ("repeated", Kind.REPEATED),
        ("resent", Kind.RESENT),
        ("reordered", Kind.REORDERED),
    ):
        columns[name] = np.bincount(code[kind == which], minlength=len(flows))
    table = pd.DataFrame(columns)
    table = table.join(streams.flows, on="flow").fillna(0).infer_objects()
    for name in ("holes", "unseen", "open"):
        table[name] = table[name].astype(np.int64)
    table = table.join(_waits(segments), on="flow")
    table["waiting"] = table["waiting"].fillna(0).astype(np.int64)
    names = ends(capture.connections.loc[np.unique(flows // 2)])
    table = table.join(names, on=table["flow"] // 2)
    table["to"] = np.where(table["flow"] % 2 == 1, "server", "client")
    units = _units(capture, streams, flows)
    table = table.join(_measured(units, theta), on="flow")
    table["protocol"] = np.where(table["unit"] == "record", "tls", "tcp")
    return table.sort_values("bytes", ascending=False, kind="stable", ignore_index=True)


def _waits(segments: pd.DataFrame) -> pd.DataFrame:
    """How long segments lay in the receiver because bytes before them were missing."""
    ahead = segments[segments["kind"].isin((Kind.AHEAD, Kind.REORDERED, Kind.RESENT))]
    wait = (ahead["delivered"] - ahead["time"]).where(lambda seconds: seconds > 0).dropna()
    rows = [
        (flow, len(part), *np.percentile(part, (50, 95, 100)))
        for flow, part in wait.groupby(ahead["flow"])
    ]
    columns = ["flow", "waiting", "wait_p50", "wait_p95", "wait_max"]
    return pd.DataFrame(rows, columns=columns).set_index("flow")


def _units(
    capture: Capture, streams: Streams, flows: npt.NDArray[np.int64]
) -> dict[int, tuple[str, Times, int]]:
    """Per flow: what a unit is, when each could be read in order, and lost record headers."""
    segments = streams.segments
    all_flows = segments["flow"].to_numpy()
    edges = np.searchsorted(all_flows, flows).tolist()
    bounds = list(itertools.pairwise([*edges, len(all_flows)]))
    at = capture.packets["payload"].to_numpy()[segments["row"]]
    captured = capture.packets["captured"].to_numpy()[segments["row"]].astype(np.int64)
    view = capture.bytes.view
    tls = set()
    for flow, (low, high) in zip(flows.tolist(), bounds, strict=True):
        heads = range(low, min(high, low + _FIRST_SEGMENTS))
        if any(looks_like(view[at[row] : at[row] + min(5, captured[row])]) for row in heads):
            tls.add(flow // 2)
    capture.bytes.release()

    start, end, delivered = (segments[name].to_numpy() for name in ("start", "end", "delivered"))
    units: dict[int, tuple[str, Times, int]] = {}
    for flow, (low, high) in zip(flows.tolist(), bounds, strict=True):
        part = slice(low, high)
        ready = delivered[part]
        if flow // 2 in tls:
            stream = pieces(start[part], end[part], at[part], captured[part])
            found, lost = records(capture.bytes, stream)
            stops = np.array([stop for kind, stop in found if kind == APPLICATION_DATA], np.int64)
            units[flow] = ("record", _read_at(stops, end[part], ready), lost)
        else:
            units[flow] = ("segment", np.sort(ready[~np.isnan(ready)]), 0)
    capture.bytes.release()
    return units


def _read_at(stops: npt.NDArray[np.int64], end: npt.NDArray[np.int64], ready: Times) -> Times:
    """When the bytes up to each stop could be read; stops that were never reached are left out."""
    known = ~np.isnan(ready)
    end, ready = end[known], ready[known]
    by_end = np.argsort(end, kind="stable")
    # In order: what ends later was read later, whatever rounding or overlaps say.
    times = np.append(np.maximum.accumulate(ready[by_end]), math.nan)
    found: Times = times[np.searchsorted(end[by_end], stops)]
    return found[~np.isnan(found)]


def _measured(units: Mapping[int, tuple[str, Times, int]], theta: float) -> pd.DataFrame:
    longest = sorted(units, key=lambda flow: len(units[flow][1]), reverse=True)[:MOST_MEASURED]
    chosen = {flow for flow in longest if len(units[flow][1]) >= LEAST_UNITS}
    unknown = dict.fromkeys(GAPS, math.nan)
    rows = []
    for flow, (unit, times, lost) in units.items():
        measured = metrics(times, theta=theta) if flow in chosen else unknown
        gaps = {name: measured[name] for name in GAPS}
        rows.append({"flow": flow, "unit": unit, "units": len(times), "lost_records": lost} | gaps)
    columns = ["flow", "unit", "units", "lost_records", *GAPS]
    return pd.DataFrame(rows, columns=columns).set_index("flow")
