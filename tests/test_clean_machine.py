"""Starts, stops and sudden deaths leave a machine as it was, and what others have there alone.

The machine here is a sandbox with processes, interfaces, mounts, terminals and temporary folders
of its own: whatever is counted in it comes from these tests, whatever else the real one does. What
"others" have in it bears the very names that a testbed uses.

ELOQUENT_STARTS (15) and ELOQUENT_KILLS (4) say how often, ELOQUENT_SEED (1) at which moments.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from emulated import network  # type: ignore[import-not-found, unused-ignore]

from topologies import openvswitch, sandbox
from topologies.backends import choose
from topologies.channel import Bernoulli
from topologies.profile import Direction, LinkProfile

pytestmark = pytest.mark.emulation

STARTS = int(os.environ.get("ELOQUENT_STARTS", "15"))
KILLS = int(os.environ.get("ELOQUENT_KILLS", "4"))
SEED = int(os.environ.get("ELOQUENT_SEED", "1"))
SETTLED = 10.0  # seconds that the kernel may take to clear up after a kill

RADIO = Direction(0.002, 0.0005, Bernoulli(0.1))
WIRED = LinkProfile("server", Direction(0.001), Direction(0.001), "test")
NEEDED = (Path(__file__).parent.parent, Path(sys.prefix), Path(sys.base_prefix))
PLACES = ("/tmp", "/var/tmp", "/var/log", "/dev/shm", "/var/run", "/run", "/etc/openvswitch")
KINDS = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
SYSTEM_OVS = Path("/var/run/openvswitch")
OTHER_OVS = Path("/tmp/other-openvswitch")
FOREIGN_FILE = Path("/tmp/foreign.log")
Census = dict[str, list[str]]


def run(*command: str, **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, **options)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def places() -> list[Path]:
    return list(dict.fromkeys(Path(place).resolve() for place in PLACES if os.path.isdir(place)))


def on_a_machine(function: Callable[[], Any]) -> Any:
    """The result of `function` on a machine that has only what `foreign` put there."""

    def main() -> Any:
        for place in places():
            hide(place)
        run("mount", "-t", "devpts", "-o", "newinstance,ptmxmode=0666", "devpts", "/dev/pts")
        Path("/run/eloquent-testbed").mkdir()  # the empty mount point stays after a first start
        os.environ["HOME"] = "/tmp"
        os.chdir("/tmp")
        with foreign():
            return function()

    return sandbox.call(main)


def hide(place: Path) -> None:
    """An empty tmpfs there; a checkout or interpreter that lies in it stays visible."""
    kept = [path for path in NEEDED if path.is_relative_to(place)]
    for number, path in enumerate(kept):
        stage = sandbox.scratch() / str(number)
        stage.mkdir()
        run("mount", "--bind", str(path), str(stage))
    run("mount", "-t", "tmpfs", "tmpfs", str(place))
    for number, path in enumerate(kept):
        path.mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", str(sandbox.scratch() / str(number)), str(path))


@contextlib.contextmanager
def foreign() -> Iterator[None]:
    run("ip", "netns", "add", "client")
    pair = ("client-eth0", "netns", "client", "type", "veth", "peer", "name", "s1-eth1")
    run("ip", "link", "add", *pair)
    for number, device, where in ((2, "s1-eth1", ()), (1, "client-eth0", ("-n", "client"))):
        run("ip", *where, "address", "add", f"10.0.0.{number}/24", "dev", device)
        run("ip", *where, "link", "set", device, "up")
    FOREIGN_FILE.write_text("not of a testbed\n")
    pose = "exec -a mininet:client sleep 100000"  # as Mininet marks the shells of its hosts
    shell = subprocess.Popen(["ip", "netns", "exec", "client", "bash", "-c", pose])
    try:
        foreign_switch(SYSTEM_OVS, "s1")
        foreign_switch(OTHER_OVS, "s2")
        yield
    finally:
        shell.kill()
        shell.wait()


def foreign_switch(directory: Path, bridge: str) -> None:
    """An Open vSwitch in its default place, or in another."""
    directory.mkdir()
    places = {f"OVS_{name}": str(directory) for name in ("RUNDIR", "DBDIR", "LOGDIR", "SYSCONFDIR")}
    environment = os.environ | ({} if directory == SYSTEM_OVS else places)
    database, bus = str(directory / "conf.db"), f"unix:{directory}/db.sock"
    daemon = ("--pidfile", "--detach", "-vconsole:off")
    run("ovsdb-tool", "create", database, str(openvswitch._schema()))
    run("ovsdb-server", database, f"--remote=p{bus}", *daemon, env=environment)
    vsctl(directory, "--no-wait", "init")
    run("ovs-vswitchd", bus, *daemon, env=environment)
    kind = "system" if openvswitch.datapath() == "kernel" else "netdev"
    vsctl(directory, "add-br", bridge, "--", "set", "bridge", bridge, f"datapath_type={kind}")


def vsctl(directory: Path, *arguments: str) -> str:
    return run("ovs-vsctl", f"--db=unix:{directory}/db.sock", "-t", "10", *arguments)


def unharmed() -> list[str]:
    """What tells that nobody touched or replaced it."""
    switches = ((SYSTEM_OVS, "s1"), (OTHER_OVS, "s2"))
    return [
        *(run("ip", *where, "-4", "-o", "address") for where in ((), ("-n", "client"))),
        f"{FOREIGN_FILE.read_text()} {FOREIGN_FILE.stat().st_mtime_ns} {os.listdir('/run/netns')}",
        *(vsctl(place, "get", "bridge", bridge, "_uuid", "ports") for place, bridge in switches),
        *((place / "ovs-vswitchd.pid").read_text() for place, _ in switches),
        str(sorted(p for p in inhabitants()["processes"] if "sleep" in p or "ovs" in p)),
        run("ping", "-c", "2", "-i", "0.01", "10.0.0.1").split("\n")[-3].split("time")[0],
    ]


def census() -> Census:
    limits = [Path("/proc/sys", name).read_text() for name in ("kernel/pty/max", "fs/file-max")]
    return {
        "bridges": bridges(),
        "files": files(),
        "mounts": Path("/proc/self/mountinfo").read_text().splitlines(),
        "terminals": os.listdir("/dev/pts"),
        "descriptors": os.listdir("/proc/self/fd"),
        "limits": limits,  # Mininet would raise them
    } | inhabitants()


def inhabitants() -> Census:
    """Processes; namespaces that one lives in or holds open, or a mount keeps; their interfaces."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    spaces = {line.split()[3] for line in lines if " - nsfs " in line}
    processes, interfaces = set(), set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        home = Path("/proc", pid)
        with contextlib.suppress(OSError):  # it may end meanwhile
            processes.add(f"{pid} {(home / 'comm').read_text().strip()}")
            for place in (home / "ns", home / "fd"):
                for name in os.listdir(place):
                    with contextlib.suppress(OSError):
                        spaces.add(os.readlink(place / name))
            net = os.readlink(home / "ns/net")
            lines = (home / "net/dev").read_text().splitlines()[2:]
            interfaces |= {f"{net} {line.split(':')[0].strip()}" for line in lines}
    return {
        "processes": list(processes),
        "namespaces": [name for name in spaces if name.split(":[")[0] in KINDS],
        "interfaces": list(interfaces),
    }


