"""From a capture file to its TCP segments and UDP datagrams: each once, on one clock, by time."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.capture_errors import CaptureNote, CaptureWarning
from analysis.capture_file import Counts, warn_of_damage
from analysis.encapsulation import FRAGMENT, LINK
from analysis.pcap.bulk_headers import TCP, UDP, Headers, mix, parse
from analysis.pcap.clock import Steps, Times, on_one_clock
from analysis.pcap.copies import copies
from analysis.pcap.frame_index import index
from analysis.pcap.mapped_file import MappedFile, Numbers

COLUMNS = {
    "time": "float64",
    "frame": "int32",
    "interface": "int32",
    "size": "int32",
    "protocol": "uint8",
    "ip_id": "int32",
    "payload": "int64",
    "length": "int32",
    "captured": "int32",
    "seq": "int64",
    "ack": "int64",
    "flags": "int16",
    "sport": "uint16",
    "dport": "uint16",
    "version": "uint8",
    "addresses": "int64",
    "source": "uint64",
    "destination": "uint64",
    "header": "uint8",
    "before_ip": "int32",
}
"""Arrays of `Segments.table`, with their types."""


class Segments(NamedTuple):
    """What a capture holds. Arrays of one length each."""

    table: dict[str, Any]
    """One row per segment and datagram, sorted by time: frame (number in the file), the rest as in
    `bulk_headers.Headers` and `frame_index.Index`."""
    time: Times
    """Of every frame, in file order."""
    copies: Numbers
    """Numbers of the frames that are left out as copies."""
    counts: Counts


def read(source: MappedFile, counts: Counts) -> Segments:
    """Read a capture. Warns (CaptureWarning) in one line each of what was left out or changed."""
    parts: list[dict[str, Any]] = []
    times: list[Times] = [np.zeros(0)]
    interfaces: list[Numbers] = [np.zeros(0, dtype=np.int32)]
    for frames in index(source):
        found = parse(source.array, frames)
        source.release()
        parts.append(_columns(found, frames, counts.packets))
        times.append(frames.time)
        interfaces.append(frames.interface.astype(np.int32))
        counts.packets += len(frames.offset)
        for kind, number in found.skipped.items():
            counts.kinds[kind] = counts.kinds.get(kind, 0) + number
    raw = np.concatenate(times)
    time, steps = on_one_clock(raw, np.concatenate(interfaces))
    table = _joined(parts)
    if steps and not _within_connections(table, steps):
        time, steps = raw, None
    table["time"] = time[table["frame"]]
    # Several interfaces or queues write one file: a few packets stand before earlier ones.
    if (np.diff(table["time"]) < 0).any():
        _keep(table, np.argsort(table["time"], kind="stable"))
    again = copies(table, source)
    left_out = table["frame"][again].astype(np.int64)
    if again.any():
        _keep(table, np.flatnonzero(~again))
    counts.copies = len(left_out)
    counts.tcp = int((table["protocol"] == TCP).sum())
    counts.udp = int((table["protocol"] == UDP).sum())
    counts.fragments = counts.kinds.pop(FRAGMENT, 0)
    counts.other = sum(counts.kinds.values())
    counts.cut = int((table["captured"] < table["length"]).sum())
    _tell(source, counts, steps)
    return Segments(table, time, left_out, counts)


def _within_connections(table: dict[str, Any], steps: Steps) -> bool:
    """Whether packets of any connection stand before and after a step.

    If not, files may have been joined, and the order of the parts means nothing.
    """
    ends = table["source"], table["destination"]
    key = mix(np.minimum(*ends)) ^ np.maximum(*ends)
    frames = pd.Series(table["frame"]).groupby(key).agg(["min", "max"]).to_numpy()
    first, last = (np.searchsorted(steps.frames, frames[:, n], "right") for n in (0, 1))
    return bool((first < last).any())


def _columns(found: Headers, frames: Any, before: int) -> dict[str, Any]:
    own = {
        "time": frames.time[found.row],
        "frame": found.row + before,
        "interface": frames.interface[found.row],
        "size": frames.size[found.row],
    }
    return {
        name: (own[name] if name in own else getattr(found, name)).astype(kind)
        for name, kind in COLUMNS.items()
    }


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    table = {}
    for name, kind in COLUMNS.items():
        table[name] = np.concatenate([np.zeros(0, kind), *(part.pop(name) for part in parts)])
    return table


def _keep(table: dict[str, Any], rows: Numbers) -> None:
    for name in table:
        table[name] = table[name][rows]


def _tell(source: MappedFile, counts: Counts, steps: Steps | None) -> None:
    for kind in sorted(kind for kind in counts.kinds if kind >> 16 << 16 == LINK):
        _warn(unknown_link(source.name, kind - LINK))
    if steps:
        _warn(f"{source.name}: {_steps_in_words(steps)}")
    if counts.copies:
        what = "1 packet is" if counts.copies == 1 else f"{counts.copies} packets are"
        _warn(
            f"{source.name}: {what} left out as copies: the capture saw each of them more than "
            "once (several interfaces, or both sides of a mirror port)",
            CaptureNote,
        )
    if counts.cut:
        _warn(
            f"{source.name}: {counts.cut} packets were captured only in part: what needs their "
            "payload leaves them out (capture with tcpdump -s 0)"
        )
    warn_of_damage(source, counts.packets, stacklevel=4)


def unknown_link(name: str, link: int) -> str:
    """One line about packets of a link type that is not understood."""
    return (
        f"{name}: packets of link type {link} are left out: docs/pcap.md lists the link types "
        "that are understood"
    )


def _steps_in_words(steps: Steps) -> str:
    # The pause at a step is not known: it was set back by as much more.
    largest = f"{steps.largest:.6f}".rstrip("0").rstrip(".") + " s"
    if steps.disorder:
        return (
            f"times run back {steps.number} times, by {largest} at most: the packets "
            "are in no order, and were sorted by time"
        )
    if steps.number == 1:
        what = f"the clock was set back after packet {steps.frames[0]}, by {largest} or more"
    else:
        what = (
            f"the clock was set back {steps.number} times, first after packet {steps.frames[0]}, "
            f"most by {largest} or more"
        )
    return f"{what}: packets stay in the order of the file, and later times are moved on"


def _warn(text: str, category: type[CaptureWarning] = CaptureWarning) -> None:
    warnings.warn(text, category, stacklevel=5)
