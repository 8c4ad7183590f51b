"""The paper's comparison: every scheme over channels with known loss, simulated by default.

python scenarios/paper.py                  the whole table, with its text and pictures
python scenarios/paper.py --loss 0.1 --outage 0.05 --rtt 0.05 --spacing 0.045     one cell
"""

import sys

try:
    from scenarios.command import main
    from scenarios.scenario import Scenario
    from topologies.channel import bursts
    from topologies.profile import Direction, LinkProfile, NetworkProfile
    from topologies.quantities import Count, Seconds, Share
except ModuleNotFoundError as missing:
    sys.exit(f"error: {missing}; run setup.sh, then use the Python in .venv/bin")


def network(loss: Share = 0.10, outage: Seconds = 0.1, rtt: Seconds = 0.05) -> NetworkProfile:
    """One link that loses the share ``loss`` either way, in outages of ``outage`` s on average.

    The paper (arXiv 2401.12961) names neither its loss model nor its RTT. Assumptions: outages
    and good times are exponential, an outage of 0 means independent losses, both directions have
    losses of their own, and the delay is constant, ``rtt`` / 2 each way.
    """
    air = Direction(delay=rtt / 2, loss=bursts(loss, outage))
    return NetworkProfile(
        access=LinkProfile("air", up=air, down=air, source="assumed: see scenarios/paper.py"),
        server=LinkProfile("cable", up=Direction(), down=Direction(), source="a plain cable"),
    )


def workload(spacing: Seconds = 0.045, step: Count = 1) -> str:
    """A token every ``spacing`` s, or ``step`` of them at a time: ChatGPT's datagrams held three.

    45 ms is a pace of 22 tokens/s. The paper names none for its simulation: an assumption.
    """
    return f"timing:steady:spacing={spacing:g}:per_step={step:g}"


SCENARIO = Scenario(
    name="paper",
    title="The paper's comparison",
    network=network,
    workload=workload,
    schemes=(
        *("eloquent", "eloquent-deadline", "mosh", "redundancy", "duplicate", "duplicate:2:50"),
        "tcp",
    ),
    runs=30,
    tokens=400,
    engine="simulated",
)


def _one_cell(words: list[str]) -> bool:
    """Do the words ask for a single cell (or a sweep of one's own) rather than the whole table?"""
    names = {word.lstrip("-").split("=")[0] for word in words if word.startswith("-")}
    kernel = any(word.split("=")[-1] in ("virtual", "emulated") for word in words)
    return kernel or bool(names & {*SCENARIO.knobs(), "h", "help", "quick", "sweep", "source"})


if __name__ == "__main__":
    if _one_cell(sys.argv[1:]):
        sys.exit(main(SCENARIO))
    from scenarios.paper_table import main as whole_table

    sys.exit(whole_table(SCENARIO))