def bridges() -> list[str]:
    found = [f"{place} {vsctl(place, 'list-br')}" for place in (SYSTEM_OVS, OTHER_OVS)]
    found += map(str, Path("/sys/class/net").glob("*/bridge"))
    if openvswitch.datapath() == "kernel":
        found += run("ovs-dpctl", "dump-dps").split()
    return found


def files() -> list[str]:
    found = []
    for place in places():
        home = os.lstat(place).st_dev
        for folder, folders, names in os.walk(place):
            found += [os.path.join(folder, name) for name in (*folders, *names)]
            folders[:] = [n for n in folders if os.lstat(Path(folder, n)).st_dev == home]
    return found


def difference(before: Census, now: Census) -> Census:
    """What came (+) and went (-), by kind."""
    found = {}
    for kind, old in before.items():
        came, went = Counter(now[kind]) - Counter(old), Counter(old) - Counter(now[kind])
        if came or went:
            found[kind] = [f"+ {x}" for x in came] + [f"- {x}" for x in went]
    return found


def settle(before: Census) -> float:
    """Seconds until all is as before; fails with the difference if that does not come."""
    began = time.monotonic()
    while changes := difference(before, census()):
        assert time.monotonic() < began + SETTLED, f"left behind: {changes}"
        time.sleep(0.01)
    return time.monotonic() - began


