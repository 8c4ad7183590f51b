"""The progress bar of everything that takes longer than a few seconds."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column


def progress_bar(console: Console) -> Progress:
    """A bar with what is done, out of how much, and the time left."""
    # Where it is narrow the bar gives way: of numbers no digit may be missing.
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("left:", markup=False),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        console=console,
    )
