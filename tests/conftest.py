"""What all tests share: which cannot run here, and hypothesis without clock limits."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import signal

import nobody  # type: ignore[import-not-found, unused-ignore]
import pytest
from hypothesis import settings
from running import (  # type: ignore[import-not-found, unused-ignore] # noqa: F401 - hooks
    pytest_cmdline_main,
    pytest_collection_modifyitems,
    pytest_runtest_protocol,
)

from topologies import sandbox
from topologies.guest import kernel
from topologies.netem import netem_available

# What a command prints must not depend on the terminal that the tests are started from.
for _variable in ("COLUMNS", "FORCE_COLOR"):
    os.environ.pop(_variable, None)

# A deadline per example measures how busy the machine is; pytest-timeout bounds each test instead.
settings.register_profile("testbed", deadline=None)
settings.load_profile("testbed")

# Started with `&`, or by a service, Ctrl-C is ignored, and so it would be by all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")


@functools.cache
def emulation_lacks() -> str | None:
    """What this machine lacks to run the emulation tests, in words, or None."""
    if os.geteuid() != 0:
        return "root is needed: sudo .venv/bin/python -m pytest"
    if importlib.util.find_spec("mininet") is None:
        return "the Python package mininet is not installed: sudo ./setup.sh"
    for program in ("mnexec", "ovs-vswitchd", "ovsdb-server"):
        if shutil.which(program) is None:
            return f"the program {program} is not installed: sudo ./setup.sh"
    if not os.path.exists("/dev/net/tun"):
        return "/dev/net/tun does not exist: modprobe tun"
    return None


@functools.cache
def guest_lacks() -> str | None:
    """What is missing to boot a guest, or None."""
    if os.environ.get("ELOQUENT_GUEST"):
        return "a guest runs no guest"
    try:
        kernel.find()
    except kernel.KernelError as error:
        return str(error)
    return None


@functools.cache
def netem_lacks() -> str | None:
    """What is missing to run netem, or None."""
    lacks = emulation_lacks()
    if lacks is None:
        usable, reason = sandbox.call(netem_available)
        lacks = None if usable else f"{reason}; in a guest kernel it can be had: docs/virtual.md"
    return lacks


def tshark_lacks() -> str | None:
    """What is missing to ask Wireshark, or None."""
    if shutil.which("tshark") is None:
        return "the program tshark is not installed: apt-get install tshark"
    return None


NEEDS = {
    "emulation": emulation_lacks,
    "guest": guest_lacks,
    "netem": netem_lacks,
    "nobody": nobody.lacks,
    "tshark": tshark_lacks,
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests where they cannot run; in CI, where they must, that is an error."""
    for marker, lacking in NEEDS.items():
        if item.get_closest_marker(marker) is None:
            continue
        lacks = lacking()
        if lacks is None:
            continue
        if marker == "netem" and guest_lacks() is None:
            pytest.skip("this kernel has no netem: test_in_a_guest.py runs it where there is one")
        # Where a checkout lies is anybody's own choice, in CI too.
        if CI and marker != "nobody":
            pytest.fail(f"{marker} test cannot run in CI: {lacks}", pytrace=False)
        pytest.skip(lacks)
