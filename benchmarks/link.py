"""What the link back ends are worth on this machine: sudo python benchmarks/link.py

Two hosts, one link, no switch. UDP datagrams of 100 bytes measure the delay that a back end adds
to the 20 ms it was told, and the most packets/s that arrive whole and in time; a TCP stream over
1 ms measures the bulk rate. A plain veth pair, with the offloads off as in the testbed, is what
this kernel and these Python programs can do at all. It also runs in the guest, where the kernel
has netem: python -m topologies.guest --time real -- .venv/bin/python benchmarks/link.py
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

try:
    from benchmarks.two_hosts import ADDRESSES, BACKENDS, Host, answer, joined, ready
    from terminal import message, program
    from terminal.arguments import Parser
    from terminal.console import standard_output
    from terminal.table import Table
    from topologies import sandbox
    from topologies.links import Link, LinkError
    from topologies.netem import netem_available
    from topologies.quantities import TIME
    from topologies.tap import TapError
except ModuleNotFoundError as missing:
    sys.exit(f"error: {missing}; run setup.sh, then use the Python in .venv/bin")

DELAY = 0.020
BULK_DELAY = 0.001
RATES = (1000, 20_000)
"""Packets/s at which the delay is measured."""
LOWEST, HIGHEST = 5000, 1_000_000
STEP = 1.5
BISECTIONS = 4
LONGEST = 40.0
"""Seconds after which no new rate of a back end is tried: a slow machine takes long to count."""
TRIES = 2
"""Of each rate: a busy moment of the machine is not its limit."""
QUEUEING = 0.005
"""A median delay that much too long means that frames wait for a link that cannot keep up."""

_PORT, _QUIET = 4999, 0.5
_TRAFFIC = ("-m", "topologies.doctor.traffic")
_PACED = (*_TRAFFIC, "flood")  # each datagram bears its own time
_FAST = ("-m", "benchmarks.burst")
_BULK = """
import json, socket, sys, time
from terminal.arguments import Parser
address, seconds = (sys.argv[2], 5001), float(sys.argv[3])
total, began = 0, None
if sys.argv[1] == "serve":
    with socket.create_server(address) as listener:
        print("ready", flush=True)
        peer, _ = listener.accept()
    while data := peer.recv(1 << 18):
        began = began or time.monotonic()
        total += len(data)
else:
    peer = socket.create_connection(address, timeout=10)
    block, began = bytes(1 << 16), time.monotonic()
    while time.monotonic() < began + seconds:
        peer.sendall(block)
        total += len(block)
print(json.dumps({"bytes": total, "seconds": time.monotonic() - (began or 0)}), flush=True)
"""


@dataclass
class Found:
    """Of one back end. Delays in seconds beyond the set one; None: not measured."""

    backend: str
    p50: dict[int, float | None]
    p99: dict[int, float | None]
    lost: dict[int, int]
    """Datagrams that did not arrive, by packets/s."""
    packets: float | None = None
    """The most packets/s that arrived whole and in time."""
    limit: str = ""
    """What was in the way of more."""
    megabits: float | None = None
    idle_cpu: float | None = None
    """Share of a core that the link's process takes without traffic."""


@dataclass(frozen=True)
class Flood:
    """One rate, tried. `fault`: why it does not count, or empty."""

    sent: int
    received: int
    achieved: float
    p50: float | None
    p99: float | None
    fault: str


def measure(backend: str, seconds: float, throughput: bool) -> Found:
    """All figures of a back end; call it in a sandbox."""
    found = Found(backend, {}, {}, {})
    delay = 0.0 if backend == "cable" else DELAY
    with joined(backend, delay) as (client, server, link):
        if backend == "user":
            before, began = link.stats()["cpu"], time.monotonic()
            time.sleep(max(1.0, seconds))
            found.idle_cpu = (link.stats()["cpu"] - before) / (time.monotonic() - began)
        for rate in RATES:
            flood = _flood(client, server, link, rate, seconds, delay, _PACED)
            found.p50[rate], found.p99[rate] = flood.p50, flood.p99
            found.lost[rate] = flood.sent - flood.received
        if throughput:
            _climb(found, client, server, link, seconds, delay)
    if throughput:
        with joined(backend, 0.0 if backend == "cable" else BULK_DELAY) as (client, server, _):
            found.megabits = _bulk(client, server, seconds)
    return found


def _climb(
    found: Found, client: Host, server: Host, link: Link, seconds: float, delay: float
) -> None:
    """The highest rate that holds: up in steps to one that does not, then between the two."""

    until = time.monotonic() + max(LONGEST, 20 * seconds)

    def holds(rate: float) -> bool:
        for _ in range(TRIES):
            if time.monotonic() > until:
                found.limit = found.limit or f"no time was left for {rate:,.0f}/s"
                return False
            flood = _flood(client, server, link, rate, seconds, delay, _FAST)
            if not flood.fault:
                found.packets = max(found.packets or 0.0, flood.achieved)
                return True
        found.limit = flood.fault
        return False

    low, high = 0.0, float(LOWEST)
    while high <= HIGHEST and holds(high):
        low, high = high, high * STEP
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)


