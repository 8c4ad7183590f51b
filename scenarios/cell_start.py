"""Where a run of the shared cell takes place: in a sandbox here, or in a guest kernel."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from apps.sources import ScheduledSource, SourceError, open_source
from scenarios.cell_network import Timetable, timetable
from scenarios.command import Plan, check_root
from scenarios.folders import FolderError, results_folder
from terminal import stopping
from topologies import sandbox


def start(plan: Plan, out: Path | None) -> int:
    """Run the plan with its engine; returns the exit status."""
    try:
        times = times_of(plan)
        check_root(plan)
        with results_folder(out, plan.scenario.name) as folder:
            return _run(plan, times, folder)
    except (FolderError, SourceError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(plan: Plan, times: Timetable, folder: Path) -> int:
    if plan.engine == "virtual":
        from scenarios.virtual import run as run_virtual

        return run_virtual(plan, folder)

    def inside() -> int:
        # Ctrl-C waits meanwhile: inside an import, callbacks of C code can swallow it.
        signal.pthread_sigmask(signal.SIG_BLOCK, stopping.SIGNALS)
        from scenarios.cell_run import run

        signal.pthread_sigmask(signal.SIG_UNBLOCK, stopping.SIGNALS)
        return run(plan, times, folder)

    try:
        return sandbox.run(inside)
    except sandbox.SandboxError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def prompt_of(plan: Plan, client: str, number: int) -> str:
    """A reader's own, so that the server's log of its answer can be told from the others'."""
    return f"{plan.prompts.of_run(number)} ({client})"


def times_of(plan: Plan) -> Timetable:
    """When the overload comes, by the length of the first reader's answer. Raises SourceError."""
    source = open_source(plan.source)
    if not isinstance(source, ScheduledSource):
        raise SourceError(f"the times of source {plan.source!r} are not known beforehand")
    tokens, _ = source.schedule(prompt_of(plan, "client1", 1), plan.tokens)
    return timetable(tokens[-1][0], plan.knobs["overload"] > 0)
