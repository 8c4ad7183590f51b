"""Ports that are used again: which segments between them make one connection.

The rules are those of `analysis.connections`. Here numpy finds the few ports where more than one
connection is possible at all; only their segments are looked at one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.connections import LEAP, Ports
from analysis.headers import ACK, RST, SYN
from analysis.pcap.bulk_headers import TCP
from analysis.pcap.mapped_file import Numbers

Mask = npt.NDArray[np.bool_]


def split_reused(pair: Numbers, forward: Mask, table: Mapping[str, Any]) -> Numbers:
    """Numbers of connections, from 0 in order of their first packets.

    pair
        Number of the two ports that each packet goes between.
    forward
        Which way it goes.
    table
        Columns protocol, flags, seq, ack, length, as in `packet_table.PACKET_COLUMNS`.
    """
    rows = np.flatnonzero(table["protocol"] == TCP)
    suspects = _suspects(pair, forward, table, rows)
    if not len(suspects):
        return pair
    rows = rows[np.isin(pair[rows], suspects)]
    ports: defaultdict[int, Ports] = defaultdict(Ports)
    columns = [pair[rows].tolist(), forward[rows].astype(np.int8).tolist()]
    columns += [table[name][rows].tolist() for name in ("flags", "seq", "ack")]
    placed = [ports[which].place(*segment) for which, *segment in zip(*columns, strict=True)]
    epoch = np.zeros(len(pair), dtype=np.int64)
    epoch[rows] = placed
    if not epoch.any():
        return pair
    number, _ = pd.factorize(pair.astype(np.int64) * (int(epoch.max()) + 1) + epoch)
    return np.asarray(number, dtype=np.int64)


def _suspects(pair: Numbers, forward: Mask, table: Mapping[str, Any], rows: Numbers) -> Numbers:
    """The ports whose numbers leap, or that have a SYN elsewhere than at the beginning."""
    flags = table["flags"]
    # A reset's numbers say nothing.
    rows = rows[flags[rows] & RST == 0]
    rows = rows[np.argsort(pair[rows], kind="stable")]
    if not len(rows):
        return rows
    of, way, has = pair[rows], forward[rows], flags[rows]
    seq, ack = table["seq"][rows], table["ack"][rows]
    begins = np.concatenate(([True], np.diff(of) > 0))
    syn = np.flatnonzero((has & SYN > 0) & ~begins)
    # The answer to a SYN is its next packet; data in the SYN may be acknowledged with it.
    before = syn - 1
    answers = begins[before] & (has[before] & (SYN | ACK) == SYN) & (way[before] != way[syn])
    answers &= (has[syn] & ACK > 0) & ((ack[syn] - seq[before] - 1) % 2**32 <= LEAP)
    found = [of[syn[~answers]]]
    by_way = np.argsort(2 * of + way, kind="stable")
    same = (np.diff(of[by_way]) == 0) & (way[by_way][1:] == way[by_way][:-1])
    # The first packet of the second side goes on where the first side says.
    turns = by_way[np.concatenate(([True], ~same))]
    turns = turns[~begins[turns] & (has[turns] & (SYN | ACK) == ACK)]
    leaps = _leaps(ack[turns] - seq[turns - 1])
    leaps |= (has[turns - 1] & ACK > 0) & _leaps(seq[turns] - ack[turns - 1])
    found.append(of[turns[leaps]])
    of, has, seq, ack = (column[by_way] for column in (of, has, seq, ack))
    way = way[by_way]
    found.append(of[1:][same & _leaps(np.diff(seq))])
    acked = has & ACK > 0
    if not acked.all():
        of, way, ack = of[acked], way[acked], ack[acked]
        same = (np.diff(of) == 0) & (way[1:] == way[:-1])
    found.append(of[1:][same & _leaps(np.diff(ack))])
    return np.unique(np.concatenate(found))


def _leaps(distance: Numbers) -> Mask:
    """Whether numbers are further apart than `LEAP`, modulo 2^32."""
    return np.asarray((distance + LEAP) % 2**32 > 2 * LEAP)
