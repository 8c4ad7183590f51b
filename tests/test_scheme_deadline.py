"""The scheme `eloquent-deadline`: when it refreshes, by hand, and what that costs, by simulation.

One way takes 20 ms and tokens come every 45 ms, so the reader sees token 19 at 19 x 45 + 20 ms and
stalls 200 ms later. A refresh that is to arrive 0.5 ms before that leaves 199.5 ms after token 19.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import mean

import pytest
from network import Fate, Network, lossy, outage  # type: ignore[import-not-found]

from analysis.stalls import metrics
from eloquent import schemes
from eloquent.wire import Data, decode
from scenarios.limit import limit_stall_ratio
from scenarios.paper import network as paper_network
from scenarios.simulator import simulate

WAY, SPACING = 0.02, 0.045
#: When the first token is generated: the prompt's way and the model's thinking.
ZERO = WAY + 0.1
#: Token 19 is the last one that arrives before the outage; token 20 is the first that is lost.
LAST = 19 * SPACING
FIRST_LOST = 20 * SPACING
NAME = "eloquent-deadline"


def run(
    scheme: str, fate: Fate, tokens: int = 60, spacing: float | Callable[[int], float] = SPACING
) -> Network:
    words = [b" %d" % n for n in range(tokens)]
    network = Network(words, fate, scheme=scheme, spacing=spacing).run()
    assert network.answer == words
    return network


def data_times(network: Network) -> list[float]:
    """When DATA of the answer left, in seconds since the first token."""
    return [
        at - ZERO
        for at, direction, datagram in network.log
        if direction == "down" and isinstance(decode(datagram), Data)
    ]


def silence(length: float, *directions: str) -> Fate:
    """An outage that begins just before token 20."""
    start = ZERO + FIRST_LOST - 0.001
    return outage(start, start + length, lossy(1, 0.0, WAY), directions)


def pause(seconds: float) -> Callable[[int], float]:
    """The model says nothing for so long after token 20: what leaves is repetitions alone."""
    return lambda n: seconds if n == 20 else SPACING


def after(network: Network, start: float, stop: float) -> list[float]:
    return [at for at in data_times(network) if start - 1e-6 <= at < stop]


@pytest.mark.parametrize("jitter", [0.0, 0.004])
def test_silent_on_a_clean_network(jitter: float) -> None:
    logs = [run(name, lossy(3, 0.0, WAY, jitter)).log for name in ("eloquent", NAME)]
    assert logs[0] == logs[1]


def test_no_refresh_for_a_loss_that_the_next_token_repairs() -> None:
    def fate(datagram: bytes, direction: str, now: float) -> list[tuple[bytes, float]]:
        here = direction == "down" and abs(now - ZERO - FIRST_LOST) < 1e-3
        return [] if here else [(datagram, WAY)]

    assert run(NAME, fate).log == run("eloquent", fate).log


@pytest.mark.parametrize(("argument", "theta"), [("", 0.2), (":480", 0.48), (":150", 0.15)])
def test_the_first_refresh_arrives_just_before_the_reader_stalls(
    argument: str, theta: float
) -> None:
    """Until then every datagram is one of eloquent's."""
    fate = silence(0.7)
    plain = data_times(run("eloquent", fate, spacing=pause(2.0)))
    ours = data_times(run(NAME + argument, fate, spacing=pause(2.0)))
    first = next(at for at, other in zip(ours, plain, strict=False) if abs(at - other) > 1e-9)
    assert first == pytest.approx(LAST + WAY + theta - WAY - 0.0005, abs=1e-6)


def test_no_refresh_while_the_ack_is_not_overdue() -> None:
    """Theta of 45 ms: it runs out before the ACK of a token that came 45 ms after could be here.

    SRTT + 5 ms after it was sent the ACK is overdue. Eloquent's own timeout, SRTT + 1 ms, has come
    by then, and 5 ms are between two datagrams.
    """
    ours = data_times(run(f"{NAME}:45", silence(0.3), spacing=pause(2.0)))
    repeats = [at - FIRST_LOST for at in ours if FIRST_LOST + 1e-6 < at < FIRST_LOST + 0.1]
    assert repeats[:3] == pytest.approx([0.041, 0.046, 0.046 + 0.012], abs=1e-4)


