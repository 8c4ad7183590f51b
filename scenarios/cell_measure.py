"""From the logs and captures of one run of the shared cell to its rows.

Two spans of each run are looked at: the `sharing`, from when all readers have asked until the
overload begins, and the `overload` itself. A token that is not shown when the sharing ends counts
as shown then, so that a wait which has begun counts as far as it has come.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.capture_reader import host_table, message, transport
from analysis.fairness import jain, per_second, restraint, throughput
from analysis.headers import Packet
from analysis.stalls import metrics
from eloquent import wire
from scenarios.cell_network import Timetable
from scenarios.command import TRANSPORTS, Plan
from scenarios.measurement import MeasurementError

_SHOWN = (
    *("stall_ratio", "gap_share", "gap_p50", "gap_p95", "gap_p99", "ttft"),
    *("delay_p50", "delay_p95", "generation_stall_ratio"),
)
#: More than the bottleneck's rate cannot pass it, but for what its queue held at the start.
_TOO_MUCH = 1.05


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


@dataclass(frozen=True)
class Measurement:
    """One row of the summary, and rows of the other tables by their names."""

    row: dict[str, Any]
    tables: dict[str, pd.DataFrame]
    packets: dict[str, pd.DataFrame]


def measure(files: RunFiles, plan: Plan, link: str, cell: dict[str, Any]) -> Measurement:
    """Evaluate one run; `cell` counts the frames on the way down through the bottleneck.

    Raises MeasurementError when an answer is not what the server generated, or more passed the
    bottleneck than it lets through.
    """
    start, end = files.times.measured_from, files.times.measured_to
    at_server = _captured(files, "server")
    flows = [_flow(samples, files.epoch, start, end) for samples in files.samples]
    readers = [_reader(files, one, at_server, plan) for one in files.clients]
    clients = pd.DataFrame([reader["row"] for reader in readers])
    bulk = [flow["rate"] for flow in flows]
    passed = sum(bulk) + float(clients["goodput"].sum())
    rate = 1e6 * plan.knobs["rate"]
    if passed > _TOO_MUCH * rate:
        raise MeasurementError(
            f"{files.kind}, run {files.run}: {passed / 1e6:.2f} Mbit/s passed a bottleneck of "
            f"{rate / 1e6:.2f} Mbit/s"
        )
    keys = {"scenario": plan.scenario.name, "scheme": files.kind, "run": files.run}
    keys["seed"] = files.seed
    fairness = {
        **keys,
        "jain": jain(bulk),
        "bulk_total": sum(bulk),
        **{f"bulk_{n}": value for n, value in enumerate(bulk, 1)},
        "bulk_retransmissions": sum(flow["retransmissions"] for flow in flows),
        "bulk_rtt": float(np.mean([flow["rtt"] for flow in flows])),
        "readers_total": float(clients["goodput"].sum()),
        "utilisation": passed / rate,
        "queue_drops": cell.get("queue", 0),
        "queue_drop_share": cell.get("queue", 0) / max(1, cell["received"]),
        **_overload(clients),
    }
    return Measurement(
        {**keys, **_summary(clients, link, plan)},
        {
            "fairness": pd.DataFrame([fairness]),
            "clients": clients,
            "flows": _samples(files, keys),
            "streams": pd.concat([reader["tokens"] for reader in readers], ignore_index=True),
        },
        {"server": _packets(files, plan, at_server)},
    )


# -- the bulk flows ------------------------------------------------------------------------------


def _flow(
    samples: Sequence[tuple[float, int, int, float]], epoch: float, start: float, end: float
) -> dict[str, float]:
    at, total, again, rtt = (np.array(column) for column in zip(*samples, strict=True))
    at = at - epoch
    inside = (at >= start) & (at <= end)
    return {
        "rate": throughput(at, total, start, end),
        "retransmissions": float(np.diff(np.interp([start, end], at, again))[0]),
        "rtt": float(rtt[inside].mean()) if inside.any() else math.nan,
    }


def _samples(files: RunFiles, keys: dict[str, Any]) -> pd.DataFrame:
    rows = [
        {**keys, "flow": number, "at": at - files.epoch, "acknowledged": total, "rtt": rtt}
        for number, samples in enumerate(files.samples, 1)
        for at, total, _, rtt in samples
    ]
    return pd.DataFrame(rows)


# -- the readers ---------------------------------------------------------------------------------


def _captured(files: RunFiles, host: str) -> list[Packet]:
    """The readers' packets at a host; times are those of the channel."""
    ports = {one.port for one in files.clients}
    zero = files.epoch + files.offsets[host]
    return [
        packet._replace(time=packet.time - zero)
        for packet in transport(files.pcaps[host])
        if packet.source[1] in ports or packet.destination[1] in ports
    ]


