"""A private Open vSwitch inside the sandbox; the system's own instance is never touched.

Database, sockets, logs and pid files lie in the sandbox's scratch directory; the environment
variables OVS_* lead Mininet's ovs-vsctl there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from topologies.sandbox import scratch

_DIRECTORIES = ("OVS_RUNDIR", "OVS_DBDIR", "OVS_LOGDIR", "OVS_SYSCONFDIR")
_TOOLS = ("ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl")
_DAEMONS = ("ovs-vswitchd", "ovsdb-server")

# <linux/netlink.h>, <linux/genetlink.h>
_NETLINK_GENERIC, _GENL_ID_CTRL, _CTRL_CMD_GETFAMILY, _CTRL_ATTR_FAMILY_NAME = 16, 16, 3, 2
_NLM_F_REQUEST, _NLMSG_ERROR = 1, 2

_KERNEL_SETTLED = 11.0
"""Seconds of uptime. Until the monotonic clock passes 10 s, OVS 3.1 counts 0 CPUs, starts no
handler threads and loses every upcall of the kernel datapath. Only young guests meet this."""


class OpenVSwitchError(RuntimeError):
    """Open vSwitch cannot be started."""


def datapath() -> str:
    """`kernel` where this kernel has the openvswitch module, else `user` (netdev)."""
    return "kernel" if _has_family("ovs_datapath") else "user"


class OpenVSwitch:
    """A running Open vSwitch: `with OpenVSwitch(): ...`, or `start()` and `stop()`."""

    def __init__(self) -> None:
        self.directory = scratch() / "openvswitch"
        self._environment: dict[str, str | None] = {}

    def start(self) -> None:
        """Start database and switch daemon. Raises OpenVSwitchError."""
        tools = {tool: _find(tool) for tool in _TOOLS}
        schema = _schema()
        if datapath() == "kernel":
            time.sleep(max(0.0, _KERNEL_SETTLED - time.clock_gettime(time.CLOCK_BOOTTIME)))
        self.directory.mkdir(exist_ok=True)
        for name in _DIRECTORIES:
            self._environment[name] = os.environ.get(name)
            os.environ[name] = str(self.directory)
        database, bus = self.directory / "conf.db", self.directory / "db.sock"
        database.unlink(missing_ok=True)
        daemon = ("--pidfile", "--detach", "--log-file", "-vconsole:off")
        try:
            _command(tools["ovsdb-tool"], "create", database, schema)
            _command(tools["ovsdb-server"], database, f"--remote=punix:{bus}", *daemon)
            _command(tools["ovs-vsctl"], "--no-wait", "init")
            _command(tools["ovs-vswitchd"], f"unix:{bus}", *daemon)
            self._prefer()
        except BaseException:
            self.stop()
            raise

    def _prefer(self) -> None:
        """Let the daemon, if it is the one who forwards, do so at once, as a kernel does."""
        pid = int((self.directory / "ovs-vswitchd.pid").read_text())
        with contextlib.suppress(PermissionError):  # in a container; the links are measured anyway
            os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))

    def stop(self) -> None:
        """End both daemons, by their pids, and put the environment back. Safe to call again."""
        for name in _DAEMONS:
            path = self.directory / f"{name}.pid"
            with contextlib.suppress(OSError, ValueError):
                _end(int(path.read_text()))
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._environment.clear()

    def version(self) -> str:
        """Version of the switch daemon, such as `3.1.0`."""
        return _command(_find("ovs-vswitchd"), "--version").split("\n")[0].split()[-1]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _find(tool: str) -> str:
    # sudo's and users' search paths may lack /usr/sbin, where the daemons are.
    places = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
    path = shutil.which(tool, path=places)
    if path is None:
        raise OpenVSwitchError(f"{tool} is missing: Open vSwitch is not installed; run setup.sh")
    return path


def _schema() -> Path:
    places = [os.environ.get("OVS_PKGDATADIR"), "/usr/share/openvswitch"]
    places.append("/usr/local/share/openvswitch")
    for place in places:
        if place and (path := Path(place) / "vswitch.ovsschema").is_file():
            return path
    raise OpenVSwitchError("vswitch.ovsschema is missing: Open vSwitch is not installed whole")


def _command(*arguments: str | Path) -> str:
    try:
        result = subprocess.run(
            [str(argument) for argument in arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OpenVSwitchError(f"{arguments[0]} did not come up within 30 s") from None
    if result.returncode != 0:
        reason = " ".join(result.stderr.split()) or f"exit status {result.returncode}"
        raise OpenVSwitchError(f"{arguments[0]} failed: {reason}")
    return result.stdout


def _end(pid: int, grace: float = 2.0) -> None:
    """SIGTERM, and SIGKILL to one that is still there after `grace` seconds."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline:
            os.kill(pid, 0)
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)


def _has_family(name: str) -> bool:
    """Ask the kernel for a generic netlink family; it loads the module by itself if it can."""
    with contextlib.suppress(OSError):
        modprobe = shutil.which("modprobe", path="/usr/sbin:/sbin:/usr/bin:/bin")
        if modprobe:
            subprocess.run([modprobe, "-q", "openvswitch"], capture_output=True, check=False)
    data = name.encode() + b"\0"
    attribute = struct.pack("=HH", 4 + len(data), _CTRL_ATTR_FAMILY_NAME) + data
    attribute += b"\0" * (-len(attribute) % 4)
    body = struct.pack("=BBH", _CTRL_CMD_GETFAMILY, 1, 0) + attribute
    header = struct.pack("=IHHII", 16 + len(body), _GENL_ID_CTRL, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_GENERIC) as netlink:
        netlink.settimeout(5.0)
        netlink.sendto(header + body, (0, 0))
        reply = netlink.recv(65536)
    return bool(struct.unpack_from("=IH", reply)[1] != _NLMSG_ERROR)