@pytest.mark.parametrize(
    ("directions", "least", "share"),
    [((), 0.012, 0.04), (("down",), 0.005, 0.025)],
    ids=["no PING came", "a PING came"],
)
def test_spacing_of_the_refreshes(directions: tuple[str, ...], least: float, share: float) -> None:
    """12 ms, and 4% of the stall from 300 ms on; with a PING 5 ms, and 2.5% from 200 ms on.

    The reader's PING leaves 150 ms after token 19 was shown, so it is there in time.
    """
    times = after(
        run(NAME, silence(0.85, *directions), spacing=pause(2.0)),
        LAST + 0.1995,
        FIRST_LOST + 0.84,
    )
    expected = [LAST + 0.1995]
    while expected[-1] < FIRST_LOST + 0.84:
        expected.append(expected[-1] + max(least, share * (expected[-1] - expected[0])))
    assert times == pytest.approx(expected[:-1], abs=1e-5)
    gaps = [b - a for a, b in pairwise(times)]
    assert gaps[:20] == pytest.approx([least] * 20, abs=1e-6)
    assert gaps[-1] > 1.5 * least


@pytest.mark.parametrize(
    ("directions", "most"), [((), 10), (("up",), 10), (("down",), 10 + 8)], ids=str
)
def test_at_most_ten_datagrams_a_second_when_nothing_is_answered(
    directions: tuple[str, ...], most: int
) -> None:
    """Quiet after 1 s, though tokens go on. PINGs, 4 a second, cause up to two probes each."""
    network = run(NAME, silence(6.0, *directions), tokens=150)
    times = after(network, FIRST_LOST + 1.2, FIRST_LOST + 5.9)
    assert len(times) > 20
    for start in times:
        assert len([at for at in times if start <= at < start + 0.999]) <= most


def test_the_outage_is_over_soon_after_it_is_over() -> None:
    """With a PING the spacing is 2.5% of 0.6 s of refreshing: 15 ms late at most, and the way."""
    network = run(NAME, silence(0.8, "down"), spacing=pause(2.0))
    end = FIRST_LOST - 0.001 + 0.8
    assert end + WAY <= network.rendered[20] - ZERO <= end + WAY + 0.016


@pytest.mark.parametrize("argument", ["19", "10001", "x", "-200", "0.2", "200:5"])
def test_a_wrong_theta_is_one_clear_line(argument: str) -> None:
    with pytest.raises(ValueError, match="takes theta as 20 to 10000 ms, got") as error:
        schemes.create(f"{NAME}:{argument}")
    assert "\n" not in str(error.value)


def test_what_it_is_worth_and_what_it_costs() -> None:
    """40 answers at 10% loss in outages of 200 ms, 45 ms a token, RTT 50 ms. Bounds are wide."""
    network = paper_network(loss=0.1, outage=0.2, rtt=0.05)
    tokens = [(0.1 + SPACING * n, b" tok") for n in range(400)]
    seeds = range(40)
    names = ("eloquent", NAME, "duplicate")
    answers = {name: [simulate(name, tokens, network, s) for s in seeds] for name in names}
    stall = {
        name: mean(metrics(a.rendered_at)["stall_ratio"] for a in answers[name]) for name in names
    }
    limit = mean(
        limit_stall_ratio(answer.generated_at, network, seed, 0.2)
        for answer, seed in zip(answers[NAME], seeds, strict=True)
    )
    assert limit > 0.02
    assert 1.0 <= stall[NAME] / limit < 1.06
    assert 1.0 <= stall["eloquent"] / limit < 1.2
    assert stall[NAME] < stall["eloquent"] < stall["duplicate"]
    datagrams = {name: sum(a.datagrams for a in answers[name]) for name in names}
    assert datagrams["eloquent"] < datagrams[NAME] < 1.3 * datagrams["eloquent"]
    sizes = {name: sum(a.wire_bytes for a in answers[name]) for name in names}
    assert sizes[NAME] < sizes["duplicate"]
