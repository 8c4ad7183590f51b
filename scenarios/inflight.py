"""A reader in an aircraft, over a geostationary satellite: half a second there and back.

sudo python scenarios/inflight.py
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
    """The delay is geometry, loss and rates are assumed; see the profile's file."""
    return NetworkProfile(access=named("satellite-geo"), server=named("wired"))


SCENARIO = Scenario(
    name="inflight",
    title="A geostationary satellite, in flight",
    network=network,
    prompts="questions",
)

if __name__ == "__main__":
    program.run(main, SCENARIO)
