"""What readers do to a narrow link that they share: offered load, drops, tokens that arrive.

Each reader gets 30 tokens/s for 60 s. The link to them has a queue of 1 s, the way back none. No
kernel: the end points in a discrete-event loop, as the engine `simulated` has them.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from eloquent import Asked, Client, Reason, Server, schemes
from scenarios.simulator import HEADERS
from terminal import program
from terminal.arguments import Parser
from terminal.console import standard_output
from terminal.table import Table
from topologies.channel import subseed
from topologies.quantities import KILOBITS

ONE_WAY = 0.025
SECONDS = 60.0
PACE = 30.0
#: How long the queue is when it is full (s).
QUEUE = 1.0


@dataclass
class Outcome:
    """What one experiment came to, counted until the models stop."""

    offered: float  # bit/s, headers included
    dropped: float  # share of the datagrams to the readers
    arrived: float  # share of the tokens that were generated, SECONDS after the first
    datagrams: int
    delay_p95: float  # s, from generation to the reader; lost ones excluded
    stalled: float  # share of the time in gaps longer than 0.2 s, mean of the readers


@dataclass
class _Reader:
    client: Client
    generated: list[float] = field(default_factory=list)
    shown: list[float] = field(default_factory=list)


class Crowd:
    """Readers of one server behind one bottleneck."""

    def __init__(self, scheme: str, readers: int, rate: float, seed: int) -> None:
        bits = random.Random(subseed(seed, "crowd")).getrandbits
        self.now, self.bits, self.sent, self.lost = 0.0, 0, 0, 0
        self._rate = rate
        self._server = Server(scheme, random_bits=bits)
        self._random = random.Random(subseed(seed, "starts"))
        self._free_at = 0.0  # when the link has sent what it holds
        starts = sorted(self._random.uniform(0, 1.0) for _ in range(readers))
        self._readers = [_Reader(Client(b"why?", at, random_bits=bits)) for at in starts]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._alarms: dict[int, float] = {}
        for number, at in enumerate(starts):
            self._at(at, self._waker(number))

    def _at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), action))

    def _waker(self, number: int) -> Callable[[], None]:
        return lambda: self._wake(number)

    def _wake(self, number: int) -> None:
        """Let a reader (or the server, -1) send, and set its alarm."""
        end: Client | Server = self._server if number < 0 else self._readers[number].client
        if number < 0:
            self._serve()
        else:
            for datagram in self._readers[number].client.datagrams(self.now):
                self._at(self.now + ONE_WAY, self._upward(number, datagram))
        due = end.next_timeout()
        if due is not None and self._alarms.get(number) != due:
            self._alarms[number] = due
            self._at(due, lambda: self._ring(number, due))

    def _ring(self, number: int, due: float) -> None:
        if self._alarms.get(number) == due:
            del self._alarms[number]
            self._wake(number)

    def _upward(self, number: int, datagram: bytes) -> Callable[[], None]:
        def arrive() -> None:
            self._server.receive(datagram, ("10.0.0.1", number), self.now)
            self._wake(-1)

        return arrive

    def _serve(self) -> None:
        for event in self._server.events():
            if isinstance(event, Asked):
                self._speak(event)
        for datagram, address in self._server.datagrams(self.now):
            assert isinstance(address, tuple)
            self._downward(address[1], datagram)

    def _downward(self, number: int, datagram: bytes) -> None:
        size = 8 * (len(datagram) + HEADERS)
        self.sent += 1
        self.bits += size
        if self._free_at - self.now > QUEUE:  # drop-tail
            self.lost += 1
            return
        self._free_at = max(self._free_at, self.now) + size / self._rate

        def arrive() -> None:
            reader = self._readers[number]
            reader.shown += [self.now] * len(reader.client.receive(datagram, self.now))
            self._wake(number)

        self._at(self._free_at + ONE_WAY, arrive)

    def _speak(self, event: Asked) -> None:
        """A model that says its tokens at PACE, whoever hears them."""
        number = event.stream.address[1]  # type: ignore[index]
        reader = self._readers[number]

        def say(left: int) -> None:
            if event.stream.ended is not None:
                return
            if left == 0:
                event.stream.finish(Reason.STOP, self.now)
            elif event.stream.room() >= 8:
                reader.generated.append(self.now)
                event.stream.push(b" token"[: 3 + left % 4], self.now)
            self._wake(-1)
            if left:
                self._at(self.now + 1 / PACE, lambda: say(left - 1))

        self._at(self.now + self._random.uniform(0, 1 / PACE), lambda: say(int(SECONDS * PACE)))

    def run(self) -> Outcome:
        """Until the models have stopped."""
        while self._events and self._events[0][0] <= SECONDS:
            self.now, _, action = heapq.heappop(self._events)
            action()
        made = sum(len(reader.generated) for reader in self._readers)
        shown = sum(len(reader.shown) for reader in self._readers)
        delays = sorted(
            late - early
            for reader in self._readers
            for early, late in zip(reader.generated, reader.shown, strict=False)
        )
        return Outcome(
            self.bits / SECONDS,
            self.lost / max(1, self.sent),
            shown / max(1, made),
            self.sent,
            delays[int(0.95 * len(delays))] if delays else float("inf"),
            sum(map(_stalled, self._readers)) / len(self._readers),
        )


def _stalled(reader: _Reader) -> float:
    times = [reader.generated[0] if reader.generated else 0.0, *reader.shown, SECONDS]
    gaps = (b - a for a, b in itertools.pairwise(times))
    return sum(gap - 0.2 for gap in gaps if gap > 0.2) / SECONDS


def main(arguments: list[str] | None = None) -> int:
    """Print one line for each scheme and number of readers."""
    parser = Parser(
        prog="python -m benchmarks.congestion",
        description="What readers do to a narrow link that they share: offered load, drops, tokens "
        "that arrive. Simulated.",
        epilog="examples:\n  python -m benchmarks.congestion\n"
        "  python -m benchmarks.congestion --readers 20 --schemes eloquent --rate 50kbit/s",
    )
    parser.add_argument(
        "--schemes", default=",".join(schemes.names()), help="with commas between (all)"
    )
    parser.add_argument("--readers", default="1,10,20", help="how many share it (%(default)s)")
    parser.add_argument(
        "--rate",
        type=KILOBITS.option(50.0),
        default=50.0,
        metavar="RATE",
        help=f"of the link, as {KILOBITS.example} (%(default)g)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the readers' starts (%(default)s)")
    options = parser.parse_args(arguments)
    columns = ("offered kbit/s", "x link", "dropped", "arrived", "delay P95 s", "stalled")
    table = Table()
    table.add_column("scheme", key=True)
    for header in ("readers", *columns, "datagrams"):
        table.add_column(header, justify="right")
    rate = 1e3 * options.rate
    for scheme in options.schemes.split(","):
        for readers in map(int, options.readers.split(",")):
            out = Crowd(scheme, readers, rate, options.seed).run()
            table.add_row(
                scheme,
                str(readers),
                f"{out.offered / 1e3:.0f}",
                f"{out.offered / rate:.1f}",
                f"{out.dropped:.0%}",
                f"{out.arrived:.0%}",
                f"{out.delay_p95:.1f}",
                f"{out.stalled:.1%}",
                str(out.datagrams),
            )
    standard_output().print(table)
    return 0


if __name__ == "__main__":
    program.run(main)
