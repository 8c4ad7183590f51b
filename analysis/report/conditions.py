"""Under which conditions a folder came about: its manifest as tables, and what it lacks.

A manifest may be old, cut off or of another hand: nothing in it is taken for granted.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import Any

from analysis.report.measures import number
from analysis.report.rows import Table
from analysis.results import Results, unfinished
from analysis.stalls import THETA
from analysis.tables import NONE

_LONG = 12


def theta(manifest: Mapping[str, Any]) -> float:
    """Seconds beyond which a gap is a stall."""
    value = manifest.get("theta")
    return float(value) if isinstance(value, int | float) and 0 <= value < math.inf else THETA


def shortcomings(results: Results) -> list[str]:
    """What the folder lacks, in sentences; empty if it is whole."""
    found = []
    path, manifest, summary = results.path, results.manifest, results.summary
    if (path / "parts").is_dir():
        found.append("The experiment was cut off before its tables were merged: its parts are read")
    if not manifest:
        found.append("manifest.json is missing: the conditions are not known")
    missing_runs = unfinished(results)
    if missing_runs is not None:
        found.append(missing_runs)
    if not (path / "summary.csv").exists():
        found.append("summary.csv is missing: there are no means")
    elif summary.empty:
        found.append("summary.csv has no rows: no run was finished")
    for name, table in (("token times", results.tokens), ("packets", results.packets)):
        keys = ["scheme", "run"]
        wanted = {*summary[keys].itertuples(index=False, name=None)} if len(summary) else set()
        held = {*table[keys].drop_duplicates().itertuples(index=False, name=None)}
        missing = sorted(f"{scheme} run {run}" for scheme, run in wanted - held)
        if not held:
            found.append(f"There are no {name}: their figures are left out")
        elif missing:
            several = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            found.append(f"No {name} of {', '.join(missing[:5])}{several}")
    return found


def facts(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of what the whole experiment has in common."""
    prompts = _dict(manifest.get("prompts"))
    tcp = _dict(manifest.get("tcp"))
    parameters = _dict(manifest.get("parameters"))
    stall = f"a gap beyond {number(1000 * theta(manifest))} ms" if "theta" in manifest else ""
    longest = _joined(manifest.get("tokens"), "tokens") if "tokens" in manifest else ""
    rows = [
        ("scenario", _joined(manifest.get("scenario"), manifest.get("title"), between=": ")),
        ("parameters", described(parameters)),
        ("started", plain(manifest.get("started"))),
        ("engine", plain(manifest.get("engine"))),
        ("links", _joined(manifest.get("link"), manifest.get("link_reason"), between=": ")),
        ("switch", _joined(_known("Open vSwitch, datapath", manifest.get("datapath")))),
        ("token source", described(manifest.get("source"))),
        ("schemes", described(manifest.get("schemes"))),
        ("TCP", described(tcp)),
        ("stall", stall),
        ("longest answer", longest),
        ("prompts", _joined(prompts.get("name"), prompts.get("title"), between=": ")),
        ("seed", plain(manifest.get("seed"))),
        ("runs of each scheme", plain(manifest.get("runs"))),
        ("commit", plain(manifest.get("commit"))),
    ]
    return [(name, value) for name, value in rows if value not in ("", NONE)]


def prompts(manifest: Mapping[str, Any]) -> list[str]:
    """What was asked."""
    return [plain(text) for text in _list(_dict(manifest.get("prompts")).get("prompts"))]


