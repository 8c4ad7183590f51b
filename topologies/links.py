"""What all links of a running network have in common."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topologies.profile import LinkProfile


class LinkError(RuntimeError):
    """A link cannot be made, or does not do what it should."""


@dataclass(frozen=True)
class End:
    """One end of a link: an interface, and a process in whose network namespace it is."""

    interface: str
    pid: int


class Link(abc.ABC):
    """A link of a running network. `up` leads from its first end, the client's side, to the second.

    A run: `seed(n)`, `start_epoch(t)`, traffic, `stop_epoch()`, `stats()`. Models in time lose
    frames only after the epoch; independent losses happen always.
    """

    backend: str
    """`user`, `netem`, or `cable`."""

    def __init__(self, name: str, profile: LinkProfile) -> None:
        self.name, self.profile = name, profile

    def create(self, first: str, second: str) -> None:
        """Make the interfaces of the two ends, in this namespace."""
        raise NotImplementedError(f"the interfaces of a {self.backend} are made by Mininet")

    @abc.abstractmethod
    def attach(self, first: End, second: End) -> None:
        """Take charge of the two ends, once their interfaces are where they belong."""

    @abc.abstractmethod
    def seed(self, seed: int) -> None:
        """Start the random streams anew from `seed`: no epoch, counters at 0."""

    @abc.abstractmethod
    def start_epoch(self, epoch: float) -> None:
        """Let channel time be 0 at `epoch` (time.monotonic(); slightly past or future)."""

    @abc.abstractmethod
    def stop_epoch(self) -> None:
        """Stop the channel's clock: models in time lose nothing any more."""

    @abc.abstractmethod
    def stats(self) -> dict[str, Any]:
        """Counters since the last seed.

        Keys: `backend`; `up` and `down`, each a dict of `received`, `delivered`, `lost` (by the
        loss model) and `dropped` (unintended) frames, from `user` also those of
        forwarder.Counts; `lateness`, a dict of `count`, `p50`, `p99` and
        `max` in seconds: how late frames left (`user`) or states changed (`netem`); `notes`, a
        list of lines about what a reader of the results should know.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """End the link. Safe to call again."""

    def record_fates(self, path: Path | None) -> None:
        """Log the fate of each frame to a file from now on; None ends it. Back end `user` only."""
        raise LinkError(f"link {self.name}: the back end {self.backend} keeps no fate log")


class CableLink(Link):
    """A plain veth pair, for profiles without delay and loss."""

    backend = "cable"

    def attach(self, first: End, second: End) -> None:
        """Nothing to do."""

    def seed(self, seed: int) -> None:
        """Nothing to do: there is no chance in a cable."""

    def start_epoch(self, epoch: float) -> None:
        """Nothing to do."""

    def stop_epoch(self) -> None:
        """Nothing to do."""

    def stats(self) -> dict[str, Any]:
        """No counters: all 0."""
        nothing = {"received": 0, "delivered": 0, "lost": 0, "dropped": 0}
        return {
            "backend": self.backend,
            "up": dict(nothing),
            "down": dict(nothing),
            "lateness": {"count": 0, "p50": 0.0, "p99": 0.0, "max": 0.0},
            "notes": ["a plain veth pair; it counts nothing"],
        }

    def close(self) -> None:
        """Nothing to do: the pair goes with its namespaces."""
