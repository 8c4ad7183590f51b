"""A private Open vSwitch: it starts, is used, and goes away; the system's own stays out of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from topologies import openvswitch, sandbox
from topologies.openvswitch import OpenVSwitch, OpenVSwitchError

pytestmark = pytest.mark.emulation


def vsctl(*arguments: str) -> str:
    return subprocess.run(
        ["ovs-vsctl", "-t", "5", *arguments], capture_output=True, text=True, check=True
    ).stdout


def daemons() -> list[str]:
    names = [path.read_text().strip() for path in Path("/proc").glob("[0-9]*/comm")]
    return sorted(name for name in names if name.startswith("ovs"))


def test_start_use_stop():
    def use() -> dict:
        before = dict(os.environ)
        with OpenVSwitch() as switch:
            seen: dict = {"daemons": daemons(), "version": switch.version()}
            vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev")
            seen["bridges"] = vsctl("list-br").split()
            seen["interfaces"] = sorted(os.listdir("/sys/class/net"))
        seen["restored"] = dict(os.environ) == before
        seen["after"] = daemons()
        switch.stop()
        return seen

    seen = sandbox.call(use)
    assert seen["daemons"] == ["ovs-vswitchd", "ovsdb-server"]
    assert seen["version"][0].isdigit()
    assert seen["bridges"] == ["br0"]
    assert "br0" in seen["interfaces"]
    assert seen["after"] == []
    assert seen["restored"]


def test_datapath_agrees_with_the_kernel():
    kernel = subprocess.run(["ovs-dpctl", "show"], capture_output=True, text=True, check=False)
    assert openvswitch.datapath() == ("kernel" if kernel.returncode == 0 else "user")
    assert openvswitch._has_family("nlctrl")  # the family that every kernel has
    assert not openvswitch._has_family("no_such_family")


def test_missing_tools_are_one_clear_line(monkeypatch):
    monkeypatch.setattr(openvswitch, "_TOOLS", ("ovs-nothing",))
    with pytest.raises(OpenVSwitchError) as caught:
        sandbox.call(lambda: OpenVSwitch().start())
    assert str(caught.value) == (
        "ovs-nothing is missing: Open vSwitch is not installed; run setup.sh"
    )


def test_outside_of_a_sandbox_it_refuses():
    with pytest.raises(sandbox.SandboxError, match="not inside a sandbox"):
        OpenVSwitch()
