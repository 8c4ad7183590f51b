"""How long a simulated stream takes: 400 tokens in 18 s, per scheme, on one core.

python benchmarks/simulator.py
"""

from __future__ import annotations

import statistics
import time

from eloquent import schemes
from scenarios.paper import network
from scenarios.simulator import simulate
from terminal import program
from terminal.arguments import Parser
from terminal.console import standard_output
from terminal.table import Table

GOAL = 0.050


def main(arguments: list[str] | None = None) -> int:
    """Print milliseconds a stream, and how many times real time that is."""
    parser = Parser(
        prog="benchmarks/simulator.py",
        description="How long a simulated stream takes: 400 tokens in 18 s, per scheme, on one "
        "core.",
        epilog="examples:\n  python benchmarks/simulator.py --streams 5",
    )
    parser.add_argument("--streams", type=int, default=20, help="of each scheme (%(default)s)")
    options = parser.parse_args(arguments)
    tokens = [(0.045 * (n + 1), b" token"[: 3 + n % 4]) for n in range(400)]
    table = Table()
    table.add_column("scheme", key=True)
    for header in ("ms (median)", "ms (worst)", "times real time"):
        table.add_column(header, justify="right")
    for scheme in schemes.names():
        took = []
        for seed in range(options.streams):
            start = time.perf_counter()
            simulate(scheme, tokens, network(), seed)
            took.append(time.perf_counter() - start)
        middle = statistics.median(took)
        table.add_row(
            scheme,
            f"{1e3 * middle:.1f}",
            f"{1e3 * max(took):.1f}",
            f"{tokens[-1][0] / middle:.0f}",
        )
    standard_output().print(table)
    print(f"goal: {1e3 * GOAL:g} ms for 20 s, 400 times real time")
    return 0


if __name__ == "__main__":
    program.run(main)
