"""A passenger who reads on LTE: ten gaps a minute in which nothing is delivered.

sudo python scenarios/lte_drive.py
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
    """T-Mobile's gaps in Mahimahi's trace, the most of three networks; sources in the profile."""
    return NetworkProfile(access=named("lte-driving-tmobile"), server=named("wired"))


SCENARIO = Scenario(
    name="lte_drive",
    title="LTE, driving",
    network=network,
    prompts="long",
    runs=5,
    tokens=240,
)

if __name__ == "__main__":
    program.run(main, SCENARIO)
