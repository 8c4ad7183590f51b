"""When did each token reach the reader, by what the client's capture shows alone?

Eloquent datagrams (any scheme that speaks the wire format) by token index; token records in TCP
by in-order reassembly. A capture from the server shows when tokens were sent, not delivered.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.capture_reader import Counts, cleaned, message
from analysis.connections import Ports
from analysis.headers import ACK, SYN, Packet, endpoint
from analysis.reassembly import TokenOrder
from analysis.record_stream import CERTAIN, RecordStream
from eloquent import wire

SERVER_PORTS = range(4433, 4440)
"""Ports that servers of the testbed listen on; elsewhere TCP streams must look like records."""

SCHEME_PORTS = {("udp", 4433): "eloquent", ("udp", 4434): "duplicate"}
"""Scheme by protocol and server port; the datagrams of all UDP schemes look alike."""

STREAM_COLUMNS = {
    "stream": "int64",
    "scheme": "str",
    "protocol": "str",
    "id": "str",
    "client": "str",
    "server": "str",
    "requested_at": "float64",
    "tokens": "int64",
    "total": "int64",
    "reason": "int64",
    "complete": "bool",
    "sure": "str",
}
TOKEN_COLUMNS = {
    "stream": "int64",
    "index": "int64",
    "n_bytes": "int64",
    "received_at": "float64",
    "rendered_at": "float64",
}


class Deliveries(NamedTuple):
    """The answers in a capture. Times are the capture's, in seconds."""

    streams: pd.DataFrame
    """One row per stream: stream (number), scheme (a guess from the port), protocol, id (stream
    id, or client-server endpoints), client, server, requested_at (first packet of the client,
    NaN if none), tokens (in order, without a hole), total (as the end states; -1 if no end was
    seen), reason (of the end; 0 if none), complete, sure (`record_stream.CERTAIN`: by checksums or
    by the end record; `record_stream.LIKELY`: all that was captured fits)."""
    tokens: pd.DataFrame
    """One row per token received: stream, index, n_bytes, received_at (first arrival),
    rendered_at (when it and all tokens before it had arrived; NaN if never)."""


def deliveries(path: str | PathLike[str], counts: Counts | None = None) -> Deliveries:
    """All answers in the capture at `path`. Raises and warns as `capture_reader.cleaned` does."""
    udp: dict[int, _Stream] = {}
    ports: defaultdict[Any, Ports] = defaultdict(Ports)
    tcp: dict[Any, _Stream] = {}
    found: list[_Stream] = []
    for packet in cleaned(path, counts):
        if packet.protocol == "tcp":
            ends = min(packet.source, packet.destination), max(packet.source, packet.destination)
            side = int(packet.source == ends[0])
            number = ports[ends].place(side, packet.flags, packet.seq, packet.ack)
            connection = tcp.get((ends, number))
            if connection is None:
                connection = tcp[ends, number] = _connection(packet)
                found.append(connection)
            _add_segment(connection, packet)
        elif (content := message(packet)) is not None:
            stream = udp.get(content.stream_id)
            if stream is None:
                client, server = packet.source, packet.destination
                if content.from_server:
                    client, server = server, client
                stream = udp[content.stream_id] = _Stream("udp", client, server)
                stream.id = f"{content.stream_id:016x}"
                found.append(stream)
            _add_message(stream, content, packet.time)
    return _tables([stream for stream in found if stream.sure()])


def compare(
    log_tokens: pd.DataFrame,
    pcap_tokens: pd.DataFrame,
    offset: float = 0.0,
    column: str = "rendered_at",
    tolerance: float = 0.002,
) -> dict[str, float]:
    """Do the client's log and its capture tell the same story?

    Both tables have `index` and `column`; `offset` is the capture's clock minus the log's.
    Returns `tokens` (compared), `missing` (with a time in only one of the two), `max` and `p99`
    of the absolute difference (s; NaN if nothing was compared) and `beyond` (number of tokens
    that differ by more than `tolerance`).
    """
    log = log_tokens.set_index("index")[column].dropna()
    pcap = pcap_tokens.set_index("index")[column].dropna()
    both = log.index.intersection(pcap.index)
    difference = np.abs(pcap[both].to_numpy() - offset - log[both].to_numpy())
    return {
        "tokens": len(both),
        "missing": len(log) + len(pcap) - 2 * len(both),
        "max": float(difference.max()) if len(both) else math.nan,
        "p99": float(np.percentile(difference, 99)) if len(both) else math.nan,
        "beyond": int(np.count_nonzero(difference > tolerance)),
    }


@dataclasses.dataclass
class _Stream:
    protocol: str
    client: tuple[bytes, int]
    server: tuple[bytes, int]
    id: str = ""
    requested_at: float = math.nan
    order: TokenOrder = dataclasses.field(default_factory=TokenOrder)
    records: RecordStream | None = None

    def asked(self, time: float) -> None:
        if math.isnan(self.requested_at):
            self.requested_at = time

    def sure(self) -> str:
        # Every datagram has a checksum of 32 bits.
        return CERTAIN if self.records is None else self.records.sure()

    @property
    def scheme(self) -> str:
        if self.protocol == "tcp":
            return "tcp"
        return SCHEME_PORTS.get(("udp", self.server[1]), f"udp-{self.server[1]}")


def _add_message(stream: _Stream, content: wire.Message, time: float) -> None:
    if not content.from_server:
        stream.asked(time)
    elif isinstance(content, wire.Data):
        stream.order.add(content.first, map(len, content.tokens), time)
        if content.end is not None:
            stream.order.end(content.first + len(content.tokens), int(content.end))


def _connection(packet: Packet) -> _Stream:
    """A TCP connection whose server may send token records."""
    stream = _Stream("tcp", *_client_and_server(packet))
    stream.id = f"{endpoint(stream.client)}-{endpoint(stream.server)}"
    stream.records = RecordStream(stream.server[1] in SERVER_PORTS)
    stream.order = stream.records.records.order
    return stream


def _add_segment(stream: _Stream, packet: Packet) -> None:
    records = stream.records
    if records is None or records.refuted:
        return
    to_server = packet.source != stream.server
    if to_server:
        stream.asked(packet.time)
    records.add(to_server, packet.flags, packet.seq, packet.ack, packet.payload, packet.time)


def _client_and_server(packet: Packet) -> tuple[tuple[bytes, int], tuple[bytes, int]]:
    if packet.flags & SYN:
        from_server = bool(packet.flags & ACK)
    else:  # joined in the middle: a port of ours, or else the lower one
        ports = packet.source[1], packet.destination[1]
        ours = [port in SERVER_PORTS for port in ports]
        from_server = ours[0] if ours[0] != ours[1] else ports[0] < ports[1]
    if from_server:
        return packet.destination, packet.source
    return packet.source, packet.destination


def _tables(found: list[_Stream]) -> Deliveries:
    streams: list[tuple[Any, ...]] = []
    tokens: list[tuple[Any, ...]] = []
    for number, stream in enumerate(found):
        order = stream.order
        streams.append(
            (
                *(number, stream.scheme, stream.protocol, stream.id),
                *(endpoint(stream.client), endpoint(stream.server), stream.requested_at),
                *(len(order.rendered_at), order.total, order.reason, order.complete),
                stream.sure(),
            )
        )
        tokens.extend((number, *row) for row in order.rows())
    return Deliveries(
        pd.DataFrame(streams, columns=list(STREAM_COLUMNS)).astype(STREAM_COLUMNS),
        pd.DataFrame(tokens, columns=list(TOKEN_COLUMNS)).astype(TOKEN_COLUMNS),
    )
