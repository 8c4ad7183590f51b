"""The engine `simulated`: no kernel at all, the end points in a discrete-event loop.

A run takes some hundredths of a second, needs neither root nor Mininet, and depends on its seed
alone: the same seed gives the same bytes in every file.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from analysis.capture_reader import host_table
from analysis.definitions import stall_definitions
from analysis.headers import Packet
from analysis.plots import PlotError
from analysis.results import ResultsError, ResultsFolder
from analysis.stalls import StallError, metrics
from analysis.summary import SummaryError
from apps.sources import ScheduledSource, SourceError, open_source
from eloquent import Reason
from scenarios import manifest, report
from scenarios.command import Plan
from scenarios.executors import ExecutorError, results_in_order
from scenarios.limit import limit_stall_ratio
from scenarios.progress import progress_bar
from scenarios.recording import recorded
from scenarios.simulator import HEADERS, Answer, SimulationError, simulate
from terminal import message, stopping
from terminal.console import standard_error
from topologies.profile import NetworkProfile

_PORT = 4433
_SERVER, _CLIENT = (b"\x0a\x00\x00\x02", _PORT), (b"\x0a\x00\x00\x01", 40000)
EXPECTED_ERRORS = (
    OSError,  # a full disk, say
    ExecutorError,
    PlotError,
    ResultsError,
    SimulationError,
    SourceError,
    StallError,
    SummaryError,
)


@dataclass(frozen=True)
class Job:
    """One run of one scheme, as data that another process can take."""

    scenario: str
    scheme: str
    run: int
    seed: int
    theta: float
    network: NetworkProfile
    prompt: bytes
    tokens: tuple[tuple[float, bytes], ...]
    reason: Reason
    tables: bool = True
    definitions: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a job gives. ``tokens`` and ``packets`` (by host) are empty without ``Job.tables``.

    ``stalls`` has the stall by other definitions, with ``Job.definitions``.
    """

    row: dict[str, Any]
    tokens: pd.DataFrame | None
    packets: dict[str, pd.DataFrame]
    stalls: dict[str, float]


def run(plan: Plan, out: Path, *, show: bool = True) -> int:
    """Run the plan; returns the exit status. Whatever was finished is kept."""
    console = standard_error()
    try:
        folder = ResultsFolder.create(out)
    except ResultsError as error:
        message.error(error)
        return 2
    warnings.showwarning = lambda what, *_: message.warning(what)
    status, told = 0, ""
    try:
        with recorded(plan, console) as (source, _):
            _simulate(plan, folder, console, source)
    except KeyboardInterrupt as stop:
        console.print("Interrupted.")
        status = stopping.status(stop)
    except EXPECTED_ERRORS as error:
        message.error(error)
        status, told = 1, str(error)
    if status and not (folder.path / "summary.csv").exists():
        shutil.rmtree(folder.path)  # there is no log that tells more
        if stopping.was_stopped(status):
            console.print("No run was finished.")
        return status
    try:
        pictures = show and not stopping.was_stopped(status)
        report.finish(plan, folder, console, "model", pictures=pictures, show=show)
    except EXPECTED_ERRORS as error:
        if str(error) != told:  # a disk that is full is full for the summary, too
            message.error(error)
        status = status or 1
    return status


def _simulate(plan: Plan, folder: ResultsFolder, console: Console, source: str) -> None:
    opened = open_source(source)
    described = manifest.describe(plan)
    described |= {"link": "model", "source": opened.describe()}
    folder.write_manifest(described)
    jobs = list(jobs_of(plan, source))
    with progress_bar(console) as progress:
        task = progress.add_task("simulating", total=len(jobs))
        for outcome in results_in_order(plan.executor, run_job, jobs):
            scheme, number = outcome.row["scheme"], outcome.row["run"]
            if outcome.tokens is not None:
                folder.write_tokens(scheme, number, outcome.tokens)
            for host, packets in outcome.packets.items():
                folder.write_packets(scheme, number, host, packets)
            folder.append_summary(outcome.row)
            progress.advance(task)
    folder.write_manifest(described | {"finished": True})


