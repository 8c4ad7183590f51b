"""Packets that a capture holds more than once: `-i any`, mirror ports, tunnels seen on both levels.

The rule is told in docs/pcap.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.pcap.bulk_headers import TCP, Hashes, mix
from analysis.pcap.frame_index import CHUNK
from analysis.pcap.mapped_file import Bytes, MappedFile, Numbers, gather

SOON = 0.01
"""Seconds within which a copy follows at the same place. A sender repeats later, mostly."""

ELSEWHERE = 1.0
"""Seconds within which a packet with an IP id is seen at another place: queues lie between."""

Mask = npt.NDArray[np.bool_]

_SAMPLE = 32
_HEADER = 48
_TAGGED = 26
"""Bytes before IP that are Ethernet with tags, or a cooked header; more are tunnels, whose
headers change from packet to packet."""


def copies(table: dict[str, Any], source: MappedFile) -> Mask:
    """Which rows of a table of packets, sorted by time, are copies of earlier ones."""
    drop = np.zeros(len(table["time"]), dtype=np.bool_)
    rows = _alike(_header_key(table, slice(None)), np.arange(len(drop)))
    if not len(rows):
        return drop
    key = _header_key(table, rows) ^ _content_key(table, rows, source)
    alike = _alike(key, rows)
    if not len(alike):
        return drop
    key = key[np.searchsorted(rows, alike)]
    by_key = np.argsort(key, kind="stable")
    rows, key = alike[by_key], key[by_key]
    point = _points(table, rows, source)
    run = _runs(table["time"][rows], key, point, table["ip_id"][rows] > 0)
    rank = _ranks(run, point)
    rank //= _times_seen(table, rows, run, point)
    again = pd.DataFrame({"run": run, "rank": rank}).duplicated().to_numpy()
    drop[rows[again]] = True
    return drop


def _alike(key: Hashes, rows: Numbers) -> Numbers:
    several: Mask = pd.Series(key).duplicated(keep=False).to_numpy()
    return rows[several]


def _header_key(table: dict[str, Any], rows: Any) -> Hashes:
    """One number for all that headers say and that no router changes."""
    key: Hashes = mix(table["source"][rows]) ^ table["destination"][rows]
    small = table["length"][rows].astype(np.int64) << 32
    small |= (table["ip_id"][rows].astype(np.int64) + 1) << 12
    small |= table["flags"][rows].astype(np.int64) + 1
    words = (table["seq"][rows] + 1 << 32 | table["ack"][rows] + 1, small)
    for word in words:
        key = mix(key) ^ word.view(np.uint64)
    return key


def _content_key(table: dict[str, Any], rows: Numbers, source: MappedFile) -> Hashes:
    """The rest of TCP's header but its checksum, which the sender's card may fill in later; and
    the payload's first and last bytes."""
    captured, length = table["captured"], table["length"]
    cut = captured[captured < length]
    limit = int(cut.min()) if len(cut) else 1 << 30
    parts = []
    for first in range(0, len(rows), CHUNK):
        some = rows[first : first + CHUNK]
        at, size = table["payload"][some], np.minimum(captured[some], limit).astype(np.int64)
        key = _hashed(_masked(source.array, at, size, _SAMPLE))
        key = mix(key) ^ _hashed(
            _masked(source.array, at + np.maximum(size - _SAMPLE, 0), size, _SAMPLE)
        )
        tcp = np.flatnonzero(table["protocol"][some] == TCP)
        header = table["header"][some[tcp]].astype(np.int64)
        block = _masked(source.array, at[tcp] - header + 14, header - 14, _HEADER)
        block[:, 2:4] = 0
        key[tcp] = mix(key[tcp]) ^ _hashed(block)
        parts.append(key)
        source.release()
    return mix(np.concatenate(parts))


def _masked(array: Bytes, at: Numbers, size: Numbers, most: int) -> Bytes:
    """So many bytes from each position, zero beyond `size`."""
    block = gather(array, at, most)
    block[np.arange(most) >= size[:, np.newaxis]] = 0
    return block


def _hashed(block: Bytes) -> Hashes:
    words = block.view(np.uint64)
    key = words[:, 0].copy()
    for column in range(1, words.shape[1]):
        key = mix(key) ^ words[:, column]
    return key


def _points(table: dict[str, Any], rows: Numbers, source: MappedFile) -> Hashes:
    """Where each packet was seen: interface, addresses and tags of the link, hops still to go."""
    parts = []
    for first in range(0, len(rows), CHUNK):
        some = rows[first : first + CHUNK]
        four = table["version"][some] == 4
        ip = table["addresses"][some] - np.where(four, 12, 8)
        hops = gather(source.array, ip + np.where(four, 8, 7), 1)[:, 0].astype(np.uint64)
        before = table["before_ip"][some].astype(np.int64)
        size = np.where(before <= _TAGGED, before, 6)
        key = _hashed(_masked(source.array, ip - before, size, _SAMPLE))
        small = table["interface"][some].astype(np.uint64) << np.uint64(32)
        small |= before.astype(np.uint64) << np.uint64(8) | hops
        parts.append(mix(mix(key) ^ small))
        source.release()
    return np.concatenate(parts)


def _runs(time: Any, key: Hashes, point: Hashes, has_id: Mask) -> Numbers:
    """Number equal packets that follow each other soon enough."""
    gap = np.diff(time)
    soon = np.where(has_id[1:] & (np.diff(point) != 0), gap <= ELSEWHERE, gap <= SOON)
    new = (np.diff(key) != 0) | ~soon
    return np.cumsum(np.concatenate(([True], new)))


def _ranks(run: Numbers, point: Hashes) -> Numbers:
    """How many times each was seen before in its run, at its point."""
    seen = pd.DataFrame({"run": run, "point": point}).groupby(["run", "point"]).cumcount()
    ranks: Numbers = seen.to_numpy(dtype=np.int64, copy=True)
    return ranks


def _times_seen(table: dict[str, Any], rows: Numbers, run: Numbers, point: Hashes) -> Numbers:
    """How often a point saw each packet: 1, unless it saw at least half of them several times.

    A network repeats few packets, a capture nearly all. Where an IP id does not tell a packet from
    what the sender said twice, this must hold both ways.
    """
    there = mix(table["source"]) ^ table["destination"]
    back = mix(table["destination"][rows]) ^ table["source"][rows]
    way = pd.Series(there[rows])
    groups = pd.DataFrame({"run": run, "point": point, "way": way})
    groups = groups.groupby(["way", "run", "point"], sort=False).size()
    several = groups[groups > 1]
    if several.empty:
        return np.ones(len(rows), dtype=np.int64)
    by_way = several.groupby("way")
    number, twice = by_way.size(), by_way.sum()
    total = pd.Series(there).value_counts().reindex(number.index)
    mostly = by_way.median().astype(np.int64)[number >= total - twice]
    own = way.map(mostly).fillna(1).to_numpy(dtype=np.int64)
    other = pd.Series(back).map(mostly).fillna(1).to_numpy(dtype=np.int64)
    return np.where((table["ip_id"][rows] > 0) | (other > 1), own, 1)
