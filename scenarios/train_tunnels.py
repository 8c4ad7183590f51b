"""A reader on a train: ten seconds of LTE, then three and a half in a tunnel, and so on.

sudo python scenarios/train_tunnels.py
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
    """The line is assumed, its radio is measured LTE; see the profile's file."""
    return NetworkProfile(access=named("train"), server=named("wired"))


SCENARIO = Scenario(
    name="train_tunnels",
    title="A train through tunnels",
    network=network,
    prompts="long",
    runs=4,
    tokens=300,
)

if __name__ == "__main__":
    program.run(main, SCENARIO)