def network(manifest: Mapping[str, Any]) -> Table | None:
    """The network profile: one row per link and direction, with the source of its numbers."""
    links = [
        (name, _dict(link)) for name, link in _dict(manifest.get("network")).items() if _dict(link)
    ]
    ways = [
        (name, link, way, _dict(link.get(way)))
        for name, link in links
        for way in ("up", "down")
        if isinstance(link.get(way), dict)
    ]
    if not ways:
        return None
    columns = list(dict.fromkeys(key for *_, values in ways for key in values))
    rows = []
    for name, link, way, values in ways:
        label = _joined(name, f"({plain(link['name'])})" if link.get("name") else None)
        cells = [
            f"{number(1000 * values[key], 1)} ms"
            if key in ("delay", "jitter") and isinstance(values.get(key), int | float)
            else described(values.get(key))
            for key in columns
        ]
        rows.append([label, way, *cells, plain(link.get("source"))])
    head = ["link", "direction", *columns, "source of the numbers"]
    note = "Delays are one way. Losses: times in seconds, shares of 1."
    return Table("Network", head, rows, note)


def machine(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The machine and the versions of what ran on it."""
    rows = [(name, described(value)) for name, value in _dict(manifest.get("machine")).items()]
    rows += [(name, plain(value)) for name, value in _dict(manifest.get("versions")).items()]
    return [(plain(name), value) for name, value in rows if value != NONE]


def link_checks(manifest: Mapping[str, Any]) -> Table | None:
    """What was measured about each run itself: probes before it, the links' clocks, agreement."""
    rows = []
    for detail in map(_dict, _list(manifest.get("run_details"))):
        probe, agreement = _dict(detail.get("probe")), _dict(detail.get("agreement"))
        links = [_dict(link) for link in _dict(detail.get("links")).values()]
        late = [_dict(link.get("lateness")) for link in links]
        lost = [f"{plain(probe.get(key))}" for key in ("lost_up", "lost_down")]
        rows.append(
            [
                plain(detail.get("scheme")),
                *(plain(detail.get("run")), plain(detail.get("seed"))),
                f"{lost[0]} / {lost[1]} of {plain(probe.get('count'))}" if probe else NONE,
                " / ".join(_ms(probe.get(key), 1) for key in ("rtt_min", "rtt_p50", "rtt_p95")),
                _largest([one.get("p99") for one in late]),
                _largest([one.get("max") for one in late]),
                _ms(agreement.get("max"), 2),
                f"{plain(agreement.get('beyond'))} of {plain(agreement.get('tokens'))}"
                if agreement
                else NONE,
            ]
        )
    if not rows:
        return None
    return Table(
        "Seeds, and checks of every run",
        [
            *("scheme", "run", "seed", "probes lost up / down", "RTT min / P50 / P95, ms"),
            *("links late P99, ms", "links late max, ms", "log against capture max, ms"),
            "tokens beyond 2 ms",
        ],
        rows,
        "The probes go before the run and must fit the profile. The same run number means the same "
        "seed, and so the same bad moments for every scheme.",
    )


def command(manifest: Mapping[str, Any]) -> str | None:
    """The command that makes this again; without --out, as no folder is ever overwritten."""
    words = [str(word) for word in _list(manifest.get("command_line"))]
    if not words:
        return None
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and word != "--out" and not word.startswith("--out="):
            kept.append(word)
        skip = word == "--out"
    return "sudo .venv/bin/python " + shlex.join(kept)


def described(value: Any) -> str:
    """Any JSON value on one line; long lists by their length."""
    if isinstance(value, dict):
        return ", ".join(f"{plain(key)}: {described(item)}" for key, item in value.items()) or NONE
    if isinstance(value, list):
        if len(value) > _LONG:
            return f"{len(value)} values"
        return ", ".join(described(item) for item in value) or NONE
    return plain(value)


def plain(value: Any) -> str:
    """A JSON scalar as text."""
    if value is None or value == "":
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _known(label: str, value: Any) -> str | None:
    return None if value in (None, "") else f"{label} {plain(value)}"


def _joined(*values: Any, between: str = " ") -> str:
    return between.join(plain(value) for value in values if value not in (None, ""))


def _ms(value: Any, digits: int) -> str:
    return number(1000 * value, digits) if isinstance(value, int | float) else NONE


def _largest(values: list[Any]) -> str:
    known = [value for value in values if isinstance(value, int | float)]
    return _ms(max(known, default=None), 2)
