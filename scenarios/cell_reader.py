"""What one reader of the shared cell met: from its logs, its capture and the server's.

Two spans of each run are looked at: the sharing, from when all readers have asked until the
overload begins, and the overload itself. A token that is not shown when the sharing ends counts
as shown then, so that a wait which has begun counts as far as it has come.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.capture_reader import message, transport
from analysis.fairness import per_second, restraint
from analysis.headers import Packet
from analysis.stalls import metrics
from eloquent import wire
from scenarios.cell_network import Timetable
from scenarios.command import TRANSPORTS, Plan
from scenarios.measurement import MeasurementError

SHOWN = (
    *("stall_ratio", "gap_share", "gap_p50", "gap_p95", "gap_p99", "ttft"),
    *("delay_p50", "delay_p95", "generation_stall_ratio"),
)
HELD_BACK = (
    *("overload_rate", "overload_bits", "overload_peak"),
    *("quiet_peak", "quiet_seconds", "within_bound"),
)
"""Columns that there are only with an overload."""


@dataclass
class ClientFiles:
    """One reader of a run; the server's log is known when its answer is done."""

    client: str
    scheme: str
    address: str
    port: int
    client_log: Path
    server_log: Path | None = None


@dataclass(frozen=True)
class RunFiles:
    """What a run left. `samples` are those of apps.bulk; `epoch` is channel time 0."""

    kind: str
    run: int
    seed: int
    epoch: float
    times: Timetable
    clients: list[ClientFiles]
    samples: list[list[tuple[float, int, int, float]]]
    pcaps: dict[str, Path]
    offsets: dict[str, float]


def captured(files: RunFiles, host: str) -> list[Packet]:
    """The readers' packets at a host; times are those of the channel."""
    ports = {one.port for one in files.clients}
    zero = files.epoch + files.offsets[host]
    return [
        packet._replace(time=packet.time - zero)
        for packet in transport(files.pcaps[host])
        if packet.source[1] in ports or packet.destination[1] in ports
    ]


def evaluate(
    files: RunFiles, one: ClientFiles, at_server: list[Packet], plan: Plan
) -> dict[str, Any]:
    """Its row and its tokens. Raises MeasurementError if it did not get what was generated."""
    assert one.server_log is not None
    client = json.loads(one.client_log.read_text())
    server = json.loads(one.server_log.read_text())
    if client["error"] is not None or client["sha256"] != server["sha256"]:
        raise MeasurementError(
            f"{one.client} ({one.scheme}), run {files.run}: it showed {len(client['n_bytes'])} "
            f"tokens, the server generated {len(server['n_bytes'])}"
            + (f": {client['error']}" if client["error"] else ", and the texts differ")
        )
    start, end = files.times.measured_from, files.times.measured_to
    tokens = _tokens(files, one, client, server, plan)
    early = tokens[tokens["generated_at"] < end]
    shown = metrics(
        early["rendered_at"].clip(upper=end),
        early["generated_at"],
        theta=plan.scenario.theta,
        requested=client["asked_at"] - files.epoch,
    )
    packed = ip_address(one.address).packed
    sent = [p for p in at_server if p.destination[0] == packed]
    heard = [p for p in at_server if p.source[0] == packed]
    here = captured(files, one.client)
    arrived = [p for p in here if p.destination[0] == packed]
    spoken = [p for p in here if p.source[0] == packed]
    span = [p for p in arrived if start <= p.time < end]
    row: dict[str, Any] = {
        "scenario": plan.scenario.name,
        "scheme": files.kind,
        "run": files.run,
        "seed": files.seed,
        "client": one.client,
        "speaks": one.scheme,
        **{name: shown[name] for name in SHOWN},
        "delay_max": float((tokens["rendered_at"] - tokens["generated_at"]).max()),
        "tokens": len(tokens),
        "tokens_lost": len(tokens) - len(client["n_bytes"]),
        "datagrams": len(sent) + len(spoken),
        "wire_bytes": sum(p.size for p in (*sent, *spoken)),
        "payload_bytes": int(tokens["n_bytes"].sum()),
        "sent_down": len(sent),
        "lost_down": len(sent) - len(arrived),
        "lost_up": len(spoken) - len(heard),
        "loss_down": _loss(sent, arrived, start, end),
        "goodput": 8 * sum(p.size for p in span) / (end - start),
        "sent_rate": per_second([p.time for p in sent], start, end),
        "sent_bits": _bits(sent, start, end),
        "congestion_control": server["congestion_control"],
    }
    return {"row": row | _held_back(files, one, tokens, sent, heard), "tokens": tokens}


def _bits(packets: Sequence[Packet], start: float, end: float) -> float:
    """Bits per second on the wire."""
    return 8 * sum(p.size for p in packets if start <= p.time < end) / (end - start)


def _loss(sent: list[Packet], arrived: list[Packet], start: float, end: float) -> float:
    """Share of what was sent between two moments that never arrived.

    Of equal packets (copies, or a segment that was sent again) the first ones count as lost.
    """
    missing = Counter(map(_content, sent)) - Counter(map(_content, arrived))
    lost = count = 0
    for packet in sent:
        content = _content(packet)
        gone = missing[content] > 0
        missing[content] -= gone
        if start <= packet.time < end:
            lost, count = lost + gone, count + 1
    return lost / count if count else math.nan


def _content(packet: Packet) -> tuple[int, int, bytes]:
    return packet.seq, packet.flags, packet.payload


def _tokens(
    files: RunFiles, one: ClientFiles, client: dict[str, Any], server: dict[str, Any], plan: Plan
) -> pd.DataFrame:
    count = len(server["n_bytes"])

    def times(values: list[float]) -> list[float]:
        return [value - files.epoch for value in values] + [math.nan] * (count - len(values))

    return pd.DataFrame(
        {
            "scenario": plan.scenario.name,
            "scheme": files.kind,
            "run": files.run,
            "client": one.client,
            "speaks": one.scheme,
            "index": range(count),
            "n_bytes": server["n_bytes"],
            "generated_at": times(server["generated_at"]),
            "sent_at": times(server["sent_at"]),
            "rendered_at": times(client["rendered_at"]),
        }
    )


def _held_back(
    files: RunFiles,
    one: ClientFiles,
    tokens: pd.DataFrame,
    sent: list[Packet],
    heard: list[Packet],
) -> dict[str, Any]:
    """The sender during the overload; whether it keeps its bound, where the protocol has one."""
    if files.times.overload is None:
        return {}
    start, end = files.times.overload
    found = restraint([p.time for p in sent], tokens["generated_at"], _answers(heard), start, end)
    ours = one.scheme not in TRANSPORTS
    return {
        "overload_rate": found.rate,
        "overload_bits": _bits(sent, start, end),
        "overload_peak": found.peak,
        "quiet_peak": found.quiet_peak if ours else math.nan,
        "quiet_seconds": found.quiet_seconds if ours else math.nan,
        "within_bound": found.within if ours else None,
    }


def _answers(heard: list[Packet]) -> list[float]:
    """When something came that acknowledges tokens or echoes a stamp for the first time."""
    times: list[float] = []
    last: tuple[Any, ...] | None = None
    for packet in heard:
        content = message(packet)
        if isinstance(content, wire.Ack):
            news = (content.next, content.ranges, content.echo)
            if news != last:
                times.append(packet.time)
            last = news
    return times
