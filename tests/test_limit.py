"""The limit of a channel: by hand for small ones, and never beaten by any scheme on random ones."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from scenarios.limit import earliest, limit_stall_ratio
from scenarios.simulator import simulate
from topologies.channel import (
    Bernoulli,
    Blackouts,
    Bottleneck,
    Combined,
    DelayTrace,
    DeliveryTrace,
    DropList,
    FateList,
    Gaps,
    GilbertElliott,
    GilbertElliottPackets,
    LossModel,
    ParetoOutages,
)
from topologies.profile import Direction, LinkProfile, NetworkProfile

PLAIN = Direction()


def network(access: Direction, server: Direction = PLAIN, up: Direction = PLAIN) -> NetworkProfile:
    return NetworkProfile(
        LinkProfile("air", up=up, down=access, source="a test"),
        LinkProfile("cable", up=PLAIN, down=server, source="a test"),
    )


def check(generated: Sequence[float], profile: NetworkProfile, expected: Sequence[float]) -> None:
    assert earliest(generated, profile, 1) == pytest.approx(expected, abs=1e-8, nan_ok=True)


NEVER_CLOSED = [
    None,
    Bernoulli(0.0),
    Bernoulli(0.99),
    DropList((1, 2, 3)),
    FateList((True, True, False)),
    GilbertElliottPackets(p=0.1, r=0.3),
    GilbertElliottPackets(p=0.1, r=0.0),  # once bad, it stays so: but it starts good
    Combined((Bernoulli(0.5), GilbertElliottPackets(p=0.1, r=0.0))),
    GilbertElliott(mean_good=0.1, mean_bad=0.1, loss_bad=0.9),
]


@pytest.mark.parametrize("loss", NEVER_CLOSED, ids=str)
def test_where_a_packet_can_pass_at_any_time_the_delay_is_all(loss: LossModel | None) -> None:
    generated = [0.0, 0.045, 0.5, 9.0]
    profile = network(Direction(0.02, loss=loss), Direction(0.005))
    check(generated, profile, [at + 0.025 for at in generated])


@pytest.mark.parametrize("loss", [Bernoulli(1.0), FateList((True,)), Gaps(((0.0, 1e6),))], ids=str)
def test_nothing_ever_passes_a_closed_channel(loss: LossModel) -> None:
    check([0.0, 1.0], network(Direction(loss=loss)), [math.nan, math.nan])


def test_behind_a_closed_channel_nothing_matters(tmp_path: Path) -> None:
    (tmp_path / "cell").write_text("20\n")
    cell = Bottleneck(trace=DeliveryTrace(str(tmp_path / "cell")), queue_packets=9)
    trace = _delays(tmp_path, "0,0.2\n0.1,0.01\n")
    access = Direction(delay_trace=trace, bottleneck=cell)
    closed = Direction(delay_trace=trace, loss=Bernoulli(1.0))
    check([0.0, 1.0], network(access, closed), [math.nan, math.nan])


def test_gaps_are_waited_for() -> None:
    loss = Gaps(((0.1, 0.3), (0.5, 0.6)))
    generated = [0.0, 0.05, 0.15, 0.2, 0.31, 0.55]
    profile = network(Direction(0.02, loss=loss))
    check(generated, profile, [0.02, 0.07, 0.32, 0.32, 0.33, 0.62])


def test_blackouts_come_again_and_again() -> None:
    profile = network(Direction(loss=Blackouts(on=0.1, off=0.05)))
    check([0.0, 0.11, 0.12, 0.16, 0.26, 0.27], profile, [0.0, 0.15, 0.15, 0.16, 0.3, 0.3])


def test_outages_at_random_are_those_of_the_seed() -> None:
    link = network(Direction(0.03, loss=GilbertElliott(mean_good=0.3, mean_bad=0.2))).access
    spells = link.channel("down", "access", 1).outages(0, 20)
    generated = [0.05 * n for n in range(200)]

    def by_hand(at: float) -> float:
        return next((end for start, end in spells if start <= at < end), at) + 0.03

    assert len(spells) > 10
    check(generated, network(link.down), [by_hand(at) for at in generated])


def test_two_causes_close_a_channel_while_either_does() -> None:
    both = Combined((Gaps(((0.1, 0.2),)), Gaps(((0.15, 0.25),))))
    check([0.05, 0.12, 0.22], network(Direction(loss=both)), [0.05, 0.25, 0.25])


def test_two_hops_are_passed_one_after_the_other() -> None:
    """Server's hop: 30 ms, closed from 100 to 200 ms. Access: 10 ms, closed from 200 to 250 ms."""
    server = Direction(0.03, loss=Gaps(((0.1, 0.2),)))
    access = Direction(0.01, loss=Gaps(((0.2, 0.25),)))
    generated = [0.05, 0.12, 0.185, 0.21, 0.3]
    check(generated, network(access, server), [0.09, 0.26, 0.26, 0.26, 0.34])
    # The other way round: what leaves at 0.12 and 0.185 is at the closed hop at 0.13 and 0.195.
    check(generated, network(server, access), [0.09, 0.23, 0.23, 0.29, 0.34])


