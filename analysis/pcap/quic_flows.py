"""QUIC without keys: counts, sizes and gaps of datagrams, as packet headers show them.

What stays hidden: packet numbers, so losses and reordering; streams, so tokens; acknowledgements.
Of several QUIC packets in one datagram, only the first one's header is looked at.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.pcap.bulk_headers import UDP
from analysis.pcap.mapped_file import gather, number
from analysis.pcap.packet_table import Capture, ends
from analysis.pcap.tcp_flows import GAPS, LEAST_UNITS
from analysis.stalls import THETA, metrics
from eloquent import wire

KINDS = ("initial", "zero_rtt", "handshake", "retry", "negotiation", "short")
"""Packet types of RFC 9000, section 17, that headers tell apart."""

_V1, _V2 = 1, 0x6B3343CF
_LEAST = 21
"""Bytes of the smallest packet that a peer answers: RFC 9000, section 10.3.3."""

Mask = npt.NDArray[np.bool_]


def quic_flows(capture: Capture, theta: float = THETA) -> pd.DataFrame:
    """One row per direction of each QUIC connection, most datagrams first. Times in seconds.

    UDP ports count as QUIC if a datagram between them starts with a long header of a known
    version (RFC 9000, RFC 9369, drafts), or if the server's port is 443 and all that was captured
    has the fixed bit set (joined in the middle).

    Columns: flow (2 * connection + to_server), client, server, to, datagrams, bytes (UDP
    payload), `KINDS`, size_p50, size_max, and `tcp_flows.GAPS`, here between the arrivals of
    datagrams (NaN below `LEAST_UNITS` datagrams).
    """
    packets = capture.packets
    rows = np.flatnonzero(
        (packets["protocol"].to_numpy() == UDP) & (packets["captured"].to_numpy() >= 5)
    )
    connection = packets["connection"].to_numpy()[rows]
    block = gather(capture.bytes.array, packets["payload"].to_numpy()[rows], 5)
    capture.bytes.release()
    first, version = block[:, 0], number(block, 1, 4)
    known = _known(first, version)
    mine = np.isin(connection, _quic(capture, rows, connection, first, known))
    rows, connection, first = rows[mine], connection[mine], first[mine]
    version, known = version[mine], known[mine]
    flow = 2 * connection.astype(np.int64) + packets["to_server"].to_numpy()[rows]
    kind = _kinds(first, version, known)
    time, size = packets["time"].to_numpy()[rows], packets["length"].to_numpy()[rows]
    by_flow = np.argsort(flow, kind="stable")
    flows, edges = np.unique(flow[by_flow], return_index=True)
    found = []
    for which, part in zip(flows.tolist(), np.split(by_flow, edges[1:]), strict=False):
        measured = metrics(time[part], theta=theta) if len(part) >= LEAST_UNITS else {}
        found.append(
            {
                "flow": which,
                "to": "server" if which % 2 else "client",
                "datagrams": len(part),
                "bytes": int(size[part].sum()),
                **{name: int((kind[part] == i).sum()) for i, name in enumerate(KINDS)},
                "size_p50": float(np.median(size[part])),
                "size_max": int(size[part].max()),
                **{name: measured.get(name, np.nan) for name in GAPS},
            }
        )
    columns = ["flow", "to", "datagrams", "bytes", *KINDS, "size_p50", "size_max", *GAPS]
    table = pd.DataFrame(found, columns=columns)
    table = table.join(ends(capture.connections), on=table["flow"] // 2)
    return table.sort_values("datagrams", ascending=False, kind="stable", ignore_index=True)


def _known(first: npt.NDArray[np.uint8], version: npt.NDArray[np.int64]) -> Mask:
    """Whether a datagram starts with a long header of a version that exists."""
    draft = (version >> 8 == 0xFF0000) & (version & 0xFF > 0)
    exists = (version == _V1) | (version == _V2) | draft
    return (first & 0x80 > 0) & np.where(version == 0, False, exists & (first & 0x40 > 0))


def _quic(
    capture: Capture,
    rows: npt.NDArray[np.int64],
    connection: npt.NDArray[np.int32],
    first: npt.NDArray[np.uint8],
    known: Mask,
) -> npt.NDArray[np.int64]:
    """The connections that speak QUIC."""
    sure = np.unique(connection[known])
    total = len(capture.connections)
    seen = np.bincount(connection, minlength=total)
    length = capture.packets["length"].to_numpy()[rows]
    # Eloquent's own datagrams have the fixed bit too.
    like = (first & 0x40 > 0) & (first != wire.VERSION) & (length >= _LEAST)
    likely = np.bincount(connection[like], minlength=total)
    web = capture.connections["sport"].to_numpy() == 443
    return np.union1d(sure, np.flatnonzero((seen > 0) & (likely == seen) & web))


def _kinds(
    first: npt.NDArray[np.uint8], version: npt.NDArray[np.int64], known: Mask
) -> npt.NDArray[np.int64]:
    """Index into KINDS of each datagram's first packet; -1 for none of them."""
    bits = (first >> 4 & 3).astype(np.int64)
    # Version 2 numbers the types anew: Retry is 0, Initial 1, and so on (RFC 9369, section 3.2).
    bits = np.where(version == _V2, (bits + 3) % 4, bits)
    kind = np.where(known, bits, -1)
    long = first & 0x80 > 0
    kind[long & (version == 0)] = KINDS.index("negotiation")
    kind[~long & (first & 0x40 > 0)] = KINDS.index("short")
    return kind
