"""WiFi: client -- access link -- access point s1 (Open vSwitch) -- server link -- server.

with OpenVSwitch():
    network = build(profile, choose("auto"), datapath=openvswitch.datapath())
    network.start()
    network.wait_connected(10)
    network.client.popen(...)
    network.stop()
"""

from __future__ import annotations

import importlib
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any

from topologies.backends import Choice
from topologies.links import CableLink, End, Link
from topologies.netem import NetemLink
from topologies.profile import LinkProfile, NetworkProfile
from topologies.user_link import UserLink

_OFFLOADS = ("tx", "tso", "gso", "gro")


class NetworkError(RuntimeError):
    """The network cannot be built, or does not come up."""


@dataclass
class Network:
    """A built network. `client` and `server` are Mininet hosts, `switch` a Mininet switch."""

    mininet: Any
    client: Any
    server: Any
    switch: Any
    links: dict[str, Link] = field(default_factory=dict)
    """By name: `access` and `server`; `up` leads from the client to the server."""
    controller: str | None = None
    """Address of the OpenFlow controller; None: the switch learns addresses by itself."""
    _ends: dict[str, tuple[End, End]] = field(default_factory=dict)

    def start(self) -> None:
        """Start switch and links. Raises NetworkError if Open vSwitch does not take the switch."""
        self.mininet.start()
        bridges = subprocess.run(
            ["ovs-vsctl", "-t", "5", "list-ports", self.switch.name],
            capture_output=True,
            text=True,
            check=False,
        )
        expected = {
            interface.name for interface in self.switch.intfList() if interface.name != "lo"
        }
        if bridges.returncode != 0 or set(bridges.stdout.split()) != expected:
            reason = " ".join(bridges.stderr.split()) or f"its ports are {bridges.stdout.split()}"
            raise NetworkError(f"switch {self.switch.name} did not start: {reason}")
        # Only now: Open vSwitch removes the qdisc of an interface that it takes as a port.
        for name, link in self.links.items():
            link.attach(*self._ends[name])

    def wait_connected(self, timeout: float) -> None:
        """Wait until the switch is connected to its controller; traffic before that is lost.

        Raises NetworkError after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while not self.switch.connected():
            if time.monotonic() >= deadline:
                raise NetworkError(
                    f"switch {self.switch.name} did not connect to the controller at "
                    f"{self.controller} within {timeout:g} s"
                )
            time.sleep(0.05)

    def stop(self) -> None:
        """End links, switch and hosts."""
        for link in self.links.values():
            link.close()
        self.mininet.stop()


def build(
    profile: NetworkProfile,
    choice: Choice,
    *,
    datapath: str,
    controller_port: int | None = None,
) -> Network:
    """Build the network inside a sandbox in which a private Open vSwitch runs.

    Args:
        choice: the link back end, from `backends.choose`.
        datapath: `kernel` or `user`, see `openvswitch.datapath`.
        controller_port: of an OpenFlow 1.3 controller at 127.0.0.1; without it the switch
            learns addresses by itself.

    Hosts have static ARP entries, no IPv6, and addresses 10.0.0.1 (client) and 10.0.0.2 (server).
    A perfect link (no delay, no loss) is a plain veth pair under every back end.

    Raises NetworkError without Mininet, and LinkError or TapError if a link cannot be made.
    """
    if datapath not in ("kernel", "user"):
        raise NetworkError(f"the datapath must be kernel or user, not {datapath!r}")
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
    client, server = mininet.addHost("client"), mininet.addHost("server")
    switch = mininet.addSwitch(
        "s1",
        cls=parts.Switch,
        datapath=datapath,
        protocols="OpenFlow13",
        failMode="standalone" if controller_port is None else "secure",
    )
    network = Network(mininet, client, server, switch)
    if controller_port is not None:
        network.controller = f"127.0.0.1:{controller_port}"
        mininet.addController("c0", parts.Controller, ip="127.0.0.1", port=controller_port)
    try:
        for host in (client, server):
            host.cmd("sysctl -qw net.ipv6.conf.all.disable_ipv6=1")
            host.cmd("sysctl -qw net.ipv6.conf.default.disable_ipv6=1")
        _join(network, "access", profile.access, client, switch, choice, parts)
        _join(network, "server", profile.server, switch, server, choice, parts)
        mininet.build()
    except BaseException:
        network.stop()
        raise
    return network


def _join(
    network: Network,
    name: str,
    profile: LinkProfile,
    first: Any,
    second: Any,
    choice: Choice,
    parts: Any,
) -> None:
    link: Link
    if profile.perfect:
        link = CableLink(name, profile)
        cable = network.mininet.addLink(first, second)
    else:
        link = (UserLink if choice.name == "user" else NetemLink)(name, profile)
        network.links[name] = link  # at once, so that it is closed if Mininet fails
        cable = network.mininet.addLink(first, second, cls=parts.Ends, link=link)
    network.links[name] = link
    if link.backend != "user":
        for interface in (cable.intf1, cable.intf2):
            _switch_off_offloads(interface)
    first_end, second_end = (End(i.name, i.node.pid) for i in (cable.intf1, cable.intf2))
    network._ends[name] = (first_end, second_end)


def _switch_off_offloads(interface: Any) -> None:
    """Let a veth end send what a network card would: whole checksums, frames of the MTU.

    A veth leaves checksums to a card that is not there: the netdev datapath passes them on
    unfilled, ping works, and TCP hangs. And netem loses a segment of 64 KB as one frame.
    """
    options = " ".join(f"{offload} off" for offload in _OFFLOADS)
    output = interface.node.cmd(f"ethtool -K {interface.name} {options} > /dev/null; echo $?")
    if output.strip() != "0":
        raise NetworkError(f"ethtool cannot set {interface.name}: {' '.join(output.split())}")
