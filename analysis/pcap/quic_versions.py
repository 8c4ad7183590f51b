"""Which UDP ports speak QUIC: only a long header of a known version says so (RFC 8999).

A short header is one bit and noise; OpenVPN, TURN and chance set that bit, too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.pcap.mapped_file import Numbers, gather, number
from analysis.pcap.packet_table import Capture

NEGOTIATION, V2 = 0, 0x6B3343CF
_GOOGLE = {0x51303436: "Q046", 0x51303530: "Q050", 0x54303530: "T050", 0x54303531: "T051"}
_Q046 = 0x51303436
_DRAFTS = range(0xFF000016, 0xFF000023)
"""22, the first with this header, to 34, which became version 1."""
_MVFST = range(0xFACEB001, 0xFACEB010)
"""Facebook's names for drafts."""

_LONGEST_ID = 20
_LEAST_ID = 4
"""Of a connection id that is recognised elsewhere: a shorter one may be chance."""
_LOOKED_AT = 4
"""So many datagrams of each connection are looked at where every one tells the same."""

Mask = npt.NDArray[np.bool_]


class Heads(NamedTuple):
    """The beginnings of UDP datagrams."""

    rows: Numbers
    """In `Capture.packets`."""
    first: npt.NDArray[np.uint8]
    version: Numbers
    """What stands where a long header has its version."""
    known: Mask
    """Whether it is a long header, and the version is one that exists; the fixed bit may be
    greased (RFC 9287)."""


def version_name(version: int) -> str:
    """How a version of QUIC is called."""
    names = {NEGOTIATION: "negotiation", 1: "v1", V2: "v2"}
    if version in _GOOGLE:
        return f"gQUIC {_GOOGLE[version]}"
    if version in _DRAFTS:
        return f"draft-{version & 0xFF}"
    return "mvfst" if version in _MVFST else names.get(version, "")


def heads(capture: Capture, rows: Numbers) -> Heads:
    """Look at the datagrams in these rows, which have at least 5 captured bytes."""
    block = gather(capture.bytes.array, capture.packets["payload"].to_numpy()[rows], 5)
    capture.bytes.release()
    version = number(block, 1, 4)
    exists = np.isin(version, (1, V2, *_GOOGLE))
    for names in (_DRAFTS, _MVFST):
        exists |= (version >= names.start) & (version < names.stop)
    return Heads(rows, block[:, 0], version, (block[:, 0] & 0x80 > 0) & exists)


def quic_connections(capture: Capture, found: Heads, ports: Collection[int] = ()) -> dict[int, str]:
    """The connections that speak QUIC, and the name of the version ("" if it is not known).

    Those with a long header of a known version, or a version negotiation, by its whole form;
    those whose client has the same connection id as one of these at the same server, as after a
    change of the NAT's mapping (RFC 9000, section 9.3); and those on one of `ports`.
    """
    connections = capture.connections
    of = capture.packets["connection"].to_numpy()[found.rows]
    version: dict[int, int] = {}
    place, source, size = _ids(capture, found, of)
    # The last one counts: a version may be negotiated while it is spoken (RFC 9368).
    version.update(zip(of[place].tolist(), found.version[place].tolist(), strict=True))
    for connection in _negotiated(capture, found, of):
        version.setdefault(connection, NEGOTIATION)
    names = {connection: version_name(number) for connection, number in version.items()}
    for connection, origin in _moved(capture, found, of, names, (place, source, size)).items():
        names[connection] = names[origin]
    is_udp = (connections["protocol"] == "udp").to_numpy()
    asked = connections["sport"].isin(ports) | connections["cport"].isin(ports)
    for connection in np.flatnonzero(is_udp & asked.to_numpy()).tolist():
        names.setdefault(connection, "")
    return names


