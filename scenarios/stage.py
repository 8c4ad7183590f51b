"""What an emulated experiment plays on, and what happens there during a run.

A scenario without a stage of its own plays on :class:`Stage`: topologies.wifi, where only the
links' channels act.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from scenarios.command import Plan
from scenarios.link_check import check_links
from scenarios.processes import JsonProcess
from topologies import wifi
from topologies.backends import Choice

#: Channel time in seconds, and what is done then.
Action = tuple[float, Callable[[], None]]


class Stage:
    """The network of an experiment; a scenario's own stage overrides what differs.

    Args:
        plan: what is run.
        folder: the results folder, for files of the stage's own.
        say: tells the user a line.
    """

    network: Any = None

    def __init__(self, plan: Plan, folder: Path, say: Callable[[str], None]) -> None:
        self.plan, self.folder, self.say = plan, folder, say

    def controller_options(self) -> list[str]:
        """More options for ``apps.controller``."""
        return []

    def build(self, choice: Choice, *, datapath: str, controller_port: int) -> Any:
        """Build the network, inside a sandbox with a switch daemon; keep it as ``network``."""
        self.network = wifi.build(
            self.plan.network, choice, datapath=datapath, controller_port=controller_port
        )
        return self.network

    def connected(self) -> None:
        """All switches are connected to the controller."""

    def interfaces(self) -> dict[str, list[str]]:
        """What is captured, by host."""
        network = self.network
        return {
            name: [host.defaultIntf().name]
            for name, host in (("client", network.client), ("server", network.server))
        }

    def check_links(self, seed: int, prober: JsonProcess) -> dict[str, Any]:
        """Measure the links before a run. Raises LinkCheckError."""
        return check_links(self.network, self.plan.network, seed, prober)

    def begin(self, scheme: str, number: int) -> None:
        """A run is about to begin: nobody has asked yet."""

    def actions(self, epoch: float) -> Iterator[Action]:
        """What is to be done during this run, in order of time; it is 0 at ``epoch``."""
        return iter(())

    def end(self) -> dict[str, Any]:
        """A run has ended; returns what the manifest should say about it."""
        return {}


class Timeline:
    """Does the actions of a run in a thread of its own: ``with Timeline(...) as timeline``.

    The channel's time begins with ``start``; what is not due at the end of the block never is. An
    action that fails ends the run: ``fail`` is called at once, and the block raises its error.
    """

    def __init__(self, actions: Callable[[float], Iterator[Action]]) -> None:
        self._actions = actions
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def start(self, epoch: float, fail: Callable[[], object]) -> None:
        """Let the channel's time be 0 at ``epoch`` (``time.monotonic()``)."""
        self._thread = threading.Thread(target=self._run, args=(epoch, fail), daemon=True)
        self._thread.start()

    def _run(self, epoch: float, fail: Callable[[], object]) -> None:
        try:
            for due, action in self._actions(epoch):
                if self._end.wait(max(0.0, epoch + due - time.monotonic())):
                    return
                action()
        except Exception as error:  # noqa: BLE001 - it is raised again in the runner's thread
            self._error = error
            fail()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        if self._thread is not None and (kind is None or issubclass(kind, Exception)):
            self._thread.join()
        if self._error is not None and (kind is None or issubclass(kind, Exception)):
            raise self._error from None


_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6


def merge_captures(parts: list[Path], into: Path) -> None:
    """One pcapng file from those of several interfaces of a host, in order of time.

    They are ours (apps.pcapng): little-endian, one section and one interface each.
    """
    heads: list[bytes] = []
    packets: list[tuple[int, bytes]] = []
    for number, part in enumerate(parts):
        for kind, block in _blocks(part.read_bytes()):
            if kind == _PACKET:
                high, low = struct.unpack_from("<II", block, 12)
                renumbered = block[:8] + struct.pack("<I", number) + block[12:]
                packets.append((high << 32 | low, renumbered))
            elif kind == _INTERFACE or (kind == _SECTION and number == 0):
                heads.append(block)
    packets.sort(key=lambda packet: packet[0])
    into.write_bytes(b"".join([*heads, *(block for _, block in packets)]))


def _blocks(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 12 <= len(data):
        kind, size = struct.unpack_from("<II", data, at)
        yield kind, data[at : at + size]
        at += max(size, 12)
