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

import math
from collections.abc import Sequence

from analysis.stalls import metrics
from topologies.channel import Channel, DelayModel
from topologies.profile import Direction, LinkProfile, NetworkProfile

#: Seconds after which a channel that lets nothing through is taken to be closed for ever.
_NEVER = 1e5
#: The least frame with a token in it: Ethernet, IPv4 and UDP headers, Eloquent's, one byte.
_LEAST_FRAME = 14 + 20 + 8 + 22


def earliest(generated_at: Sequence[float], network: NetworkProfile, seed: int) -> list[float]:
    """When each token of an answer could be shown at the earliest; NaN for never.

    Times are seconds from the first token's generation, which is when the channels' time starts.
    """
    links: list[tuple[str, LinkProfile]] = [("server", network.server), ("access", network.access)]
    hops = [(link.down, _started(link.channel("down", name, seed))) for name, link in links]
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


def _started(channel: Channel) -> Channel:
    channel.epoch = 0.0
    return channel


def _leaves(at: float, direction: Direction, channel: Channel) -> float:
    """The first moment at which something that enters at ``at`` or later can leave a hop."""
    if direction.bottleneck is not None:
        at = _served(at, direction)
    start = _open(at, channel)
    best = start + _least_delay(direction.delay_model, start)
    # A delay that falls with time may let a later packet overtake; one that is constant cannot.
    trace = direction.delay_trace
    if trace is not None:
        step = min(b - a for a, b in zip(trace.times, trace.times[1:], strict=False))
        moment = start
        while moment + step < best:
            moment = _open(moment + step, channel)
            best = min(best, moment + _least_delay(direction.delay_model, moment))
    return best


def _open(at: float, channel: Channel) -> float:
    """The first moment from ``at`` on at which a packet may pass."""
    while channel.loss_at(at) >= 1 and at < _NEVER:
        at = channel.next_change(at)
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
    later = [time for time in bottleneck.trace.times if time >= rest]
    return rounds * bottleneck.trace.length + (later[0] if later else bottleneck.trace.length)
