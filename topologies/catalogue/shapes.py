"""The topologies that ship with the testbed."""

from __future__ import annotations

from collections.abc import Callable

from terminal.arguments import did_you_mean

from .topology import Topology, TopologyError, Wire


def _one_access(name: str, title: str, profile: str) -> Topology:
    """client -- access -- s1 -- server: the shape of topologies.wifi."""
    return Topology(
        name,
        title,
        hosts=("client", "server"),
        switches=("s1",),
        wires=(
            Wire("access", "client", "s1", profile, access=True),
            Wire("server", "s1", "server", "wired"),
        ),
    )


def _two_access() -> Topology:
    # The client has one address. It sends through one of its links, and switches learn from that
    # where it is, or are told by a controller: so a handover is a change of s3's flows.
    return Topology(
        "two_access",
        "A client with two radios, for handovers",
        hosts=("client", "server"),
        switches=("s1", "s2", "s3"),
        wires=(
            Wire("access-a", "client", "s1", "wifi", access=True),
            Wire("access-b", "client", "s2", "lte-walking"),
            Wire("core-a", "s1", "s3", "clean"),
            Wire("core-b", "s2", "s3", "clean"),
            Wire("server", "s3", "server", "wired"),
        ),
    )


def cell(clients: int = 2) -> Topology:
    """Clients, and a neighbour whose traffic crosses theirs, share one bottleneck to a server."""
    hosts = (*_numbered("client", clients), "cross")
    return Topology(
        "cell",
        f"A shared cell: {clients} clients and a host for cross traffic on one queue",
        hosts=(*hosts, "server"),
        switches=("s1", "s2"),
        wires=(
            *(Wire(f"radio-{host}", host, "s1", "clean") for host in hosts),
            Wire("cell", "s1", "s2", "cell", access=True),
            Wire("server", "s2", "server", "wired"),
        ),
    )


def dumbbell(pairs: int = 2) -> Topology:
    """Pairs of client and server share one bottleneck between two switches."""
    clients, servers = _numbered("client", pairs), _numbered("server", pairs)
    return Topology(
        "dumbbell",
        f"{pairs} clients and {pairs} servers on the two sides of one bottleneck",
        hosts=(*clients, *servers),
        switches=("s1", "s2"),
        wires=(
            *(Wire(f"left-{client}", client, "s1", "clean") for client in clients),
            Wire("bottleneck", "s1", "s2", "cell", access=True),
            *(Wire(f"right-{server}", "s2", server, "wired") for server in servers),
        ),
        client=clients[0],
        server=servers[0],
    )


def _numbered(name: str, count: int) -> tuple[str, ...]:
    if not 1 <= count <= 50:
        raise TopologyError(f"there may be 1 to 50 {name}s, not {count}")
    return tuple(f"{name}{number}" for number in range(1, count + 1))


_SHAPES: dict[str, Callable[[], Topology]] = {
    "wifi": lambda: _one_access("wifi", "A client on WiFi, a server behind it", "wifi"),
    "lte": lambda: _one_access("lte", "A client on LTE, a server behind it", "lte-walking"),
    "two_access": _two_access,
    "cell": cell,
    "satellite": lambda: _one_access(
        "satellite", "A client behind a geostationary satellite", "satellite-geo"
    ),
    "dumbbell": dumbbell,
}


def names() -> list[str]:
    """All topologies."""
    return list(_SHAPES)


def named(name: str) -> Topology:
    """The topology of that name. Raises TopologyError."""
    if name not in _SHAPES:
        meant = did_you_mean(name, _SHAPES) or f"; known are {', '.join(_SHAPES)}"
        raise TopologyError(f"no topology {name!r}{meant}")
    return _SHAPES[name]()
