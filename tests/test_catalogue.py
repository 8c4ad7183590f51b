"""The catalogue: topologies as data, real networks made from them, and their pictures."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import nobody  # type: ignore[import-not-found, unused-ignore]
import pytest

from scenarios import wifi_loss
from topologies import catalogue, openvswitch, profile_file, sandbox, wifi
from topologies.__main__ import main
from topologies.backends import Choice
from topologies.catalogue import Network, Topology, TopologyError, Wire, pings
from topologies.channel import Bernoulli
from topologies.drawing import describe, draw, places
from topologies.profile import Direction, LinkProfile

T = TypeVar("T")
NAMES = ("wifi", "lte", "two_access", "cell", "satellite", "dumbbell")
ROOT = Path(__file__).parent.parent


def plain(seconds: float) -> LinkProfile:
    return LinkProfile("plain", Direction(seconds), Direction(seconds), "test")


# Data.


def test_the_names() -> None:
    assert tuple(catalogue.names()) == NAMES
    with pytest.raises(TopologyError, match="no topology 'ring'; known are wifi, lte, two_access"):
        catalogue.named("ring")


@pytest.mark.parametrize("name", NAMES)
def test_a_topology_is_whole(name: str) -> None:
    topology = catalogue.named(name)
    assert topology.name == name
    assert topology.title
    assert {wire.profile for wire in topology.wires} <= set(profile_file.names())
    assert set(topology.profiles) == {wire.name for wire in topology.wires}
    assert [wire.name for wire in topology.wires if wire.access]
    for first, second in pings.pairs(topology):
        assert topology.path(first, second)
    # `up` leads from the client to the server.
    ways = topology.path(topology.client, topology.server)
    assert ways is not None
    assert {way for _, way in ways} == {"up"}


def test_the_shapes() -> None:
    cell = catalogue.cell(clients=3)
    assert cell.hosts == ("client1", "client2", "client3", "cross", "server")
    for host in ("client1", "cross"):
        assert [wire.name for wire, _ in cell.path(host, "server") or []][1:] == ["cell", "server"]
    dumbbell = catalogue.dumbbell(pairs=3)
    assert (len(dumbbell.hosts), len(dumbbell.switches), len(dumbbell.wires)) == (6, 2, 7)
    assert "bottleneck" in {wire.name for wire, _ in dumbbell.path("client3", "server2") or []}
    necks = (cell.profile(cell.wire("cell")), dumbbell.profile(dumbbell.wire("bottleneck")))
    assert all(neck.down.bottleneck and neck.up.bottleneck for neck in necks)
    satellite = catalogue.named("satellite").profiles["access"]
    assert satellite.up.delay >= 0.25
    with pytest.raises(TopologyError, match="1 to 50"):
        catalogue.cell(0)


def test_two_paths() -> None:
    two = catalogue.named("two_access")
    for by, switch in (("access-a", "s1"), ("access-b", "s2")):
        path = two.path("client", "server", by) or []
        assert [wire.name for wire, _ in path] == [by, by.replace("access", "core"), "server"]
        assert path[0][0].second == switch
    assert two.path("client", "server", "server") is None


def test_profiles_can_be_replaced() -> None:
    two = catalogue.named("two_access").with_access(plain(0.1))
    assert two.profiles["access-a"] == plain(0.1)
    assert two.profiles["access-b"] == profile_file.named("lte-walking")
    with pytest.raises(TopologyError, match="there is no link x; known are access, server"):
        catalogue.named("wifi").with_profiles({"x": plain(0)})


ONE = Wire("one", "a", "s1", "clean")
TWO = Wire("two", "s1", "b", "clean")


@pytest.mark.parametrize(
    ("hosts", "switches", "wires", "words"),
    [
        ("ab", ["s1"], [ONE], "b cannot be reached from a"),
        ("ab", ["s1"], [ONE, TWO, Wire("x", "s1", "c", "clean")], "leads to c, which does not"),
        ("ab", ["s1"], [Wire("x", "a", "b", "clean")], "link x joins two hosts"),
        ("ab", ["s1"], [ONE, TWO, ONE], "two links are called one"),
        ("aba", ["s1"], [ONE, TWO], "two nodes are called a"),
        ("ab", ["t1"], [ONE, TWO], "a switch is called s1 to s99, not 't1'"),
        (["a", "much-too-long"], ["s1"], [ONE], "a host has 1 to 9 letters"),
        (
            "ab",
            ["s1", "s2", "s3"],
            [
                *(ONE, TWO),
                *(Wire(f"{a}{b}", f"s{a}", f"s{b}", "clean") for a, b in ("12", "23", "31")),
            ],
            "link 31 closes a loop of switches",
        ),
    ],
)
def test_what_makes_no_sense_is_one_line(hosts: Any, switches: Any, wires: Any, words: str) -> None:
    with pytest.raises(TopologyError) as caught:
        Topology("odd", "Odd", tuple(hosts), tuple(switches), tuple(wires))
    assert str(caught.value).startswith("topology odd: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_pings_should_meet() -> None:
    lossy = LinkProfile("l", Direction(0.01, loss=Bernoulli(0.1)), Direction(0.02), "test")
    topology = catalogue.named("wifi").with_profiles({"access": lossy, "server": plain(0.03)})
    said = pings.expected(topology, "client", "server", seed=1)
    assert said.rtt == pytest.approx(0.01 + 0.02 + 0.03 + 0.03)
    assert said.loss == pytest.approx(0.1)
    assert said.loss_now == pytest.approx(0.1)
    assert pings.expected(topology, "server", "client", seed=1).rtt == pytest.approx(0.09)
    # Outages in time: what they cover of the 4 s that the pings take, by the seed's schedule.
    outages = catalogue.named("wifi")
    profile = outages.profiles["access"]
    up, down = (profile.channel(way, "access", 5).outages(0, 4) for way in ("up", "down"))
    covered, until = 0.0, 0.0
    for start, end in sorted((*up, *down)):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    assert 0.1 < covered < 3.9
    seen = pings.expected(outages, "client", "server", seed=5)
    assert seen.loss_now == pytest.approx(covered / 4, abs=0.02)
    assert seen.loss == pytest.approx(1 - 0.9 * 0.9)


# Pictures.


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_svg_with_all_names_in_it(name: str, tmp_path: Path) -> None:
    topology = catalogue.named(name)
    draw(topology, tmp_path / "a.svg")
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = {text.strip() for element in root.iter() for text in element.itertext()}
    assert {*topology.hosts, *topology.switches} <= texts
    for wire in topology.wires:
        assert f"{wire.name}: {wire.profile}" in texts
    draw(topology, tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_nodes_do_not_lie_on_each_other() -> None:
    for topology in (*map(catalogue.named, NAMES), catalogue.cell(9), catalogue.dumbbell(9)):
        where = places(topology)
        assert len(set(where.values())) == len(where)
        assert all(where[wire.first][0] < where[wire.second][0] for wire in topology.wires)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("clean", "a cable"),
        ("wifi", "3 ms ± 1 ms, 10% lost (outages of 100 ms)"),
        ("interop-blackhole", "15 ms, 28.6% lost (outages of 2 s), 10 Mbit/s"),
        ("interop-rebind", "15 ms, 10 Mbit/s, rebinding"),
        ("cell", "24.5 ms, up 10.6 Mbit/s, down 27 Mbit/s"),
    ],
)
def test_a_profile_in_words(name: str, words: str) -> None:
    assert describe(profile_file.named(name)) == words


# The command.


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    # Of the whole process, which may have sockets: not for a function to change.
    assert signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN
    out = capsys.readouterr().out
    first_words = {line.split()[0] for line in out.splitlines() if line.strip()}
    assert {*NAMES, *profile_file.names()} <= first_words


@pytest.mark.nobody
def test_a_picture_needs_no_root() -> None:
    # Not tmp_path: nobody may not enter root's.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        file = Path(folder) / "out.svg"
        command = [sys.executable, "-m", "topologies", "dumbbell", "--profile", "train"]
        done = subprocess.run(
            [*command, "--draw", str(file)],
            cwd=ROOT,
            env=os.environ | {"MPLCONFIGDIR": folder},
            preexec_fn=nobody.become,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, f"Picture: {file}\n"), done.stderr
        assert "bottleneck: train" in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ring"], "no topology 'ring'; known are wifi, lte,"),
        (["wifi", "--profile", "wify"], "no link profile 'wify': did you mean 'wifi'?"),
        (["wifi", "--profile", "/no/such.toml"], "cannot read /no/such.toml: No such file"),
        (["wifi", "--draw", "/no/such/folder/x.svg"], "cannot write /no/such/folder/x.svg: No"),
        (["wifi", "--draw", "x.gif"], "a picture is .svg or .png, not x.gif"),
    ],
)
def test_an_error_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert words in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.nobody
def test_without_root_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "topologies", "wifi"],
        cwd=ROOT,
        preexec_fn=nobody.become,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: needs root: run it with sudo")
    assert done.stderr.count("\n") == 1


# Real networks.

emulation = pytest.mark.emulation


@contextmanager
def running(topology: Topology, backend: str = "user") -> Iterator[Network]:
    with openvswitch.OpenVSwitch():
        kind = openvswitch.datapath()
        network = catalogue.build(topology, Choice(backend, "test"), datapath=kind)
        try:
            network.start()
            network.wait_connected(10)
            yield network
        finally:
            network.stop()


def inside(function: Callable[[Network], T], topology: Topology) -> T:
    """The result of `function` on the running network, in a sandbox of its own."""

    def work() -> T:
        with running(topology) as network:
            return function(network)

    return sandbox.call(work)


def outside() -> tuple[set[str], set[str], set[str]]:
    """What a network might leave on the machine: interfaces, named namespaces, mounts."""
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    names = {path.name for path in Path("/run/netns").glob("*")}
    return set(os.listdir("/sys/class/net")), names, mounts


def interfaces() -> set[str]:
    links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True)
    return {re.split(r"[@\s]", line)[0] for line in links.stdout.splitlines()}


def rtt(node: Any, address: str, count: int = 4) -> float:
    """The shortest round trip in milliseconds."""
    output = node.cmd(f"ping -n -c {count} -i 0.1 -W 2 {address}")
    times = [float(time) for time in re.findall(r"time=([0-9.]+) ms", output)]
    assert times, output
    return min(times)


@emulation
@pytest.mark.parametrize("name", NAMES)
def test_all_pairs_ping_and_nothing_is_left(name: str) -> None:
    topology = catalogue.named(name)
    before = outside()

    def work() -> tuple[dict[tuple[str, str], float], list[str], set[str], str]:
        with openvswitch.OpenVSwitch():
            kind = openvswitch.datapath()
            clean = interfaces()
            network = catalogue.build(topology, Choice("user", "test"), datapath=kind)
            network.start()
            network.wait_connected(10)
            hosts = network.hosts
            times = {
                (first, second): rtt(hosts[first], hosts[second].IP())
                for first, second in pings.pairs(topology)
            }
            addresses = [host.IP() for host in hosts.values()]
            network.stop()
            left = interfaces() - clean
            bridges = subprocess.run(["ovs-vsctl", "list-br"], capture_output=True, text=True)
            return times, addresses, left, bridges.stdout

    times, addresses, left, bridges = sandbox.call(work)
    assert addresses == [f"10.0.0.{number}" for number in range(1, len(topology.hosts) + 1)]
    for (first, second), seen in times.items():
        least = sum(
            topology.profile(wire).up.delay + topology.profile(wire).down.delay
            for wire, _ in topology.path(first, second) or []
        )
        # Jitter of WiFi may take some ms away; a busy machine adds some.
        assert 1e3 * least - 4 < seen < 1e3 * least + 25, (first, second)
    assert not {link for link in left if not link.startswith("ovs-")}
    assert bridges == ""
    assert outside() == before


@emulation
def test_two_access_has_two_paths() -> None:
    quick, slow = plain(0.005), plain(0.03)
    profiles = {"access-a": quick, "access-b": slow, "server": plain(0)}
    topology = catalogue.named("two_access").with_profiles(profiles)

    def frames(network: Network) -> tuple[int, ...]:
        stats = [network.links[name].stats() for name in ("access-a", "access-b")]
        return tuple(stat[way]["received"] for stat in stats for way in ("up", "down"))

    def work(network: Network) -> dict[str, Any]:
        found: dict[str, Any] = {"there": [], "back": [], "frames": []}
        for uplink in ("access-a", "access-b", "access-a"):
            network.use(uplink)
            # Switches learn the way; Open vSwitch looks over its cached flows each half second.
            network.client.cmd("ping -n -c 8 -i 0.2 -W 2 10.0.0.2")
            for link in network.links.values():
                link.seed(1)
            found["there"].append(rtt(network.client, "10.0.0.2"))
            found["back"].append(rtt(network.server, "10.0.0.1"))
            found["frames"].append(frames(network))
        found["macs"] = network.client.cmd("cat /sys/class/net/client-eth*/address").split()
        return found

    found = inside(work, topology)
    for times in (found["there"], found["back"]):
        for seen, said in zip(times, (10, 60, 10), strict=True):
            assert said <= seen < said + 20
    for (a_up, a_down, b_up, b_down), uplink in zip(found["frames"], "aba", strict=True):
        used, idle = ((a_up, a_down), (b_up, b_down))[:: 1 if uplink == "a" else -1]
        assert min(used) >= 8  # 4 pings each way
        assert max(idle) == 0
    assert len(found["macs"]) == 2
    assert len(set(found["macs"])) == 1


@emulation
def test_a_controller_moves_the_client_too(tmp_path: Path) -> None:
    profiles = {"access-a": plain(0.005), "access-b": plain(0.03), "server": plain(0)}
    topology = catalogue.named("two_access").with_profiles(profiles)

    def work() -> list[float]:
        command = [sys.executable, "-m", "apps.controller", "--host", "127.0.0.1"]
        with openvswitch.OpenVSwitch(), (tmp_path / "events").open("w") as events:
            log = ["--port", "6653", "--log", str(tmp_path / "log")]
            controller = subprocess.Popen([*command, *log], cwd=ROOT, stdout=events)
            kind = openvswitch.datapath()
            network = catalogue.build(
                topology, Choice("user", "test"), datapath=kind, controller_port=6653
            )
            try:
                network.start()
                network.wait_connected(30)
                deadline = time.monotonic() + 30
                while (tmp_path / "events").read_text().count('"connected"') < 3:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
                times = []
                for uplink in ("access-a", "access-b"):
                    network.use(uplink)
                    network.client.cmd("ping -n -c 3 -i 0.2 -W 2 10.0.0.2")
                    times.append(rtt(network.server, "10.0.0.1"))
                return times
            finally:
                network.stop()
                controller.terminate()
                controller.wait()

    first, second = sandbox.call(work)
    assert 10 <= first < 30
    assert 60 <= second < 80


@emulation
def test_it_makes_the_same_network_as_wifi() -> None:
    """Names, addresses and link seeds, and so the fates of frames, are those of topologies.wifi."""
    profile = wifi_loss.network()
    topology = catalogue.named("wifi").with_profiles(
        {"access": profile.access, "server": profile.server}
    )

    def look(build: Callable[[str], Any]) -> dict[str, Any]:
        with openvswitch.OpenVSwitch():
            network = build(openvswitch.datapath())
            try:
                network.start()
                network.wait_connected(10)
                nodes = (network.client, network.server, network.switch)
                return {
                    "names": [node.name for node in nodes],
                    "addresses": [(node.IP(), node.MAC()) for node in nodes[:2]],
                    "interfaces": [[i.name for i in node.intfList()] for node in nodes],
                    "ports": {i.name: port for i, port in network.switch.ports.items()},
                    "dpid": network.switch.dpid,
                    "links": [
                        (name, link.name, link.backend, link.profile.to_dict())
                        for name, link in network.links.items()
                    ],
                    "arp": sorted(network.client.cmd("ip neigh").split()),
                    "routes": network.client.cmd("ip route").split(),
                    "ipv6": network.client.cmd("sysctl net.ipv6.conf.all.disable_ipv6").split(),
                }
            finally:
                network.stop()

    choice = Choice("user", "test")
    old = sandbox.call(lambda: look(lambda kind: wifi.build(profile, choice, datapath=kind)))
    new = sandbox.call(lambda: look(lambda kind: catalogue.build(topology, choice, datapath=kind)))
    assert new == old
    assert new["addresses"][0][0] == "10.0.0.1"


@emulation
def test_a_broken_link_process_leaves_nothing() -> None:
    """A host name that is free but an interface that is not: the build fails and cleans up."""

    def work() -> tuple[str, set[str]]:
        with openvswitch.OpenVSwitch():
            clean = interfaces()
            subprocess.run(["ip", "link", "add", "s1-eth2", "type", "veth"], check=True)
            try:
                with running_in(catalogue.named("wifi")):
                    pass
            except Exception as error:  # noqa: BLE001 - which one is the question
                message = f"{type(error).__name__}: {error}"
            subprocess.run(["ip", "link", "del", "s1-eth2"], check=True)
            return message, interfaces() - clean

    @contextmanager
    def running_in(topology: Topology) -> Iterator[Network]:
        kind = openvswitch.datapath()
        yield catalogue.build(topology, Choice("user", "test"), datapath=kind)

    message, left = sandbox.call(work)
    assert message.startswith("LinkError: link server: its process ended: ")
    assert not left


@emulation
def test_the_command_builds_pings_and_leaves_nothing() -> None:
    before = outside()
    done = subprocess.run(
        [sys.executable, "-m", "topologies", "wifi", "--profile", "interop-loss-30"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()[-1].split()
    assert words[:3] == ["client", "-", "server"]
    said_rtt, seen_rtt, said_loss, _, seen_loss = map(float, words[3:])
    assert said_rtt == 66.0  # 15 ms + 18 ms, both ways
    assert 66 <= seen_rtt < 90
    assert said_loss == pytest.approx(100 * (1 - (1 - 0.295) ** 2), abs=0.1)
    assert 15 <= seen_loss <= 85  # 20 pings
    assert outside() == before


@emulation
def test_the_command_line_of_mininet() -> None:
    before = outside()
    done = subprocess.run(
        [sys.executable, "-m", "topologies", "dumbbell", "--cli"],
        cwd=ROOT,
        input="nodes\nclient2 ping -c 1 server2\n",
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = done.stdout + done.stderr  # Mininet's words go to standard error
    assert "client1 client2 s1 s2 server1 server2" in shown
    assert "1 received" in shown
    assert outside() == before
