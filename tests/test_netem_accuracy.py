"""netem in virtual time does what it is told, to the letter. On other clocks nobody claims so."""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import time

import pytest
from emulated import inside, interval_999  # type: ignore[import-not-found, unused-ignore]

from topologies.channel import Bottleneck, GilbertElliottPackets
from topologies.profile import Direction

pytestmark = [
    pytest.mark.netem,
    pytest.mark.skipif(
        os.environ.get("ELOQUENT_GUEST") != "virtual", reason="only a guest's clock is exact"
    ),
]


def rtts(made, count):
    command = ["ping", "-i", "0.01", "-c", str(count), "-q", "10.0.0.2"]
    output = made.client.popen(command, stdin=subprocess.DEVNULL).communicate()[0].decode()
    return [float(value) for value in output.rsplit("=", 1)[1].split()[0].split("/")]


def test_round_trip_time():
    _, mean, _, _ = inside(lambda made: rtts(made, 200), Direction(0.01), backend="netem")
    assert mean == pytest.approx(20.0, abs=0.1)


FLOOD = """
import socket, sys, time
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(int(sys.argv[1])):
    sock.sendto(bytes(int(sys.argv[2])), ("10.0.0.2", 5000))
    time.sleep(float(sys.argv[3]))
"""


def flood(made, count, size, spacing):
    arguments = [str(count), str(size), str(spacing)]
    made.links["access"].seed(1)
    made.client.popen([sys.executable, "-c", FLOOD, *arguments], stdin=subprocess.DEVNULL).wait()
    time.sleep(1)
    return made.links["access"].stats()["up"]


def test_gemodel_loss():
    model = GilbertElliottPackets(p=0.02, r=0.2)
    n = 10_000
    stats = inside(
        lambda made: flood(made, n, 10, 0.001), Direction(0.01, loss=model), backend="netem"
    )
    assert stats["received"] == n
    # Losses in bursts of mean B spread like n/B independent ones and their lengths: the variance
    # of the count is that of a binomial times (2 - p - r) / (p + r) (Gilbert 1960; the chain's
    # autocorrelation is (1 - p - r)^k).
    share = model.mean_loss
    widen = (2 - model.p - model.r) / (model.p + model.r)
    low, high = interval_999(n, share)
    half = (high - low) / 2 * widen**0.5
    assert abs(stats["lost"] - n * share) <= half


def test_rate():
    rate, n, size = 2e6, 2000, 1000

    def run(made):
        receiver = made.server.popen([sys.executable, "-c", RECEIVE], stdin=subprocess.DEVNULL)
        assert receiver.stdout.readline() == b"ready\n"
        flood(made, n, size, 0.001)
        time.sleep(20)
        receiver.terminate()
        return [float(line) for line in receiver.communicate()[0].decode().split()]

    neck = Bottleneck(rate=rate, queue_packets=5000)
    arrivals = inside(run, Direction(0.01, bottleneck=neck), Direction(0.01), backend="netem")
    assert len(arrivals) == n
    seen = (n - 1) * (size + 42) * 8 / (arrivals[-1] - arrivals[0])
    assert seen == pytest.approx(rate, rel=0.02)
    gaps = [b - a for a, b in itertools.pairwise(arrivals)]
    assert statistics.pstdev(gaps) < 0.02 * statistics.mean(gaps)


RECEIVE = """
import signal, socket, sys, time
seen = []
signal.signal(signal.SIGTERM, lambda *_: (print(*seen, sep="\\n", flush=True), sys.exit()))
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("", 5000))
print("ready", flush=True)
while True:
    sock.recv(2000)
    seen.append(time.monotonic())
"""
