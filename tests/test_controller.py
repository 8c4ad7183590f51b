"""The controller with real parts: Ryu, Open vSwitch and Mininet hosts in a sandbox."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from topologies.openvswitch import OpenVSwitch, datapath
from topologies.sandbox import call

pytestmark = pytest.mark.emulation

ROOT = Path(__file__).parents[1]
PINGS = 5


def _switched_network(folder: Path) -> dict[str, Any]:
    """Two hosts ping each other through the controlled switch; returns what could be seen."""
    from mininet.net import Mininet
    from mininet.node import OVSSwitch, RemoteController

    command = [sys.executable, "-m", "apps.controller", "--port", "6653"]
    command += ["--stats", str(folder / "stats.csv"), "--interval", "0.5"]
    command += ["--log", str(folder / "controller.log")]
    with OpenVSwitch(), (folder / "events").open("w") as events:
        controller = subprocess.Popen(command, cwd=ROOT, stdout=events)
        # The controller reports to a file, so waiting for its first line cannot block the test.
        _wait(lambda: "listening" in (folder / "events").read_text())
        net = Mininet(controller=None, autoSetMacs=True, waitConnected=30)
        net.addController(RemoteController("c0", ip="127.0.0.1", port=6653))
        switch = net.addSwitch(
            "s1", cls=OVSSwitch, datapath=datapath(), protocols="OpenFlow13", failMode="secure"
        )
        hosts = [net.addHost(name) for name in ("h1", "h2")]
        for host in hosts:
            net.addLink(host, switch)
        net.start()
        for host in hosts:
            host.cmd(f"ethtool -K {host.name}-eth0 tx off")
        ping = hosts[0].cmd(f"ping -c {PINGS} -i 0.2 -W 2 10.0.0.2")
        time.sleep(1.5)
        flows = switch.cmd("ovs-ofctl -O OpenFlow13 dump-flows s1")
        net.stop()
        time.sleep(0.5)
        alive = controller.poll() is None
        controller.terminate()
        controller.wait()
    with (folder / "stats.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = (folder / "events").read_text().splitlines()
    log = (folder / "controller.log").read_text()
    return {
        "ping": ping,
        "flows": flows,
        "rows": rows,
        "events": [json.loads(line) for line in lines],
        "log": log,
        "alive": alive,
    }


def _wait(condition: Any, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the controller did not come up"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("controller")
    return call(lambda: _switched_network(folder))


def test_hosts_reach_each_other(seen: dict[str, Any]) -> None:
    assert f"{PINGS} received, 0% packet loss" in seen["ping"]
    assert seen["alive"]


def test_flows_are_installed_for_both_directions_without_timeout(seen: dict[str, Any]) -> None:
    flows = [line for line in seen["flows"].splitlines() if "actions=" in line]
    assert any("priority=0" in flow and "CONTROLLER:65535" in flow for flow in flows)
    for source, destination in (("01", "02"), ("02", "01")):
        match = f"dl_src=00:00:00:00:00:{source},dl_dst=00:00:00:00:00:{destination}"
        assert any(match in flow and "output:" in flow for flow in flows), seen["flows"]
    assert "timeout" not in seen["flows"]


def test_connection_is_told_once_with_the_ports(seen: dict[str, Any]) -> None:
    connected = [event for event in seen["events"] if event["event"] == "connected"]
    assert len(connected) == 1
    assert connected[0]["datapath"] == "0000000000000001"
    assert {"s1-eth1", "s1-eth2"} <= set(connected[0]["ports"].values())
    assert any(event["event"] == "disconnected" for event in seen["events"])


def test_statistics_count_the_pings(seen: dict[str, Any]) -> None:
    ports = [row for row in seen["rows"] if row["name"] == "s1-eth1"]
    # Requests and replies, and one ARP exchange at least, cross the first host's port.
    assert int(ports[-1]["rx_packets"]) >= PINGS + 1
    assert int(ports[-1]["tx_packets"]) >= PINGS + 1
    flows = [row for row in seen["rows"] if row["eth_dst"] == "00:00:00:00:00:02"]
    # The first packet of a direction is sent by the controller, the others by the flow.
    assert int(flows[-1]["packets"]) >= PINGS - 2
    assert flows[-1]["out_port"] == "2"
    times = [float(row["time"]) for row in seen["rows"]]
    assert times == sorted(times)
    assert times[-1] - times[0] >= 1.0
    assert "Traceback" not in seen["log"]


def _start(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "apps.controller", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def test_taken_port_is_one_clear_line() -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = _start("--host", "127.0.0.1", "--port", str(port))
    assert result.returncode == 2
    assert result.stderr.splitlines()[0].startswith("error: cannot listen at 127.0.0.1, TCP port")


def test_unwritable_statistics_are_one_clear_line(tmp_path: Path) -> None:
    result = _start("--host", "127.0.0.1", "--port", "0", "--stats", str(tmp_path / "no" / "x"))
    assert result.returncode == 2
    assert "cannot write statistics" in result.stderr.splitlines()[0]
