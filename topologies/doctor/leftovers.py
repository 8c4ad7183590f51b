"""What earlier runs may have left. It is only reported: nothing is removed here.

The kernel takes a sandbox away whatever happens, so little can stay: folders of a guest or of
recorded answers whose owner was killed, a kernel that was not built to its end, and files that
were written to the place of the scratch directory outside of a sandbox. Bridges, interfaces and
namespaces of anybody else are none of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import tempfile
import time
from pathlib import Path

from topologies.doctor.check import Check
from topologies.guest import kernel

SCRATCH = Path("/run/eloquent-testbed")  # as in topologies.sandbox
_TEMPORARY = ("eloquent-guest-*", "eloquent-traces-*")
_YOUNG = 600.0
"""Seconds: a folder that was changed since then may belong to a run that has just begun."""


def check_leftovers(scratch: Path = SCRATCH, temporary: Path | None = None) -> Check:
    """Paths that can be removed, and testbeds that still run."""
    temporary = Path(tempfile.gettempdir()) if temporary is None else temporary
    paths = [*_stray(scratch), *_abandoned(temporary), *_half_built(kernel.cache())]
    others = running()
    if paths:
        names = shlex.join(map(str, paths))
        return Check("left-overs", "note", f"of earlier runs: {names}", f"sudo rm -rf {names}")
    if others:
        finding = f"none; but a testbed is running ({'; '.join(others)})"
        return Check("left-overs", "note", finding, "measure when it has ended")
    return Check("left-overs", "ok", "none of earlier runs")


def running() -> list[str]:
    """The outer processes of other sandboxes: `PID: COMMAND`."""
    own = _namespace("self", "pid")
    found: dict[str, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, StopIteration):
            if _namespace(entry.name, "pid") == own or not _has_scratch(entry):
                continue
            lines = (entry / "status").read_text().splitlines()
            # PID 1 of a sandbox has one number here and one inside; its parent is outside.
            numbers = next(line for line in lines if line.startswith("NSpid:")).split()
            parent = next(line for line in lines if line.startswith("PPid:")).split()[1]
            if numbers[-1] == "1":
                words = Path(f"/proc/{parent}/cmdline").read_bytes().split(b"\0")[:4]
                found[parent] = b" ".join(filter(None, words)).decode(errors="replace")
    return [f"{pid}: {command}" for pid, command in sorted(found.items()) if pid != "0"]


def _namespace(pid: str, kind: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/{kind}")


def _has_scratch(entry: Path) -> bool:
    return f" {SCRATCH} " in (entry / "mountinfo").read_text()


def _stray(scratch: Path) -> list[Path]:
    """Files on the machine's own disk where a sandbox would mount its own; the folder may stay."""
    if os.path.ismount(scratch):
        return []  # we are inside a sandbox: these are its files
    with contextlib.suppress(OSError):
        return sorted(scratch.iterdir())
    return []


def _abandoned(temporary: Path) -> list[Path]:
    """Temporary folders in which no process is at work any more."""
    used = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            used.add(os.readlink(entry / "cwd"))
    guest_runs = any(
        Path(path).parent == temporary and Path(path).match(_TEMPORARY[0]) for path in used
    )
    found = []
    for pattern in _TEMPORARY:
        for folder in sorted(temporary.glob(pattern)):
            with contextlib.suppress(OSError):
                young = time.time() - folder.stat().st_mtime < _YOUNG
                # Recorded answers are replayed by a guest, which does not say so to the host.
                lent = guest_runs and pattern == _TEMPORARY[1]
                if not (young or lent or str(folder) in used):
                    found.append(folder)
    return found


def _half_built(cache: Path) -> list[Path]:
    """Work folders of guest kernels, if nobody is building one: who builds holds the lock."""
    try:
        with open(cache / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return sorted(cache.glob("building-*"))
    except OSError:  # at work (BlockingIOError), never used, or not ours to see
        return []
