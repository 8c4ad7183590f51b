"""A live model's answers for engines in which computing takes no time: recorded first, replayed."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from apps.sources import open_source
from apps.trace import TraceWriter, record, warm_up
from scenarios.command import Plan


@contextlib.contextmanager
def recorded(plan: Plan, console: Console) -> Iterator[tuple[str, Path | None]]:
    """The source to replay, and the folder of its traces: None if the plan's source is no model.

    The answers are generated here, on the host and in real time. Raises SourceError.
    """
    if not plan.source.startswith("model"):
        yield plan.source, None
        return
    with tempfile.TemporaryDirectory(prefix="eloquent-traces-") as name:
        folder = Path(name)
        with console.status("The model answers on the host, to be replayed …"):
            source = open_source(plan.source, plan.model, plan.device)
            warm_up(source)
            prompts = dict.fromkeys(plan.prompts.of_run(n) for n in range(1, plan.runs + 1))
            for number, prompt in enumerate(prompts, 1):
                path = folder / f"prompt-{number:02}.jsonl"
                how = f"recorded on the host for the engine {plan.engine}"
                with TraceWriter(path, model=source.name, prompt=prompt, recorded=how) as writer:
                    record(source, prompt, plan.tokens, writer)
        yield f"trace:{folder}", folder
