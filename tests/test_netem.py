"""The netem back end: what tc is told, and, where the kernel has netem, what comes of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest
from emulated import (  # type: ignore[import-not-found, unused-ignore]
    Probes,
    echo,
    inside,
    interval_999,
    probe,
)

from topologies import sandbox
from topologies.backends import BACKENDS, Choice, choose
from topologies.channel import Bernoulli, GilbertElliott
from topologies.links import LinkError
from topologies.netem import netem_available
from topologies.netem_words import netem_words
from topologies.profile import Direction, LinkProfile
from topologies.wifi import Network


@pytest.mark.parametrize(
    ("direction", "loss", "words"),
    [
        (Direction(0.02), 0.1, "delay 20000.000us loss random 10.0000000% limit 100000"),
        (Direction(), 0.015, "loss random 1.5000000% limit 100000"),
        (Direction(0.0005), 1.0, "delay 500.000us loss random 100.0000000% limit 100000"),
        (
            Direction(0.02, 0.002),
            0.0,
            "delay 20000.000us 2000.000us distribution normal loss random 0.0000000% "
            "rate 100gbit limit 100000",
        ),
    ],
)
def test_arguments(direction: Direction, loss: float, words: str) -> None:
    assert " ".join(netem_words(direction, loss)) == words


def test_arguments_of_a_change_and_of_a_seeded_qdisc() -> None:
    change = netem_words(Direction(0.02, 0.002), 0.5, table=False)
    assert "distribution" not in change
    assert change[:3] == ["delay", "20000.000us", "2000.000us"]
    assert netem_words(Direction(), 0.5, 2**64 - 1)[-2:] == ["seed", "18446744073709551615"]


emulation = pytest.mark.emulation


@emulation
def test_available_is_tried_and_leaves_nothing() -> None:
    def main() -> tuple[bool, str, str]:
        usable, reason = netem_available()
        links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True)
        return usable, reason, links.stdout

    usable, reason, links = sandbox.call(main)
    assert reason.startswith("this kernel has netem" if usable else "this kernel has no usable")
    assert [line.split()[0] for line in links.splitlines()] == ["lo"]


@emulation
def test_the_choice_never_falls_back_silently() -> None:
    def main() -> dict[str, Choice | str]:
        found: dict[str, Choice | str] = {"available": str(netem_available()[0])}
        for request in (*BACKENDS, "magic"):
            try:
                found[request] = choose(request)
            except LinkError as error:
                found[request] = str(error)
        return found

    found = sandbox.call(main)
    assert found["user"] == Choice("user", "asked for by name")
    assert found["magic"] == "unknown link back end 'magic'; known are auto, netem, user"
    if found["available"] == "True":
        assert found["netem"] == Choice("netem", "asked for by name")
        assert found["auto"] == Choice("netem", "this kernel has netem")
    else:
        assert isinstance(found["netem"], str)
        assert found["netem"].startswith("the back end netem is not usable: this kernel has no")
        assert isinstance(found["auto"], Choice)
        assert found["auto"].name == "user"
        assert found["auto"].reason.startswith("this kernel has no usable netem")


@pytest.mark.netem
def test_independent_loss_and_delay() -> None:
    n = 2000

    def run(made: Network) -> tuple[Probes, dict[str, Any]]:
        link = made.links["access"]
        with echo(made):
            # Both delays are there from the start, and survive what Open vSwitch does to qdiscs.
            for sent, returned in probe(made, 20, 0.01):
                assert returned is None or returned - sent >= 0.04
            link.seed(1)
            return probe(made, n, 0.004), link.stats()

    probes, stats = inside(run, Direction(0.02, loss=Bernoulli(0.1)), backend="netem")
    assert stats["backend"] == "netem"
    # Without a seed in tc or kernel this is left to chance: 1 run in 100,000 falls outside.
    low, high = interval_999(n, 0.1)
    margin = 0.35 * (high - low) / 2
    assert low - margin <= stats["up"]["lost"] <= high + margin
    assert stats["up"]["received"] == stats["up"]["lost"] + stats["up"]["delivered"]
    low, high = interval_999(n, 1 - 0.9**2)
    assert low - margin <= sum(returned is None for _, returned in probes) <= high + margin
    trips = sorted(returned - sent for sent, returned in probes if returned is not None)
    assert trips[0] >= 0.040
    assert trips[len(trips) // 2] == pytest.approx(0.040, abs=0.002)
    seeded = not stats["notes"]
    assert seeded or "losses per packet are not seeded" in stats["notes"][0]


@pytest.mark.netem
def test_jitter_does_not_reorder() -> None:
    code = """
import socket, sys, time
if sys.argv[1] == "serve":
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("", 5000))
    print("ready", flush=True)
    seen = []
    while len(seen) < 2000:
        data, now = sock.recv(100), time.monotonic()
        number, sent = data.split()
        seen.append((int(number), now - float(sent)))
    import json; print(json.dumps(seen), flush=True)
else:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for i in range(2000):
        sock.sendto(b"%d %f" % (i, time.monotonic()), ("10.0.0.2", 5000))
        time.sleep(0.001)
"""

    def run(made: Network) -> list[tuple[int, float]]:
        serve = made.server.popen([sys.executable, "-c", code, "serve"], stdin=subprocess.DEVNULL)
        serve.stdout.readline()
        made.client.popen([sys.executable, "-c", code, "send"], stdin=subprocess.DEVNULL).wait()
        seen: list[tuple[int, float]] = json.loads(serve.communicate(timeout=20)[0])
        return seen

    seen = inside(run, Direction(0.02, 0.005), backend="netem")
    assert [number for number, _ in seen] == list(range(2000))
    delays = sorted(delay for _, delay in seen)
    assert delays[-1] - delays[0] > 0.01


@pytest.mark.netem
def test_outages_in_time_are_where_the_schedule_has_them() -> None:
    up, down = Direction(0.01, loss=GilbertElliott(0.4, 0.1)), Direction(0.01)
    seed, n, spacing = 3, 5000, 0.002
    edge = 0.02

    def run(made: Network) -> tuple[Probes, float, dict[str, Any]]:
        link = made.links["access"]
        with echo(made):
            before = probe(made, 50, 0.01)
            assert all(returned is not None for _, returned in before)
            link.seed(seed)
            epoch = time.monotonic() + 0.1
            link.start_epoch(epoch)
            probes = probe(made, n, spacing)
            link.stop_epoch()
            after = probe(made, 50, 0.01)
            assert all(returned is not None for _, returned in after)
            return probes, epoch, link.stats()

    probes, epoch, stats = inside(run, up, down, backend="netem")
    channel = LinkProfile("access", up, down, "test").channel("up", "access", seed)
    outages = channel.outages(0, n * spacing + 2)

    def in_outage(t: float, margin: float) -> bool:
        return any(start - margin <= t < stop + margin for start, stop in outages)

    lost = [sent - epoch for sent, returned in probes if returned is None]
    assert len(lost) > 100
    assert all(in_outage(t, edge) for t in lost)
    arrived = [sent - epoch for sent, returned in probes if returned is not None]
    assert not any(in_outage(t, -edge) for t in arrived)
    assert stats["lateness"]["count"] > 20
    assert stats["notes"] == []
