"""A reader on WiFi at the edge of coverage: outages far shorter than a second, many of them.

sudo python scenarios/wifi_loss.py
"""

import sys

try:
    from scenarios.command import main
    from scenarios.scenario import Scenario
    from topologies.channel import bursts
    from topologies.profile import Direction, LinkProfile, NetworkProfile
    from topologies.quantities import Seconds, Share
except ModuleNotFoundError as missing:
    sys.exit(f"error: {missing}; run setup.sh, then use the Python in .venv/bin")


def network(loss: Share = 0.10, outage: Seconds = 0.1) -> NetworkProfile:
    """The access link loses everything during outages of ``outage`` s on average, ``loss`` in all.

    loss: 10%. The paper's measurement, walking, is 10.5 to 15.8% (arXiv 2401.12961).
    outage: 100 ms, an assumption: no public trace resolves outages at the time scale of tokens.
    It lies between a fade at walking pace (coherence time 0.423 lambda/v = 38 to 53 ms at
    2.4 GHz and 1.4 to 1.0 m/s; Rappaport, Wireless Communications, section 5.4.3) and a roaming
    scan (53 to 421 ms; Mishra, Shin and Arbaugh, ACM CCR 33(2), 2003). 802.11 losses have
    heavier tails than this model (Carvalho et al., 2005).
    """
    # Delay of a home WiFi hop with little queueing: an assumption, as is its jitter.
    wifi = Direction(delay=0.003, jitter=0.001, loss=bursts(loss, outage))
    # One way to a server of the same region: RTT 43 ms is the fifth percentile of 4G round
    # trips in ERRANT/MONROE (n = 1000), that is, one with an idle radio.
    wired = Direction(delay=0.018)
    return NetworkProfile(
        access=LinkProfile(
            "wifi", up=wifi, down=wifi, source="outages: see scenarios/wifi_loss.py"
        ),
        server=LinkProfile("server", up=wired, down=wired, source="ERRANT/MONROE, 4G RTT, P5"),
    )


SCENARIO = Scenario(
    name="wifi_loss",
    title="WiFi with bursts of outages",
    network=network,
    prompts="questions",
)

if __name__ == "__main__":
    sys.exit(main(SCENARIO))
