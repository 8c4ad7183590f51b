"""One TCP direction after the other: which bytes are new, and when each could be read in order.

All directions together by numpy; only from a hole until it is filled, packet by packet.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.headers import ACK, RST, SYN
from analysis.pcap.bulk_headers import TCP
from analysis.pcap.holes import Events, Kind, Walk, through_holes
from analysis.pcap.mapped_file import Numbers

# Room for the sequence numbers of one direction, so that directions can follow each other on one
# axis: 2^43 bytes each, 2^19 directions at one time.
_ROOM = 1 << 43
_AT_ONCE = 1 << 19


class Streams(NamedTuple):
    """What the TCP directions of a capture carried."""

    segments: pd.DataFrame
    """One row per segment with data, by flow and time: row (in `Capture.packets`), flow (2 *
    connection + to_server), time, start, end (bytes of the stream, from its first one seen),
    kind (`Kind`), fresh (bytes not seen before), delivered (when the last of them could be read
    in order; NaN if never, or if it held nothing new)."""
    flows: pd.DataFrame
    """Per flow, as index: blocked (s in which bytes waited), holes (such times), unseen (bytes
    that the receiver acknowledged but the capture has not), open (bytes that still waited)."""
    fronts: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]
    """Per flow with holes: up to which byte, exclusive, all is here, and since when."""


def order(packets: pd.DataFrame) -> Streams:
    """Put the TCP segments of a table of packets (`packet_table.PACKET_COLUMNS`) in order."""
    flags = packets["flags"].to_numpy()
    rows = np.flatnonzero((packets["protocol"].to_numpy() == TCP) & (flags & RST == 0))
    flow = 2 * packets["connection"].to_numpy()[rows].astype(np.int64)
    flow += packets["to_server"].to_numpy()[rows]
    by_flow = np.argsort(flow, kind="stable")
    rows, flow = rows[by_flow], flow[by_flow]
    length = packets["length"].to_numpy()[rows].astype(np.int64)
    syn = flags[rows] & SYN > 0
    first = packets["seq"].to_numpy()[rows] + syn
    if (other := _other_syns(flow, first, syn)) is not None:
        rows, flow, length = rows[~other], flow[~other], length[~other]
        first, syn = first[~other], syn[~other]
    begins = np.concatenate(([True], np.diff(flow) > 0)) if len(flow) else np.zeros(0, np.bool_)
    start = _unwrapped(first, begins)

    data = length > 0
    _begin_after_keep_alive(start, first, begins, data | syn)
    # A keep-alive repeats the last byte, or one before it, on purpose.
    seen = _seen_before(start + length, data, begins)
    data &= ~((length == 1) & (start + 1 == seen))
    end = start + length
    kind = np.where(start > seen, Kind.AHEAD, np.where(end <= seen, Kind.REPEATED, Kind.NEW))
    fresh = np.clip(end - np.maximum(start, seen), 0, None)
    time = packets["time"].to_numpy()[rows]
    table = pd.DataFrame(
        {
            "row": rows[data],
            "flow": flow[data],
            "time": time[data],
            "start": start[data],
            "end": end[data],
            "kind": kind[data].astype(np.int8),
            "fresh": fresh[data],
            "delivered": np.where(fresh > 0, time, np.nan)[data],
        },
        copy=False,
    )
    acks = _Acks(packets, rows, flow, begins, first, start)
    return _with_holes(table, acks)


def _other_syns(
    flow: Numbers, first: Numbers, syn: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_] | None:
    """SYNs with another number than the one that counts, as SYN cookies make (RFC 4987, 3.6)."""
    rows = np.flatnonzero(syn)
    differ = (np.diff(flow[rows]) == 0) & (np.diff(first[rows]) != 0)
    if not differ.any():
        return None
    other = np.zeros(len(flow), dtype=np.bool_)
    for which in np.unique(flow[rows][1:][differ]).tolist():
        low, high = np.searchsorted(flow, (which, which + 1))
        own = low + np.flatnonzero(syn[low:high])
        after = first[low:high][~syn[low:high]][:1]
        # The first segment after them says which one was taken, else it was the last.
        taken = after[0] if np.isin(after, first[own]).any() else first[own[-1]]
        other[own[first[own] != taken]] = True
    return other


def _begin_after_keep_alive(
    start: Numbers, first: Numbers, begins: npt.NDArray[np.bool_], real: npt.NDArray[np.bool_]
) -> None:
    """A capture may begin with a keep-alive without data, which is numbered one too low.

    RFC 9293, section 3.8.4. Changes `start` and `first`, where a flow's first number is meant.
    """
    at = np.flatnonzero(begins)
    some = np.flatnonzero(real)
    following = np.append(some, len(start))[np.searchsorted(some, at)]
    ends = np.append(at[1:], len(start))
    late = (following > at) & (following < ends)
    late[late] = start[following[late]] == 1
    for low, high in zip(at[late].tolist(), ends[late].tolist(), strict=True):
        start[low:high] -= 1
        first[low] += 1


def _unwrapped(number: Numbers, begins: npt.NDArray[np.bool_]) -> Numbers:
    """Sequence numbers beyond 32 bits, from 0 at the beginning of each flow."""
    if not len(number):
        return number
    # The nearest number that is equal modulo 2^32 (RFC 9293, section 3.4).
    step = (np.diff(number, prepend=number[:1]) + 2**31) % 2**32 - 2**31
    step[begins] = 0
    total = np.cumsum(step)
    return np.asarray(total - total[begins][np.cumsum(begins) - 1])


def _seen_before(
    end: Numbers, data: npt.NDArray[np.bool_], begins: npt.NDArray[np.bool_]
) -> Numbers:
    """Up to which byte data was seen before each packet, in its flow."""
    group = np.cumsum(begins) - 1
    seen = np.zeros(len(end), dtype=np.int64)
    # In blocks of flows, so that the axis does not run over.
    edges = np.flatnonzero(begins)[::_AT_ONCE].tolist()
    for low, high in itertools.pairwise([*edges, len(end)]):
        base = (group[low:high] - group[low]) * _ROOM
        highest = np.maximum.accumulate(base + np.where(data, np.maximum(end, 0), 0)[low:high])
        seen[low + 1 : high] = highest[:-1] - base[1:]
    return np.maximum(seen, 0)


class _Acks:
    """What the other direction acknowledged, in bytes of this one."""

    def __init__(
        self,
        packets: pd.DataFrame,
        rows: Numbers,
        flow: Numbers,
        begins: npt.NDArray[np.bool_],
        first: Numbers,
        start: Numbers,
    ) -> None:
        self._rows, self._flow = rows, flow
        self._ack = packets["ack"].to_numpy()
        self._time = packets["time"].to_numpy()
        self._has = packets["flags"].to_numpy() & ACK > 0
        self._base = dict(zip(flow[begins].tolist(), first[begins].tolist(), strict=True))

    def of(self, flow: int) -> tuple[Numbers, Numbers, npt.NDArray[np.float64]]:
        """Rows, acknowledged byte and time, of the packets that acknowledge this flow."""
        low, high = np.searchsorted(self._flow, (flow ^ 1, (flow ^ 1) + 1))
        rows = self._rows[low:high]
        rows = rows[self._has[rows]]
        steps = np.concatenate(([self._base[flow]], self._ack[rows]))
        begins = np.zeros(len(steps), dtype=np.bool_)
        begins[0] = True
        return rows, _unwrapped(steps, begins)[1:], self._time[rows]


def _with_holes(table: pd.DataFrame, acks: _Acks) -> Streams:
    """Correct what the walk through the flows with holes knows better."""
    fronts: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]] = {}
    flows = []
    flow = table["flow"].to_numpy()
    kind, fresh = table["kind"].to_numpy(copy=True), table["fresh"].to_numpy(copy=True)
    delivered = table["delivered"].to_numpy(copy=True)
    start, end, time = (table[name].to_numpy() for name in ("start", "end", "time"))
    row = table["row"].to_numpy()
    for which in np.unique(flow[kind == Kind.AHEAD]).tolist():
        low, high = np.searchsorted(flow, (which, which + 1))
        part = slice(int(low), int(high))
        ack_rows, acked, ack_time = acks.of(which)
        walk = Walk()
        at = np.concatenate((row[part], ack_rows)).argsort(kind="stable")
        events = Events(
            at < high - low,
            np.concatenate((start[part], np.full(len(acked), -1)))[at],
            np.concatenate((end[part], acked))[at],
            np.concatenate((time[part], ack_time))[at],
        )
        front, since = through_holes(events, walk, kind[part], fresh[part])
        fronts[which] = front, since
        place = np.searchsorted(front, end[part])
        ready = np.append(since, math.nan)[place]
        delivered[part] = np.where(fresh[part] > 0, np.maximum(ready, time[part]), np.nan)
        last = float(events.time[-1])
        blocked = walk.blocked + (last - walk.blocked_since if walk.waiting else 0.0)
        waits = sum(e - s for s, e, _ in walk.waiting)
        flows.append((which, blocked, walk.holes, walk.unseen, waits))
    table["kind"], table["fresh"], table["delivered"] = kind, fresh, delivered
    columns = ["flow", "blocked", "holes", "unseen", "open"]
    return Streams(table, pd.DataFrame(flows, columns=columns).set_index("flow"), fronts)
