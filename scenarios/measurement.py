"""From the logs and captures of one run to its tables and its row of the summary."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.capture_reader import host_packets
from analysis.delivery import compare, deliveries
from analysis.stalls import metrics
from apps import stacks

#: The client's log and its capture must agree within this, in seconds a token.
AGREEMENT = 0.002
#: A datagram that comes this close (s) to the closing of the client's socket may be unread.
EDGE = 0.005


class MeasurementError(RuntimeError):
    """The parts of a run contradict each other: the run cannot be believed."""


@dataclass(frozen=True)
class RunFiles:
    """What a run left. ``offset`` is the captures' clock minus ``time.monotonic()``, by host."""

    scenario: str
    scheme: str
    run: int
    seed: int
    port: int
    client_log: Path
    server_log: Path
    pcaps: dict[str, Path]
    offset: dict[str, float]
    server_datagrams: dict[str, int] | None


@dataclass(frozen=True)
class Measurement:
    """The tables of one run. ``agreement`` is None where captures do not show the tokens."""

    row: dict[str, Any]
    tokens: pd.DataFrame
    packets: dict[str, pd.DataFrame]
    agreement: dict[str, float] | None


def measure(files: RunFiles, link: str, engine: str, theta: float) -> Measurement:
    """Evaluate one run.

    Raises MeasurementError when the client did not get exactly what the server generated, or the
    captures do not hold every datagram that the end points sent and received.
    """
    client = json.loads(files.client_log.read_text())
    server = json.loads(files.server_log.read_text())
    _check_answer(files, client, server)
    zero = server["generated_at"][0]
    tokens = _tokens(files, client, server, zero)
    packets = {
        host: host_packets(
            path,
            scenario=files.scenario,
            scheme=files.scheme,
            run=files.run,
            host=host,
            port=files.port,
            zero=zero + files.offset[host],
        )
        for host, path in files.pcaps.items()
    }
    if files.server_datagrams is not None:
        _check_datagrams(files, client, packets, zero)
    agreement = _second_opinion(files, client, zero) if readable(files.scheme) else None
    sent = pd.concat([table[table["direction"] == "sent"] for table in packets.values()])
    shown = metrics(
        tokens["rendered_at"],
        tokens["generated_at"],
        theta=theta,
        requested=client["asked_at"] - zero,
    )
    count = len(tokens)
    row = {
        "scenario": files.scenario,
        "scheme": files.scheme,
        "run": files.run,
        "seed": files.seed,
        **{name: shown[name] for name in _SHOWN},
        "tokens": count,
        "tokens_lost": count - len(client["n_bytes"]),
        "datagrams": len(sent),
        "wire_bytes": int(sent["size"].sum()),
        "payload_bytes": int(tokens["n_bytes"].sum()),
        "datagrams_per_token": len(sent) / count,
        "bytes_per_token": float(sent["size"].sum()) / count,
        "link": link,
        "engine": engine,
        "congestion_control": server["congestion_control"],
        "agree_max": None if agreement is None else agreement["max"],
    }
    return Measurement(row, tokens, packets, agreement)


def readable(scheme: str) -> bool:
    """Whether the analysis finds the tokens of this scheme in a capture: Eloquent's datagrams and
    our records over TCP, but not what HTTP, WebSocket or QUIC wrap them into."""
    return scheme not in stacks.names() or stacks.find(scheme).readable


_SHOWN = (
    *("stall_ratio", "gap_share", "gap_p50", "gap_p95", "gap_p99", "ttft"),
    *("delay_p50", "delay_p95", "generation_stall_ratio"),
)


def _check_answer(files: RunFiles, client: dict[str, Any], server: dict[str, Any]) -> None:
    if client["error"] is not None or client["sha256"] != server["sha256"]:
        raise MeasurementError(
            f"{files.scheme}, run {files.run}: the client showed {len(client['n_bytes'])} tokens, "
            f"the server generated {len(server['n_bytes'])}"
            + (f": {client['error']}" if client["error"] else ", and the texts differ")
        )


def _tokens(
    files: RunFiles, client: dict[str, Any], server: dict[str, Any], zero: float
) -> pd.DataFrame:
    count = len(server["n_bytes"])

    def times(values: list[float]) -> list[float]:
        return [value - zero for value in values] + [math.nan] * (count - len(values))

    return pd.DataFrame(
        {
            "scenario": files.scenario,
            "scheme": files.scheme,
            "run": files.run,
            "index": range(count),
            "n_bytes": server["n_bytes"],
            "generated_at": times(server["generated_at"]),
            "sent_at": times(server["sent_at"]),
            "received_at": times(client["received_at"]),
            "rendered_at": times(client["rendered_at"]),
        }
    )


def _check_datagrams(
    files: RunFiles, client: dict[str, Any], packets: dict[str, pd.DataFrame], zero: float
) -> None:
    """The captures hold exactly the datagrams that the end points say they sent and received."""
    assert files.server_datagrams is not None
    _check_count(files, "server", "sent", packets["server"], files.server_datagrams["sent"])
    _check_count(files, "server", "received", packets["server"], files.server_datagrams["received"])
    _check_count(files, "client", "sent", packets["client"], client["datagrams_sent"])
    # A server that has not got the last ACK goes on for a while after the client has gone.
    closed = client["closed_at"] - zero
    table = packets["client"]
    least, most = (table[table["time"] <= closed + slack] for slack in (-EDGE, EDGE))
    told = client["datagrams_received"]
    if not _seen(least, "received") <= told <= _seen(most, "received"):
        _check_count(files, "client", "received", most, told)


def _seen(packets: pd.DataFrame, direction: str) -> int:
    return int((packets["direction"] == direction).sum())


def _check_count(
    files: RunFiles, host: str, direction: str, packets: pd.DataFrame, told: int
) -> None:
    seen = _seen(packets, direction)
    if seen != told:
        raise MeasurementError(
            f"{files.scheme}, run {files.run}: the {host} {direction} {told} datagrams, its "
            f"capture {files.pcaps[host].name} holds {seen}"
        )


def _second_opinion(files: RunFiles, client: dict[str, Any], zero: float) -> dict[str, float]:
    """Delivery times from the client's capture alone, held against the client's own log."""
    found = deliveries(files.pcaps["client"])
    mine = found.streams[found.streams["server"].str.endswith(f":{files.port}")]
    if len(mine) != 1:
        raise MeasurementError(
            f"{files.scheme}, run {files.run}: {len(mine)} answers in "
            f"{files.pcaps['client'].name}, expected 1"
        )
    pcap = found.tokens[found.tokens["stream"] == mine["stream"].iloc[0]]
    log = pd.DataFrame(
        {"index": range(len(client["rendered_at"])), "rendered_at": client["rendered_at"]}
    )
    result = compare(log, pcap, files.offset["client"], tolerance=AGREEMENT)
    if result["missing"]:
        raise MeasurementError(
            f"{files.scheme}, run {files.run}: {result['missing']:g} tokens are in only one of the "
            "client's log and its capture"
        )
    return result
