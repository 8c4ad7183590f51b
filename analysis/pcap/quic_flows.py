"""QUIC without keys: counts, sizes and gaps of datagrams, as packet headers show them.

What stays hidden: packet numbers, so losses and reordering; streams, so tokens; acknowledgements.
Of several QUIC packets in one datagram, only the first one's header is looked at.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.pcap.bulk_headers import UDP
from analysis.pcap.datagram_flows import directions
from analysis.pcap.mapped_file import Numbers, gather, number
from analysis.pcap.packet_table import Capture
from analysis.pcap.quic_versions import NEGOTIATION, V2, Heads, heads, quic_connections
from analysis.stalls import THETA

KINDS = ("initial", "zero_rtt", "handshake", "retry", "negotiation", "short")
"""Packet types of RFC 9000, section 17, that headers tell apart."""

_STUN_COOKIE = 0x2112A442

Mask = npt.NDArray[np.bool_]


def quic_flows(capture: Capture, theta: float = THETA, ports: Collection[int] = ()) -> pd.DataFrame:
    """One row per direction of each QUIC connection, most datagrams first. Times in seconds.

    UDP ports count as QUIC as `quic_versions.quic_connections` says, or if one is in `ports`.

    Columns: those of `datagram_flows.udp_flows`, version ("v1", "gQUIC Q050", "" if unknown)
    and `KINDS`.
    """
    packets = capture.packets
    rows = np.flatnonzero(
        (packets["protocol"].to_numpy() == UDP) & (packets["captured"].to_numpy() >= 5)
    )
    found = heads(capture, rows)
    names = quic_connections(capture, found, ports)
    connection = packets["connection"].to_numpy()[rows]
    mine = np.isin(connection, np.array(list(names), dtype=np.int64))
    rows, connection = rows[mine], connection[mine]
    found = Heads(rows, found.first[mine], found.version[mine], found.known[mine])
    table = directions(capture, rows, theta)
    table["version"] = (table["flow"] // 2).map(names).astype("object")
    known = np.array([which for which, name in names.items() if name], dtype=np.int64)
    kind = _kinds(capture, found, np.isin(connection, known))
    flow = 2 * connection.astype(np.int64) + packets["to_server"].to_numpy()[rows]
    order = pd.Index(table["flow"]).get_indexer(flow)
    for which, name in enumerate(KINDS):
        table[name] = np.bincount(order[kind == which], minlength=len(table))
    return table


def _kinds(capture: Capture, found: Heads, certain: Mask) -> Numbers:
    """Index into KINDS of each datagram's first packet; -1 for none of them.

    `certain` says whose version is known: only there a packet may be without the fixed bit
    (RFC 9287), if it is not of another protocol on the same port (RFC 9443).
    """
    bits = (found.first >> 4 & 3).astype(np.int64)
    # Version 2 numbers the types anew: Retry is 0, Initial 1, and so on (RFC 9369, section 3.2).
    bits = np.where(found.version == V2, (bits + 3) % 4, bits)
    kind = np.where(found.known, bits, -1)
    long = found.first & 0x80 > 0
    kind[long & (found.version == NEGOTIATION)] = KINDS.index("negotiation")
    fixed = found.first & 0x40 > 0
    kind[~long & fixed] = KINDS.index("short")
    bare = np.flatnonzero(~long & ~fixed & certain)
    if len(bare):
        packets = capture.packets
        rows = found.rows[bare]
        whole = packets["captured"].to_numpy()[rows] >= 8
        block = gather(capture.bytes.array, packets["payload"].to_numpy()[rows], 8)
        capture.bytes.release()
        stun = whole & (found.first[bare] < 4) & (number(block, 4, 4) == _STUN_COOKIE)
        types = (found.first[bare] >= 20) & (found.first[bare] < 64)
        dtls = types & np.isin(number(block, 1, 2), (0xFEFF, 0xFEFD))
        kind[bare[~stun & ~dtls]] = KINDS.index("short")
    return kind
