"""How the suite runs: on all cores, a file of tests in one process, lonely tests alone.

`python -m pytest` with no options is the whole suite. What needs netem is in it too, in a guest
where this kernel has none: test_in_a_guest.py. pytest-randomly shuffles it, and says its seed in
the first lines.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks at the options
def pytest_cmdline_main(config: pytest.Config) -> None:
    """All cores, unless the command line says how many, or wants to see or stop one test.

    Not in `addopts`: there `-n` would be an unknown option without pytest-xdist.
    """
    options = config.option
    distributed = config.pluginmanager.hasplugin("xdist") and not hasattr(config, "workerinput")
    if not distributed or options.numprocesses is not None or options.tx or options.dist != "no":
        return
    if options.usepdb or options.capture == "no" or options.collectonly:
        return
    # A file is never divided, so that what its tests share is made once.
    # One process more than there are cores: emulated tests wait for most of their time.
    options.numprocesses = min(len(os.sched_getaffinity(0)) + 1, files_named(config))
    if options.numprocesses < 2:
        options.numprocesses = 0
        return
    options.dist = "loadfile"
    options.loadscopereorder = False  # `pytest_collection_modifyitems` has put them in order


def files_named(config: pytest.Config) -> int:
    """How many files the command line asks for; more than any machine has cores if folders."""
    paths = {Path(argument.split("::")[0]) for argument in config.args}
    return len(paths) if all(path.is_file() for path in paths) else 10**6


@pytest.hookimpl(trylast=True)  # after the shuffling
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, so that all cores end at about the same time; lonely ones last."""
    modules: dict[Path, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.path, []).append(item)

    def order(module: list[pytest.Item]) -> int:
        found = {mark.name for item in module for mark in item.iter_markers()}
        if "alone" in found:
            return 3
        return 0 if "guest" in found else 1 if "emulation" in found else 2

    items[:] = [item for module in sorted(modules.values(), key=order) for item in module]


DOOR, ROOM = Path(__file__).parent, Path(__file__)


@contextlib.contextmanager
def locked(path: Path, how: int) -> Iterator[None]:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, how)
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough: a forked child may hold it open
        os.close(file)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around pytest-timeout: waiting does not count
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Each test is in the room while it runs; one marked `alone` has it for itself.

    Who waits to enter closes the door, so a lonely test need not wait for more than those inside.
    """
    alone = item.get_closest_marker("alone") is not None
    with contextlib.ExitStack() as inside:
        with locked(DOOR, fcntl.LOCK_EX):
            inside.enter_context(locked(ROOM, fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        return (yield)
