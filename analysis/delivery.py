"""When did each token reach the reader, by what the client's capture shows alone?

Eloquent datagrams (any scheme that speaks the wire format) by token index; token records in TCP
by in-order reassembly. A capture from the server shows when tokens were sent, not delivered.
"""

from __future__ import annotations

import dataclasses
import math
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.capture_reader import Counts, cleaned, message
from analysis.headers import ACK, SYN, Packet, endpoint
from analysis.reassembly import ByteOrder, Records, TokenOrder
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
    seen), reason (of the end; 0 if none), complete."""
    tokens: pd.DataFrame
    """One row per token received: stream, index, n_bytes, received_at (first arrival),
    rendered_at (when it and all tokens before it had arrived; NaN if never)."""


def deliveries(path: str | PathLike[str], counts: Counts | None = None) -> Deliveries:
    """All answers in the capture at `path`. Raises and warns as `capture_reader.cleaned` does."""
    udp: dict[int, _Stream] = {}
    tcp: dict[tuple[Any, Any], _Connection] = {}
    found: list[_Stream] = []
    for packet in cleaned(path, counts):
        if packet.protocol == "tcp":
            low, high = sorted((packet.source, packet.destination))
            connection = tcp.get((low, high))
            if connection is None or connection.reused_by(packet):
                connection = tcp[low, high] = _Connection(packet)
                found.append(connection.stream)
            connection.add(packet)
        elif (content := message(packet)) is not None:
            stream = udp.get(content.stream_id)
            if stream is None:
                ends = packet.source, packet.destination
                client, server = reversed(ends) if content.from_server else ends
                stream = udp[content.stream_id] = _Stream("udp", client, server)
                stream.id = f"{content.stream_id:016x}"
                found.append(stream)
            _add_message(stream, content, packet.time)
    return _tables([stream for stream in found if stream.is_answer()])


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
    records: Records | None = None

    def asked(self, time: float) -> None:
        if math.isnan(self.requested_at):
            self.requested_at = time

    def is_answer(self) -> bool:
        if self.records is None:
            return True
        shown = len(self.order.rendered_at)
        if self.server[1] in SERVER_PORTS:
            return shown > 0 or not self.records.broken
        # On foreign ports, one plausible length may be chance.
        return not self.records.broken and (shown > 1 or self.order.complete)

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


class _Connection:
    """A TCP connection whose server sends token records."""

    def __init__(self, packet: Packet) -> None:
        # The client's initial sequence number, where the handshake was captured.
        syn = packet.flags & (SYN | ACK)
        self._isn = {SYN: packet.seq, SYN | ACK: packet.ack - 1}.get(syn)
        self.stream = _Stream("tcp", *_client_and_server(packet))
        self.stream.id = f"{endpoint(self.stream.client)}-{endpoint(self.stream.server)}"
        self.stream.records = self._records = Records()
        self.stream.order = self._records.order
        self._bytes: ByteOrder | None = None

    def reused_by(self, packet: Packet) -> bool:
        """Whether a SYN opens another connection between the same two ports."""
        return packet.flags & (SYN | ACK) == SYN and packet.seq != self._isn

    def add(self, packet: Packet) -> None:
        if packet.source != self.stream.server:
            self.stream.asked(packet.time)
            if self._bytes is None and packet.flags & ACK:
                # The server's SYN was not captured; the client says what it expects next.
                self._bytes = ByteOrder(packet.ack)
            return
        if self._records.broken:
            return
        first = packet.seq + 1 if packet.flags & SYN else packet.seq
        if self._bytes is None:
            self._bytes = ByteOrder(first)
        self._records.add(self._bytes.add(first, packet.payload, packet.time), packet.time)


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
            )
        )
        tokens.extend((number, *row) for row in order.rows())
    return Deliveries(
        pd.DataFrame(streams, columns=list(STREAM_COLUMNS)).astype(STREAM_COLUMNS),
        pd.DataFrame(tokens, columns=list(TOKEN_COLUMNS)).astype(TOKEN_COLUMNS),
    )
