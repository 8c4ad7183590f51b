"""The network of a shared cell: one bottleneck, and the moment at which it nearly closes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from topologies.catalogue import Topology, cell
from topologies.channel.bottleneck import OPPORTUNITY, Bottleneck, DeliveryTrace
from topologies.profile import NetworkProfile

#: Seconds for which the bulk flows have the cell for themselves: at 0.1 to 0.4 s of round trip
#: some ten of them, in which slow start ends and the queue has been full once.
WARM_UP = 4.0
#: All clients have asked within this time (s): readers do not ask in chorus.
ARRIVALS = 1.0
#: Seconds of the overload: longer than the 3 s after which the protocol says that a sender
#: which nobody answers is quiet (max(1 s, 3 PTO), a PTO being 1 s at most).
OVERLOAD = 5.0
#: Share of an answer that is over when the overload begins, so that something follows it too.
_BEFORE = 0.55
#: The delivery trace goes on for this long (s) after the overload, longer than any answer.
_AFTER = 300.0


@dataclass(frozen=True)
class Timetable:
    """What happens when, in seconds of channel time; `overload` is None if there is none."""

    asking: float
    measured_from: float
    measured_to: float
    overload: tuple[float, float] | None


def timetable(answer: float, overload: bool) -> Timetable:
    """For answers that take `answer` seconds."""
    begin = WARM_UP + ARRIVALS
    if not overload:
        return Timetable(WARM_UP, begin, WARM_UP + answer, None)
    middle = begin + _BEFORE * answer
    return Timetable(WARM_UP, begin, middle, (middle, middle + OVERLOAD))


def topology(network: NetworkProfile, clients: int, trace: Path | None) -> Topology:
    """Clients and the bulk flows' sink on one queue, whose rate is that of `trace` if given."""
    profile = network.access
    if trace is not None:
        neck = profile.down.bottleneck
        assert neck is not None
        changing = Bottleneck(
            trace=DeliveryTrace(str(trace.resolve())), queue_packets=neck.queue_packets
        )
        down = dataclasses.replace(profile.down, bottleneck=changing)
        profile = dataclasses.replace(profile, down=down)
    return cell(clients).with_profiles({"cell": profile, "server": network.server})


def write_trace(path: Path, rate: float, reduced: float, overload: tuple[float, float]) -> None:
    """Chances to send for a link of `rate` bit/s that falls to `reduced` during the overload."""
    start, end = overload
    lines, at = [], 0.0
    while at < end + _AFTER:
        # What is left of the chance that the last change of rate cut in two is lost.
        now, limit = (reduced, end) if start <= at < end else (rate, start if at < start else 1e9)
        at = min(at + 8 * OPPORTUNITY / now, limit)
        lines.append(f"{1e3 * at:.3f}\n")
    path.write_text("".join(lines))
