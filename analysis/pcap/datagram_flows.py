"""UDP datagrams as a table of directions: how many, how large, and when they arrived."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd

from analysis.pcap.bulk_headers import UDP
from analysis.pcap.mapped_file import Numbers
from analysis.pcap.packet_table import Capture, ends
from analysis.pcap.tcp_flows import GAPS, LEAST_UNITS, MOST_MEASURED
from analysis.stalls import THETA, metrics


def udp_flows(
    capture: Capture, without: Iterable[Numbers] = (), theta: float = THETA
) -> pd.DataFrame:
    """One row per direction of UDP, most datagrams first. Times in seconds.

    without
        Connections to leave out, because it is known what they are.

    Columns: flow (2 * connection + to_server), client, server, to, datagrams, bytes (UDP
    payload), size_p50, size_max, and `tcp_flows.GAPS`, here between the arrivals of datagrams
    (NaN below `LEAST_UNITS` datagrams, and beyond the `MOST_MEASURED` directions with the most).
    """
    packets = capture.packets
    rows = np.flatnonzero(
        (packets["protocol"].to_numpy() == UDP) & (packets["length"].to_numpy() > 0)
    )
    known = np.concatenate([np.zeros(0, dtype=np.int64), *without])
    rows = rows[~np.isin(packets["connection"].to_numpy()[rows], known)]
    return directions(capture, rows, theta)


def directions(capture: Capture, rows: Numbers, theta: float = THETA) -> pd.DataFrame:
    """The same for the packets in these rows of `Capture.packets`."""
    packets = capture.packets
    flow = 2 * packets["connection"].to_numpy()[rows].astype(np.int64)
    flow += packets["to_server"].to_numpy()[rows]
    size = packets["length"].to_numpy()[rows].astype(np.int64)
    flows, code, count = np.unique(flow, return_inverse=True, return_counts=True)
    begin = np.cumsum(count) - count
    sizes = size[np.lexsort((size, code))]
    table = pd.DataFrame(
        {
            "flow": flows,
            "to": np.where(flows % 2 == 1, "server", "client"),
            "datagrams": count,
            "bytes": np.bincount(code, weights=size, minlength=len(flows)).astype(np.int64),
            "size_p50": (sizes[begin + (count - 1) // 2] + sizes[begin + count // 2]) / 2,
            "size_max": sizes[begin + count - 1],
            **dict.fromkeys(GAPS, math.nan),
        }
    )
    time = packets["time"].to_numpy()[rows][np.argsort(code, kind="stable")]
    most = np.argsort(-count, kind="stable")[:MOST_MEASURED]
    for which in most[count[most] >= LEAST_UNITS].tolist():
        measured = metrics(time[begin[which] : begin[which] + count[which]], theta=theta)
        table.loc[which, list(GAPS)] = [measured[name] for name in GAPS]
    table = table.join(ends(capture.connections), on=table["flow"] // 2)
    return table.sort_values("datagrams", ascending=False, kind="stable", ignore_index=True)
