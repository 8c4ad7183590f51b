"""Topologies as data, and one builder for all of them.

network = build(named("dumbbell"), choose("auto"), datapath=openvswitch.datapath())
network.start()
network.wait_connected(10)
network.hosts["client1"].popen(...)
network.stop()
"""

from .network import Network, NetworkError, build
from .shapes import cell, dumbbell, named, names
from .topology import Topology, TopologyError, Wire

__all__ = [
    "Network",
    "NetworkError",
    "Topology",
    "TopologyError",
    "Wire",
    "build",
    "cell",
    "dumbbell",
    "named",
    "names",
]
