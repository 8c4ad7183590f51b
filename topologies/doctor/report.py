"""What the doctor says: a line a check, or one JSON object."""

from __future__ import annotations

import json
from dataclasses import asdict

from terminal.text import visible
from topologies.doctor.check import Check
from topologies.doctor.examination import Examination


def line(check: Check) -> str:
    """One check on one line."""
    text = f"{check.status:<8} {check.name + ':':<13} {check.finding}"
    # Other programs' command lines and messages are in it.
    return visible(f"{text}. Remedy: {check.remedy}" if check.remedy else text)


def conclusion(examination: Examination) -> list[str]:
    """What can be believed, and whether anything is missing."""
    lines = []
    if examination.believed:
        lines.append("This machine can be believed to emulate:")
        lines += [f"  {belief.sentence()}" for belief in examination.believed.values()]
    problems = [check.name for check in examination.found if check.status == "problem"]
    if problems:
        many = "s" if len(problems) > 1 else ""
        lines.append(f"{len(problems)} problem{many}: {', '.join(problems)}")
    else:
        lines.append("All that is needed is there.")
    return lines


def as_json(examination: Examination) -> str:
    """Everything as one JSON object."""
    return json.dumps(
        {
            "checks": [asdict(check) for check in examination.found],
            "believed": {name: b.to_dict() for name, b in examination.believed.items()},
            "ok": examination.ok,
        },
        indent=2,
    )
