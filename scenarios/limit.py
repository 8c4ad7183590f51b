"""The limit of a channel: what a sender that sends without pause could show, and when.

Such a sender has every token generated so far in a datagram at every instant. Each token is then
shown at the first moment, from its generation on, at which each hop on the way lets a packet
through, plus the least delay. No sender whatever shows a token earlier (``earliest``).

Exact for losses that depend on the time alone. Where each packet is drawn by itself (Bernoulli,
chains per packet, drop lists) the bound is clairvoyant: of infinitely many packets in an instant
one passes, so nothing is waited for. Not counted: the queue before a bottleneck, as if everybody
else were silent, and that packets cost time at one.

The stall ratio of these times is reported as ``limit_stall_ratio``. For the *ratio* alone it is a
yardstick and no theorem: a scheme that happens to show a token late, but within theta, just before
an outage, has a shorter stall than one that showed it at once.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from analysis.stalls import metrics
from topologies.channel import (
    Channel,
    Combined,
    DelayModel,
    DelayTrace,
    DropList,
    GilbertElliottPackets,
    LossModel,
)
from topologies.profile import Direction, NetworkProfile

#: Seconds after which a channel that lets nothing through is taken to be closed for ever.
_NEVER = 1e5
#: The least frame with a token in it: Ethernet, IPv4 and UDP headers, Eloquent's, one byte.
_LEAST_FRAME = 14 + 20 + 8 + 22
#: Moments this close to each other are the same, whatever rounding has made of them (s).
_ROUNDING = 1e-9


def earliest(generated_at: Sequence[float], network: NetworkProfile, seed: int) -> list[float]:
    """When each token of an answer could be shown at the earliest; NaN for never.

    Times are seconds from the first token's generation, which is when the channels' time starts.
    """
    hops: list[tuple[Direction, Channel]] = []
    for name, link in (("server", network.server), ("access", network.access)):
        down = dataclasses.replace(link.down, loss=_clairvoyant(link.down.loss))
        link = dataclasses.replace(link, down=down)
        hops.append((down, _started(link.channel("down", name, seed))))
    shown: list[float] = []
    for generated in generated_at:
        at = generated
        for direction, channel in hops:
            at = _leaves(at, direction, channel)
        # In order: a token waits for those before it.
        shown.append(max(at, shown[-1]) if shown else at)
    return [at if at < _NEVER else math.nan for at in shown]


def limit_stall_ratio(
    generated_at: Sequence[float], network: NetworkProfile, seed: int, theta: float
) -> float:
    """The stall ratio of ``earliest``, that of the model's own pauses included."""
    return metrics(earliest(generated_at, network, seed), theta=theta)["stall_ratio"]


def _clairvoyant(model: LossModel | None) -> LossModel | None:
    """Without chains per packet: one may end where it loses all, but starts in a good state."""
    if isinstance(model, Combined):
        parts = [_clairvoyant(part) for part in model.models]
        return Combined(tuple(part for part in parts if part is not None))
    if isinstance(model, GilbertElliottPackets) and model.loss_good < 1:
        return DropList(())
    return model


def _started(channel: Channel) -> Channel:
    channel.epoch = 0.0
    return channel


def _leaves(at: float, direction: Direction, channel: Channel) -> float:
    """The first moment at which something that enters at ``at`` or later can leave a hop."""
    if direction.bottleneck is not None and at < _NEVER:
        at = _served(at, direction)
    start = _open(at, channel)
    if start >= _NEVER:
        return start
    best = start + _least_delay(direction.delay_model, start)
    # A delay that falls with time may let a later packet overtake; one that is constant cannot.
    trace = direction.delay_trace
    if trace is not None:
        for moment in _changes(trace, start):
            if moment >= best:
                break
            moment = _open(moment, channel)
            best = min(best, moment + _least_delay(direction.delay_model, moment + _ROUNDING))
    return best


def _changes(trace: DelayTrace, after: float) -> Iterator[float]:
    """When a recorded delay changes, after that moment."""
    rounds, rest = divmod(after, trace.length)
    count = len(trace.times)
    for number in itertools.count(int(rounds) * count + bisect_right(trace.times, rest)):
        yield number // count * trace.length + trace.times[number % count]


def _open(at: float, channel: Channel) -> float:
    """The first moment from ``at`` on at which a packet may pass."""
    before = max(at - _ROUNDING, 0.0)
    while min(channel.loss_at(at), channel.loss_at(before)) >= 1 and at < _NEVER:
        at = before = channel.next_change(at)
    return at


def _least_delay(model: DelayModel, at: float) -> float:
    delay = model.trace.delay_at(at) if model.trace else model.delay
    if model.jitter == 0:
        return delay
    if model.distribution == "pareto":  # its least draw, see DelayModel
        return max(0.0, delay - model.jitter * 2 / 3)
    return 0.0


def _served(at: float, direction: Direction) -> float:
    """When the bottleneck has sent a frame that finds it idle."""
    bottleneck = direction.bottleneck
    assert bottleneck is not None
    if bottleneck.rate is not None:
        return at + 8 * _LEAST_FRAME / bottleneck.rate
    assert bottleneck.trace is not None
    rounds, rest = divmod(at, bottleneck.trace.length)
    if rest <= _ROUNDING:  # the last opportunity of the round before
        return at
    later = next(time for time in bottleneck.trace.times if time >= rest - _ROUNDING)
    return max(at, rounds * bottleneck.trace.length + later)
