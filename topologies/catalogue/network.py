"""From a topology to a running network of Mininet hosts, Open vSwitch, and measured links."""

from __future__ import annotations

import importlib
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any

from topologies.backends import Choice
from topologies.links import CableLink, End, Link
from topologies.netem import NetemLink
from topologies.user_link import UserLink

from .topology import Topology, Wire

_OFFLOADS = ("tx", "tso", "gso", "gro")


class NetworkError(RuntimeError):
    """The network cannot be built, or does not come up."""


@dataclass
class Network:
    """A built network; hosts and switches are Mininet's."""

    topology: Topology
    mininet: Any
    hosts: dict[str, Any] = field(default_factory=dict)
    switches: dict[str, Any] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    """By name; `up` leads from the first end of the wire to the second."""
    controller: str | None = None
    """Address of the OpenFlow controller; None: switches learn addresses by themselves."""
    _cables: dict[str, Any] = field(default_factory=dict)

    @property
    def client(self) -> Any:
        """The client of an experiment with two hosts."""
        return self.hosts[self.topology.client]

    @property
    def server(self) -> Any:
        """The server of an experiment with two hosts."""
        return self.hosts[self.topology.server]

    @property
    def switch(self) -> Any:
        """The first switch."""
        return self.switches[self.topology.switches[0]]

    def start(self) -> None:
        """Start switches and links. Raises NetworkError if Open vSwitch does not take a switch."""
        self.mininet.start()
        for switch in self.switches.values():
            _check_ports(switch)
        # Only now: Open vSwitch removes the qdisc of an interface that it takes as a port.
        for name, link in self.links.items():
            link.attach(*_ends(self._cables[name]))
        for name in self.topology.hosts:
            wires = self.topology.wires_of(name)
            if len(wires) > 1:
                self._share_address(name, wires)

    def wait_connected(self, timeout: float) -> None:
        """Wait until all switches are connected to the controller; traffic before that is lost.

        Raises NetworkError after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        for switch in self.switches.values():
            while not switch.connected():
                if time.monotonic() >= deadline:
                    raise NetworkError(
                        f"switch {switch.name} did not connect to the controller at "
                        f"{self.controller} within {timeout:g} s"
                    )
                time.sleep(0.05)

    def use(self, name: str, host: str | None = None) -> None:
        """Let a host (the client) that has several links send through this one from now on.

        It keeps its addresses. Towards it, switches follow its next frame (Open vSwitch may use
        a cached flow for half a second more), or a controller that knows better.
        """
        node = self.hosts[host or self.topology.client]
        self.topology.wire(name)
        _command(
            node, f"ip route replace 10.0.0.0/8 dev {self._interface(node, name)} src {node.IP()}"
        )

    def stop(self) -> None:
        """End links, switches and hosts."""
        for link in self.links.values():
            link.close()
        self.mininet.stop()

    def _interface(self, node: Any, name: str) -> str:
        for interface in (self._cables[name].intf1, self._cables[name].intf2):
            if interface.node is node:
                return str(interface.name)
        raise NetworkError(f"link {name} does not lead to {node.name}")

    def _share_address(self, name: str, wires: list[Wire]) -> None:
        """Give all interfaces of a host the addresses of its first one.

        Linux takes what comes for any of its addresses through any interface, unless told to be
        strict about it (rp_filter, ip-sysctl.rst); it is sent out through the one of the route.
        """
        node = self.hosts[name]
        _command(node, "sysctl -qw net.ipv4.conf.all.rp_filter=0")
        for wire in wires[1:]:
            interface = self._interface(node, wire.name)
            _command(node, f"sysctl -qw net.ipv4.conf.{interface}.rp_filter=0")
            _command(node, f"ip link set {interface} down address {node.MAC()}")
            _command(node, f"ip link set {interface} up")
            for other in self.hosts.values():
                if other is not node:
                    neighbour = f"{other.IP()} lladdr {other.MAC()} dev {interface}"
                    _command(node, f"ip neigh replace {neighbour} nud permanent")


def build(
    topology: Topology,
    choice: Choice,
    *,
    datapath: str,
    controller_port: int | None = None,
) -> Network:
    """Build a topology inside a sandbox in which a private Open vSwitch runs.

    Args:
        topology: what to build; its profiles are read now.
        choice: the link back end, from `backends.choose`.
        datapath: `kernel` or `user`, see `openvswitch.datapath`.
        controller_port: of an OpenFlow 1.3 controller at 127.0.0.1; without it switches learn
            addresses by themselves.

    Hosts have static ARP entries, no IPv6, and addresses from 10.0.0.1 on in their order; one with
    several links has the same address on each, and sends through the first (see `Network.use`).
    A perfect link (no delay, no loss) is a plain veth pair under every back end.

    Raises NetworkError without Mininet, ProfileError if a profile cannot be read, and LinkError or
    TapError if a link cannot be made.
    """
    if datapath not in ("kernel", "user"):
        raise NetworkError(f"the datapath must be kernel or user, not {datapath!r}")
    profiles = topology.profiles
    try:
        parts = importlib.import_module("topologies.mininet_parts")
    except ModuleNotFoundError as missing:
        raise NetworkError(f"Mininet is not installed ({missing}): run setup.sh") from None
    from mininet.log import setLogLevel
    from mininet.net import Mininet

    setLogLevel("error")
    # Mininet would raise limits of the whole machine (kernel.pty.max, net.core.rmem_max, ...).
    Mininet.inited = True
    mininet = Mininet(controller=None, autoSetMacs=True, autoStaticArp=True)
    network = Network(topology, mininet)
    for name in topology.hosts:
        network.hosts[name] = mininet.addHost(name)
    for name in topology.switches:
        network.switches[name] = mininet.addSwitch(
            name,
            cls=parts.Switch,
            datapath=datapath,
            protocols="OpenFlow13",
            failMode="standalone" if controller_port is None else "secure",
        )
    if controller_port is not None:
        network.controller = f"127.0.0.1:{controller_port}"
        mininet.addController("c0", parts.Controller, ip="127.0.0.1", port=controller_port)
    try:
        for host in network.hosts.values():
            host.cmd("sysctl -qw net.ipv6.conf.all.disable_ipv6=1")
            host.cmd("sysctl -qw net.ipv6.conf.default.disable_ipv6=1")
        for wire in topology.wires:
            _join(network, wire, _link(wire.name, profiles[wire.name], choice), parts)
        mininet.build()
    except BaseException:
        network.stop()
        raise
    return network


def _link(name: str, profile: Any, choice: Choice) -> Link:
    if profile.perfect:
        return CableLink(name, profile)
    return UserLink(name, profile) if choice.name == "user" else NetemLink(name, profile)


def _join(network: Network, wire: Wire, link: Link, parts: Any) -> None:
    nodes = {**network.hosts, **network.switches}
    network.links[wire.name] = link  # at once, so that it is closed if Mininet fails
    options = {} if link.backend == "cable" else {"cls": parts.Ends, "link": link}
    cable = network.mininet.addLink(nodes[wire.first], nodes[wire.second], **options)
    network._cables[wire.name] = cable
    if link.backend != "user":
        for interface in (cable.intf1, cable.intf2):
            _switch_off_offloads(interface)


def _ends(cable: Any) -> tuple[End, End]:
    first, second = (End(i.name, i.node.pid) for i in (cable.intf1, cable.intf2))
    return first, second


def _check_ports(switch: Any) -> None:
    bridges = subprocess.run(
        ["ovs-vsctl", "-t", "5", "list-ports", switch.name],
        capture_output=True,
        text=True,
        check=False,
    )
    expected = {interface.name for interface in switch.intfList() if interface.name != "lo"}
    if bridges.returncode != 0 or set(bridges.stdout.split()) != expected:
        reason = " ".join(bridges.stderr.split()) or f"its ports are {bridges.stdout.split()}"
        raise NetworkError(f"switch {switch.name} did not start: {reason}")


def _switch_off_offloads(interface: Any) -> None:
    """Let a veth end send what a network card would: whole checksums, frames of the MTU.

    A veth leaves checksums to a card that is not there: the netdev datapath passes them on
    unfilled, ping works, and TCP hangs. And netem loses a segment of 64 KB as one frame.
    """
    options = " ".join(f"{offload} off" for offload in _OFFLOADS)
    _command(interface.node, f"ethtool -K {interface.name} {options} > /dev/null")


def _command(node: Any, command: str) -> None:
    output = node.cmd(f"{command}; echo $?").split()
    if not output or output[-1] != "0":
        raise NetworkError(f"{node.name} cannot do `{command}`: {' '.join(output[:-1])}")
