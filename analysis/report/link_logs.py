"""From the links' fate logs to the end of each packet: where it was lost, or when it arrived."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

#: The links that a packet crosses, by who sends it.
ROUTES = {"server": ("server", "access"), "client": ("access", "server")}
_DIRECTIONS = {"server": "down", "client": "up"}
#: Fates after which a frame has left the link and its receiver can read it.
_DELIVERED = ("ok", "copy")
_COLUMNS = ("time", "direction", "size", "fate", "written", "number")


def trace(sent: pd.DataFrame, side: str, logs: Path, name: str) -> pd.DataFrame | None:
    """What the links did to the packets that `side` sent; None if its logs are not of them.

    sent
        time (s) and size (bytes on the wire), in the order of sending.
    logs, name
        The folder, and the beginning of the names of the run's logs.

    One row per packet: `arrived_at` (s, on the clock of `sent`; NaN if it never did), `fate`
    ("arrived", or what the link says: lost, queue, mtu, corrupt and so on) and `link` (which
    ended it; "" if none did).

    A log names no packets. But its frames come in the order in which they were sent, so that the
    n-th frame is the n-th packet; if a single size differs, nothing in the log is believed.
    """
    frames = pd.DataFrame({"packet": range(len(sent)), "size": sent["size"].to_numpy()})
    ends: dict[int, tuple[str, str]] = {}
    clock = math.nan
    for link in ROUTES[side]:
        log = _read(logs / f"{name}-{link}.fates.csv", _DIRECTIONS[side])
        if log is None or frames.empty:
            return None
        entered = log[~log["fate"].isin(("copy", "exempt"))].sort_values("time", kind="stable")
        entered = entered.iloc[: len(frames)]
        if not np.array_equal(entered["size"].to_numpy(), frames["size"].to_numpy()):
            return None
        entered = entered.assign(packet=frames["packet"].to_numpy())
        if math.isnan(clock):
            # The link's clock counts from the boot, the packets' from the first token.
            clock = float(np.median(entered["time"].to_numpy() - sent["time"].to_numpy()))
        packet_of = {
            int(number): int(packet)
            for number, packet in zip(entered["number"], entered["packet"], strict=True)
        }
        ended = entered[~entered["fate"].isin(_DELIVERED)]
        for packet, fate in zip(ended["packet"], ended["fate"], strict=True):
            ends[int(packet)] = (str(fate), link)
        copies = log[(log["fate"] == "copy") & log["number"].isin(list(packet_of))]
        copies = copies.assign(packet=copies["number"].map(packet_of))
        out = pd.concat([entered[entered["fate"].isin(_DELIVERED)], copies])
        frames = out.sort_values("written", kind="stable")
    arrived = frames.groupby("packet")["written"].min() - clock
    return _table(len(sent), arrived, ends)


def _table(count: int, arrived: pd.Series, ends: dict[int, tuple[str, str]]) -> pd.DataFrame:
    times = arrived.reindex(range(count)).to_numpy(dtype=np.float64)
    # A copy may have come through where the packet itself was lost.
    fates: Sequence[tuple[str, str]] = [
        ("arrived", "") if not math.isnan(time) else ends.get(packet, ("lost", ""))
        for packet, time in enumerate(times)
    ]
    return pd.DataFrame(
        {
            "arrived_at": times,
            "fate": [fate for fate, _ in fates],
            "link": [link for _, link in fates],
        }
    )


def _read(path: Path, direction: str) -> pd.DataFrame | None:
    try:
        log = pd.read_csv(path)
    except (OSError, ValueError):  # there is none, or it is no table
        return None
    if not set(_COLUMNS) <= set(log):
        return None
    numbers = log[["time", "size", "written", "number"]].apply(pd.to_numeric, errors="coerce")
    log = log.assign(**{column: numbers[column] for column in numbers})
    # A log that was cut off may end within a line.
    whole = log[["time", "size", "number"]].notna().all(axis=1)
    return log[(log["direction"] == direction) & whole]
