"""The link back end `netem`: a box of veth pairs between the two ends, under tc's qdiscs.

    first end ═ a ─> [queue of the bottleneck] ─> b ═ second end

Each end is one interface of a veth pair; the other one (a, b) stays here. What comes in at a is
redirected to b, whose qdisc is the netem of that direction, and the other way round; a bottleneck
is one more veth pair on the way. So a capture at either end shows what the host sent and what
reached it, whatever is lost between: netem on the host's own interface would drop before the tap.

Delay, jitter, loss per packet, duplication and corruption are netem's own. Losses in time follow
the same schedule as in the back end `user`: a thread changes netem's loss at the moments that
`Channel.next_change` names.

netem treats all frames alike, so ARP is delayed and lost too; hosts need static ARP entries. It
corrupts any bit of the frame, the Ethernet header's included.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from pathlib import Path
from typing import Any

from topologies import tc
from topologies.channel import DIRECTIONS, Bernoulli, GilbertElliottPackets, subseed
from topologies.forwarder import Lateness
from topologies.links import End, Link, LinkError
from topologies.netem_words import bottleneck_words, inexpressible, netem_words
from topologies.profile import Direction, LinkProfile

_PROBE = ("eloquentprobe0", "eloquentprobe1")
_boxes = itertools.count()


def netem_available() -> tuple[bool, str]:
    """Try it on a veth pair in this namespace: (yes or no, the reason). Call it in a sandbox."""
    if tc.find("tc") is None or tc.find("ip") is None:
        return False, "tc and ip are missing: install iproute2"
    modprobe = tc.find("modprobe")
    if modprobe:
        tc.run([modprobe, "-q", "sch_netem"])
    first, second = _PROBE
    try:
        tc.must(["ip", "link", "add", first, "type", "veth", "peer", "name", second])
    except LinkError as error:
        return False, f"cannot make a veth pair: {error}"
    try:
        words = netem_words(Direction(0.001, 0.0001), 0.5)
        tried = tc.run([tc.find("tc") or "tc", *_root(second), "netem", *words])
        if tried.returncode != 0:
            return False, f"this kernel has no usable netem ({tc.line(tried)})"
        try:
            for command in _redirect(first, second):
                tc.must(["tc", *command])
        except LinkError as error:
            return False, f"this kernel cannot redirect frames: {error}"
    finally:
        tc.must(["ip", "link", "del", first])
    return True, "this kernel has netem"


class NetemLink(Link):
    """A box of veth pairs under netem."""

    backend = "netem"

    def __init__(self, name: str, profile: LinkProfile) -> None:
        super().__init__(name, profile)
        reason = inexpressible(profile)
        if reason:
            raise LinkError(reason)
        self._channels = {d: profile.channel(d, name) for d in DIRECTIONS}
        self._stages: dict[str, _Stage] = {}
        self._batch: tc.Batch | None = None
        self._lateness = Lateness()
        self._stop = threading.Event()
        self._follower: threading.Thread | None = None

    def create(self, first: str, second: str) -> None:
        """Make the box, with its two ends in this namespace."""
        self._batch = tc.Batch()
        box = f"nm{next(_boxes)}"
        inner = {"down": f"{box}a", "up": f"{box}b"}  # a direction leaves through its inner end
        for end, device in ((first, inner["down"]), (second, inner["up"])):
            tc.must(["ip", "link", "add", end, "type", "veth", "peer", "name", device])
            _quiet(device)
        for direction, source in (("up", inner["down"]), ("down", inner["up"])):
            self._stages[direction] = _Stage(
                self.name,
                self.profile.direction(direction),
                self._batch,
                source,
                inner[direction],
                f"{box}{direction[0]}",
            )
        self.seed(0)

    def attach(self, first: End, second: End) -> None:
        """See Link; the box works wherever its ends are."""

    def seed(self, seed: int) -> None:
        """See Link."""
        self.stop_epoch()
        for direction, stage in self._stages.items():
            self._channels[direction].seed(seed)
            stage.reset(self._still(direction), subseed(seed, self.name, direction, "netem"))
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
        for direction in self._stages:
            self._change(direction, self._still(direction))
        if self._batch is not None:
            self._batch.settle()  # or a late change meets the qdiscs of the next run
        self._check()

    def stats(self) -> dict[str, Any]:
        """See Link; `queue`, frames that the bottleneck's queue refused, in each direction."""
        self._check()
        notes = [note for stage in self._stages.values() for note in stage.notes]
        counts = {direction: stage.counts() for direction, stage in self._stages.items()}
        extra = {"backend": self.backend, "lateness": self._lateness.summary(), "notes": notes}
        return counts | extra

    def close(self) -> None:
        """See Link; the interfaces go with their namespaces."""
        self._stop.set()
        if self._follower is not None:
            self._follower.join()
            self._follower = None
        if self._batch is not None:
            self._batch.close()

    def _still(self, direction: str) -> float:
        """The loss while the channel's clock stands still."""
        return self._channels[direction].loss_at(-math.inf)

    def _change(self, direction: str, loss: float) -> None:
        assert self._batch is not None
        self._batch.send(self._stages[direction].change(loss))

    def _check(self) -> None:
        problem = self._batch.check() if self._batch else None
        if problem:
            raise LinkError(f"link {self.name}: tc failed: {problem}")

    def _follow(self, epoch: float, stop: threading.Event) -> None:
        """Change the loss at each moment of the schedule, by absolute deadlines."""
        now = time.monotonic() - epoch
        changes = []
        for direction, channel in self._channels.items():
            if now >= 0 and channel.loss_at(now) != self._still(direction):
                self._change(direction, channel.loss_at(now))
            changes.append((channel.next_change(now), direction))
        heapq.heapify(changes)
        while True:
            t, direction = changes[0]
            wait = None if t == math.inf else max(0.0, epoch + t - time.monotonic())
            if stop.wait(wait):
                return
            channel = self._channels[direction]
            self._change(direction, channel.loss_at(t))
            self._lateness.add(max(0.0, time.monotonic() - epoch - t))
            heapq.heapreplace(changes, (channel.next_change(t), direction))


