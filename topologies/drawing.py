"""A picture of a topology: hosts, switches, and what their links are meant to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from topologies.catalogue.topology import Topology
from topologies.channel import Bernoulli
from topologies.profile import Direction, LinkProfile

_KINDS = (".svg", ".png")
_HOST, _SWITCH, _ACCESS, _LINE = "#d6e6f5", "#f5e3c8", "#c0392b", "#7f8c8d"
_WIDTH, _HEIGHT = 3.4, 1.35  # inches for each column and each row


class DrawingError(RuntimeError):
    """The picture cannot be written; the message is one line."""


def describe(profile: LinkProfile) -> str:
    """A profile in a few words, such as "3 ms ± 1 ms, 10% lost"."""
    if profile.perfect:
        return "a cable"
    up, down = _words(profile.up), _words(profile.down)
    words = [a if a == b else f"{_joined(a, b)}" for a, b in zip(up, down, strict=True) if a or b]
    words += ["rebinding"] if profile.rebind else []
    words += [f"MTU {profile.mtu}"] if profile.mtu else []
    return ", ".join(words)


def _joined(up: str, down: str) -> str:
    return f"up {up or '-'}, down {down or '-'}"


def _words(direction: Direction) -> tuple[str, str, str]:
    delay = _time(direction.mean_delay)
    if direction.jitter:
        delay += f" ± {_time(direction.jitter)}"
    loss = ""
    if direction.loss is not None:
        loss = f"{100 * direction.mean_loss:.3g}% lost"
        if not isinstance(direction.loss, Bernoulli) and direction.loss.mean_outage:
            loss += f" (outages of {_time(direction.loss.mean_outage)})"
    neck = direction.bottleneck
    rate = f"{neck.mean_rate / 1e6:.3g} Mbit/s" if neck else ""
    return delay, loss, rate


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def places(topology: Topology) -> dict[str, tuple[float, float]]:
    """Where nodes stand: a column for each step from the client's side, spread evenly in it.

    A column is the longest way along the links, which lead from the client's side.
    """
    nodes = (*topology.hosts, *topology.switches)
    columns = dict.fromkeys(nodes, 0)
    for _ in nodes:
        for wire in topology.wires:
            columns[wire.second] = max(columns[wire.second], columns[wire.first] + 1)
    where = {}
    for column in set(columns.values()):
        members = [node for node in nodes if columns[node] == column]
        for row, node in enumerate(members):
            where[node] = (float(column), (len(members) - 1) / 2 - row)
    return where


def draw(topology: Topology, path: Path) -> None:
    """Write the picture, SVG or PNG by the name of the file. Raises DrawingError."""
    if path.suffix not in _KINDS:
        raise DrawingError(f"a picture is {' or '.join(_KINDS)}, not {path.name}")
    import matplotlib
    from matplotlib.figure import Figure

    where = places(topology)
    columns = 1 + max(x for x, _ in where.values())
    rows = 1 + 2 * max(y for _, y in where.values())
    # Text stays text, so that a picture can be searched; and the same input makes the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": topology.name}):
        figure = Figure(figsize=(_WIDTH * columns, _HEIGHT * rows + 0.6), layout="constrained")
        axes = figure.add_subplot()
        axes.set_axis_off()
        axes.set_xlim(-0.3, columns - 0.7)
        axes.set_ylim(-(rows - 1) / 2 - 0.45, (rows - 1) / 2 + 0.45)
        axes.set_title(f"{topology.name}: {topology.title}", fontsize=13)
        for wire in topology.wires:
            _draw_link(axes, topology, wire, where)
        for node, place in where.items():
            _draw_node(axes, node, place, host=node in topology.hosts)
        try:
            metadata = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(path, metadata=metadata, dpi=110)
        except OSError as error:
            raise DrawingError(f"cannot write {path}: {error.strerror}") from None


def _draw_link(axes: Any, topology: Topology, wire: Any, where: dict[str, Any]) -> None:
    (x1, y1), (x2, y2) = where[wire.first], where[wire.second]
    profile = topology.profile(wire)
    color = _ACCESS if wire.access else _LINE
    axes.plot([x1, x2], [y1, y2], color=color, linewidth=2.5 if wire.access else 1.5, zorder=1)
    label = f"{wire.name}: {profile.name}"
    if not profile.perfect:
        label += "\n" + describe(profile).replace(", up ", "\nup ").replace(", down ", "\ndown ")
    axes.text(
        (x1 + x2) / 2,
        (y1 + y2) / 2,
        label,
        ha="center",
        va="center",
        fontsize=8.5,
        bbox={"facecolor": "white", "edgecolor": color, "boxstyle": "round,pad=0.3"},
        zorder=2,
    )


def _draw_node(axes: Any, name: str, place: tuple[float, float], *, host: bool) -> None:
    axes.text(
        *place,
        name,
        ha="center",
        va="center",
        fontsize=11,
        bbox={
            "facecolor": _HOST if host else _SWITCH,
            "edgecolor": "black",
            "boxstyle": "round,pad=0.6" if host else "square,pad=0.6",
        },
        zorder=3,
    )
