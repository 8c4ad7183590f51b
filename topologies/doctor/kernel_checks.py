"""What the kernel must let us do. Whatever makes a device is called inside a sandbox."""

from __future__ import annotations

import os
from pathlib import Path

from topologies import sandbox, tc
from topologies.doctor.check import AS_ROOT, SETUP, Check, in_sandbox
from topologies.links import LinkError
from topologies.netem import netem_available
from topologies.tap import TapError, open_tap, tap_available

CONGESTION_CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_VIRTUAL = f"{SETUP} --virtual, then --engine virtual: the guest's kernel has it"
_PAIR = ("doctor0", "doctor1")


def check_root() -> Check:
    """Root, because namespaces and devices need it."""
    uid = os.geteuid()
    if uid == 0:
        return Check("root", "ok", "this is root")
    remedy = f"{AS_ROOT}; or --engine virtual, which needs no root"
    return Check("root", "problem", f"this is user {uid}", remedy)


def check_namespaces() -> Check:
    """A whole sandbox, made and gone again."""
    try:
        in_sandbox(sandbox.scratch)
    except sandbox.SandboxError as error:
        remedy = "run it on a machine of your own, or docker run --privileged"
        return Check("namespaces", "problem", str(error), remedy)
    return Check("namespaces", "ok", "network, mount and process namespaces can be made")


def check_tun() -> Check:
    """The device file behind the link back end `user` and the switch's user datapath."""
    usable, reason = tap_available()
    if usable:
        return Check("tun", "ok", reason)
    finding, _, remedy = reason.partition(": ")
    return Check("tun", "problem", finding, remedy or "modprobe tun")


def check_tap() -> Check:
    """A real TAP device: the file may open where making one is forbidden."""
    try:
        os.close(open_tap(_PAIR[0]))
    except TapError as error:
        return Check("tap", "problem", str(error), "a container needs CAP_NET_ADMIN")
    return Check("tap", "ok", "TAP devices can be made")


def check_veth() -> Check:
    """Pairs of virtual Ethernet devices: the cables."""
    if tc.find("ip") is None or tc.find("tc") is None:
        return Check("veth", "problem", "ip and tc (iproute2) are not installed", SETUP)
    try:
        make_veth()
    except LinkError as error:
        return Check("veth", "problem", str(error), "modprobe veth")
    return Check("veth", "ok", "veth pairs can be made")


def check_netem() -> Check:
    """The kernel's emulator of bad networks; without it, the back end `user` does the work."""
    usable, reason = netem_available()
    if usable:
        seed = "seeds its draws" if tc.knows_seed() else "cannot seed its draws (iproute2 6.6 can)"
        return Check("netem", "ok", f"{reason}; this tc {seed}")
    finding = f"{reason}; the link back end user stands in"
    return Check("netem", "note", finding, f"modprobe sch_netem; or {_VIRTUAL}")


def check_htb() -> Check:
    """The qdisc behind the bandwidth limits of Mininet's own links; ours do not use it."""
    if tc.find("tc") is None:
        return Check("htb", "note", "tc (iproute2) is not installed", SETUP)
    make_veth()
    device = _PAIR[0]
    try:
        tc.must(["tc", "qdisc", "add", "dev", device, "root", "handle", "1:", "htb"])
        rate = ["htb", "rate", "10mbit"]
        tc.must(["tc", "class", "add", "dev", device, "parent", "1:", "classid", "1:1", *rate])
    except LinkError as error:
        finding = f"this kernel has no usable HTB ({error}); only links made by hand may miss it"
        return Check("htb", "note", finding, f"modprobe sch_htb; or {_VIRTUAL}")
    return Check("htb", "ok", "this kernel has HTB")


def check_congestion(path: Path = CONGESTION_CONTROLS) -> Check:
    """The scheme `tcp` runs on cubic."""
    try:
        known = path.read_text().split()
    except OSError as error:
        finding = f"cannot read {path} ({error.strerror})"
        return Check("congestion", "problem", finding, "mount /proc")
    listed = ", ".join(known) or "none"
    if "cubic" in known:
        return Check("congestion", "ok", f"TCP congestion controls: {listed}")
    finding = f"TCP's cubic is missing; there are: {listed}"
    return Check("congestion", "problem", finding, "modprobe tcp_cubic")


def make_veth() -> None:
    """A veth pair in this namespace. Raises LinkError."""
    first, second = _PAIR
    tc.must(["ip", "link", "add", first, "type", "veth", "peer", "name", second])
