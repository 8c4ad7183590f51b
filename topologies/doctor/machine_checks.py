"""Cores, load, disk and memory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from topologies.doctor.check import Check

MEMINFO = Path("/proc/meminfo")
_GIB = 1 << 30
_BUSY = 0.5
"""Load per core from which timers of the links are late noticeably often."""


def check_cores(load: float | None = None, cores: int | None = None) -> Check:
    """How many cores this process may use, and whether they are free."""
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    load = os.getloadavg()[0] if load is None else load
    finding = f"{cores} core{'s' * (cores != 1)}, load {load:.1f}"
    if load > _BUSY * cores:
        return Check("cores", "note", f"{finding}: busy", "measure when nothing else runs")
    if cores < 2:
        finding += ": model, switch and links share it"
        return Check("cores", "note", finding, "2 cores or more; --source trace spares the model")
    return Check("cores", "ok", finding)


def check_disk(
    folder: Path | None = None, *, wanted: float = 2 * _GIB, needed: float = _GIB / 4
) -> Check:
    """Room for results, in `folder` (default: where we are); both thresholds in bytes."""
    folder = Path.cwd() if folder is None else folder
    free = shutil.disk_usage(folder).free
    finding = f"{free / _GIB:.1f} GiB free in {folder}"
    if free < needed:
        finding += f", {needed / _GIB:.1f} GiB are needed for results"
        return Check("disk", "problem", finding, "free some, or choose another folder with --out")
    if free < wanted:
        finding += f", {wanted / _GIB:.1f} GiB are wanted for long experiments"
        return Check("disk", "note", finding, "free some, or choose another folder with --out")
    return Check("disk", "ok", finding)


def check_memory(
    path: Path = MEMINFO, *, wanted: float = 1.5 * _GIB, needed: float = _GIB / 4
) -> Check:
    """Memory that programs can still get; both thresholds in bytes."""
    words = next(
        line.split() for line in path.read_text().splitlines() if line.startswith("MemAvailable:")
    )
    free = int(words[1]) * 1024
    finding = f"{free / _GIB:.1f} GiB of memory available"
    if free < needed:
        finding += f", {needed / _GIB:.1f} GiB are needed"
        return Check("memory", "problem", finding, "end other programs")
    if free < wanted:
        finding += f", the live model wants {wanted / _GIB:.1f} GiB"
        return Check("memory", "note", finding, "end other programs; or --source trace")
    return Check("memory", "ok", finding)