@pytest.mark.parametrize(
    ("direction", "least"),
    [
        (Direction(0.05, jitter=0.01), 0.0),  # a normal draw may be any
        (Direction(0.05, jitter=0.03, distribution="pareto"), 0.03),  # 50 - 2/3 of 30 ms
        (Direction(0.01, jitter=0.03, distribution="pareto", clamp=True), 0.0),
    ],
)
def test_with_jitter_the_least_draw_counts(direction: Direction, least: float) -> None:
    check([0.0, 0.2], network(direction), [least, 0.2 + least])


def _delays(folder: Path, text: str) -> DelayTrace:
    path = folder / "delay.csv"
    path.write_text(text)
    return DelayTrace(str(path))


def test_it_pays_to_wait_for_a_shorter_delay(tmp_path: Path) -> None:
    """200 ms until 0.1, 10 ms until 0.2, and again. The last one does not wait: 0.19 is early."""
    trace = _delays(tmp_path, "0,0.2\n0.1,0.01\n")
    profile = network(Direction(delay_trace=trace, reorder=True))
    generated = [0.0, 0.05, 0.15, 0.19, 0.21]
    check(generated, profile, [0.11, 0.11, 0.16, 0.2, 0.31])


def test_a_shorter_delay_may_last_for_a_moment(tmp_path: Path) -> None:
    trace = _delays(tmp_path, "0,0.5\n0.3,0.05\n0.301,0.5\n0.6,0.5\n")
    check([0.0, 0.2, 0.2005, 0.302], network(Direction(delay_trace=trace)), [0.35] * 3 + [0.802])


def test_a_shorter_delay_counts_only_while_the_channel_is_open(tmp_path: Path) -> None:
    trace = _delays(tmp_path, "0,0.2\n0.1,0.01\n")
    profile = network(Direction(delay_trace=trace, loss=Gaps(((0.09, 0.12),))))
    check([0.05], profile, [0.13])


def test_a_rate_takes_the_time_of_the_least_datagram() -> None:
    """42 bytes of headers and 22 of DATA with an empty token at 100 kbit/s: 5.12 ms."""
    slow = Direction(0.01, bottleneck=Bottleneck(rate=1e5, queue_packets=5))
    check([0.0, 0.045], network(slow), [0.01512, 0.06012])
    # It is on the air after it has been sent.
    closed = Direction(0.01, bottleneck=slow.bottleneck, loss=Gaps(((0.05, 0.1),)))
    check([0.04, 0.047, 0.1], network(closed), [0.05512, 0.11, 0.11512])


def test_a_delivery_trace_gives_its_opportunities(tmp_path: Path) -> None:
    """Every 20 ms. The end of a round is one too, and time 0 is the end of a round."""
    (tmp_path / "cell").write_text("20\n")
    trace = DeliveryTrace(str(tmp_path / "cell"))
    cell = Direction(0.01, bottleneck=Bottleneck(trace=trace, queue_packets=9))
    generated = [0.0, 0.005, 0.025, 0.04, 0.041]
    check(generated, network(cell), [0.01, 0.03, 0.05, 0.05, 0.07])
    channel = network(cell).access.channel("down", "access", 1)
    channel.epoch = 0.0
    assert channel.fate(0.0, 64).due == pytest.approx(0.01)


def test_a_token_waits_for_those_before_it(tmp_path: Path) -> None:
    times = earliest([0.0, 0.0, 0.01], network(Direction(0.1, jitter=0.05)), 1)
    assert times == sorted(times)


def test_the_stall_ratio_of_the_limit() -> None:
    """Shown at 0, 50, 600 (twice) and 650 ms: 350 of 650 ms are beyond 200 ms."""
    profile = network(Direction(loss=Gaps(((0.1, 0.6),))))
    ratio = limit_stall_ratio([0.0, 0.05, 0.15, 0.2, 0.65], profile, 1, 0.2)
    assert ratio == pytest.approx(0.35 / 0.65)
    never = limit_stall_ratio([0.0, 0.1], network(Direction(loss=Bernoulli(1.0))), 1, 0.2)
    assert math.isnan(never)


