"""The one way to a rich console: nothing that is printed is taken for markup or emoji."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console
from rich.text import Text

from terminal.text import plain, visible

UNBOUNDED = 10_000
"""Columns of an output that has none: a file or a pager scrolls, and a program reads it."""


class _Console(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        shown = plain(visible(text, keep="\n"), self.encoding)
        return super().render_str(shown, **options)


def standard_output() -> Console:
    """A console on standard output, as wide as the terminal; without one, UNBOUNDED.

    The variable COLUMNS is heeded in any case, as programs do.
    """
    return _console(stderr=False)


def standard_error() -> Console:
    """The same on standard error: for messages and progress bars."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    console = _Console(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=True)
    if not console.file.isatty() and not os.environ.get("COLUMNS", "").isdecimal():
        console.width = UNBOUNDED
    return console