def jobs_of(
    plan: Plan, source: str, *, tables: bool = True, definitions: bool = False
) -> Iterator[Job]:
    """The plan's runs, schemes in turn: with one seed all of them meet the same bad moments."""
    opened = open_source(source)
    if not isinstance(opened, ScheduledSource):
        raise SourceError(f"source {source!r} has no schedule that could be simulated")
    for number in range(1, plan.runs + 1):
        seed = report.run_seed(plan.seed, number)
        prompt = plan.prompts.of_run(number)
        tokens, finish = opened.schedule(prompt, plan.tokens, seed)
        for scheme in plan.schemes:
            yield Job(
                plan.scenario.name,
                scheme,
                number,
                seed,
                plan.scenario.theta,
                plan.network,
                prompt.encode(),
                tuple(tokens),
                Reason[finish.upper()],
                tables,
                definitions,
            )


def run_job(job: Job) -> Outcome:
    """Simulate one run and evaluate it. Raises SimulationError."""
    answer = simulate(
        job.scheme,
        job.tokens,
        job.network,
        job.seed,
        prompt=job.prompt,
        reason=job.reason,
        record=job.tables,
    )
    row = _row(job, answer)
    stalls = stall_definitions(answer.rendered_at) if job.definitions else {}
    if not job.tables:
        return Outcome(row, None, {}, stalls)
    tokens = pd.DataFrame(
        {
            "scenario": job.scenario,
            "scheme": job.scheme,
            "run": job.run,
            "index": range(len(answer.n_bytes)),
            "n_bytes": answer.n_bytes,
            "generated_at": answer.generated_at,
            "sent_at": answer.sent_at[: len(answer.n_bytes)],
            "received_at": answer.received_at,
            "rendered_at": answer.rendered_at,
        }
    )
    packets = {
        host: host_table(
            _packets(answer, host),
            scenario=job.scenario,
            scheme=job.scheme,
            run=job.run,
            host=host,
            port=_PORT,
        )
        for host in ("client", "server")
    }
    return Outcome(row, tokens, packets, stalls)


def _row(job: Job, answer: Answer) -> dict[str, Any]:
    shown = metrics(
        answer.rendered_at, answer.generated_at, theta=job.theta, requested=answer.asked_at
    )
    count = len(answer.n_bytes)
    limit = limit_stall_ratio(answer.generated_at, job.network, job.seed, job.theta)
    names = (
        *("stall_ratio", "gap_share", "gap_p50", "gap_p95", "gap_p99", "ttft"),
        *("delay_p50", "delay_p95", "generation_stall_ratio"),
    )
    return {
        "scenario": job.scenario,
        "scheme": job.scheme,
        "run": job.run,
        "seed": job.seed,
        **{name: shown[name] for name in names},
        "tokens": count,
        "tokens_lost": shown["tokens_lost"],
        "datagrams": answer.datagrams,
        "wire_bytes": answer.wire_bytes,
        "payload_bytes": sum(answer.n_bytes),
        "datagrams_per_token": answer.datagrams / count,
        "bytes_per_token": answer.wire_bytes / count,
        "link": "model",
        "engine": "simulated",
        "limit_stall_ratio": limit,
        "ratio_to_limit": shown["stall_ratio"] / limit if limit else None,
    }


def _packets(answer: Answer, host: str) -> Iterable[Packet]:
    for seen in answer.sightings:
        if seen.host == host:
            from_server = seen.sent == (host == "server")
            ends = (_SERVER, _CLIENT) if from_server else (_CLIENT, _SERVER)
            size = len(seen.datagram)
            yield Packet(seen.time, size + HEADERS, "udp", *ends, seen.datagram, size)
