"""From one run of the shared cell to its rows: the bulk flows, the bottleneck, all readers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.capture_reader import host_table
from analysis.fairness import jain, throughput
from analysis.headers import Packet
from scenarios.cell_reader import HELD_BACK, SHOWN, RunFiles, captured, evaluate
from scenarios.command import Plan
from scenarios.measurement import MeasurementError

#: More than the bottleneck's rate cannot pass it, but for what its queue held at the start.
_TOO_MUCH = 1.05


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
    at_server = captured(files, "server")
    flows = [_flow(samples, files.epoch, start, end) for samples in files.samples]
    readers = [evaluate(files, one, at_server, plan) for one in files.clients]
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


def _overload(clients: pd.DataFrame) -> dict[str, Any]:
    """Over all readers: the mean of rates, the worst of peaks, nothing without an overload."""
    rates = {name: float(clients[name].mean()) for name in ("sent_rate", "sent_bits", "loss_down")}
    if "overload_rate" not in clients:
        return rates | dict.fromkeys(HELD_BACK, math.nan)
    bounded = clients["within_bound"].dropna()
    return rates | {
        "overload_rate": float(clients["overload_rate"].mean()),
        "overload_bits": float(clients["overload_bits"].mean()),
        "overload_peak": float(clients["overload_peak"].max()),
        "quiet_peak": float(clients["quiet_peak"].max()),
        "quiet_seconds": float(clients["quiet_seconds"].max()),
        "within_bound": bool(bounded.all()) if len(bounded) else math.nan,
    }


def _summary(clients: pd.DataFrame, link: str, plan: Plan) -> dict[str, Any]:
    """The readers of one run as one row: means of what each one saw, sums of what can be added."""
    sums = ("tokens", "tokens_lost", "datagrams", "wire_bytes", "payload_bytes")
    row: dict[str, Any] = {name: float(clients[name].mean()) for name in SHOWN}
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
