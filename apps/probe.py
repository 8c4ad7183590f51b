"""Measure a link with small datagrams: loss in each direction, and the round-trip time.

``python -m apps.probe echo`` answers on the server host until it is ended.
``python -m apps.probe send ADDRESS`` prints one JSON object: one entry a probe with the times at
which it was sent, reached the server, and came back (null: never), in seconds of CLOCK_MONOTONIC,
which all network namespaces of a machine share. With ``--repeat`` it measures once for each line
of its input; a measurement that fails is an object with ``error``.

The server remembers what arrived and is asked for it afterwards, as often as needed, so a probe
lost on the way up is told from an echo lost on the way down. Both sides sleep until something is
due; times come from the kernel's timestamps, so a late wake-up does not count as delay of the link.
"""

from __future__ import annotations

import argparse
import json
import math
import secrets
import select
import socket
import struct
import sys
import time
from collections import OrderedDict
from dataclasses import asdict
from typing import Any

from apps.samples import Sample, summarize
from terminal import message, program
from terminal.arguments import Parser
from topologies.quantities import BYTES, TIME

__all__ = ["Echo", "ProbeError", "Prober", "Sample", "serve", "summarize"]

DEFAULT_PORT = 4999
_MAGIC = b"EqPr"
_PROBE, _ECHO, _QUERY, _REPORT = range(4)
#: Magic, kind, run, sequence number (PROBE, ECHO) or the first one asked for (QUERY, REPORT).
_HEADER = struct.Struct("!4sBQI")
_TIME = struct.Struct("!d")
#: Times in one REPORT: 100 x 8 bytes stay below every MTU.
_REPORT_SIZE = 100
#: Smallest probe: header and, in the echo, the time of arrival.
MIN_SIZE = _HEADER.size + _TIME.size
MAX_SIZE = 1400
MAX_COUNT = 100_000
_RUNS_KEPT = 8
_SO_TIMESTAMPNS = 35
_QUERY_INTERVAL = 0.1


class ProbeError(RuntimeError):
    """The link cannot be measured. The message is one line."""


class Echo:
    """Answers probes and remembers when they arrived: the server's side, without a socket."""

    def __init__(self) -> None:
        self._runs: OrderedDict[int, dict[int, float]] = OrderedDict()

    def answer(self, datagram: bytes, now: float) -> bytes | None:
        """Return the reply to a datagram that arrived at ``now``; None for foreign ones."""
        header = _parse(datagram)
        if header is None:
            return None
        kind, run, number = header
        if kind == _PROBE and len(datagram) >= MIN_SIZE and number < MAX_COUNT:
            arrivals = self._runs.setdefault(run, {})
            while len(self._runs) > _RUNS_KEPT:
                self._runs.popitem(last=False)
            # A duplicate on the way must not make the probe look later than it was.
            now = arrivals.setdefault(number, now)
            echo = _HEADER.pack(_MAGIC, _ECHO, run, number) + _TIME.pack(now)
            return echo + bytes(len(datagram) - len(echo))
        if kind == _QUERY:
            arrivals = self._runs.get(run, {})
            times = [arrivals.get(number + i, math.nan) for i in range(_REPORT_SIZE)]
            return _HEADER.pack(_MAGIC, _REPORT, run, number) + struct.pack(
                f"!{_REPORT_SIZE}d", *times
            )
        return None


