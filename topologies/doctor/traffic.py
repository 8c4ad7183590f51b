"""UDP traffic for measuring a link, run on its two hosts: python -m topologies.doctor.traffic ...

echo PORT                          answer each probe with the times it came and went
ping ADDRESS PORT N INTERVAL       N probes; prints the sum of both ways' delays, for each
sink PORT N QUIET                  take N datagrams, or until none came for QUIET seconds
flood ADDRESS PORT RATE SECONDS    send at a rate, a burst each millisecond

One JSON object is printed. Times are CLOCK_MONOTONIC, which all network namespaces share; arrivals
are the kernel's, so that a late wake-up of these processes does not count as delay of the link.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time

from terminal import program

SIZE = 100
"""Bytes of UDP payload: a token's datagram with its header."""
_PROBE = struct.Struct("!Id")
_ANSWER = struct.Struct("!Iddd")
_TICK = 0.001
_WAIT = 0.3  # seconds for the last answers
_BUFFER = 64 << 20
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 32, 33, 35


def echo(port: int) -> None:
    """Answer until killed."""
    sock = _udp(port)
    _say("ready")
    while True:
        data, came, sender = _receive(sock)
        number, sent = _PROBE.unpack_from(data)
        answer = _ANSWER.pack(number, sent, came, time.monotonic())
        sock.sendto(answer.ljust(SIZE, b"\0"), sender)


def ping(address: str, port: int, count: int, interval: float) -> None:
    """Probe, and print the round-trip times without the time that the echo took to answer."""
    sock = _udp()
    trips: dict[int, float] = {}
    start, sent = time.monotonic(), 0
    while True:
        now = time.monotonic()
        due = start + sent * interval
        if sent == count and (len(trips) == count or now > due + _WAIT):
            break
        if sent < count and now >= due:
            sock.sendto(_PROBE.pack(sent, time.monotonic()).ljust(SIZE, b"\0"), (address, port))
            sent += 1
            continue
        wait = due - now if sent < count else due + _WAIT - now
        if select.select([sock], [], [], max(0.0, wait))[0]:
            data, back, _ = _receive(sock)
            number, left, came, went = _ANSWER.unpack_from(data)
            trips.setdefault(number, (came - left) + (back - went))
    _say(sorted(trips.values()))


def sink(port: int, count: int, quiet: float) -> None:
    """Count what arrives, and print the quantiles of its delay."""
    sock = _udp(port)
    _say("ready")
    delays: dict[int, float] = {}
    sock.settimeout(5.0)
    while len(delays) < count:
        try:
            data, came, _ = _receive(sock)
        except TimeoutError:
            break
        number, sent = _PROBE.unpack_from(data)
        delays.setdefault(number, came - sent)
        sock.settimeout(quiet)
    ordered = sorted(delays.values())
    _say({"received": len(ordered), "p50": quantile(ordered, 0.5), "p99": quantile(ordered, 0.99)})


def flood(address: str, port: int, rate: float, seconds: float) -> None:
    """Send rate x seconds datagrams; prints how many, and how long it took."""
    sock = _udp()
    count, sent = int(rate * seconds), 0
    target = (address, port)
    start = time.monotonic()
    while sent < count:
        now = time.monotonic()
        due = min(count, int((now - start + _TICK) * rate))
        while sent < due:
            sock.sendto(_PROBE.pack(sent, time.monotonic()).ljust(SIZE, b"\0"), target)
            sent += 1
        # A sleep takes some 0.06 ms: too long for one between two datagrams.
        time.sleep(max(0.0, now + _TICK - time.monotonic()))
    _say({"sent": sent, "seconds": time.monotonic() - start})


def quantile(ordered: list[float], q: float) -> float | None:
    """The q-quantile of sorted values; None if there are none."""
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else None


def _udp(port: int = 0) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    # Root may exceed the limits: the buffers must not be what loses packets.
    made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
    made.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER)
    made.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    made.bind(("0.0.0.0", port))
    return made


def _receive(sock: socket.socket) -> tuple[bytes, float, tuple[str, int]]:
    """A datagram, when the kernel got it, and who sent it."""
    data, ancillary, _, sender = sock.recvmsg(2048, 64)
    now = time.monotonic()
    for level, kind, value in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
            seconds, nanoseconds = struct.unpack("qq", value)
            # The kernel's stamp is of CLOCK_REALTIME: take the age of the datagram by that clock.
            now -= (time.time_ns() - (seconds * 10**9 + nanoseconds)) / 1e9
    return data, now, sender


def _say(what: object) -> None:
    print(json.dumps(what), flush=True)


def main(mode: str = "--help", *words: str) -> None:
    """One of the four, with its arguments."""
    match mode:
        case "echo":
            echo(int(words[0]))
        case "ping":
            ping(words[0], int(words[1]), int(words[2]), float(words[3]))
        case "sink":
            sink(int(words[0]), int(words[1]), float(words[2]))
        case "flood":
            flood(words[0], int(words[1]), float(words[2]), float(words[3]))
        case "-h" | "--help":
            print(__doc__)
        case _:
            sys.exit(f"error: unknown mode {mode!r}")


if __name__ == "__main__":
    program.run(main, *sys.argv[1:])
