"""From a capture file to a table of its TCP segments and UDP datagrams, and one of its flows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd

from analysis.capture_file import Counts
from analysis.delivery import SERVER_PORTS
from analysis.headers import ACK, SYN, address
from analysis.pcap import segment_table
from analysis.pcap.bulk_headers import TCP, Hashes, mix
from analysis.pcap.frame_index import CHUNK
from analysis.pcap.mapped_file import MappedFile, Numbers
from analysis.pcap.port_reuse import split_reused

_EPHEMERAL = 32768
"""Linux takes the ports of clients from here on."""

PACKET_COLUMNS = {
    "time": "float64",
    "size": "int32",
    "protocol": "uint8",
    "ip_id": "int32",
    "payload": "int64",
    "length": "int32",
    "captured": "int32",
    "seq": "int64",
    "ack": "int64",
    "flags": "int16",
    "connection": "int32",
    "to_server": "bool",
}
"""Columns of `Capture.packets`, with their types."""


@dataclasses.dataclass
class Capture:
    """A capture read in bulk."""

    name: str
    packets: pd.DataFrame
    """One row per TCP segment and UDP datagram, by time (`PACKET_COLUMNS`): time (s), size (frame
    bytes), protocol (6, 17), ip_id (-1 in IPv6), payload (position in the file), length (payload
    bytes), captured (those in the file), seq, ack, flags (TCP; -1 else), connection (row of
    `connections`), to_server."""
    connections: pd.DataFrame
    """One row per TCP connection or pair of UDP ports: protocol (tcp, udp), client, cport, server,
    sport. Who is the server is told by the TCP handshake, else by a port of the testbed, else by
    the lower port (UDP: if only that one is below those of clients), else by who spoke first."""
    counts: Counts
    bytes: MappedFile
    damaged: bool
    """Whether the file breaks off, or holds bytes that are no packets."""

    def contents(self, rows: Numbers) -> Iterator[tuple[int, memoryview]]:
        """Row and captured payload of the packets in these rows of `packets`."""
        at = self.packets["payload"].to_numpy()
        size = self.packets["captured"].to_numpy()
        view = self.bytes.view
        for first in range(0, len(rows), CHUNK):
            some = rows[first : first + CHUNK]
            starts, ends = at[some].tolist(), (at[some] + size[some]).tolist()
            for row, start, end in zip(some.tolist(), starts, ends, strict=True):
                yield row, view[start:end]
            self.bytes.release()


def read(path: str | PathLike[str]) -> Capture:
    """Read a capture: pcap or pcapng, also gzipped; a file that breaks off as far as it goes.

    Copies that the capture made are left out, and times are on one clock. Warns (CaptureWarning)
    in one line each of what was left out or changed. Raises CaptureError if the file is
    missing, empty, no capture, or without capture times.
    """
    source = MappedFile(path)
    segments = segment_table.read(source, Counts())
    table = segments.table
    connections = _connect(table, source)
    packets = pd.DataFrame(
        {name: table[name].astype(kind, copy=False) for name, kind in PACKET_COLUMNS.items()},
        copy=False,
    )
    return Capture(source.name, packets, connections, segments.counts, source, bool(source.damage))


def _connect(table: dict[str, Any], source: MappedFile) -> pd.DataFrame:
    """Number the connections, add `connection` and `to_server` to the table, name the ends."""
    ends: tuple[Hashes, Hashes] = (table.pop("source"), table.pop("destination"))
    key = mix(np.minimum(*ends) + table["protocol"]) ^ np.maximum(*ends)
    pair, _ = pd.factorize(key)
    number = split_reused(pair, ends[0] < ends[1], table)
    table["connection"] = number
    first = np.flatnonzero(~pd.Series(number).duplicated().to_numpy())
    from_server = _from_server(table, first, number, pair, ends[0])
    # The side of a packet: whether it goes the same way as its connection's first packet.
    along = ends[0] == ends[0][first][number] if len(number) else np.zeros(0, dtype=np.bool_)
    table["to_server"] = along ^ from_server[number]
    rows = []
    for row, server_first in zip(first.tolist(), from_server.tolist(), strict=True):
        at, size = int(table["addresses"][row]), 4 if table["version"][row] == 4 else 16
        both = [
            (address(bytes(source.view[at + i * size : at + (i + 1) * size])), port)
            for i, port in enumerate((int(table["sport"][row]), int(table["dport"][row])))
        ]
        client, server = reversed(both) if server_first else both
        rows.append(("tcp" if table["protocol"][row] == TCP else "udp", *client, *server))
    return pd.DataFrame(rows, columns=["protocol", "client", "cport", "server", "sport"])


def _from_server(
    table: dict[str, Any], first: Numbers, number: Numbers, pair: Numbers, source: Hashes
) -> Any:
    """Whether the first packet of each connection comes from its server."""
    sport, dport = table["sport"][first].astype(int), table["dport"][first].astype(int)
    ours = [(port >= SERVER_PORTS.start) & (port < SERVER_PORTS.stop) for port in (sport, dport)]
    # UDP has no handshake: where the ports do not tell, the client has spoken first.
    telling = (table["protocol"][first] == TCP) | ((sport < _EPHEMERAL) != (dport < _EPHEMERAL))
    result = np.where(ours[0] != ours[1], ours[0], telling & (sport < dport))
    # A SYN tells for sure, also that of another connection between the same ports.
    syn = np.flatnonzero((table["protocol"] == TCP) & (table["flags"] & SYN > 0))
    for group in (pair, number):
        which, place = np.unique(group[syn], return_index=True)
        at = np.searchsorted(which, group[first])
        known = at < len(which)
        known[known] = which[at[known]] == group[first][known]
        opening = syn[place[at[known]]]
        same = source[opening] == source[first[known]]
        result[known] = same == (table["flags"][opening] & ACK > 0)
    return result


def ends(connections: pd.DataFrame) -> pd.DataFrame:
    """Client and server of each connection as text: 10.0.0.1:4433 or [fd00::1]:4433."""
    return pd.DataFrame(
        {
            name: [
                f"[{host}]:{number}" if ":" in host else f"{host}:{number}"
                for host, number in zip(connections[name], connections[port], strict=True)
            ]
            for name, port in (("client", "cport"), ("server", "sport"))
        },
        dtype="object",
    )
