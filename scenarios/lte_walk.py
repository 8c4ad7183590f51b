"""A reader who walks out of the WiFi into LTE: the measurement study of the paper.

sudo python scenarios/lte_walk.py
"""

import sys

try:
    from scenarios.command import main
    from scenarios.scenario import Scenario
    from terminal import program
    from topologies.profile import NetworkProfile
    from topologies.profile_file import named
except ModuleNotFoundError as missing:
    sys.exit(f"error: {missing}; run setup.sh, then use the Python in .venv/bin")


def network() -> NetworkProfile:
    """Loss of 13%, the middle of the paper's 10.5 to 15.8%; sources in the profile's file."""
    return NetworkProfile(access=named("lte-walking"), server=named("wired"))


SCENARIO = Scenario(
    name="lte_walk",
    title="LTE, walking",
    network=network,
    prompts="questions",
)

if __name__ == "__main__":
    program.run(main, SCENARIO)