def _flood(
    client: Host,
    server: Host,
    link: Link,
    rate: float,
    seconds: float,
    delay: float,
    sender: Sequence[str],
) -> Flood:
    """Datagrams one way at a steady rate."""
    link.seed(1)  # counters at 0
    count = int(rate * seconds)
    sink = server.start(*_TRAFFIC, "sink", _PORT, count, _QUIET)
    try:
        ready(sink)
        source = client.start(*sender, ADDRESSES[1], _PORT, rate, seconds)
        sent, got = answer(source), answer(sink)
    finally:
        sink.kill()
        sink.wait()
    frames, lost = link.stats()["up"], sent["sent"] - got["received"]
    achieved = sent["sent"] / sent["seconds"]
    late = {key: None if got[key] is None else got[key] - delay for key in ("p50", "p99")}
    fault = ""
    if lost > 0:
        where = "on a host" if frames["received"] == frames["delivered"] else "in the link"
        fault = f"{lost:,} of {count:,} lost {where} at {rate:,.0f}/s"
    elif late["p50"] is None or late["p50"] > QUEUEING:
        fault = f"the delay grew by {1e3 * (late['p50'] or 0):.0f} ms at {rate:,.0f}/s"
    elif achieved < 0.9 * rate:
        fault = f"the sender does not reach {rate:,.0f}/s"
    return Flood(sent["sent"], got["received"], achieved, late["p50"], late["p99"], fault)


def _bulk(client: Host, server: Host, seconds: float) -> float:
    """Mbit/s of one TCP stream, payload only."""
    sink = server.start("-c", _BULK, "serve", ADDRESSES[1], seconds)
    try:
        ready(sink)
        answer(client.start("-c", _BULK, "send", ADDRESSES[1], seconds))
        got = answer(sink)
    finally:
        sink.kill()
        sink.wait()
    return float(8e-6 * got["bytes"] / got["seconds"])


Row = tuple[str, dict[str, float | None], str]


def rows(found: Sequence[Found]) -> list[Row]:
    """The table: name, figure by back end, format."""
    made: list[Row] = []
    for rate in RATES:
        for name in ("p50", "p99"):
            values = {each.backend: getattr(each, name)[rate] for each in found}
            in_ms = {key: None if value is None else 1e3 * value for key, value in values.items()}
            made.append((f"added delay {name.upper()} at {rate:,}/s, ms", in_ms, ".3f"))
        lost: dict[str, float | None] = {each.backend: each.lost[rate] for each in found}
        made.append((f"datagrams lost at {rate:,}/s", lost, ",.0f"))
    made.append(("most packets/s", {each.backend: each.packets for each in found}, ",.0f"))
    made.append(("TCP, Mbit/s", {each.backend: each.megabits for each in found}, ",.0f"))
    idle = {e.backend: None if e.idle_cpu is None else 100 * e.idle_cpu for e in found}
    made.append(("CPU of the idle link process, %", idle, ".2f"))
    return made


def show(found: Sequence[Found], notes: Sequence[str]) -> None:
    """The table with ratios to the plain veth pair, and what limited the rates."""
    console = standard_output()
    table = Table(title=f"Links on {platform.node()}, {os.cpu_count()} cores, {platform.release()}")
    others = [each.backend for each in found if each.backend != "cable"]
    for heading in ("", "veth", *others, *(f"{other} / veth" for other in others)):
        table.add_column(heading, justify="right" if heading else "left", key=not heading)
    for name, values, form in rows(found):
        base = values["cable"]
        cells = [_cell(value, form) for value in values.values()]
        for other in others:
            value = values[other]
            # A base below 1 µs is the clock's step: nothing to compare with.
            if value is None or base is None or base < 1e-3:
                cells.append("-")
            else:
                cells.append(f"{value / base:.2f}")
        table.add_row(name, *cells)
    console.print(table)
    for each in found:
        if each.limit:
            name = "veth" if each.backend == "cable" else each.backend
            console.print(f"{name}, above that rate: {each.limit}")
    for note in notes:
        console.print(note)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = Parser(
        prog="benchmarks/link.py",
        description="Accuracy and throughput of the link back ends beside a plain veth pair.",
        epilog="examples:\n  sudo .venv/bin/python benchmarks/link.py\n"
        "  sudo .venv/bin/python benchmarks/link.py --seconds 500ms --json",
    )
    parser.add_argument(
        "--seconds",
        type=TIME.option(1.0),
        default=1.0,
        metavar="TIME",
        help="of each try, as 500ms or 2 (1 s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args(argv)
    if not 0.1 <= options.seconds <= 30:
        parser.error(f"--seconds must be from 0.1 to 30, not {options.seconds:g}")
    notes, found = [], []
    throughput = os.environ.get("ELOQUENT_GUEST") != "virtual"
    if not throughput:
        notes.append("No throughput: in virtual time computing takes no time; take --time real.")
    try:
        usable, reason = sandbox.call(netem_available)
        if not usable:
            notes.append(f"No netem: {reason}")
        for backend in BACKENDS:
            if backend == "netem" and not usable:
                continue
            message.note(f"measuring {backend} ...")
            found.append(sandbox.call(_measurement(backend, options.seconds, throughput)))
    except (sandbox.SandboxError, LinkError, TapError) as error:
        message.error(error)
        return 2
    if options.json:
        result: dict[str, Any] = {"delay": DELAY, "seconds": options.seconds, "notes": notes}
        print(json.dumps(result | {"links": [asdict(each) for each in found]}, indent=2))
    else:
        show(found, notes)
    return 0


def _measurement(backend: str, seconds: float, throughput: bool) -> Any:
    return lambda: measure(backend, seconds, throughput)


if __name__ == "__main__":
    program.run(main)
