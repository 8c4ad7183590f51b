"""Answers that state their tokens: Eloquent over UDP, and the testbed's records over TCP.

Finds what `analysis.delivery.deliveries` finds, faster: only datagrams that can be Eloquent, and
connections that can hold records, are looked into. Tests hold the two against each other.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from analysis.delivery import (
    SCHEME_PORTS,
    SERVER_PORTS,
    STREAM_COLUMNS,
    TOKEN_COLUMNS,
    Deliveries,
)
from analysis.pcap.bulk_headers import TCP
from analysis.pcap.eloquent_datagrams import candidates, contents, that_matter
from analysis.pcap.mapped_file import Numbers, gather, number
from analysis.pcap.packet_table import Capture, ends
from analysis.reassembly import END_MARK, MAX_RECORD, TokenOrder
from analysis.record_stream import CERTAIN, RecordStream
from analysis.stalls import THETA, metrics

MEASURES = ("duration", "stall_ratio", "gap_share", "gap_p50", "gap_p95", "gap_p99", "ttft")
"""Columns of `token_flows` from `analysis.stalls`."""


def token_flows(capture: Capture, theta: float = THETA) -> pd.DataFrame:
    """One row per answer. Times in seconds.

    Columns: scheme, stream (id), client, server, datagrams, repeated (tokens that came again),
    tokens, total, complete, sure (as in `delivery.Deliveries.streams`) and `MEASURES`.
    """
    found, copies = read_tokens(capture)
    shown = dict(list(found.tokens.groupby("stream")["rendered_at"]))
    rows = []
    for stream, (datagrams, repeated) in zip(found.streams.to_dict("records"), copies, strict=True):
        asked = stream["requested_at"]
        measured = metrics(
            shown.get(stream["stream"], pd.Series(dtype="float64")),
            theta=theta,
            requested=None if math.isnan(asked) else asked,
        )
        rows.append(
            {
                "scheme": stream["scheme"],
                "stream": stream["id"],
                "client": stream["client"],
                "server": stream["server"],
                "datagrams": datagrams,
                "repeated": repeated,
                "tokens": stream["tokens"],
                "total": stream["total"],
                "complete": stream["complete"],
                "sure": stream["sure"],
                **{name: measured[name] for name in MEASURES},
            }
        )
    columns = ["scheme", "stream", "client", "server", "datagrams", "repeated", "tokens"]
    return pd.DataFrame(rows, columns=[*columns, "total", "complete", "sure", *MEASURES])


def read_tokens(capture: Capture) -> tuple[Deliveries, list[tuple[int, int]]]:
    """The answers, as `deliveries` gives them, and (packets, repeated tokens) of each."""
    found = _eloquent(capture) + _records(capture)
    texts = ends(capture.connections.loc[sorted({answer.connection for answer in found})])
    found.sort(key=lambda answer: answer.row)
    streams, tokens = [], []
    for place, answer in enumerate(found):
        order = answer.order
        client, server = texts.loc[answer.connection, ["client", "server"]]
        if answer.swapped:
            client, server = server, client
        streams.append(
            (
                *(place, answer.scheme, answer.protocol, answer.id or f"{client}-{server}"),
                *(client, server, answer.requested_at),
                *(len(order.rendered_at), order.total, order.reason, order.complete),
                answer.sure,
            )
        )
        tokens += [(place, *row) for row in order.rows()]
    return (
        Deliveries(
            pd.DataFrame(streams, columns=list(STREAM_COLUMNS)).astype(STREAM_COLUMNS),
            pd.DataFrame(tokens, columns=list(TOKEN_COLUMNS)).astype(TOKEN_COLUMNS),
        ),
        [(answer.packets, answer.carried - len(answer.order.received_at)) for answer in found],
    )


class _Answer:
    """One answer while it is read."""

    def __init__(self, row: int, connection: int, protocol: str, scheme: str) -> None:
        self.row, self.connection, self.protocol, self.scheme = row, connection, protocol, scheme
        self.id = ""
        self.sure = CERTAIN
        """Every datagram has a checksum of 32 bits; records tell otherwise."""
        self.swapped = False
        """Whether the capture took the client for the server."""
        self.order = TokenOrder()
        self.requested_at = math.nan
        self.packets = 0
        """Packets with tokens."""
        self.carried = 0
        """Tokens in all of them, copies too."""

    @property
    def has_asked(self) -> bool:
        return not math.isnan(self.requested_at)

    def asked(self, time: float) -> None:
        if not self.has_asked:
            self.requested_at = time


def _eloquent(capture: Capture) -> list[_Answer]:
    found = that_matter(capture, candidates(capture))
    packets, connections = capture.packets, capture.connections
    connection = packets["connection"].to_numpy()
    to_server = packets["to_server"].to_numpy()
    columns: list[Any] = [column.tolist() for column in found]
    columns.append(packets["time"].to_numpy()[found.rows].tolist())
    answers: dict[int, _Answer] = {}
    whole = zip(*columns, contents(capture, found), strict=True)
    for row, stream, from_server, is_data, time, content in whole:
        if content is None:
            continue
        answer = answers.get(stream)
        if answer is None:
            swapped = bool(to_server[row]) == from_server
            port = int(connections["cport" if swapped else "sport"][connection[row]])
            scheme = SCHEME_PORTS.get(("udp", port), f"udp-{port}")
            answer = answers[stream] = _Answer(row, int(connection[row]), "udp", scheme)
            answer.id, answer.swapped = f"{stream:016x}", swapped
        if not from_server:
            answer.asked(time)
        elif is_data:
            first, sizes, end = content
            answer.packets += 1
            answer.carried += len(sizes)
            old = len(answer.order.rendered_at) - first
            answer.order.add(max(first, first + old), sizes[old:] if old > 0 else sizes, time)
            if end:
                answer.order.end(first + len(sizes), end)
    return list(answers.values())


def _records(capture: Capture) -> list[_Answer]:
    """Token records in TCP connections, from server to client."""
    packets = capture.packets
    connection = packets["connection"].to_numpy()
    rows = np.flatnonzero(packets["protocol"].to_numpy() == TCP)
    rows = rows[np.isin(connection[rows], _with_records(capture, rows))]
    rows = rows[np.argsort(connection[rows], kind="stable")]
    starts = np.flatnonzero(np.diff(connection[rows], prepend=-1))
    answers = []
    for part in np.split(rows, starts[1:]) if len(rows) else []:
        answer = _Answer(int(part[0]), int(connection[part[0]]), "tcp", "tcp")
        port = int(capture.connections["sport"][answer.connection])
        stream = _read_records(capture, part, RecordStream(port in SERVER_PORTS))
        answer.sure, answer.packets = stream.sure(), stream.packets
        answer.order, answer.requested_at = stream.records.order, stream.requested_at
        answer.carried = len(answer.order.received_at)
        if answer.sure:
            answers.append(answer)
    return answers


def _with_records(capture: Capture, rows: Numbers) -> Numbers:
    """Connections on a port of the testbed, or whose server's first bytes can start records."""
    packets = capture.packets
    sport = capture.connections["sport"].to_numpy()
    ours = np.flatnonzero((sport >= SERVER_PORTS.start) & (sport < SERVER_PORTS.stop))
    down = rows[
        ~packets["to_server"].to_numpy()[rows] & (packets["captured"].to_numpy()[rows] >= 4)
    ]
    connection = packets["connection"].to_numpy()[down]
    first = np.flatnonzero(~pd.Series(connection).duplicated().to_numpy())
    size = number(gather(capture.bytes.array, packets["payload"].to_numpy()[down[first]], 4), 0, 4)
    return np.union1d(
        ours, connection[first][(size > 0) & (size <= MAX_RECORD) | (size == END_MARK)]
    )


def _read_records(capture: Capture, rows: Numbers, stream: RecordStream) -> RecordStream:
    packets = capture.packets
    columns: list[Any] = [
        packets[name].to_numpy()[rows].tolist()
        for name in ("time", "to_server", "flags", "seq", "ack")
    ]
    whole = zip(*columns, capture.contents(rows), strict=True)
    for time, to_server, flags, seq, ack, (_, content) in whole:
        stream.add(to_server, flags, seq, ack, bytes(content), time)
        if stream.refuted:
            break
    return stream
