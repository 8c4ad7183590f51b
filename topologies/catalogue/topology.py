"""What a topology is: hosts, switches, and links with the names of their profiles."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from topologies import profile_file
from topologies.profile import LinkProfile

#: Linux's limit for the name of an interface is 15; Mininet adds "-eth" and a number.
_LONGEST = 9
_SWITCH = re.compile(r"s[1-9][0-9]?")
_HOST = re.compile(r"[a-z][a-z0-9]*")


class TopologyError(ValueError):
    """A topology makes no sense; the message is one line."""


@dataclass(frozen=True)
class Wire:
    """A link of a topology; `up` leads from `first`, the client's side, to `second`.

    Its `name` enters into the seeds of its channel. `access`: it is what an experiment is about,
    so a profile that a user chooses goes there.
    """

    name: str
    first: str
    second: str
    profile: str
    access: bool = False


@dataclass(frozen=True)
class Topology:
    """A network as data. Mininet numbers addresses in the order of the hosts: 10.0.0.1, ...

    `client` and `server` name the hosts of an experiment with two; the first and the last host if
    they are not given. `own` holds profiles that stand in for the named ones, by name of the link.
    """

    name: str
    title: str
    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    wires: tuple[Wire, ...]
    client: str = ""
    server: str = ""
    own: Mapping[str, LinkProfile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "client", self.client or self.hosts[0])
        object.__setattr__(self, "server", self.server or self.hosts[-1])
        self._check_names()
        for wire in self.wires:
            for node in (wire.first, wire.second):
                if node not in (*self.hosts, *self.switches):
                    raise self._error(f"link {wire.name} leads to {node}, which does not exist")
            if wire.first in self.hosts and wire.second in self.hosts:
                raise self._error(f"link {wire.name} joins two hosts, without a switch")
        for name in self.own:
            self.wire(name)
        for host in (*self.hosts, self.client, self.server):
            if host not in self.hosts:
                raise self._error(f"{host} is no host")
            if self.path(self.hosts[0], host) is None:
                raise self._error(f"{host} cannot be reached from {self.hosts[0]}")
        self._check_loops()

    def _error(self, message: str) -> TopologyError:
        return TopologyError(f"topology {self.name}: {message}")

    def _check_names(self) -> None:
        wires = [wire.name for wire in self.wires]
        for names, kind in ((wires, "link"), ([*self.hosts, *self.switches], "node")):
            for name in names:
                if names.count(name) > 1:
                    raise self._error(f"two {kind}s are called {name}")
        for host in self.hosts:
            if not _HOST.fullmatch(host) or len(host) > _LONGEST:
                raise self._error(f"a host has 1 to {_LONGEST} letters and digits, not {host!r}")
        for switch in self.switches:
            if not _SWITCH.fullmatch(switch):  # Mininet makes the datapath id of the number
                raise self._error(f"a switch is called s1 to s99, not {switch!r}")

    def _check_loops(self) -> None:
        """Switches that learn would send a broadcast around a loop for ever."""
        group = {switch: switch for switch in self.switches}
        for wire in self.wires:
            if wire.first in group and wire.second in group:
                first, second = group[wire.first], group[wire.second]
                if first == second:
                    raise self._error(f"link {wire.name} closes a loop of switches")
                group = {node: first if top == second else top for node, top in group.items()}

    def wire(self, name: str) -> Wire:
        """The link of that name. Raises TopologyError."""
        for wire in self.wires:
            if wire.name == name:
                return wire
        known = ", ".join(wire.name for wire in self.wires)
        raise self._error(f"there is no link {name}; known are {known}")

    def profile(self, wire: Wire) -> LinkProfile:
        """What a link is meant to be. Raises ProfileError if its profile cannot be read."""
        return self.own[wire.name] if wire.name in self.own else _named(wire.profile)

    @property
    def profiles(self) -> dict[str, LinkProfile]:
        """All profiles, by name of the link."""
        return {wire.name: self.profile(wire) for wire in self.wires}

    def with_profiles(self, own: Mapping[str, LinkProfile]) -> Topology:
        """The same with these profiles, by name of the link."""
        return dataclasses.replace(self, own={**self.own, **own})

    def with_access(self, profile: LinkProfile) -> Topology:
        """The same with this profile on each access link."""
        return self.with_profiles({wire.name: profile for wire in self.wires if wire.access})

    def wires_of(self, node: str) -> list[Wire]:
        """The links of a node, in their order."""
        return [wire for wire in self.wires if node in (wire.first, wire.second)]

    def path(self, start: str, end: str, by: str | None = None) -> list[tuple[Wire, str]] | None:
        """The links from one node to another, each with the direction in which it is crossed.

        The shortest; of several the one whose links come first. With `by`, the one that begins
        with the link of that name. Hosts forward nothing. None if there is no path.
        """
        ways: dict[str, list[tuple[Wire, str]]] = {start: []}
        queue = [start]
        for node in queue:
            if node == end:
                return ways[node]
            if node in self.hosts and node != start:
                continue
            for wire in self.wires_of(node):
                if by and node == start and wire.name != by:
                    continue
                up = wire.first == node
                other = wire.second if up else wire.first
                if other not in ways:
                    ways[other] = [*ways[node], (wire, "up" if up else "down")]
                    queue.append(other)
        return None


@functools.cache
def _named(name: str) -> LinkProfile:
    return profile_file.named(name)
