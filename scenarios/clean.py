"""A network that loses nothing: what every scheme costs when it is not needed.

sudo python scenarios/clean.py
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
    """A cable and the wired way to the server: stalls are those of the model, for every scheme."""
    return NetworkProfile(access=named("clean"), server=named("wired"))


SCENARIO = Scenario(
    name="clean",
    title="A network without losses",
    network=network,
    prompts="questions",
    runs=3,
)

if __name__ == "__main__":
    program.run(main, SCENARIO)
