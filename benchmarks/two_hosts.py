"""Two hosts joined by one link and nothing else: no switch, so that only the link is measured."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from topologies import tc
from topologies.links import CableLink, End, Link, LinkError
from topologies.netem import NetemLink
from topologies.profile import Direction, LinkProfile
from topologies.user_link import UserLink

BACKENDS = ("cable", "user", "netem")
ADDRESSES = ("10.0.0.1", "10.0.0.2")

_HARDWARE = ("02:00:00:00:00:01", "02:00:00:00:00:02")
_ROOT = Path(__file__).parent.parent
_PATIENCE = 60.0  # seconds until a program on a host counts as stuck


class Host:
    """A network namespace, held by a process that sleeps in it."""

    def __init__(self) -> None:
        command = ["unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity"]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            raise LinkError("cannot make a network namespace with unshare")
        self.pid = self._holder.pid

    def command(self, *words: object) -> list[str]:
        """A command line that runs in this host."""
        return ["nsenter", "--net", "--target", str(self.pid), *map(str, words)]

    def start(self, *words: object) -> subprocess.Popen[str]:
        """A Python program on this host, with text pipes; see `answer`."""
        path = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
        return subprocess.Popen(
            self.command(sys.executable, *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))},
            text=True,
        )

    def close(self) -> None:
        """End it."""
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()


def ready(process: subprocess.Popen[str]) -> None:
    """Wait for the line with which a program says that it listens."""
    assert process.stdout is not None
    if not process.stdout.readline():
        answer(process)


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a program printed as JSON. Raises LinkError with its last words if it failed."""
    try:
        output, errors = process.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise LinkError(f"the traffic did not end within {_PATIENCE:g} s") from None
    if process.returncode != 0 or not output.strip():
        last = (errors.strip().splitlines() or ["it said nothing"])[-1]
        raise LinkError(f"the traffic on a host ended: {last}")
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


@contextlib.contextmanager
def joined(backend: str, delay: float) -> Iterator[tuple[Host, Host, Link]]:
    """Two hosts on a link of `delay` seconds each way; a cable has none."""
    way = Direction(delay)
    profile = LinkProfile("access", way, way, "set by the benchmark")
    kinds: dict[str, type[Link]] = {"cable": CableLink, "user": UserLink, "netem": NetemLink}
    with contextlib.ExitStack() as stack:
        hosts = []
        for _ in ADDRESSES:
            hosts.append(Host())
            stack.callback(hosts[-1].close)
        link = kinds[backend]("access", profile)
        stack.callback(link.close)
        names = ("client-eth0", "server-eth0")
        if backend == "cable":
            tc.must(["ip", "link", "add", names[0], "type", "veth", "peer", "name", names[1]])
        else:
            link.create(*names)
        for number, (host, name) in enumerate(zip(hosts, names, strict=True)):
            _plug(host, name, number, offloads=backend != "user")
        link.attach(*(End(name, host.pid) for host, name in zip(hosts, names, strict=True)))
        link.seed(1)
        yield hosts[0], hosts[1], link


def _plug(host: Host, name: str, number: int, *, offloads: bool) -> None:
    """Give a host its interface, its address, and the other's hardware address."""
    tc.must(["ip", "link", "set", name, "netns", str(host.pid)])
    commands = [
        ["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"],
        ["ip", "link", "set", name, "address", _HARDWARE[number], "up"],
        ["ip", "address", "add", f"{ADDRESSES[number]}/24", "dev", name],
        ["ip", "neighbour", "add", ADDRESSES[1 - number], "lladdr", _HARDWARE[1 - number]],
    ]
    commands[-1] += ["dev", name]
    if offloads:  # frames as a network card would send them, as in topologies.wifi
        commands.append(["ethtool", "-K", name, "tx", "off", "tso", "off", "gso", "off"])
        commands[-1] += ["gro", "off"]
    for command in commands:
        done = tc.run(host.command(tc.find(command[0]) or command[0], *command[1:]))
        if done.returncode != 0:
            raise LinkError(f"`{' '.join(command)}` failed on a host: {tc.line(done)}")