def serve(port: int = DEFAULT_PORT) -> None:
    """Answer probes at UDP ``port`` on all addresses until interrupted.

    Raises:
        ProbeError: the port is taken.
    """
    echo = Echo()
    with _socket() as sock:
        try:
            sock.bind(("", port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ProbeError(f"cannot listen at UDP port {port}: {reason}") from None
        print(json.dumps({"event": "listening", "port": sock.getsockname()[1]}), flush=True)
        while True:
            datagram, now, address = _receive(sock)
            reply = echo.answer(datagram, now)
            if reply is not None:
                try:
                    sock.sendto(reply, address)
                except OSError:
                    # No route back at this moment: to the client it is a lost echo.
                    continue


class Prober:
    """The client's side of one measurement.

    Args:
        address: IPv4 address or name of the host that runs ``echo``; port: its UDP port.
        count: number of probes; interval: seconds between two; size: bytes of UDP payload.
        wait: seconds to wait for echoes after the last probe; later ones count as lost.
        timeout: seconds until a server that does not answer queries is given up.

    Raises:
        ProbeError: an argument out of range, or the address is not known.
    """

    def __init__(
        self,
        address: str,
        port: int = DEFAULT_PORT,
        *,
        count: int = 300,
        interval: float = 0.004,
        size: int = 64,
        wait: float = 1.0,
        timeout: float = 10.0,
    ) -> None:
        if not 1 <= count <= MAX_COUNT:
            raise ProbeError(f"the number of probes must be 1 to {MAX_COUNT}, not {count}")
        if not MIN_SIZE <= size <= MAX_SIZE:
            raise ProbeError(f"a probe has {MIN_SIZE} to {MAX_SIZE} bytes, not {size}")
        if not (0 < interval < math.inf and 0 <= wait < math.inf and 0 < timeout < math.inf):
            raise ProbeError("interval and timeout must be positive and wait not negative, in s")
        self._count, self._interval, self._size = count, interval, size
        self._wait, self._timeout = wait, timeout
        self._where = f"{address}, UDP port {port}"
        self._run = secrets.randbits(64)
        self._returned: dict[int, float] = {}
        self._arrived: dict[int, float] = {}
        self._reports: set[int] = set()
        self._socket = _socket()
        try:
            self._socket.connect((address, port))
        except (OSError, OverflowError) as error:
            self._socket.close()
            raise ProbeError(f"cannot reach {self._where}: {error}") from None

    def measure(self) -> list[Sample]:
        """Send all probes and return what became of each.

        Raises:
            ProbeError: the server does not answer within the timeout.
        """
        with self._socket:
            # Resolves addresses (ARP) and installs the switches' flows before it counts.
            self._query(0)
            # A late answer to that query must not pass for the final report.
            self._run = secrets.randbits(64)
            self._reports.clear()
            sent: list[float] = []
            start = time.monotonic()
            for number in range(self._count):
                self._listen(start + number * self._interval)
                probe = _HEADER.pack(_MAGIC, _PROBE, self._run, number)
                sent.append(time.monotonic())
                self._send(probe + bytes(self._size - len(probe)))
            self._listen(time.monotonic() + self._wait, until_all_returned=True)
            for first in range(0, self._count, _REPORT_SIZE):
                self._query(first)
        return [Sample(t, self._arrived.get(n), self._returned.get(n)) for n, t in enumerate(sent)]

    def _listen(self, deadline: float, until_all_returned: bool = False) -> None:
        """Take in datagrams until ``deadline``."""
        while not (until_all_returned and len(self._returned) == self._count):
            left = deadline - time.monotonic()
            if not self._take(max(0.0, left)) and left <= 0:
                return

    def _query(self, first: int) -> None:
        """Ask for the arrivals from ``first`` on, again and again until the server answers."""
        give_up = time.monotonic() + self._timeout
        while first not in self._reports:
            if time.monotonic() >= give_up:
                raise ProbeError(
                    f"no answer from the probe server at {self._where} within {self._timeout:g} s: "
                    "it does not run, or nothing passes the link"
                )
            self._send(_HEADER.pack(_MAGIC, _QUERY, self._run, first))
            again = time.monotonic() + _QUERY_INTERVAL
            while first not in self._reports and (left := again - time.monotonic()) > 0:
                self._take(left)

    def _send(self, datagram: bytes) -> None:
        try:
            self._socket.send(datagram)
        except OSError:
            # Full queue, or an ICMP error of an earlier datagram: this one is lost.
            return

    def _take(self, timeout: float) -> bool:
        """Handle one datagram if one comes within ``timeout`` seconds."""
        if not select.select([self._socket], [], [], timeout)[0]:
            return False
        try:
            datagram, now, _ = _receive(self._socket)
        except OSError:
            # ICMP "port unreachable": the server may still be starting.
            time.sleep(0.01)
            return True
        header = _parse(datagram)
        if header is None or header[1] != self._run:
            return True
        kind, _, number = header
        if kind == _ECHO and len(datagram) == self._size:
            self._returned.setdefault(number, now)
        elif kind == _REPORT and len(datagram) == _HEADER.size + _REPORT_SIZE * _TIME.size:
            times = struct.unpack_from(f"!{_REPORT_SIZE}d", datagram, _HEADER.size)
            arrived = {number + i: t for i, t in enumerate(times) if not math.isnan(t)}
            self._arrived.update(arrived)
            self._reports.add(number)
        return True


def _socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    return sock


def _receive(sock: socket.socket) -> tuple[bytes, float, Any]:
    """Return a datagram, the monotonic time at which the kernel got it, and its sender."""
    datagram, ancillary, _, address = sock.recvmsg(2048, 128)
    now = time.monotonic()
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
            seconds, nanoseconds = struct.unpack("qq", data)
            # The kernel stamps with CLOCK_REALTIME: take the packet's age, read by that clock.
            now -= (time.time_ns() - (seconds * 10**9 + nanoseconds)) / 1e9
    return datagram, now, address


def _parse(datagram: bytes) -> tuple[int, int, int] | None:
    """Return kind, run and number of a probe's datagram; None for a foreign one."""
    if len(datagram) < _HEADER.size:
        return None
    magic, kind, run, number = _HEADER.unpack_from(datagram)
    return (kind, run, number) if magic == _MAGIC else None


_EXAMPLES = """examples:
  python -m apps.probe echo --port 4999
  python -m apps.probe send 127.0.0.1 --count 100 --interval 10ms
"""


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = Parser(
        prog="python -m apps.probe",
        description="Measure round-trip time, one-way delays and losses of a link with small UDP "
        "packets. Both ends must be on one machine: they share its clock.",
        epilog=_EXAMPLES,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    echo = commands.add_parser(
        "echo",
        help="answer probes until ended",
        description="Answer probes until it is ended.",
        epilog=_EXAMPLES,
    )
    send = commands.add_parser(
        "send",
        help="measure the link to a host that runs echo",
        description="Send probes to a host that runs echo, and print one JSON object.",
        epilog=_EXAMPLES,
    )
    send.add_argument("address", help="of the host that runs echo")
    for sub in (echo, send):
        sub.add_argument("--port", type=int, default=DEFAULT_PORT, help="UDP port (default 4999)")
    add = send.add_argument
    add("--count", type=int, default=300, help="number of probes (%(default)s)")
    times = (
        ("--interval", 0.004, "between two probes, as 4ms (4 ms)"),
        ("--wait", 1.0, "to wait for late echoes, as 500ms (1 s)"),
        ("--timeout", 10.0, "until a silent server is given up, as 5s (10 s)"),
    )
    for name, usual, told in times:
        add(name, type=TIME.option(usual), default=usual, metavar="TIME", help=told)
    add("--size", type=BYTES.option(), default=64, metavar="SIZE", help="of UDP payload (64 B)")
    send.add_argument(
        "--repeat", action="store_true", help="measure once for each line of standard input"
    )
    options = parser.parse_args(arguments)
    try:
        if options.command == "echo":
            serve(options.port)
        if options.repeat:
            for _ in iter(sys.stdin.readline, ""):
                try:
                    answer = _measure(options)
                except ProbeError as error:
                    answer = {"error": str(error)}
                print(json.dumps(answer), flush=True)
            return 0
        print(json.dumps(_measure(options)))
    except ProbeError as error:
        message.error(error)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    prober = Prober(
        options.address,
        options.port,
        count=options.count,
        interval=options.interval,
        size=int(options.size),
        wait=options.wait,
        timeout=options.timeout,
    )
    samples = prober.measure()
    return {
        "address": options.address,
        "port": options.port,
        "interval": options.interval,
        "size": int(options.size),
        **asdict(summarize(samples)),
        "samples": [asdict(sample) for sample in samples],
    }


if __name__ == "__main__":
    program.run(main)
