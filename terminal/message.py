"""What a command says beside its output: one line each, on standard error."""

from __future__ import annotations

import sys

from terminal.text import one_line


def error(what: object) -> None:
    """Say what went wrong, and what to do."""
    _say(f"error: {one_line(what)}")


def warning(what: object) -> None:
    """Say what the user should know before believing the output."""
    _say(f"warning: {one_line(what)}")


def note(what: object) -> None:
    """Say how things go."""
    _say(one_line(what))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
