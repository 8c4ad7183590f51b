"""The link back end `netem`: a veth pair with a netem qdisc on the egress of each end.

Delay, jitter and independent loss are netem's own. Losses in time follow the same schedule as in
the back end `user`: a thread changes netem's loss at the moments that `Channel.next_change` names.

netem treats all frames alike, so ARP is delayed and lost too; hosts need static ARP entries.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import math
import os
import shutil
import subprocess
import tempfile
import threading
import time
from typing import Any

from topologies.channel import DIRECTIONS, Bernoulli, subseed
from topologies.forwarder import Lateness
from topologies.links import End, Link, LinkError
from topologies.profile import Direction, LinkProfile

LIMIT = 100_000
"""Packets in netem's queue: 1 s at 100,000 packets/s. The default of 1000 drops unintended."""

_PROBE = ("eloquentprobe0", "eloquentprobe1")


def arguments(
    direction: Direction, loss: float, seed: int | None = None, *, table: bool = True
) -> list[str]:
    """What follows `tc qdisc ... netem`, for one direction and its loss of the moment.

    Args:
        seed: for netem's own generator, where tc and kernel know `seed`.
        table: load the table of the normal distribution; a later change may leave it out.
    """
    words = []
    if direction.delay > 0:
        words += ["delay", _microseconds(direction.delay)]
        if direction.jitter > 0:
            words += [_microseconds(direction.jitter)]
            words += ["distribution", "normal"] if table else []
    words += ["loss", "random", f"{100 * loss:.7f}%"]
    if direction.jitter > 0:
        # netem reorders under jitter unless it has a rate: then each frame is scheduled after the
        # one before (sch_netem.c, netem_enqueue). At this rate a frame of 1500 B takes 0.1 µs.
        words += ["rate", "100gbit"]
    words += ["limit", str(LIMIT)]
    if seed is not None:
        words += ["seed", str(seed)]
    return words


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.3f}us"


def netem_available() -> tuple[bool, str]:
    """Try it on a veth pair in this namespace: (yes or no, the reason). Call it in a sandbox."""
    tc, ip = _find("tc"), _find("ip")
    if tc is None or ip is None:
        return False, "tc and ip are missing: install iproute2"
    modprobe = _find("modprobe")
    if modprobe:
        _run([modprobe, "-q", "sch_netem"])
    made = _run([ip, "link", "add", _PROBE[0], "type", "veth", "peer", "name", _PROBE[1]])
    if made.returncode != 0:
        return False, f"cannot make a veth pair: {_line(made)}"
    try:
        words = arguments(Direction(0.001, 0.0001), 0.5)
        tried = _run([tc, "qdisc", "add", "dev", _PROBE[0], "root", "netem", *words])
    finally:
        _run([ip, "link", "del", _PROBE[0]])
    if tried.returncode != 0:
        return False, f"this kernel has no usable netem ({_line(tried)})"
    return True, "this kernel has netem"


class NetemLink(Link):
    """A veth pair under netem."""

    backend = "netem"

    def __init__(self, name: str, profile: LinkProfile) -> None:
        super().__init__(name, profile)
        self._egress: dict[str, _Egress] = {}
        self._channels = {d: profile.channel(d, name) for d in DIRECTIONS}
        self._lateness = Lateness()
        self._stop = threading.Event()
        self._follower: threading.Thread | None = None

    def attach(self, first: End, second: End) -> None:
        """See Link: the two ends of a veth pair."""
        for direction, end in zip(DIRECTIONS, (first, second), strict=True):
            self._egress[direction] = _Egress(self.name, end, self.profile.direction(direction))
        self.seed(0)

    def seed(self, seed: int) -> None:
        """See Link."""
        self.stop_epoch()
        for direction, egress in self._egress.items():
            self._channels[direction].seed(seed)
            egress.reset(self._quiet(direction), subseed(seed, self.name, direction, "netem"))
        self._lateness = Lateness()

    def start_epoch(self, epoch: float) -> None:
        """See Link."""
        self.stop_epoch()
        self._stop = threading.Event()
        self._follower = threading.Thread(
            target=self._follow, args=(epoch, self._stop), name=f"netem-{self.name}", daemon=True
        )
        self._follower.start()

    def stop_epoch(self) -> None:
        """See Link."""
        if self._follower is None:
            return
        self._stop.set()
        self._follower.join()
        self._follower = None
        for direction, egress in self._egress.items():
            egress.change(self._quiet(direction))
        self._check()

    def stats(self) -> dict[str, Any]:
        """See Link. netem counts lost and overflowed frames as one: all are under `lost`."""
        self._check()
        notes = [note for egress in self._egress.values() for note in egress.notes]
        counts = {direction: egress.counts() for direction, egress in self._egress.items()}
        extra = {"backend": self.backend, "lateness": self._lateness.summary(), "notes": notes}
        return counts | extra

    def close(self) -> None:
        """See Link; the qdiscs go with their interfaces."""
        self._stop.set()
        if self._follower is not None:
            self._follower.join()
            self._follower = None
        for egress in self._egress.values():
            egress.close()

    def _quiet(self, direction: str) -> float:
        """The loss while the channel's clock stands still."""
        return self._channels[direction].loss_at(-math.inf)

    def _check(self) -> None:
        for egress in self._egress.values():
            egress.check()

    def _follow(self, epoch: float, stop: threading.Event) -> None:
        """Change the loss at each moment of the schedule, by absolute deadlines."""
        now = time.monotonic() - epoch
        changes = []
        for direction, channel in self._channels.items():
            if now >= 0 and channel.loss_at(now) != self._quiet(direction):
                self._egress[direction].change(channel.loss_at(now))
            changes.append((channel.next_change(now), direction))
        heapq.heapify(changes)
        while True:
            t, direction = changes[0]
            wait = None if t == math.inf else max(0.0, epoch + t - time.monotonic())
            if stop.wait(wait):
                return
            channel = self._channels[direction]
            self._egress[direction].change(channel.loss_at(t))
            self._lateness.add(max(0.0, time.monotonic() - epoch - t))
            heapq.heapreplace(changes, (channel.next_change(t), direction))


