"""The command line: tables of the flows in captures, of one end or of both."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from rich.console import Console

from analysis.capture_reader import CaptureError, CaptureNote, CaptureWarning
from analysis.pcap import report
from analysis.pcap.both_ends import BothEnds, both_ends
from analysis.pcap.byte_stream import order
from analysis.pcap.datagram_flows import udp_flows
from analysis.pcap.eloquent_datagrams import eloquent_connections
from analysis.pcap.packet_table import Capture, read
from analysis.pcap.quic_flows import quic_flows
from analysis.pcap.tcp_flows import tcp_flows
from analysis.pcap.token_streams import token_flows
from analysis.stalls import THETA
from terminal import message
from terminal.arguments import Parser
from terminal.console import standard_output
from terminal.text import visible
from topologies.quantities import TIME

_EXAMPLES = """examples:
  python -m analysis pcap client.pcapng                   what happened to each flow
  python -m analysis pcap --json my.pcap.gz | jq '.captures[].tcp[].blocked'
  python -m analysis pcap --theta 0.5 --rows 100 *.pcap
  python -m analysis pcap --both-ends laptop.pcapng server.pcapng
                                                          losses and one-way delays between two

Capture on the receiver with `tcpdump -s 0 -w FILE`; for --both-ends on both hosts, with
segmentation offload off (`ethtool -K IFACE gso off gro off tso off`): packets must look alike.

exit status: 0 all read, 1 a capture is damaged and what is readable was used,
2 nothing usable in one of the arguments
"""


class Flows(NamedTuple):
    """The tables of one capture."""

    tokens: pd.DataFrame
    tcp: pd.DataFrame
    quic: pd.DataFrame
    udp: pd.DataFrame
    """What is neither Eloquent nor QUIC."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = Parser(
        prog="python -m analysis pcap",
        description="What happened to each flow in your own captures (pcap, pcapng, also "
        "gzipped): stalls of Eloquent and token-record streams; retransmissions, reordering, "
        "head-of-line blocking and gaps of TCP and TLS; what QUIC shows without keys; and with "
        "captures from both ends, losses and one-way delays.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("path", nargs="+", type=Path, metavar="FILE", help="capture file")
    parser.add_argument(
        "--both-ends",
        action="store_true",
        help="the two files hold the same flows, captured at both ends",
    )
    parser.add_argument(
        "--theta",
        type=TIME.option(THETA),
        default=THETA,
        metavar="TIME",
        help=f"gap beyond which the reader waits, as 200ms or 0.2 (default {TIME.show(THETA)})",
    )
    parser.add_argument(
        "--rows",
        type=_count,
        default=report.ROWS,
        help="most rows of a table, 0 for all (default %(default)s; --json always has all)",
    )
    parser.add_argument(
        "--quic",
        type=_port,
        action="append",
        default=[],
        metavar="PORT",
        help="take UDP on this port for QUIC, although the capture has no long header of it",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, not tables")
    options = parser.parse_args(arguments)
    if options.both_ends and len(options.path) != 2:
        parser.error(f"--both-ends compares two files: {len(options.path)} given")

    console = standard_output()
    rows = options.rows or sys.maxsize
    status = 0
    output: list[dict[str, Any]] = []
    captures: list[Capture] = []
    for path in options.path:
        try:
            with _warnings_to_stderr() as said:
                capture = read(path)
            status = max(status, 1 if said else 0)
            _need_packets(capture)
            if options.both_ends:
                captures.append(capture)
                continue
            flows = analyse(capture, options.theta, options.quic)
        except CaptureError as error:
            message.error(error)
            status = 2
            continue
        if options.json:
            output.append(_as_json(capture, flows))
        else:
            _show(console, capture, flows, options.theta, rows)
    if len(captures) == 2:
        found = both_ends(*captures)
        if not found.matched:
            message.error(
                f"{captures[0].name} and {captures[1].name} have no packet in common: "
                "another flow, translated addresses, or offload that joined packets"
            )
            status = 2
        elif options.json:
            _print_json({"both_ends": _ends_as_json(captures, found)})
        else:
            names = visible(captures[0].name), visible(captures[1].name)
            console.print(report.ends_table(found, names, rows))
            console.print(report.offset_line(found), soft_wrap=False)
    elif options.json and not options.both_ends:
        _print_json({"captures": output})
    return status


def analyse(capture: Capture, theta: float = THETA, quic_ports: Sequence[int] = ()) -> Flows:
    """All tables of one capture."""
    quic = quic_flows(capture, theta, quic_ports)
    told = (quic["flow"].to_numpy() // 2, eloquent_connections(capture))
    return Flows(
        token_flows(capture, theta),
        tcp_flows(capture, order(capture.packets), theta),
        quic,
        udp_flows(capture, told, theta),
    )


def _need_packets(capture: Capture) -> None:
    if capture.packets.empty:
        counts = capture.counts
        fragments = f", {counts.fragments} of them IP fragments" if counts.fragments else ""
        others = f": {counts.others}" if counts.others else ""
        raise CaptureError(
            f"no TCP or UDP packets found in {capture.name}: {counts.packets} packets{fragments}"
            f"{others}"
        )


def _show(console: Console, capture: Capture, flows: Flows, theta: float, rows: int) -> None:
    counts = capture.counts
    console.print(
        f"{visible(capture.name)}: {counts.packets} packets, {counts.tcp} TCP, {counts.udp} UDP, "
        f"{counts.fragments} IP fragments, {counts.other} other"
        + (f": {counts.others}" if counts.others else ""),
        soft_wrap=False,
    )
    tables = (
        (flows.tokens, report.token_table),
        (flows.tcp, report.tcp_table),
        (flows.quic, report.quic_table),
    )
    for table, make in tables:
        if not table.empty:
            console.print()
            console.print(make(table, theta, rows))
    if all(table.empty for table, _ in tables):
        console.print("No Eloquent, no TCP data and no QUIC in it.")
    if not flows.udp.empty:
        console.print(report.udp_table(flows.udp, theta, rows))


def _as_json(capture: Capture, flows: Flows) -> dict[str, Any]:
    counts = capture.counts
    return {
        "file": capture.name,
        "packets": counts.packets,
        "tcp_packets": counts.tcp,
        "udp_packets": counts.udp,
        "fragments": counts.fragments,
        "other_packets": counts.other,
        "others": counts.others,
        "copies": counts.copies,
        "cut_packets": counts.cut,
        "damaged": capture.damaged,
        "streams": report.to_json(flows.tokens),
        "tcp": report.to_json(flows.tcp),
        "quic": report.to_json(flows.quic),
        "udp": report.to_json(flows.udp),
        "notes": {"tcp": report.TCP_NOTE, "quic": report.QUIC_NOTE},
    }


def _ends_as_json(captures: Sequence[Capture], found: BothEnds) -> dict[str, Any]:
    return {
        "a": captures[0].name,
        "b": captures[1].name,
        "offset": found.offset,
        "symmetric": found.symmetric,
        "matched": found.matched,
        "ambiguous": found.ambiguous,
        "directions": report.to_json(found.directions),
        "note": report.offset_line(found),
    }


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2))


@contextlib.contextmanager
def _warnings_to_stderr() -> Iterator[list[str]]:
    """Print our warnings as one line each; the list tells afterwards what was said."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", CaptureWarning)
        try:
            yield said
        finally:
            for warning in caught:
                if issubclass(warning.category, CaptureNote):
                    message.note(f"note: {warning.message}")
                    continue
                said.append(str(warning.message))
                message.warning(warning.message)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is no port from 1 to 65535")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of rows >= 0")
    return int(text)