def _ids(capture: Capture, found: Heads, of: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Places in `found` whose long header is well formed; where their source id stands, its size.

    A first flight has the fixed bit, and ids have 20 bytes at most (RFC 9000, section 17.2).
    """
    packets = capture.packets
    place = np.flatnonzero(found.known & (found.first & 0x40 > 0))
    rows = found.rows[place]
    payload = packets["payload"].to_numpy()[rows]
    captured, length = (packets[name].to_numpy()[rows] for name in ("captured", "length"))
    array = capture.bytes.array
    ids = number(gather(array, payload + 5, 1), 0, 1)
    # Q046 has both sizes in one byte, each less by 3 unless it is 0.
    is_old = found.version[place] == _Q046
    halves = [np.where(half > 0, half + 3, 0) for half in (ids >> 4, ids & 15)]
    to = np.where(is_old, halves[0], ids)
    at = payload + 6 + to + ~is_old
    inside = captured > 6 + to
    size = number(gather(array, np.where(inside, at - 1, payload), 1), 0, 1)
    size = np.where(is_old, halves[1], np.where(inside, size, 0))
    capture.bytes.release()
    good = (captured > 5) & (to <= _LONGEST_ID) & (size <= _LONGEST_ID)
    good &= 6 + to + ~is_old + size <= length
    return place[good], at[good], size[good]


def _negotiated(capture: Capture, found: Heads, of: Numbers) -> list[int]:
    """Connections with a version negotiation that offers a version that exists, or grease."""
    place = np.flatnonzero((found.first & 0x80 > 0) & (found.version == NEGOTIATION))
    place = place[_early(of[place])]
    result = set()
    contents = capture.contents(found.rows[place])
    for connection, (_, content) in zip(of[place].tolist(), contents, strict=True):
        data, at = bytes(content), 5
        for _ in range(2):
            at += 1 + data[at] if at < len(data) else 1
        offers = {int.from_bytes(data[i : i + 4], "big") for i in range(at, len(data), 4)}
        whole = at < len(data) and (len(data) - at) % 4 == 0
        # RFC 9000, section 15: versions of the form 0x?a?a?a?a are reserved.
        if whole and any(version_name(x) or x & 0x0F0F0F0F == 0x0A0A0A0A for x in offers - {0}):
            result.add(connection)
    return sorted(result)


def _moved(
    capture: Capture,
    found: Heads,
    of: Numbers,
    names: dict[int, str],
    ids: tuple[Numbers, Numbers, Numbers],
) -> dict[int, int]:
    """Connections whose first datagrams name a connection id of another: which one that is."""
    packets, connections = capture.packets, capture.connections
    if not names:
        return {}
    server = pd.factorize(connections["server"])[0] * 65536 + connections["sport"].to_numpy()
    to_server = packets["to_server"].to_numpy()[found.rows]
    quic = np.zeros(len(connections), dtype=np.bool_)
    quic[list(names)] = True
    short = np.flatnonzero(~quic[of] & to_server & (found.first & 0x80 == 0))
    short = short[np.isin(server[of[short]], server[quic])]
    short = short[_early(of[short])]
    if not len(short):
        return {}
    place, source, size = ids
    # The id that the server has chosen is what its client writes.
    mine = ~to_server[place] & (size >= _LEAST_ID)
    place, source, size = place[mine], source[mine], size[mine]
    some = _early(of[place])
    place, source, size = place[some], source[some], size[some]
    array, payload = capture.bytes.array, packets["payload"].to_numpy()[found.rows[short]]
    captured = packets["captured"].to_numpy()[found.rows[short]]
    moved: dict[int, int] = {}
    for length in np.unique(size).tolist():
        own = size == length
        known: dict[Any, int] = {}
        for text, connection in zip(
            _texts(gather(array, source[own], length)), of[place[own]].tolist(), strict=True
        ):
            known[text, int(server[connection])] = connection
        rows = captured > length
        for text, connection in zip(
            _texts(gather(array, payload[rows] + 1, length)), of[short[rows]].tolist(), strict=True
        ):
            origin = known.get((text, int(server[connection])))
            if origin is not None:
                moved[connection] = origin
    capture.bytes.release()
    return moved


def _texts(block: npt.NDArray[np.uint8]) -> list[bytes]:
    return [row.tobytes() for row in block]


def _early(connection: Numbers) -> Mask:
    """Which of these are the first few of their connection."""
    order: Mask = (pd.Series(connection).groupby(connection).cumcount() < _LOOKED_AT).to_numpy()
    return order
