"""Capture what one interface sends and receives: ``python -m apps.capture --interface IF``.

A process that lives as long as its host. Commands come as lines on standard input, each answered
by one JSON object on standard output:

- ``start FILE``: begin a new pcapng file -> ``{"started": FILE, "offset": ...}``
- ``stop``: write what is still queued and close -> ``{"packets": n, "dropped": n, "offset": ...,
  "drift": ...}``
- ``quit``, or the end of input: stop if need be, and exit.

``offset`` is CLOCK_REALTIME - CLOCK_MONOTONIC in seconds at the start: the kernel stamps packets
with the former, everything else in the testbed uses the latter. ``drift`` is by how much it
changed until the stop; not 0 means that the clock was set meanwhile. A command that fails answers
``{"error": one line}``. ``dropped`` counts packets that the kernel had to throw away because this
process was too slow; such a capture is incomplete.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

# scapy.all would load every protocol that scapy knows, which takes a second more.
from scapy.arch.linux import L2ListenSocket

from apps.pcapng import INBOUND, OUTBOUND, SNAP_LENGTH, PcapngWriter
from terminal import message, program
from terminal.arguments import Parser

# It warns that it knows no Ethernet when its layers are not loaded; frames stay bytes here.
logging.getLogger("scapy").setLevel(logging.ERROR)

_SO_RCVBUFFORCE = 33  # asm-generic/socket.h; ignores rmem_max, needs CAP_NET_ADMIN
_SO_TIMESTAMPNS = 35
_SOL_PACKET = 263
_PACKET_STATISTICS = 6  # linux/if_packet.h
#: 64 MiB hold several seconds of 5,000 packets/s while another process has the core.
BUFFER_SIZE = 64 * 2**20
_NANOSECONDS = 10**9


class CaptureError(RuntimeError):
    """The interface cannot be captured or the file not be written. The message is one line."""


class Capture:
    """One running capture of an interface into a file.

    Args:
        interface: name of an Ethernet interface in this network namespace.
        path: the pcapng file; must not exist.

    Raises:
        CaptureError: no such interface, not permitted, or the file cannot be created.
    """

    def __init__(self, interface: str, path: str) -> None:
        if Path(path).exists():
            raise CaptureError(f"{path} exists already: a capture never overwrites")
        if interface not in {name for _, name in socket.if_nameindex()}:
            raise CaptureError(f"no interface {interface!r} here: there are {_interfaces()}")
        try:
            # Promiscuous mode is of no use: the other end sends to this host alone.
            self._scapy = L2ListenSocket(iface=interface, promisc=False, nofilter=True)
        except OSError as error:
            raise CaptureError(f"cannot capture {interface}: {error.strerror}") from None
        self.socket: socket.socket = self._scapy.ins
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, BUFFER_SIZE)
        try:
            self._writer = PcapngWriter(path, interface)
        except OSError as error:
            self._scapy.close()
            raise CaptureError(f"cannot write {path}: {error.strerror}") from None
        self._path = path
        self.packets = 0
        self._dropped()
        self.offset = _clock_offset()
        self._begin = time.time_ns()

    def read(self, until: int | None = None) -> None:
        """Write all packets that wait in the socket; those stamped after ``until`` are left out.

        Raises:
            CaptureError: the file cannot be written.
        """
        receive, write = self.socket.recvmsg, self._writer.packet
        try:
            while True:
                try:
                    frame, ancillary, _, address = receive(SNAP_LENGTH, 256)
                except BlockingIOError:
                    return
                stamp = _timestamp(ancillary)
                if stamp < self._begin:
                    continue
                if until is not None and stamp > until:
                    return
                outgoing = address[2] == socket.PACKET_OUTGOING
                write(frame, stamp, OUTBOUND if outgoing else INBOUND)
                self.packets += 1
        except OSError as error:
            raise CaptureError(f"capture to {self._path} failed: {error.strerror}") from None

    def stop(self) -> dict[str, Any]:
        """Drain the socket up to this moment, close the file, and return the counts."""
        now = time.time_ns()
        try:
            self.read(until=now)
            dropped = self._dropped()
            drift = _clock_offset() - self.offset
        finally:
            self.close()
        return {
            "packets": self.packets,
            "dropped": dropped,
            "offset": self.offset,
            # Two readings of two clocks differ by a microsecond or so even if nothing happened.
            "drift": round(drift, 5) + 0.0,
        }

    def close(self) -> None:
        """Close socket and file; harmless when closed already."""
        self._scapy.close()
        try:
            self._writer.f.close()
        except OSError as error:
            raise CaptureError(f"capture to {self._path} failed: {error.strerror}") from None

    def _dropped(self) -> int:
        """Return the packets dropped since the last call (the kernel resets its counter)."""
        raw = self.socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        dropped: int = struct.unpack("II", raw)[1]
        return dropped


def _timestamp(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Return the kernel's receive time in nanoseconds since 1970."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
            seconds, nanoseconds = struct.unpack("qq", data)
            stamp: int = seconds * _NANOSECONDS + nanoseconds
            return stamp
    raise CaptureError("the kernel gives no packet timestamps (SO_TIMESTAMPNS)")


def _clock_offset() -> float:
    """Return CLOCK_REALTIME - CLOCK_MONOTONIC in seconds."""
    before = time.monotonic_ns()
    real = time.time_ns()
    after = time.monotonic_ns()
    return (real - (before + after) // 2) / _NANOSECONDS


def _interfaces() -> str:
    return ", ".join(name for _, name in socket.if_nameindex())


class CommandLoop:
    """Reads commands from one file descriptor and packets from a socket, in one thread."""

    def __init__(self, interface: str, commands: int) -> None:
        self._interface = interface
        self._commands = commands
        self._capture: Capture | None = None
        self._failure: CaptureError | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(commands, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until ``quit`` or the end of input."""
        pending = b""
        while True:
            for key, _ in self._selector.select():
                if key.fd != self._commands:
                    self._read()
                    continue
                data = os.read(self._commands, 65536)
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    words = line.decode(errors="replace").strip()
                    if words == "quit":
                        data = b""
                        break
                    print(json.dumps(self._answer(words)), flush=True)
                if not data:
                    if self._capture:
                        self._answer("stop")
                    return

    def _read(self) -> None:
        if self._capture is None:
            return
        try:
            self._capture.read()
        except CaptureError as error:
            # Told at the next stop: a capture that broke off must not look like a whole one.
            self._failure = error
            self._selector.unregister(self._capture.socket)

    def _answer(self, line: str) -> dict[str, Any]:
        command, _, argument = line.partition(" ")
        try:
            if command == "start" and argument:
                return self._start(argument.strip())
            if command == "stop" and not argument:
                return self._stop()
            raise CaptureError(f"unknown command {line!r}: use 'start FILE', 'stop' or 'quit'")
        except CaptureError as error:
            return {"error": str(error)}

    def _start(self, path: str) -> dict[str, Any]:
        if self._capture:
            raise CaptureError("a capture is running already: stop it first")
        self._capture = Capture(self._interface, path)
        self._selector.register(self._capture.socket, selectors.EVENT_READ)
        return {"started": path, "offset": self._capture.offset}

    def _stop(self) -> dict[str, Any]:
        capture, failure = self._capture, self._failure
        if capture is None:
            raise CaptureError("no capture is running: start one first")
        self._capture = self._failure = None
        if failure:
            capture.close()
            raise failure
        self._selector.unregister(capture.socket)
        return capture.stop()


_EXAMPLES = """examples:
  (echo start my.pcapng; sleep 10; echo stop) | python -m apps.capture --interface eth0
"""


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = Parser(
        prog="python -m apps.capture",
        description="Capture what one interface sends and receives, as commands on standard input "
        "say: start FILE, stop, quit. The answers are JSON lines. Needs root.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--interface", required=True, help="Ethernet interface to capture")
    parser.add_argument(
        "--nice",
        type=int,
        default=0,
        help="added to the process's niceness (default 0; the kernel stamps the packets, so being "
        "late does no harm)",
    )
    options = parser.parse_args(arguments)
    try:
        os.nice(options.nice)
    except OSError as error:
        message.error(f"cannot change niceness by {options.nice}: {error.strerror}")
        return 2
    if options.interface not in {name for _, name in socket.if_nameindex()}:
        message.error(f"no interface {options.interface!r} here: there are {_interfaces()}")
        return 2
    try:
        CommandLoop(options.interface, sys.stdin.fileno()).run()
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    program.run(main)
