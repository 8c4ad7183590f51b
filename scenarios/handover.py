"""A reader who walks from one access network into another in the middle of an answer.

sudo python scenarios/handover.py
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

try:
    from scenarios.command import Plan, main
    from scenarios.scenario import Scenario
    from topologies.channel import Gaps
    from topologies.profile import Direction, LinkProfile, NetworkProfile, ProfileError
    from topologies.quantities import Seconds
except ModuleNotFoundError as missing:
    sys.exit(f"error: {missing}; run setup.sh, then use the Python in .venv/bin")

if TYPE_CHECKING:  # both take a while to import, and --help needs neither
    from collections.abc import Mapping

    from analysis.results import Results
    from scenarios.stage import Stage

#: The address changes inside of the gap, and that takes a moment.
_LEAST_GAP = 0.05


def network(at: Seconds = 4.0, gap: Seconds = 0.3) -> NetworkProfile:
    """The client leaves ``access-a`` ``at`` s after the first token, for ``access-b``.

    gap: 0 is make before break, the new path works before the old one ends. Otherwise the old
    path ends, nothing passes for ``gap`` s, and then the new one works for another address of the
    client. 300 ms lies within what a roaming scan takes (53 to 421 ms; Mishra, Shin and Arbaugh,
    ACM CCR 33(2), 2003).

    Both networks have the delay of scenarios/wifi_loss.py and lose nothing, so that the handover
    alone makes a difference. Without a kernel (engine ``simulated``) the handover is the same gap
    in one network, and the client keeps its address.
    """
    if at < 0 or gap < 0 or 0 < gap < _LEAST_GAP:
        raise ProfileError(f"at must be >= 0 and gap 0 or at least {_LEAST_GAP:g} s")
    losses = Gaps(((at, at + gap),)) if gap > 0 else None
    radio = Direction(delay=0.003, jitter=0.001, loss=losses)
    wired = Direction(delay=0.018)
    return NetworkProfile(
        access=LinkProfile(
            "radio", up=radio, down=radio, source="delay: scenarios/wifi_loss.py; gap: assumed"
        ),
        server=LinkProfile("server", up=wired, down=wired, source="ERRANT/MONROE, 4G RTT, P5"),
    )


def stage(plan: Plan, folder: Path, say: Callable[[str], None]) -> Stage:
    """Two access networks, one controller: see scenarios/two_paths.py."""
    from scenarios.two_paths import TwoPaths

    return TwoPaths(plan, folder, say, at=plan.knobs["at"], gap=plan.knobs["gap"])


def conclude(results: Results, knobs: Mapping[str, float]) -> str:
    """The reader's longest wait around the handover, by scheme."""
    at, gap = knobs["at"], knobs["gap"]
    lines = [f"Handover at {at:g} s, gap {gap:g} s; the longest wait for a token that it caused:"]
    for scheme, tokens in results.tokens.groupby("scheme", sort=False):
        waits = [
            _wait(run["rendered_at"].tolist(), at, at + gap) for _, run in tokens.groupby("run")
        ]
        lines.append(f"  {scheme:18} {1e3 * max(waits):.0f} ms ({len(waits)} runs)")
    return "\n".join(lines)


def _wait(shown: list[float], start: float, end: float) -> float:
    """The longest time between two tokens of which the second was shown after ``start``."""
    pairs = itertools.pairwise(shown)
    return max((b - a for a, b in pairs if b > start and a < end + 0.5), default=float("nan"))


SCENARIO = Scenario(
    name="handover",
    title="A handover in the middle of an answer",
    network=network,
    prompts="questions",
    tokens=120,
    stage=stage,
    conclude=conclude,
)

if __name__ == "__main__":
    sys.exit(main(SCENARIO))
