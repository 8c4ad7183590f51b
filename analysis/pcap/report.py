"""What was found in captures, as tables for the terminal and as JSON."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table

from analysis.pcap.both_ends import BothEnds
from analysis.tables import NONE, sure_scheme, unsure_note

ROWS = 20
"""Rows of a table in the terminal, unless asked for more."""

TOKEN_NOTE = "times in ms; repeated: tokens that came again in later packets"
TCP_NOTE = (
    "times in ms. One unit (TLS record of application data, else segment) stands for one token: "
    "a proxy, as tokens are not visible. Times are when bytes could be read in order, if the "
    "capture is from the receiver. resent: filled a hole later than 3 ms, reordered: sooner. "
    "blocked: time in which bytes waited for an earlier hole. not captured: bytes that were "
    "acknowledged but are not in the file"
)
QUIC_NOTE = (
    "times in ms. Without keys only headers, sizes and arrivals are visible: no packet numbers, "
    "so no losses; no streams, so no tokens. Gaps are between datagrams, acknowledgements included"
)
UDP_NOTE = (
    "times in ms, gaps between datagrams. QUIC is told by a long header of a known version: a "
    "capture that began later has none, and --quic PORT says what it is"
)
ENDS_NOTE = "delays in ms, up to the clock offset; lost: sent, and not seen at the other end"


def token_table(flows: pd.DataFrame, theta: float, rows: int = ROWS) -> Table:
    """Eloquent streams and token records."""
    table = _table(
        "Token streams",
        TOKEN_NOTE + unsure_note(flows["sure"].tolist()),
        len(flows),
        rows,
        "scheme",
        "stream",
        "client",
        "server",
    )
    _right(
        table, "tokens", "complete", "packets", "repeated", "length", *_gap_headers(theta), "TTFT"
    )
    for row in flows.head(rows).to_dict("records"):
        table.add_row(
            *(sure_scheme(row), row["stream"], row["client"], row["server"], str(row["tokens"])),
            *("yes" if row["complete"] else "no", str(row["datagrams"]), str(row["repeated"])),
            *(_ms(row["duration"]), *_gap_cells(row), _ms(row["ttft"])),
        )
    return table


def tcp_table(flows: pd.DataFrame, theta: float, rows: int = ROWS) -> Table:
    """TCP and TLS directions."""
    table = _table("TCP and TLS", TCP_NOTE, len(flows), rows, "", "client", "server", "to")
    _right(table, "segments", "bytes", "repeated", "resent", "reordered", "not\ncaptured")
    _right(table, "blocked", "waited\nP50/P95/max", "units", *_gap_headers(theta))
    for row in flows.head(rows).to_dict("records"):
        names = ("segments", "bytes", "repeated", "resent", "reordered", "unseen")
        table.add_row(
            *(row["protocol"], row["client"], row["server"], row["to"]),
            *(str(row[name]) for name in names),
            *(_ms(row["blocked"]), _join(row, "wait_p50", "wait_p95", "wait_max")),
            *(f"{row['units']} {row['unit']}s", *_gap_cells(row)),
        )
    return table


def quic_table(flows: pd.DataFrame, theta: float, rows: int = ROWS) -> Table:
    """QUIC directions."""
    table = _table("QUIC", QUIC_NOTE, len(flows), rows, "client", "server", "to")
    _right(
        table, "datagrams", "bytes", "initial", "0-RTT", "hand-\nshake", "retry", "version\nneg."
    )
    _right(table, "short", "size\nP50/max", *_gap_headers(theta), "version")
    for row in flows.head(rows).to_dict("records"):
        names = ("datagrams", "bytes", "initial", "zero_rtt", "handshake", "retry", "negotiation")
        table.add_row(
            *(row["client"], row["server"], row["to"]),
            *(str(row[name]) for name in (*names, "short")),
            *(f"{row['size_p50']:.0f}/{row['size_max']}", *_gap_cells(row), row["version"] or "?"),
        )
    return table


def udp_table(flows: pd.DataFrame, theta: float, rows: int = ROWS) -> Table:
    """UDP directions of other protocols."""
    table = _table("Other UDP", UDP_NOTE, len(flows), rows, "client", "server", "to")
    _right(table, "datagrams", "bytes", "size\nP50/max", *_gap_headers(theta))
    for row in flows.head(rows).to_dict("records"):
        table.add_row(
            *(row["client"], row["server"], row["to"], str(row["datagrams"]), str(row["bytes"])),
            *(f"{row['size_p50']:.0f}/{row['size_max']}", *_gap_cells(row)),
        )
    return table


def ends_table(found: BothEnds, names: tuple[str, str], rows: int = ROWS) -> Table:
    """Losses and delays between two captures."""
    title = f"A: {names[0]}, B: {names[1]}"
    table = _table(title, ENDS_NOTE, len(found.directions), rows, "way", "", "from", "to")
    _right(table, "sent", "lost", "lost\n%", "runs", "run\nmean/max", "outside", "new")
    _right(table, "delay P50/P95/P99", "least", "most")
    for row in found.directions.head(rows).to_dict("records"):
        share = row["lost"] / row["sent"] if row["sent"] else math.nan
        run = f"{row['run_mean']:.1f}/{row['run_max']}" if row["runs"] else NONE
        table.add_row(
            *(row["way"], row["protocol"], row["source"] or "all", row["destination"] or "all"),
            *(str(row["sent"]), str(row["lost"]), _plain(100 * share, ".1f"), str(row["runs"])),
            *(run, str(row["outside"]), str(row["new"])),
            *("/".join(_ms(row[f"delay_{p}"], ".1f") for p in ("p50", "p95", "p99")),),
            *(_ms(row["delay_min"], ".1f"), _ms(row["delay_max"], ".1f")),
        )
    return table


def offset_line(found: BothEnds) -> str:
    """How the clocks were aligned, in a sentence."""
    if math.isnan(found.offset):
        return "Clocks: no packet was matched, so there is no offset."
    line = f"Clocks: B is {1000 * found.offset:+.3f} ms against A, "
    if found.symmetric:
        line += (
            "if the fastest packets took equally long both ways; otherwise half the difference "
            "moves delays from one way to the other."
        )
    else:
        line += (
            "if the fastest packet took no time (all packets went one way): delays are above it."
        )
    if found.ambiguous:
        line += f" {found.ambiguous} packets have exact copies and are left out of the delays."
    return line


def to_json(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table; null where a number is not known."""
    return [
        {name: _known(value) for name, value in row.items() if name != "flow"}
        for row in table.to_dict("records")
    ]


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _table(title: str, note: str, total: int, rows: int, *left: str) -> Table:
    if total > rows:
        note = f"the first {rows} of {total} rows (--rows shows more, --json all); {note}"
    table = Table(
        title=title,
        title_justify="left",
        caption=note,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for header in left:
        table.add_column(header, overflow="fold")
    return table


def _right(table: Table, *headers: str) -> None:
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)


def _gap_headers(theta: float) -> tuple[str, str, str]:
    return "stall %", f"gaps >\n{1000 * theta:g} ms, %", "gap P50/P95/P99"


def _gap_cells(row: dict[str, Any]) -> tuple[str, str, str]:
    stalled, wide = (_plain(100 * row[name], ".1f") for name in ("stall_ratio", "gap_share"))
    return stalled, wide, _join(row, "gap_p50", "gap_p95", "gap_p99")


def _join(row: dict[str, Any], *names: str) -> str:
    return NONE if math.isnan(row[names[0]]) else "/".join(_ms(row[name]) for name in names)


def _ms(seconds: float, form: str = ".0f") -> str:
    return _plain(1000 * seconds, form)


def _plain(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else NONE
