"""From a capture file to its packets: UDP datagrams and TCP segments, one by one or as a table."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd

from analysis.capture_file import (
    CaptureError,
    CaptureNote,
    CaptureWarning,
    Counts,
    Frame,
    frames,
)
from analysis.encapsulation import FRAGMENT, LINK
from analysis.headers import Packet, Skipped, address, parse
from analysis.pcap import segment_table
from analysis.pcap.frame_index import index
from analysis.pcap.mapped_file import MappedFile
from analysis.pcap.segment_table import unknown_link
from eloquent import wire

__all__ = [
    "CaptureError",
    "CaptureNote",
    "CaptureWarning",
    "Counts",
    "Frame",
    "cleaned",
    "frames",
    "host_packets",
    "message",
    "packets",
    "transport",
]

COLUMNS = {
    "time": "float64",
    "protocol": "str",
    "source": "str",
    "sport": "int64",
    "destination": "str",
    "dport": "int64",
    "size": "int64",
    "payload": "int64",
    "kind": "str",
    "stream": "str",
    "from_server": "bool",
    "first": "int64",
    "count": "int64",
    "end": "int64",
    "next": "int64",
    "seq": "int64",
    "ack": "int64",
    "flags": "int64",
}
"""Columns of a table of packets, with their types."""


def transport(path: str | PathLike[str], counts: Counts | None = None) -> Iterator[Packet]:
    """Read the UDP datagrams and TCP segments of a capture, as captured and in file order.

    IP fragments and other protocols are left out and counted. Warns (CaptureWarning) once for
    each unknown link type and, at the end, of payloads that a snap length cut and of a file that
    breaks off. Raises CaptureError as `frames` does.
    """
    counts = Counts() if counts is None else counts
    for frame in frames(path):
        counts.packets += 1
        packet = parse(frame.data, frame.link, frame.time, frame.size)
        if not isinstance(packet, Skipped):
            if packet.protocol == "udp":
                counts.udp += 1
            else:
                counts.tcp += 1
            counts.cut += len(packet.payload) < packet.length
            yield packet
            continue
        if packet.kind == LINK + frame.link and packet.kind not in counts.kinds:
            _warn(unknown_link(str(path), frame.link))
        if packet.kind == FRAGMENT:
            counts.fragments += 1
        else:
            counts.other += 1
            counts.kinds[packet.kind] = counts.kinds.get(packet.kind, 0) + 1
    if counts.cut:
        _warn(
            f"{path}: {counts.cut} packets were captured only in part: "
            "capture with an unlimited snap length (tcpdump -s 0)"
        )


def cleaned(path: str | PathLike[str], counts: Counts | None = None) -> Iterator[Packet]:
    """The same by time, for captures of others: each packet once, and times on one clock.

    What that means is told in docs/pcap.md. Warns as `packet_table.read` does.
    """
    source = MappedFile(path)
    segments = segment_table.read(source, Counts() if counts is None else counts)
    left_out = set(segments.copies.tolist())
    parts = list(index(source))
    if not parts:
        return
    whole = [np.concatenate(column) for column in zip(*parts, strict=True)]
    offset, captured, size, _, link, _ = whole
    for row in np.argsort(segments.time, kind="stable").tolist():
        if row in left_out:
            continue
        first = int(offset[row])
        frame = bytes(source.view[first : first + int(captured[row])])
        packet = parse(frame, int(link[row]), float(segments.time[row]), int(size[row]))
        if not isinstance(packet, Skipped):
            yield packet


def message(packet: Packet) -> wire.Message | None:
    """The Eloquent message in a packet, or None if it holds none (by version and CRC)."""
    if packet.protocol != "udp" or packet.payload[:1] != _VERSION:
        return None
    try:
        return wire.decode(packet.payload)
    except wire.MalformedDatagram:
        return None


def packets(path: str | PathLike[str], counts: Counts | None = None) -> pd.DataFrame:
    """The capture as a table: one row per UDP datagram or TCP segment, in file order.

    Columns (`COLUMNS`): time (s), protocol (udp|tcp), source, sport, destination, dport, size
    (frame bytes), payload (bytes), seq, ack, flags (TCP; -1 else), and for Eloquent datagrams
    kind (data|ack|ping|cancel, "" else), stream (hexadecimal id, "" else), from_server, first,
    count, end (DATA; -1 else), next (ACK and PING; -1 else).
    """
    return _table(transport(path, counts))


def host_packets(
    path: str | PathLike[str],
    *,
    scenario: str,
    scheme: str,
    run: int,
    host: str,
    port: int,
    zero: float = 0.0,
) -> pd.DataFrame:
    """One host's part of the packets table of a results folder (`results.PACKET_COLUMNS`).

    path
        What was captured on `host` ("client" or "server").
    port
        The server's port; other traffic is left out.
    zero
        Capture time of the first token's generation; becomes 0.
    """
    return host_table(
        transport(path), scenario=scenario, scheme=scheme, run=run, host=host, port=port, zero=zero
    )


def host_table(
    source: Iterable[Packet],
    *,
    scenario: str,
    scheme: str,
    run: int,
    host: str,
    port: int,
    zero: float = 0.0,
) -> pd.DataFrame:
    """The same from packets that come from elsewhere, a simulation for example."""
    if host not in ("client", "server"):
        raise CaptureError(f"host is {host!r}: it must be client or server")
    table = _table(p for p in source if port in (p.source[1], p.destination[1]))
    from_server = table["sport"] == port
    sent = from_server if host == "server" else ~from_server
    table["direction"] = sent.map({True: "sent", False: "received"}).astype("str")
    table["time"] -= zero
    for column, value in (("host", host), ("run", run), ("scheme", scheme), ("scenario", scenario)):
        table.insert(0, column, value)
    return table[PACKET_COLUMNS]


PACKET_COLUMNS = [
    *("scenario", "scheme", "run", "host", "time", "direction", "protocol", "size", "payload"),
    *("kind", "first", "count", "end", "seq", "ack"),
]
"""Columns of a results folder's packets table, in order."""

_VERSION = bytes([wire.VERSION])


def _table(source: Iterable[Packet]) -> pd.DataFrame:
    # Column lists, not a dict per row: a million packets stay well under a gigabyte.
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    append = [column.append for column in columns.values()]
    for packet in source:
        for add, value in zip(append, _row(packet), strict=True):
            add(value)
    return pd.DataFrame({name: pd.Series(columns[name], dtype=COLUMNS[name]) for name in COLUMNS})


def _row(packet: Packet) -> tuple[Any, ...]:
    """Values in the order of COLUMNS."""
    kind, stream, from_server, first, count, end, next_index = "", "", False, -1, -1, -1, -1
    content = message(packet)
    if content is not None:
        kind = type(content).__name__.lower()
        stream, from_server = f"{content.stream_id:016x}", content.from_server
        if isinstance(content, wire.Data):
            first, count, end = content.first, len(content.tokens), int(content.end or 0)
        elif isinstance(content, wire.Ack):
            next_index = content.next
            kind = "ping" if content.asks else "ack"
    return (
        *(packet.time, packet.protocol),
        *(address(packet.source[0]), packet.source[1]),
        *(address(packet.destination[0]), packet.destination[1]),
        *(packet.size, packet.length),
        *(kind, stream, from_server, first, count, end, next_index),
        *(packet.seq, packet.ack, packet.flags),
    )


def _warn(text: str) -> None:
    warnings.warn(text, CaptureWarning, stacklevel=3)
