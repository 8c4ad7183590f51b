"""From evaluated folders to one HTML page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from analysis.report.rows import Table
from analysis.report.section import Section
from analysis.tables import NONE

_HERE = Path(__file__).parent


def render(sections: Sequence[Section]) -> str:
    """The page as text. Whatever comes from a folder is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        sections=sections,
        overview=[overview(sections), *limits(sections)] if len(sections) > 1 else [],
        style=Markup((_HERE / "page.css").read_text()),
    )


def overview(sections: Sequence[Section]) -> Table:
    """One row per folder: its stall ratios, and whether it is whole."""
    schemes = list(dict.fromkeys(scheme for one in sections for scheme in one.stalls))
    rows = []
    for one in sections:
        facts = dict(one.facts)
        rows.append(
            [
                one.path,
                "not whole" if one.shortcomings else "whole",
                one.scenario or NONE,
                *(facts.get(name, NONE) for name in ("parameters", "engine", "seed")),
                *(one.stalls.get(scheme, NONE) for scheme in schemes),
            ]
        )
    head = ["folder", "state", "scenario", "parameters", "engine", "seed"]
    return Table(
        "All folders",
        [
            *head,
            *(f"{scheme}: stall, %" for scheme in schemes),
        ],
        rows,
        "Stall ratio: mean ± half the 95% interval (runs).",
    )


def limits(sections: Sequence[Section]) -> list[Table]:
    """The ratios to the limit of all folders, if one of them knows any."""
    schemes = list(dict.fromkeys(scheme for one in sections for scheme in one.limits))
    rows = [[one.path, *(one.limits.get(name, NONE) for name in schemes)] for one in sections]
    title, note = "All folders: ratio to the limit", "Stall ratio / limit, with its 95% interval."
    return [Table(title, ["folder", *schemes], rows, note)] if schemes else []