def in_kernel() -> int:
    """Network namespaces in the whole kernel, as far as it tells: held by whatever, or freed."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/slabinfo").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("net_namespace "))
    return 0


def experiment() -> int:
    """What runs in its sandbox: a network as scenarios have it, from its start to its stop."""
    with network(RADIO, RADIO, WIRED, choose("auto").name) as made:
        for link in made.links.values():
            link.seed(1)
            link.start_epoch(time.monotonic())
        told = made.client.cmd("ping -c 5 -i 0.01 -W 1 10.0.0.2")
    return 0 if "5 packets transmitted" in told and " 0 received" not in told else 3


def starts(n: int) -> list[float]:
    """Start and stop `n` times, in one process; the seconds each took."""
    before, mine, took = census(), unharmed(), []
    for _ in range(n):
        began = time.monotonic()
        assert sandbox.run(experiment) == 0
        took.append(time.monotonic() - began)
        settle(before)
    assert unharmed() == mine
    return took


def kills(n: int) -> list[tuple[float, float]]:
    """Kill `n` testbeds, start one after each: (moment, seconds until all had gone) of each."""
    usual = statistics.median(starts(3))
    before, mine, seen, draws = census(), unharmed(), [], random.Random(SEED)
    for _ in range(n):
        moment = draws.uniform(0, usual)
        sys.stdout.flush()
        outer = os.fork()
        if outer == 0:
            try:
                sandbox.run(experiment)
            finally:
                os._exit(0)
        time.sleep(moment)
        os.kill(outer, signal.SIGKILL)
        os.waitpid(outer, 0)
        seen.append((moment, settle(before)))
        assert sandbox.run(experiment) == 0
        settle(before)
    assert unharmed() == mine
    return seen


@pytest.mark.timeout(120 + 10 * STARTS)
def test_starts_and_stops_leave_the_machine_as_it_was() -> None:
    held = in_kernel()
    took = on_a_machine(lambda: starts(STARTS))
    print(f"{len(took)} starts and stops, median {statistics.median(took):.2f} s")
    print(f"network namespaces in the kernel: {held} before, {in_kernel()} after")
    # Each start makes three. The kernel counts some that it has freed, and other people's.
    assert in_kernel() < held + max(60, STARTS)


@pytest.mark.timeout(120 + 30 * KILLS)
def test_kills_at_random_moments_leave_nothing_and_the_next_start_works() -> None:
    print(f"ELOQUENT_SEED={SEED}")
    for moment, gone in on_a_machine(lambda: kills(KILLS)):
        print(f"killed after {moment:.3f} s; all had gone {gone:.3f} s later")


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("files", "mkdir -p /dev/shm/left/below"),
        ("interfaces", "ip link add left0 type veth peer name left1"),
        ("namespaces", "ip netns add left"),
        ("processes", "setsid sleep 1000 >/dev/null 2>&1 &"),
        ("bridges", f"ovs-vsctl --db=unix:{SYSTEM_OVS}/db.sock --no-wait add-br left"),
    ],
)
def test_the_census_notices(kind: str, command: str) -> None:
    def main() -> Census:
        before = census()
        run("sh", "-c", command)
        return difference(before, census())

    assert any("+ " in line for line in on_a_machine(main)[kind])