class _Egress:
    """The netem qdisc of one end, and a `tc -batch` that stays, as starting one takes 2 ms."""

    def __init__(self, link: str, end: End, direction: Direction) -> None:
        self._link, self._end, self._direction = link, end, direction
        self.notes: list[str] = []
        self._seed: int | None = None
        self._before = (0, 0)
        self._enter = ["nsenter", f"--net=/proc/{end.pid}/ns/net", _find("tc") or "tc"]
        self._seedable = "seed" in _output(_run([*self._enter, "qdisc", "add", "netem", "help"]))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._batch = subprocess.Popen(
            [*self._enter, "-force", "-batch", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,  # a terminal's SIGINT is not for it
        )

    def reset(self, loss: float, seed: int) -> None:
        """A new qdisc: new random numbers, and counters at 0."""
        self._seed = seed if self._seedable else None
        device = ["dev", self._end.interface, "root"]
        _run([*self._enter, "qdisc", "del", *device])
        words = arguments(self._direction, loss, self._seed)
        added = _run([*self._enter, "qdisc", "add", *device, "handle", "1:", "netem", *words])
        if added.returncode != 0:
            raise LinkError(f"link {self._link}: tc refused netem: {_line(added)}")
        shown = self._show()
        # A kernel before 6.6 ignores the seed without a word, but does not show it either.
        seeded = self._seed is not None and shown.get("options", {}).get("seed") == self._seed
        self.notes = []
        if isinstance(self._direction.loss, Bernoulli) and not seeded:
            self.notes.append(
                f"{self._end.interface}: independent losses are not seeded "
                "(needs Linux 6.6 and iproute2 6.6)"
            )
        if self._direction.jitter > 0 and not seeded:
            self.notes.append(
                f"{self._end.interface}: jitter is not seeded (needs Linux 6.6 and iproute2 6.6)"
            )

    def change(self, loss: float) -> None:
        """Set the loss of the moment; frames on their way stay there."""
        words = arguments(self._direction, loss, self._seed, table=False)
        device = ["dev", self._end.interface, "root", "handle", "1:"]
        assert self._batch.stdin is not None
        line = " ".join(["qdisc", "change", *device, "netem", *words]) + "\n"
        with contextlib.suppress(BrokenPipeError):  # then check() tells
            self._batch.stdin.write(line.encode())
            self._batch.stdin.flush()

    def check(self) -> None:
        """Raise LinkError if any change failed."""
        ended = self._batch.poll()
        self._errors.seek(0)
        errors = " ".join(self._errors.read().decode(errors="replace").split())
        if errors or ended is not None:
            raise LinkError(
                f"link {self._link}: tc failed on {self._end.interface}: "
                f"{errors or f'exit status {ended}'}"
            )

    def counts(self) -> dict[str, int]:
        """Frames since the last reset, from the qdisc's own counters."""
        shown = self._show()
        delivered, lost, queued = (int(shown.get(key, 0)) for key in ("packets", "drops", "qlen"))
        return {
            "received": delivered + lost + queued,
            "delivered": delivered,
            "lost": lost,
            "dropped": 0,
        }

    def close(self) -> None:
        """End tc."""
        if self._errors.closed:
            return
        assert self._batch.stdin is not None
        self._batch.stdin.close()
        try:
            self._batch.wait(5)
        except subprocess.TimeoutExpired:
            self._batch.kill()
            self._batch.wait()
        self._errors.close()

    def _show(self) -> dict[str, Any]:
        shown = _run([*self._enter, "-s", "-j", "qdisc", "show", "dev", self._end.interface])
        for qdisc in json.loads(shown.stdout or "[]"):
            if qdisc.get("kind") == "netem":
                found: dict[str, Any] = qdisc
                return found
        raise LinkError(f"link {self._link}: no netem on {self._end.interface}: {_line(shown)}")


def _find(tool: str) -> str | None:
    return shutil.which(tool, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def _output(result: subprocess.CompletedProcess[str]) -> str:
    return f"{result.stdout} {result.stderr}".lower()


def _line(result: subprocess.CompletedProcess[str]) -> str:
    return " ".join(result.stderr.split()) or f"exit status {result.returncode}"
