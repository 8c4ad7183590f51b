"""A network that goes away for 30 s: how long until the reader has what was missed?

sudo python scenarios/disruption.py
"""

import sys

try:
    from analysis.recovery import recovery_text
    from scenarios.command import main
    from scenarios.scenario import Scenario
    from topologies.channel import Gaps
    from topologies.profile import Direction, LinkProfile, NetworkProfile
    from topologies.profile_file import named
    from topologies.quantities import Seconds
except ModuleNotFoundError as missing:
    sys.exit(f"error: {missing}; run setup.sh, then use the Python in .venv/bin")


def network(start: Seconds = 2.0, length: Seconds = 30.0) -> NetworkProfile:
    """After ``start`` s nothing passes for ``length`` s, either way; then all is well again.

    30 s is the disruption of the video-conferencing study (arXiv 2105.13478), which takes capacity
    away for so long and measures the time to recovery. Its capacity falls to 0.25 Mbit/s at the
    least, which a token stream would not notice: here it falls to nothing. The start is assumed:
    early, so that the model goes on into the disruption.
    """
    gap = Direction(delay=0.003, loss=Gaps(((start, start + length),)))
    return NetworkProfile(
        access=LinkProfile(
            "wifi", up=gap, down=gap, source="arXiv 2105.13478; see scenarios/disruption.py"
        ),
        server=named("wired"),
    )


SCENARIO = Scenario(
    name="disruption",
    title="30 seconds without a network",
    network=network,
    prompts="questions",
    runs=2,
    tokens=120,
    conclude=lambda results, knobs: recovery_text(
        results.tokens, knobs["start"], knobs["start"] + knobs["length"]
    ),
)

if __name__ == "__main__":
    sys.exit(main(SCENARIO))
