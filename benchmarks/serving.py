"""What a server on asyncio costs: CPU for each token, and for a datagram beside waiting handlers.

    python -m benchmarks.serving --seconds 10s

Streams of 30 tokens/s on loopback, the server in a process of its own; its CPU time counts.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from pathlib import Path

from eloquent import Client, aio, udp
from eloquent.wire import Ack, decode, encode
from terminal import program
from terminal.arguments import Parser
from topologies.quantities import TIME

HOST = "127.0.0.1"
RATE = 30.0
STREAMS = (100, 300)
WAITING = (10, 300, 1000)
DATAGRAMS = 500


async def _speak(prompt: bytes, reply: aio.Reply) -> None:
    """As many tokens as the prompt says, at RATE."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    for number in range(int(prompt)):
        await reply.send(b" word")
        await asyncio.sleep(start + (number + 1) / RATE - loop.time())


async def _serve() -> None:
    """Print the port; at each line of input the CPU time (s) so far."""
    server = await aio.serve(_speak, HOST, 0)
    print(server.address[1], flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(time.process_time(), flush=True)
    server.close()


async def _read(port: int, streams: int, tokens: int) -> float:
    """Ask so many at once; returns the mean delay (s) of a token beyond the pace of the first."""
    delays: list[float] = []

    async def one(number: int) -> None:
        await asyncio.sleep(number / streams / RATE)  # their tokens do not come together
        times = [t.received_at async for t in aio.ask(b"%d" % tokens, HOST, port)]
        delays.extend(at - times[0] - index / RATE for index, at in enumerate(times))

    await asyncio.gather(*(one(number) for number in range(streams)))
    return sum(delays) / len(delays)


def cost(streams: int, seconds: float) -> tuple[float, float]:
    """CPU time (s) of the server for each token, and the mean delay (s) of a token."""
    tokens = max(1, round(seconds * RATE))
    command = [sys.executable, "-m", "benchmarks.serving", "serve"]
    with subprocess.Popen(
        command,
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        port = int(server.stdout.readline())
        used = []
        delay = 0.0
        for _ in range(2):
            server.stdin.write("\n")
            server.stdin.flush()
            used.append(float(server.stdout.readline()))
            if len(used) == 1:
                delay = asyncio.run(_read(port, streams, tokens))
        server.stdin.close()
    return (used[1] - used[0]) / (streams * tokens), delay


async def _herd(waiting: int) -> float:
    """CPU time (s) for each datagram that comes while so many handlers wait, as for room."""
    started = 0

    async def wait(prompt: bytes, reply: aio.Reply) -> None:
        nonlocal started
        started += 1
        while True:
            await reply.progress()

    server = await aio.serve(wait, HOST, 0)
    loop, sock = server.loop, udp.unconnected(socket.AF_INET)
    where = udp.Address(server.address)
    clients = {c.stream_id: c for c in (Client(b"?", loop.time()) for _ in range(waiting))}
    try:
        while started < waiting:  # each has to prove its address
            for client in clients.values():
                for datagram in client.datagrams(loop.time()):
                    sock.send(datagram, where)
            await asyncio.sleep(0.01)
            for datagram, _ in sock.receive(10_000):
                client = clients[decode(datagram).stream_id]
                client.receive(datagram, loop.time())
        await asyncio.sleep(1.0)
        ping = encode(Ack(next(iter(clients)), 1, False, 0, 0, asks=True))
        came = udp.Address((HOST, sock.sock.getsockname()[1]))
        start = time.process_time()
        for _ in range(DATAGRAMS):
            server._received([(ping, came)])
            await asyncio.sleep(0)  # who was woken runs
            await asyncio.sleep(0)
        return (time.process_time() - start) / DATAGRAMS
    finally:
        server.close()


def main() -> int:
    if sys.argv[1:] == ["serve"]:  # the other process
        asyncio.run(_serve())
        return 0
    parser = Parser(
        prog="python -m benchmarks.serving",
        description="Measure what a server on asyncio costs: CPU for a token, and for a datagram.",
        epilog="examples:\n  python -m benchmarks.serving --seconds 30s",
    )
    parser.add_argument(
        "--seconds",
        type=TIME.option(600.0),
        default=10.0,
        metavar="TIME",
        help="how long each stream takes (%(default)g s)",
    )
    seconds = parser.parse_args().seconds
    for streams in STREAMS:
        used, delay = cost(streams, seconds)
        late = f"{delay * 1e3:.1f} ms behind the pace of the first"
        print(f"{streams} streams: {used * 1e6:.0f} us a token, {late}")
    for waiting in WAITING:
        each = asyncio.run(_herd(waiting))
        print(f"{waiting} handlers wait: {each * 1e3:.3f} ms a datagram")
    return 0


if __name__ == "__main__":
    program.run(main)
