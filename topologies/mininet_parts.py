"""Our variants of Mininet's classes. Import it through `wifi`, which says so if Mininet is missing.

Mininet has no type hints; its objects are `Any` here.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from typing import Any

from mininet.link import Link as MininetLink
from mininet.node import OVSSwitch, RemoteController

from topologies.links import Link


class Ends(MininetLink):  # type: ignore[misc, unused-ignore]
    """A Mininet link whose two interfaces are made by one of our links."""

    def __init__(self, node1: Any, node2: Any, *, link: Link, **options: Any) -> None:
        self._link = link
        # fast=False: both devices begin in this namespace, and Mininet moves a host's away.
        super().__init__(node1, node2, fast=False, **options)

    def makeIntfPair(self, first: str, second: str, *_: Any, **__: Any) -> None:
        """Mininet's hook to make the interfaces."""
        self._link.create(first, second)

    def stop(self) -> None:
        """The interfaces go with their namespaces."""
        self._link.close()


class Controller(RemoteController):  # type: ignore[misc, unused-ignore]
    """A controller that listens, or will soon; wait_connected() finds out."""

    def checkListening(self) -> None:
        """Mininet would ask with telnet."""


class Switch(OVSSwitch):  # type: ignore[misc, unused-ignore]
    """Mininet's switch, started and ended without Mininet's `errRun`.

    That one spins while one of a command's two outputs is closed and the other is not yet: a guest
    in virtual time, in which a spinning program stops the clock, then takes seconds.
    """

    @classmethod
    def batchStartup(cls, switches: Iterable[Any], run: Any = None) -> Any:
        """Mininet's hook to start several at once."""
        return super().batchStartup(switches, run or _run)

    @classmethod
    def batchShutdown(cls, switches: Iterable[Any], run: Any = None) -> Any:
        """Mininet's hook to end several at once."""
        return super().batchShutdown(switches, run or _run)


def _run(command: str, shell: bool = False) -> tuple[str, str, int]:
    done = subprocess.run(
        command if shell else command.split(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        shell=shell,
        check=False,
    )
    return done.stdout, done.stderr, done.returncode