# -- random channels -----------------------------------------------------------------------------


@dataclass
class Draw:
    """Random profiles from one seed."""

    rng: random.Random
    delays: list[DelayTrace]
    cells: list[DeliveryTrace]

    def loss(self) -> LossModel | None:
        uniform = self.rng.uniform
        models: list[Callable[[], LossModel | None]] = [
            lambda: None,
            lambda: Bernoulli(uniform(0, 0.4)),
            lambda: GilbertElliott(uniform(0.2, 2), uniform(0.02, 0.4)),
            lambda: GilbertElliott(uniform(0.2, 2), uniform(0.02, 0.4), 0.02, uniform(0.3, 1)),
            lambda: ParetoOutages(uniform(0.5, 2), uniform(0.02, 0.2), 2.0),
            lambda: Blackouts(uniform(0.3, 1), uniform(0.02, 0.4)),
            lambda: Gaps(((uniform(0, 1), uniform(1.1, 2)),)),
            lambda: GilbertElliottPackets(uniform(0.01, 0.1), uniform(0.2, 0.9)),
            lambda: DropList(tuple(self.rng.sample(range(1, 60), 12))),
            lambda: FateList((False, *(self.rng.random() < 0.2 for _ in range(30)))),
            lambda: Combined((Bernoulli(uniform(0, 0.2)), Gaps(((uniform(0, 1), 1.2),)))),
        ]
        return self.rng.choice(models)()

    def direction(self) -> Direction:
        rng = self.rng
        fields: dict[str, object] = {"loss": self.loss()}
        if rng.random() < 0.15:
            fields["delay_trace"] = rng.choice(self.delays)
        else:
            fields["delay"] = rng.uniform(0, 0.12)
        if rng.random() < 0.3:
            fields["jitter"] = rng.uniform(0, 0.03)
            fields["clamp"] = True
            fields["distribution"] = rng.choice(["normal", "pareto"])
        fields["reorder"] = rng.random() < 0.5
        if rng.random() < 0.2:
            fields["bottleneck"] = Bottleneck(rate=10 ** rng.uniform(5, 7), queue_packets=50)
        elif rng.random() < 0.1:
            fields["bottleneck"] = Bottleneck(trace=rng.choice(self.cells), queue_packets=50)
        if rng.random() < 0.1:
            fields |= {"duplicate": rng.uniform(0, 0.3), "corrupt": rng.uniform(0, 0.1)}
        return Direction(**fields)

    def network(self) -> NetworkProfile:
        server = self.direction() if self.rng.random() < 0.4 else Direction(0.005)
        return network(self.direction(), server, self.direction())

    def tokens(self) -> list[tuple[float, bytes]]:
        rng = self.rng
        spacing, at = rng.choice([0.005, 0.02, 0.045, 0.1]), rng.uniform(0, 0.5)
        out = []
        for _ in range(60):
            out.append((at, bytes(rng.randrange(256) for _ in range(rng.randrange(9)))))
            at += rng.choice([0.0, spacing, spacing, spacing * rng.random()])
        return out


SCHEMES = [
    *("eloquent", "eloquent-deadline", "eloquent-deadline:50", "mosh", "redundancy"),
    *("redundancy:5", "duplicate", "duplicate:3:20", "retransmit"),
]


@pytest.mark.parametrize("block", range(10))
def test_no_scheme_ever_beats_the_limit_and_all_finish(block: int, tmp_path: Path) -> None:
    delays = [_delays(tmp_path, "0,0.1\n0.3,0.02\n0.35,0.15\n0.9,0.03\n")]
    (tmp_path / "cell").write_text("0\n7\n7\n20\n31\n60\n")
    draw = Draw(random.Random(block), delays, [DeliveryTrace(str(tmp_path / "cell"))])
    for number in range(100):
        profile, tokens = draw.network(), draw.tokens()
        scheme, seed = draw.rng.choice(SCHEMES), draw.rng.randrange(2**32)
        answer = simulate(scheme, tokens, profile, seed)  # raises if it does not finish
        limit = earliest(answer.generated_at, profile, seed)
        assert len(limit) == len(tokens) == len(answer.rendered_at)
        for index, (least, shown) in enumerate(zip(limit, answer.rendered_at, strict=True)):
            assert least <= shown + 1e-9, f"{scheme}, token {index} of {number}: {profile}"
