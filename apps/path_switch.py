"""A client's path through the switches, as OpenFlow rules, and the interface that moves it.

The controller (``--control SOCKET``) listens at a Unix socket. Each line that comes in is a JSON
object, each is answered by one line with one; ``{"error": TEXT}`` if it cannot be done:

- ``{"do": "paths", "client": MAC, "paths": {NAME: [[NEAR, FAR], ...]}}`` says what paths there
  are: for each switch from the client on, its port towards the client and its port towards the
  server, by name. From then on what the client sends and gets passes on a path only, and nothing
  passes before the first move. Answer: ``{"paths": [NAME, ...]}``.
- ``{"do": "move", "path": NAME, "address": IPV4}`` lets this address of the client (the one of the
  last move, if left out) pass on this path, and returns when all switches have confirmed it:
  ``{"path": NAME, "address": IPV4, "at": TIME}``. The rules of the path before are overruled
  where both match, are still there for what is on its way, and are removed DRAIN s later: make
  before break. With ``"path": null`` nothing passes any more: the break before a make.
- ``{"do": "state"}``: ``{"path", "address", "paths", "moves", "missing"}``; ``missing`` lists
  ports of the paths whose switch is not connected.
- ``{"do": "counters"}``: ``{"at": TIME, "paths": {NAME: {"up": {"packets", "bytes"}, "down":
  ...}}}``, since ``paths``, from the flow statistics of each path's first switch, those of removed
  rules included. ``none`` counts what a switch dropped because it was on no path.

Times are ``time.monotonic()``. Rules have no timeout and the switches keep them when the
controller ends: what flows goes on, only moves are over.

This module knows rules and counters, but no OpenFlow library: see :mod:`apps.learning_switch`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

#: Above what the learning switch installs. Each move has a priority of its own, above the last.
PRIORITY = 1000
_MOST_MOVES = 60_000
#: Seconds for which the old rules stay: longer than what is on its way, and than the half second
#: that Open vSwitch may take to tell a rule about its last packets.
DRAIN = 1.0
#: Cookies: our mark, the number of the move, the number of the path (0: none), switch, direction.
MARK, MARK_MASK = 0xE10C << 48, 0xFFFF << 48
_MOVE_MASK = 0xFFFFFF << 24
NONE = "none"


class PathError(ValueError):
    """A command that cannot be done; the message is one line."""


@dataclass(frozen=True)
class Rule:
    """A flow entry. ``match`` has OpenFlow's names; ``output`` None drops."""

    datapath: int
    priority: int
    cookie: int
    match: dict[str, Any]
    output: int | None


@dataclass(frozen=True)
class Count:
    """What a rule has counted."""

    cookie: int
    packets: int
    bytes: int


