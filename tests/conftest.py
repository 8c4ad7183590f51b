"""What all tests share: who may run emulation tests, and hypothesis without clock limits."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil

import pytest
from hypothesis import settings

# A deadline per example measures how busy the machine is; pytest-timeout bounds each test instead.
settings.register_profile("testbed", deadline=None)
settings.load_profile("testbed")


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


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip emulation tests where they cannot run; in CI, where they must, that is an error."""
    if item.get_closest_marker("emulation") is None:
        return
    lacks = emulation_lacks()
    if lacks is None:
        return
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        pytest.fail(f"emulation test cannot run in CI: {lacks}", pytrace=False)
    pytest.skip(lacks)
