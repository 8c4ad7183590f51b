"""What sealing costs: time for each packet, and bytes for each token.

python benchmarks/sealing.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from analysis.stalls import metrics
from eloquent.sealed import Aead, TicketBook
from scenarios.paper import network
from scenarios.simulator import simulate
from terminal import program
from terminal.arguments import Parser
from terminal.console import standard_output
from terminal.table import Table

SIZES = (19, 60, 200, 1200)
PADS = (0, 32, 64, 96)
LOSSES = (0.0, 0.1)
ROUNDS = 7
ANSWER = [(0.045 * (n + 1), b" token"[: 3 + n % 4]) for n in range(400)]
ADDRESS = ("server", 4433)


def microseconds(action: Callable[[], object], count: int) -> float:
    """Of one call: the median of some rounds, which other programs disturb."""
    took = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(count):
            action()
        took.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(took)


def packets(aead: Aead, size: int, count: int) -> tuple[float, float]:
    """Microseconds to seal and to open the packet of a plain datagram of ``size`` bytes."""
    ticket = TicketBook(ADDRESS, aead=aead).issue()
    client, server = ticket.session(server=False), ticket.session(server=True)
    message = bytes(size - 12)  # without stream id and checksum
    sealed: list[bytes] = []
    seal = microseconds(lambda: sealed.append(client.sealer.seal(message)), count)
    arriving = iter(sealed)
    return seal, microseconds(lambda: server.opener.open(next(arriving)), count)


def setting_up(aead: Aead, count: int) -> float:
    """Microseconds to make one end of a session: four keys and their ciphers."""
    book = TicketBook(ADDRESS, aead=aead)
    tickets = iter([book.issue() for _ in range(count * ROUNDS)])
    return microseconds(lambda: next(tickets).session(server=True), count)


def a_stream(pad: int | None, loss: float, streams: int) -> tuple[float, float, float]:
    """Bytes a token, share of stalls, milliseconds of computing; ``pad`` None: plain."""
    size, stalled, start = 0, 0.0, time.perf_counter()
    for seed in range(streams):
        answer = simulate("eloquent", ANSWER, network(loss=loss), seed, pad=pad)
        size += answer.wire_bytes
        stalled += metrics(answer.rendered_at, answer.generated_at)["stall_ratio"]
    took = time.perf_counter() - start
    return size / len(ANSWER) / streams, stalled / streams, 1e3 * took / streams


def _add_row(
    table: Table,
    name: str,
    costs: list[tuple[float, float, float]],
    plain: list[tuple[float, float, float]],
) -> None:
    cells = []
    for (size, *_), (before, *_) in zip(costs, plain, strict=True):
        cells += [f"{size:.0f}", f"{100 * (size / before - 1):.0f}%"]
    _, stalled, computing = costs[-1]
    table.add_row(name, *cells, f"{100 * stalled:.2f}", f"{computing:.1f}")


def main(arguments: list[str] | None = None) -> int:
    """Print both tables."""
    parser = Parser(
        prog="benchmarks/sealing.py",
        description="What sealing costs: time for each packet, and bytes for each token.",
        epilog="examples:\n  python benchmarks/sealing.py --packets 1000 --streams 1",
    )
    parser.add_argument("--packets", type=int, default=5000, help="in a round (%(default)s)")
    parser.add_argument("--streams", type=int, default=10, help="of each kind (%(default)s)")
    options = parser.parse_args(arguments)
    table = Table()
    table.add_column("µs a packet", key=True)
    for header in (*(f"{size} B" for size in SIZES), "one end's keys"):
        table.add_column(header, justify="right")
    for aead in Aead:
        costs = [packets(aead, size, options.packets) for size in SIZES]
        keys = f"{setting_up(aead, max(1, options.packets // 50)):.0f}"
        table.add_row(f"{aead.value}: seal", *(f"{seal:.1f}" for seal, _ in costs), keys)
        table.add_row(f"{aead.value}: open", *(f"{opened:.1f}" for _, opened in costs), "")
    standard_output().print(table)
    table = Table()
    table.add_column("scheme eloquent", key=True)
    for header in ("bytes a token", "more", "10% loss", "more", "stall %", "ms a stream"):
        table.add_column(header, justify="right")
    plain = [a_stream(None, loss, options.streams) for loss in LOSSES]
    _add_row(table, "plain", plain, plain)
    for pad in PADS:
        sealed = [a_stream(pad, loss, options.streams) for loss in LOSSES]
        _add_row(table, f"sealed, pad={pad}" if pad else "sealed", sealed, plain)
    standard_output().print(table)
    print("400 tokens of 3 to 6 bytes, 45 ms apart, RTT 50 ms, losses in outages of 100 ms")
    return 0


if __name__ == "__main__":
    program.run(main)
