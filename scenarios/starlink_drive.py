"""A car with a Starlink dish: an outage of a third of a second every 22 s, each way.

sudo python scenarios/starlink_drive.py
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
    """Outages as measured on the Maine trip of May 2024; sources in the profile's file."""
    return NetworkProfile(access=named("starlink-driving"), server=named("wired"))


SCENARIO = Scenario(
    name="starlink_drive",
    title="Starlink, driving",
    network=network,
    prompts="long",
    runs=5,
    tokens=240,
)

if __name__ == "__main__":
    program.run(main, SCENARIO)
