"""The same packets in two captures, one from each end."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.pcap.bulk_headers import mix
from analysis.pcap.mapped_file import Numbers
from analysis.pcap.packet_table import Capture

Hashes = npt.NDArray[np.uint64]


def matched(a: Capture, b: Capture) -> pd.DataFrame:
    """Which packet of `a` is which packet of `b`, by addresses, ports, length, IP id and content.

    For TCP also by sequence number, acknowledgement and flags. Copies that all this does not tell
    apart are matched in order of time: the first with the first.

    One row per packet of either: direction (number of the flow's direction, the same for both),
    row_a, row_b (-1 where the other has it only), time_a, time_b (s, NaN likewise), alike
    (whether copies make the pair uncertain).
    """
    # A snap length that cut one file cuts the comparison of both.
    limit = min(_shortest_cut(a), _shortest_cut(b))
    names, tables = _directions(a, b), []
    for capture, direction in zip((a, b), names, strict=True):
        key = _keys(capture, direction, limit)
        table = pd.DataFrame({"key": key, "direction": direction})
        table["copy"] = table.groupby("key").cumcount()
        table["row"] = np.arange(len(table))
        table["time"] = capture.packets["time"].to_numpy()
        tables.append(table)
    both = tables[0].merge(
        tables[1], on=["key", "copy", "direction"], how="outer", suffixes=("_a", "_b")
    )
    numbers = [table["key"].value_counts() for table in tables]
    uneven = numbers[0].sub(numbers[1], fill_value=0)
    uneven = uneven[uneven != 0].index
    several = numbers[0].add(numbers[1], fill_value=0)
    both["alike"] = both["key"].isin(uneven.intersection(several[several > 2].index))
    for name in ("row_a", "row_b"):
        both[name] = both[name].fillna(-1).astype(np.int64)
    return both[["direction", "row_a", "row_b", "time_a", "time_b", "alike"]]


def direction_names(a: Capture, b: Capture) -> pd.DataFrame:
    """Per number of a direction, as index: protocol, source, destination, host and port each."""
    tables = [_named(capture)[0] for capture in (a, b)]
    return pd.concat(tables).drop_duplicates(ignore_index=True)


def _named(capture: Capture) -> tuple[pd.DataFrame, Numbers]:
    """The directions of a capture, and for each packet which of them it belongs to."""
    flow = 2 * capture.packets["connection"].to_numpy().astype(np.int64)
    flow += capture.packets["to_server"].to_numpy()
    forward = capture.connections.rename(
        columns={"client": "source", "cport": "from", "server": "destination", "sport": "to"}
    )
    backward = capture.connections.rename(
        columns={"server": "source", "sport": "from", "client": "destination", "cport": "to"}
    )
    columns = ["protocol", "source", "from", "destination", "to"]
    both = pd.concat((backward[columns], forward[columns]))
    # Row 2 * connection is the way to the client, the next one that to the server.
    table = both.set_index(
        pd.Index(np.concatenate((2 * backward.index, 2 * forward.index + 1)))
    ).sort_index()
    return table, flow


def _directions(a: Capture, b: Capture) -> list[Numbers]:
    """Numbers for the directions that mean the same in both captures, per packet."""
    names = direction_names(a, b)
    names = names.reset_index(names="number")
    found = []
    for capture in (a, b):
        table, flow = _named(capture)
        numbers = table.merge(names, how="left")["number"].to_numpy()
        found.append(numbers[flow] if len(flow) else flow)
    return found


def _shortest_cut(capture: Capture) -> int:
    captured, length = (capture.packets[name].to_numpy() for name in ("captured", "length"))
    cut = captured[captured < length]
    return int(cut.min()) if len(cut) else 1 << 30


def _keys(capture: Capture, direction: Numbers, limit: int) -> Hashes:
    packets = capture.packets
    content = np.fromiter(
        (
            zlib.crc32(payload if len(payload) <= limit else payload[:limit])
            for _, payload in capture.contents(np.arange(len(packets)))
        ),
        dtype=np.uint64,
        count=len(packets),
    )
    key = content
    for column in (
        direction,
        *(packets[name] for name in ("ip_id", "length", "seq", "ack", "flags")),
    ):
        key = mix(key) ^ np.asarray(column).astype(np.int64).view(np.uint64)
    return mix(key)
