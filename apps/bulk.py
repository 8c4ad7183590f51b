"""Bulk TCP: a sender that always has more to say, and sinks that read it all.

    python -m apps.bulk send --host 10.0.0.6 --port 5201
    python -m apps.bulk receive 10.0.0.6 --port 5201

The sender takes commands on standard input, each answered by one JSON object on standard output:
``flows N`` waits for N sinks, ``start`` begins to send to all of them, ``stop`` resets them and
answers with ``samples``, of all flows from the start on. The end of the input ends it. Every
wait is one ``select``, so that nothing here competes for the processor with what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import struct
import time
from dataclasses import dataclass, field

from terminal import message, program
from terminal.arguments import Parser

TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", 13)
_TCP_INFO = getattr(socket, "TCP_INFO", 11)
_TCP_NOTSENT_LOWAT = 25  # linux/tcp.h
#: linux/tcp.h, struct tcp_info: 8 bytes, 24 numbers of 4 bytes (the 16th is rtt in µs, the 24th
#: total_retrans), two pacing rates of 8 bytes, then bytes_acked.
_INFO = struct.Struct("8x 15I I 7I I 16x Q")
#: Seconds between two samples of a flow.
INTERVAL = 0.25
#: The kernel keeps this much that is not sent yet: the socket wakes us seldom, and still never
#: runs dry (a quarter of a second at 2 Mbit/s).
_AHEAD = 1 << 16
_BLOCK = bytes(1 << 16)
_PATIENCE = 30.0


class BulkError(RuntimeError):
    """A flow cannot be made. The message is one line."""


@dataclass
class Flow:
    """One connection with its samples: seconds, bytes acknowledged, retransmissions, RTT (s)."""

    connection: socket.socket
    samples: list[tuple[float, int, int, float]] = field(default_factory=list)

    def sample(self, now: float) -> None:
        """Ask the kernel how far it has got."""
        raw = self.connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO.size)
        numbers = _INFO.unpack(raw)
        acknowledged, rtt, retransmissions = numbers[-1], numbers[15] / 1e6, numbers[23]
        self.samples.append((now, acknowledged, retransmissions, rtt))


class Sender:
    """All flows of one sender, in one loop."""

    def __init__(self, host: str, port: int, congestion_control: str) -> None:
        self._listener = socket.create_server((host, port))
        try:
            name = congestion_control.encode()
            self._listener.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, name)
        except OSError:
            raise BulkError(
                f"this kernel has no congestion control {congestion_control!r}"
            ) from None
        self._listener.setblocking(False)
        self._flows: list[Flow] = []
        self._sending = False
        self._wanted: int | None = None
        self._due = 0.0
        self._input = b""

    def run(self) -> None:
        """Until ``quit`` or the end of the input."""
        say(event="ready")
        while True:
            writers = [f.connection for f in self._flows] if self._sending else []
            wait = max(0.0, self._due - time.monotonic()) if self._sending else None
            inputs: list[int | socket.socket] = [0, self._listener]
            readable, writable, _ = select.select(inputs, writers, [], wait)
            for flow in self._flows:
                if flow.connection in writable:
                    self._fill(flow)
            if self._sending and time.monotonic() >= self._due:
                self._sample()
            if self._listener in readable:
                self._accept()
            if 0 in readable and not self._read():
                return

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _AHEAD)
        self._flows.append(Flow(connection))
        self._tell()

    def _tell(self) -> None:
        if self._wanted is not None and len(self._flows) >= self._wanted:
            say(event="flows", count=len(self._flows))
            self._wanted = None

    def _fill(self, flow: Flow) -> None:
        try:
            flow.connection.send(_BLOCK)
        except BlockingIOError:
            pass
        except OSError as error:
            raise BulkError(f"a sink has gone: {error.strerror}") from None

    def _sample(self) -> None:
        now = time.monotonic()
        for flow in self._flows:
            flow.sample(now)
        self._due = now + INTERVAL

    def _read(self) -> bool:
        data = os.read(0, 65536)
        self._input += data
        *lines, self._input = self._input.split(b"\n")
        for line in lines:
            self._obey(line.decode().split())
        return bool(data)

    def _obey(self, words: list[str]) -> None:
        match words:
            case ["flows", count]:
                self._wanted = int(count)
                self._tell()
            case ["start"]:
                self._sending = True
                self._sample()
                say(event="started", at=self._due - INTERVAL)
            case ["stop"]:
                self._stop()
            case _:
                say(event="error", error=f"unknown command {' '.join(words)!r}")

    def _stop(self) -> None:
        if self._sending:
            self._sample()
        for flow in self._flows:
            # A reset: what still waits in the socket must not run into the next measurement.
            linger = struct.pack("ii", 1, 0)
            flow.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            flow.connection.close()
        say(event="stopped", samples=[flow.samples for flow in self._flows])
        self._flows, self._sending = [], False


def receive(host: str, port: int) -> int:
    """Read until the sender ends the connection; returns the number of bytes."""
    total, buffer = 0, bytearray(1 << 16)
    with socket.create_connection((host, port), timeout=_PATIENCE) as connection:
        connection.settimeout(None)  # the sender waits for all sinks before it starts
        try:
            while count := connection.recv_into(buffer):
                total += count
        except ConnectionResetError:
            pass  # how the sender says that the measurement is over
    return total


def say(**fields: object) -> None:
    """One line for whoever started this."""
    print(json.dumps(fields), flush=True)


_EXAMPLES = """examples:
  python -m apps.bulk send --host 127.0.0.1 --port 5201
  python -m apps.bulk receive 127.0.0.1 --port 5201
"""


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m apps.bulk",
        description="Bulk TCP flows: one sender, any number of sinks.",
        epilog=_EXAMPLES,
    )
    roles = parser.add_subparsers(dest="role", required=True)
    send = roles.add_parser(
        "send",
        help="send to every sink without end",
        description="Send to every sink that connects; standard input says start and stop.",
        epilog=_EXAMPLES,
    )
    send.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    send.add_argument("--congestion-control", default="cubic", help="of kernel TCP (%(default)s)")
    sink = roles.add_parser(
        "receive",
        help="read what comes, and count it",
        description="Read from a sender until it ends, and print how many bytes came.",
        epilog=_EXAMPLES,
    )
    sink.add_argument("host", help="the sender's address")
    for role in (send, sink):
        role.add_argument(
            "--port", type=int, default=5201, help="TCP port (%(default)s, as iperf3)"
        )
    return parser


def main() -> int:
    options = parser().parse_args()
    try:
        if options.role == "send":
            Sender(options.host, options.port, options.congestion_control).run()
        else:
            say(event="received", bytes=receive(options.host, options.port))
    except (BulkError, OSError) as error:
        where = f"{options.host}, TCP port {options.port}"
        why = (error.strerror or error) if isinstance(error, OSError) else error
        message.error(f"{where}: {why}")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    program.run(main)