def _reader(
    files: RunFiles, one: ClientFiles, at_server: list[Packet], plan: Plan
) -> dict[str, Any]:
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
    here = _captured(files, one.client)
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
        **{name: shown[name] for name in _SHOWN},
        "delay_max": float((tokens["rendered_at"] - tokens["generated_at"]).max()),
        "tokens": len(tokens),
        "tokens_lost": len(tokens) - len(client["n_bytes"]),
        "datagrams": len(sent) + len(spoken),
        "wire_bytes": sum(p.size for p in (*sent, *spoken)),
        "payload_bytes": int(tokens["n_bytes"].sum()),
        "lost_down": len(sent) - len(arrived),
        "lost_up": len(spoken) - len(heard),
        "loss_down": (len(sent) - len(arrived)) / max(1, len(sent)),
        "goodput": 8 * sum(p.size for p in span) / (end - start),
        "sent_rate": per_second([p.time for p in sent], start, end),
        "congestion_control": server["congestion_control"],
    }
    return {"row": row | _held_back(files, one, tokens, sent, heard), "tokens": tokens}


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
    found = restraint(
        [p.time for p in sent], tokens["generated_at"], _answers(heard), start, end
    )
    ours = one.scheme not in TRANSPORTS
    return {
        "overload_rate": found.rate,
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


def _overload(clients: pd.DataFrame) -> dict[str, Any]:
    """Over all readers: the mean of rates, the worst of peaks, nothing without an overload."""
    names = ("overload_rate", "overload_peak", "quiet_peak", "quiet_seconds", "within_bound")
    if "overload_rate" not in clients:
        return dict.fromkeys(("sent_rate", *names), math.nan) | {
            "sent_rate": float(clients["sent_rate"].mean())
        }
    bounded = clients["within_bound"].dropna()
    return {
        "sent_rate": float(clients["sent_rate"].mean()),
        "overload_rate": float(clients["overload_rate"].mean()),
        "overload_peak": float(clients["overload_peak"].max()),
        "quiet_peak": float(clients["quiet_peak"].max()),
        "quiet_seconds": float(clients["quiet_seconds"].max()),
        "within_bound": bool(bounded.all()) if len(bounded) else math.nan,
    }


def _summary(clients: pd.DataFrame, link: str, plan: Plan) -> dict[str, Any]:
    """The readers of one run as one row: means of what each one saw, sums of what can be added."""
    sums = ("tokens", "tokens_lost", "datagrams", "wire_bytes", "payload_bytes")
    row: dict[str, Any] = {name: float(clients[name].mean()) for name in _SHOWN}
    row |= {name: int(clients[name].sum()) for name in sums}
    controls = sorted({str(name) for name in clients["congestion_control"] if name})
    return row | {
        "datagrams_per_token": row["datagrams"] / row["tokens"],
        "bytes_per_token": row["wire_bytes"] / row["tokens"],
        "link": link,
        "engine": plan.network_engine,
        "congestion_control": "+".join(controls),
    }


def _packets(files: RunFiles, plan: Plan, at_server: list[Packet]) -> pd.DataFrame:
    """The readers' packets at the server, for packets.parquet."""
    tables = [
        host_table(
            at_server,
            scenario=plan.scenario.name,
            scheme=files.kind,
            run=files.run,
            host="server",
            port=port,
        )
        for port in sorted({one.port for one in files.clients})
    ]
    return pd.concat(tables, ignore_index=True)
