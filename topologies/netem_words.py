"""A direction of a link in the words of tc, and what tc has no words for."""

from __future__ import annotations

import math

from topologies.channel import Bottleneck, GilbertElliottPackets
from topologies.profile import Direction, LinkProfile

QUEUE = 100_000
"""Packets in netem's own queue, at least. The default of 1000 drops unintended."""
_FASTEST = 200_000
"""Packets/s for which that queue is sized; no link in Python or through Open vSwitch is faster."""
_FRAME = 1514


def inexpressible(profile: LinkProfile) -> str | None:
    """What netem cannot do of a profile: one line that names the parameter, or None."""
    for name, value in (("rebind", profile.rebind), ("mtu", profile.mtu)):
        if value is not None:
            return f"link {profile.name}: netem has no {name}; the back end user has"
    for way in ("up", "down"):
        direction = profile.direction(way)
        where = f"link {profile.name}, {way}"
        loss, neck = direction.loss, direction.bottleneck
        if loss and not loss.memoryless and not isinstance(loss, GilbertElliottPackets):
            return f"{where}: netem has no loss model {loss.kind}; the back end user has"
        if direction.duplicate and direction.mean_loss:
            # It draws the copy before the loss, and of a lost frame the copy gets through.
            return f"{where}: netem has no duplicate beside loss; the back end user has"
        if direction.delay_trace:
            return f"{where}: netem has no delay trace; the back end user has"
        if neck and neck.trace:
            return f"{where}: netem has no delivery trace; the back end user has"
    return None


def netem_words(
    direction: Direction, loss: float, seed: int | None = None, *, table: bool = True
) -> list[str]:
    """What follows `tc qdisc ... netem` for loss, delay, duplication and corruption.

    Args:
        loss: the loss of the moment; not used for a model that netem itself steps per packet.
        seed: for netem's own generator, where tc and kernel know `seed`.
        table: load the table of the jitter's distribution; a later change may leave it out.
    """
    words = []
    if direction.delay > 0 or direction.jitter > 0:
        words += ["delay", _microseconds(direction.delay)]
        if direction.jitter > 0:
            words += [_microseconds(direction.jitter)]
            words += ["distribution", direction.distribution] if table else []
    model = direction.loss
    if isinstance(model, GilbertElliottPackets):
        steps = (model.p, model.r, model.loss_bad, model.loss_good)
        words += ["loss", "gemodel", *map(_percent, steps)]
    else:
        words += ["loss", "random", _percent(loss)]
    if direction.duplicate > 0:
        words += ["duplicate", _percent(direction.duplicate)]
    if direction.corrupt > 0:
        words += ["corrupt", _percent(direction.corrupt)]
    if direction.jitter > 0 and not direction.reorder:
        # netem reorders under jitter unless it has a rate: then each frame is scheduled after the
        # one before (sch_netem.c, netem_enqueue). At this rate a frame of 1500 B takes 0.1 µs.
        words += ["rate", "100gbit"]
    words += ["limit", str(queue_limit(direction))]
    if seed is not None:
        words += ["seed", str(seed)]
    return words


def queue_limit(direction: Direction) -> int:
    """Packets that netem must hold: all that are on their way at the fastest rate."""
    longest = direction.delay + 4 * direction.jitter
    return max(QUEUE, math.ceil(longest * _FASTEST))


def bottleneck_words(neck: Bottleneck) -> tuple[list[str], list[str] | None]:
    """What follows `tc qdisc ...` for the bottleneck's own device: its root, and a child of that.

    netem's rate serves a queue counted in packets: it releases each frame when its last bit has
    left, as `Bottleneck` says. Its limit counts the frame in transmission too. tbf serves queues
    in bytes and codel; its bucket holds one frame, so that a frame after a pause leaves up to one
    transmission time early.
    """
    rate = f"{neck.mean_rate:.0f}bit"
    if neck.discipline == "drop-tail" and neck.queue_packets is not None:
        return ["netem", "rate", rate, "limit", str(neck.queue_packets + 1)], None
    size = neck.queue_bytes or _FRAME * (neck.queue_packets or 0)
    tbf = ["tbf", "rate", rate, "burst", str(_FRAME), "limit", str(max(size, _FRAME))]
    if neck.discipline == "codel":
        packets = neck.queue_packets or max(1, size // _FRAME)
        return tbf, ["codel", "limit", str(packets)]
    return tbf, None


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.3f}us"


def _percent(share: float) -> str:
    return f"{100 * share:.7f}%"
