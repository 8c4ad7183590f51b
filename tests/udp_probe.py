"""UDP probes for emulation tests, run on the hosts: python udp_probe.py echo|send|sink ...

echo PORT                          return every datagram, until killed
send ADDRESS PORT N INTERVAL SIZE  N datagrams to an echo; prints [[sent, returned or null], ...]
sink PORT N QUIET                  take datagrams until N came or none for QUIET seconds;
                                   prints [[sent, received], ...]
flood ADDRESS PORT N INTERVAL SIZE N datagrams to a sink, without listening; prints the CPU time
Times are time.monotonic(), which all network namespaces share.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time

HEADER = struct.Struct("!Id")
SO_RCVBUFFORCE = 33  # <asm-generic/socket.h>
TAIL = 1.0  # seconds to wait for the last answers


def udp(port: int = 0) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)  # root may exceed rmem_max
    made.bind(("0.0.0.0", port))
    return made


def ready() -> None:
    print("ready", flush=True)


def echo(port: int) -> None:
    sock = udp(port)
    ready()
    while True:
        data, sender = sock.recvfrom(2048)
        sock.sendto(data, sender)


def send(address: str, port: int, n: int, interval: float, size: int) -> None:
    sock = udp()
    sock.setblocking(False)
    sent: list[float] = []
    returned: dict[int, float] = {}
    start = time.monotonic() + 0.05
    while True:
        now = time.monotonic()
        due = start + len(sent) * interval
        if len(sent) == n and (len(returned) == n or now > due + TAIL):
            break
        if len(sent) < n and now >= due:
            sent.append(now)
            sock.sendto(HEADER.pack(len(sent) - 1, now).ljust(size, b"\0"), (address, port))
            continue
        wait = due - now if len(sent) < n else due + TAIL - now
        if select.select([sock], [], [], max(0.0, wait))[0]:
            data, now = sock.recv(2048), time.monotonic()
            returned.setdefault(HEADER.unpack_from(data)[0], now)
    print(json.dumps([[when, returned.get(i)] for i, when in enumerate(sent)]), flush=True)


def sink(port: int, n: int, quiet: float) -> None:
    sock = udp(port)
    ready()
    seen: list[tuple[float, float]] = []
    while len(seen) < n:
        try:
            data = sock.recv(2048)
        except TimeoutError:
            break
        seen.append((HEADER.unpack_from(data)[1], time.monotonic()))
        sock.settimeout(quiet)
    print(json.dumps(seen), flush=True)


def flood(address: str, port: int, n: int, interval: float, size: int) -> None:
    sock = udp()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
    start = time.monotonic()
    for i in range(n):
        wait = start + i * interval - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        sock.sendto(HEADER.pack(i, time.monotonic()).ljust(size, b"\0"), (address, port))
    print(json.dumps([time.process_time(), time.monotonic() - start]), flush=True)


def main(mode: str, *arguments: str) -> None:
    match mode:
        case "echo":
            echo(int(arguments[0]))
        case "sink":
            sink(int(arguments[0]), int(arguments[1]), float(arguments[2]))
        case "send" | "flood":
            address, port, n, interval, size = arguments
            run = send if mode == "send" else flood
            run(address, int(port), int(n), float(interval), int(size))


if __name__ == "__main__":
    main(*sys.argv[1:])