class Switches(Protocol):
    """The switches that are connected. All methods but ``ports`` may raise PathError."""

    def ports(self) -> Mapping[str, tuple[int, int]]:
        """Datapath and number of each port, by name."""

    def add(self, rule: Rule) -> None:
        """Install a rule."""

    def remove(self, datapath: int, cookie: int, mask: int) -> None:
        """Remove the rules whose cookie is ``cookie`` where ``mask`` has ones."""

    def barrier(self, datapath: int) -> None:
        """Wait until the switch has done everything so far."""

    def counts(self, datapath: int, cookie: int, mask: int) -> list[Count]:
        """Ask for the counters of these rules."""

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Call later."""


class PathSwitch:
    """Paths, the one in use, and what was counted."""

    def __init__(self, switches: Switches, clock: Callable[[], float] = time.monotonic) -> None:
        self._switches = switches
        self._clock = clock
        self._client = ""
        self._paths: dict[str, list[tuple[str, str]]] = {}
        self._path: str | None = None
        self._address: str | None = None
        self._moves = 0
        self._kept: set[int] = set()
        self._busy = False
        self._gone: dict[tuple[str, str], tuple[int, int]] = {}

    def handle(self, line: str) -> dict[str, Any]:
        """The answer to one line."""
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise PathError("a command is a JSON object")
            return self._do(request)
        except PathError as error:
            return {"error": str(error)}
        except ValueError as error:
            return {"error": f"no JSON: {error}"}

    def removed(self, count: Count) -> None:
        """A switch says what a rule had counted when it was removed."""
        if count.cookie & MARK_MASK == MARK and (key := self._key(count.cookie)):
            packets, size = self._gone.get(key, (0, 0))
            self._gone[key] = packets + count.packets, size + count.bytes

    def _do(self, request: dict[str, Any]) -> dict[str, Any]:
        commands: dict[Any, tuple[Callable[..., dict[str, Any]], set[str]]] = {
            "paths": (self._set_paths, {"client", "paths"}),
            "move": (self._move, {"path", "address"}),
            "state": (self._state, set()),
            "counters": (self._counters, set()),
        }
        name = request.pop("do", None)
        if not isinstance(name, str) or name not in commands:
            raise PathError(f"no command {name!r}: do {', '.join(commands)}")
        function, known = commands[name]
        if unknown := set(request) - known:
            raise PathError(f"{name} has no {sorted(unknown)[0]!r}")
        if name in ("state", "counters"):
            return function(**request)
        if self._busy:
            raise PathError("another move is under way")
        self._busy = True
        try:
            return function(**request)
        finally:
            self._busy = False

    def _set_paths(self, client: Any = None, paths: Any = None) -> dict[str, Any]:
        if not isinstance(client, str) or not isinstance(paths, dict) or not paths:
            raise PathError("paths needs client (a MAC address) and paths (by name)")
        self._check(paths)
        hops = {name: [(near, far) for near, far in hops] for name, hops in paths.items()}
        self._client, self._paths = client, hops
        self._path = self._address = None
        self._moves = 0
        self._kept.clear()
        for datapath in self._datapaths():
            # A controller before this one may have left some.
            self._switches.remove(datapath, MARK, MARK_MASK)
            self._switches.barrier(datapath)
        self._gone.clear()
        self._drop_all()
        return {"paths": list(hops)}

    def _check(self, paths: dict[Any, Any]) -> None:
        known = self._switches.ports()
        for name, hops in paths.items():
            if name == NONE:
                raise PathError(f"no path can be called {NONE}: so are the counters of no path")
            if not isinstance(hops, list) or not hops:
                raise PathError(f"path {name!r} needs a list of [near, far] ports")
            for hop in hops:
                if not (isinstance(hop, list) and len(hop) == 2):
                    raise PathError(f"path {name!r}: {hop!r} is no pair of ports")
                for port in hop:
                    if not isinstance(port, str) or port not in known:
                        raise PathError(f"path {name!r}: no port {port!r} at a connected switch")
                if known[hop[0]][0] != known[hop[1]][0]:
                    raise PathError(f"path {name!r}: {hop[0]} and {hop[1]} are of two switches")

    def _move(self, path: Any = None, address: Any = None) -> dict[str, Any]:
        if not self._paths:
            raise PathError("there are no paths yet: do paths first")
        if path is not None and not (isinstance(path, str) and path in self._paths):
            raise PathError(f"no path {path!r}: there are {', '.join(self._paths)}")
        address = self._address if address is None else address
        if path is not None and not isinstance(address, str):
            raise PathError("the first move needs the client's address")
        if self._moves == _MOST_MOVES:
            raise PathError(f"no more than {_MOST_MOVES} moves")
        self._require_all()
        self._moves += 1
        if path is None:
            self._drop_all()
        else:
            # From the client on: the last switch sends packets down a way that is whole already.
            for number in range(len(self._paths[path])):
                for rule in self._hop_rules(path, number, address):
                    self._switches.add(rule)
                self._switches.barrier(self._datapath(path, number))
        self._path, self._address = path, address
        self._kept.add(self._moves)
        number = self._moves
        self._switches.after(DRAIN, lambda: self._remove_before(number))
        return {"path": path, "address": address, "at": self._clock()}

    def _drop_all(self) -> None:
        datapaths = self._datapaths()
        for hop, datapath in enumerate(datapaths):
            for down, field in enumerate(("eth_src", "eth_dst")):
                cookie = self._cookie(0, hop, down)
                match = {field: self._client}
                self._switches.add(Rule(datapath, PRIORITY + self._moves, cookie, match, None))
        for datapath in datapaths:
            self._switches.barrier(datapath)

    def _hop_rules(self, path: str, number: int, address: str) -> list[Rule]:
        ports = self._switches.ports()
        near, far = (ports[name][1] for name in self._paths[path][number])
        index = list(self._paths).index(path) + 1
        ways: tuple[tuple[int, dict[str, Any], int], ...] = (
            (0, {"in_port": near, "eth_src": self._client, "ipv4_src": address}, far),
            (1, {"in_port": far, "eth_dst": self._client, "ipv4_dst": address}, near),
        )
        return [
            Rule(
                self._datapath(path, number),
                PRIORITY + self._moves,
                self._cookie(index, number, down),
                {"eth_type": 0x0800, **match},
                output,
            )
            for down, match, output in ways
        ]

    def _remove_before(self, number: int) -> None:
        # Rules of move 0 stay for ever: what is on no path is dropped.
        for old in sorted(move for move in self._kept if move < number):
            try:
                for datapath in self._datapaths():
                    self._switches.remove(datapath, MARK | old << 24, MARK_MASK | _MOVE_MASK)
            except (PathError, KeyError):
                return  # a switch has gone; its rules are overruled anyway
            self._kept.discard(old)

    def _state(self) -> dict[str, Any]:
        return {
            "path": self._path,
            "address": self._address,
            "paths": list(self._paths),
            "moves": self._moves,
            "missing": self._missing(),
        }

    def _counters(self) -> dict[str, Any]:
        self._require_all()
        found: dict[tuple[str, str], tuple[int, int]] = dict(self._gone)
        for datapath in self._datapaths():
            for count in self._switches.counts(datapath, MARK, MARK_MASK):
                if key := self._key(count.cookie):
                    packets, size = found.get(key, (0, 0))
                    found[key] = packets + count.packets, size + count.bytes
        paths = {
            name: {
                way: dict(zip(("packets", "bytes"), found.get((name, way), (0, 0)), strict=True))
                for way in ("up", "down")
            }
            for name in (*self._paths, NONE)
        }
        return {"at": self._clock(), "paths": paths}

    def _cookie(self, path: int, hop: int, down: int) -> int:
        return MARK | self._moves << 24 | path << 8 | hop << 1 | down

    def _key(self, cookie: int) -> tuple[str, str] | None:
        """Path and direction for which a rule counts; None for one that repeats another's."""
        index, hop, down = cookie >> 8 & 0xFFFF, cookie >> 1 & 0x7F, cookie & 1
        names = [NONE, *self._paths]
        if index >= len(names) or (index and hop):
            return None
        return names[index], "down" if down else "up"

    def _missing(self) -> list[str]:
        known = self._switches.ports()
        ports = {port for hops in self._paths.values() for hop in hops for port in hop}
        return sorted(ports - set(known))

    def _require_all(self) -> None:
        if missing := self._missing():
            raise PathError(f"the switch of {missing[0]} is not connected")

    def _datapath(self, path: str, number: int) -> int:
        return self._switches.ports()[self._paths[path][number][0]][0]

    def _datapaths(self) -> list[int]:
        ports = self._switches.ports()
        return sorted({ports[near][0] for hops in self._paths.values() for near, _ in hops})