class _Stage:
    """One direction of the box: from `source` through a bottleneck, if any, out of `device`."""

    def __init__(
        self,
        link: str,
        direction: Direction,
        batch: tc.Batch,
        source: str,
        device: str,
        pair: str,
    ) -> None:
        self._link, self._direction, self._device = link, direction, device
        self._batch, self._made = batch, False
        self._neck = f"{pair}0" if direction.bottleneck else None
        self._seedable = tc.knows_seed()
        self._seed: int | None = None
        self._changes = 0
        self._entrance, self._entered = source, 0
        self.notes: list[str] = []
        if self._neck is None:
            batch.must(*_redirect(source, device))
        else:
            far = f"{pair}1"
            tc.must(["ip", "link", "add", self._neck, "type", "veth", "peer", "name", far])
            for end in (self._neck, far):
                _quiet(end)
            batch.must(*_redirect(source, self._neck), *_redirect(far, device))

    def reset(self, loss: float, seed: int) -> None:
        """New qdiscs: new random numbers, and counters at 0."""
        self._entered = _arrivals(self._entrance)
        self._seed, self._changes = (seed if self._seedable else None), 0
        words = netem_words(self._direction, loss, self._seed)
        commands = [*self._removal(self._device), [*_root(self._device), "netem", *words]]
        if self._neck is not None:
            assert self._direction.bottleneck is not None
            root, child = bottleneck_words(self._direction.bottleneck)
            commands += [*self._removal(self._neck), [*_root(self._neck), *root]]
            if child is not None:
                parent = ["qdisc", "add", "dev", self._neck, "parent", "1:1", "handle", "10:"]
                commands.append([*parent, *child])
        self._batch.must(*commands)
        self._made = True
        # A kernel before 6.6 ignores the seed without a word, but does not show it either.
        shown = self._show(self._device, "netem").get("options", {})
        seeded = self._seed is not None and shown.get("seed") == self._seed
        self.notes = [] if seeded else [f"{self._link}: {what}" for what in self._chances()]

    def _removal(self, device: str) -> list[list[str]]:
        return [["qdisc", "del", "dev", device, "root"]] if self._made else []

    def _chances(self) -> list[str]:
        """What is left to chance without a seed of netem's own."""
        direction, needs = self._direction, "not seeded (needs Linux 6.6 and iproute2 6.6)"
        drawn = isinstance(direction.loss, Bernoulli | GilbertElliottPackets)
        chances = {
            "losses per packet are": drawn,
            "jitter is": direction.jitter > 0,
            "duplication is": direction.duplicate > 0,
            "corruption is": direction.corrupt > 0,
        }
        return [f"{what} {needs}" for what, used in chances.items() if used]

    def change(self, loss: float) -> list[str]:
        """The tc command that sets the loss of the moment; frames on their way stay there."""
        # A change seeds netem's generator anew: with the same seed, the same draws would follow.
        self._changes += 1
        seed = None if self._seed is None else subseed(self._seed, str(self._changes))
        words = netem_words(self._direction, loss, seed, table=False)
        return ["qdisc", "change", "dev", self._device, "root", "handle", "1:", "netem", *words]

    def counts(self) -> dict[str, int]:
        """Frames since the last reset, from the qdiscs' own counters.

        netem counts lost and overflowed frames as one; its queue is sized so that none overflow.
        It also counts copies as frames: with duplication, those beyond what came in are copies.
        """
        delivered, lost, waiting = self._counters(self._device, "netem")
        received, refused, copies = delivered + lost + waiting, 0, 0
        entered = received
        if self._neck is not None:
            passed, refused, queued = self._counters(self._neck, None)
            received, entered = passed + refused + queued, passed
        elif self._direction.duplicate:
            received = entered = _arrivals(self._entrance) - self._entered
        if self._direction.duplicate:
            copies = max(0, delivered + lost + waiting - entered)
        return {
            "received": received,
            "delivered": delivered - copies,
            "lost": lost,
            "queue": refused,
            "copies": copies,
            "dropped": 0,
        }

    def _counters(self, device: str, kind: str | None) -> tuple[int, int, int]:
        shown = self._show(device, kind)
        sent, dropped, queued = (int(shown.get(key, 0)) for key in ("packets", "drops", "qlen"))
        return sent, dropped, queued

    def _show(self, device: str, kind: str | None) -> dict[str, Any]:
        for qdisc in self._batch.qdiscs(device):
            if qdisc.get("root") and kind in (None, qdisc.get("kind")):
                return qdisc
        raise LinkError(f"link {self._link}: its qdisc on {device} has gone")


def _arrivals(device: str) -> int:
    """Frames that have come in at a device since it was made."""
    return int(Path(f"/sys/class/net/{device}/statistics/rx_packets").read_text())


def _root(device: str) -> list[str]:
    return ["qdisc", "add", "dev", device, "root", "handle", "1:"]


def _quiet(device: str) -> None:
    """Up, without addresses of its own: it must not say anything by itself."""
    # A kernel without IPv6 (or with ipv6.disable=1) refuses the word.
    silent = ["addrgenmode", "none"] if Path("/proc/sys/net/ipv6").exists() else []
    tc.must(["ip", "link", "set", device, "up", *silent, "arp", "off"])


def _redirect(source: str, target: str) -> list[list[str]]:
    """Whatever comes in at `source` goes out of `target`, through its qdisc: tc's commands."""
    action = ["action", "mirred", "egress", "redirect", "dev", target]
    match = ["protocol", "all", "prio", "1", "matchall"]
    return [
        ["qdisc", "add", "dev", source, "handle", "ffff:", "ingress"],
        ["filter", "add", "dev", source, "parent", "ffff:", *match, *action],
    ]
