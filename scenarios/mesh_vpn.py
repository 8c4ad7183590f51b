"""A server reached over a mesh VPN: losses come in bursts of five packets and more.

sudo python scenarios/mesh_vpn.py
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
    """Burst lengths as one user measured them, the loss is assumed; see the profile's file."""
    return NetworkProfile(access=named("mesh-vpn"), server=named("wired"))


SCENARIO = Scenario(
    name="mesh_vpn",
    title="A mesh VPN with long bursts",
    network=network,
    prompts="questions",
)

if __name__ == "__main__":
    program.run(main, SCENARIO)
