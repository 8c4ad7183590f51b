"""The check of the links: it believes a link that does what the profile says, and no other."""

from __future__ import annotations

import pytest

from apps.samples import Sample
from scenarios.link_check import COUNT, INTERVAL, judge
from topologies.channel import Bernoulli, GilbertElliott
from topologies.profile import Direction, LinkProfile, NetworkProfile


def network(delay: float = 0.02, loss: object = None) -> NetworkProfile:
    way = Direction(delay=delay, loss=loss)
    wired = Direction(delay=0.005)
    return NetworkProfile(
        access=LinkProfile("radio", up=way, down=way, source="test"),
        server=LinkProfile("wire", up=wired, down=wired, source="test"),
    )


def probes(real: NetworkProfile, seed: int, epoch: float = 100.0) -> list[Sample]:
    """What a network that behaves exactly like ``real`` does to the probes."""
    up, down = (real.access.channel(way, "access", seed) for way in ("up", "down"))
    up.epoch = down.epoch = epoch
    samples = []
    for number in range(COUNT):
        sent = epoch + 0.05 + number * INTERVAL
        there = up.fate(sent)
        arrived = there.due + real.server.up.delay
        back = down.fate(arrived + real.server.down.delay)
        samples.append(
            Sample(
                sent,
                None if there.lost else arrived,
                None if there.lost or back.lost else back.due,
            )
        )
    return samples


@pytest.mark.parametrize("loss", [None, Bernoulli(0.1), GilbertElliott(0.45, 0.05)])
@pytest.mark.parametrize("seed", range(5))
def test_a_link_that_keeps_its_profile_is_believed(loss: object, seed: int) -> None:
    profile = network(loss=loss)
    assert judge(probes(profile, seed), profile, seed, 100.0) == []


def test_a_link_without_the_delay_that_was_set_is_refused() -> None:
    # What Mininet's TCLink silently does on a kernel without netem: nothing.
    (line,) = judge(probes(network(delay=0.0), 1), network(delay=0.02), 1, 100.0)
    assert "radio + wire" in line
    assert "set RTT 50.0 ms" in line
    assert "seen 10.0 ms" in line


def test_a_link_without_the_loss_that_was_set_is_refused() -> None:
    lines = judge(probes(network(), 1), network(loss=Bernoulli(0.1)), 1, 100.0)
    assert len(lines) == 2  # both directions
    assert all("set loss 10.00%" in line and "seen 0.00%" in line for line in lines)


def test_outages_at_other_moments_than_scheduled_are_noticed() -> None:
    # The same long-run loss, but another seed: only knowing the schedule tells them apart.
    profile = network(loss=GilbertElliott(0.3, 0.3))
    assert judge(probes(profile, 2), profile, 1, 100.0) != []


def test_a_dead_link_is_refused() -> None:
    profile = network()
    dead = [Sample(100.05 + n * INTERVAL, None, None) for n in range(COUNT)]
    assert any("none of 250 probes came back" in line for line in judge(dead, profile, 1, 100.0))
