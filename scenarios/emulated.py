"""The engine `emulated`: every scheme over the same network, seed by seed, in real time."""

from __future__ import annotations

import contextlib
import random
import warnings
from pathlib import Path
from typing import Any

from rich.console import Console

from analysis.capture_reader import CaptureError
from analysis.plots import PlotError
from analysis.results import ResultsError, ResultsFolder
from analysis.stalls import StallError
from analysis.summary import SummaryError
from apps.sources import SourceError
from scenarios import manifest, report
from scenarios.command import Plan
from scenarios.emulated_run import Asking, file_name
from scenarios.emulated_setup import Testbed
from scenarios.limit import limit_stall_ratio
from scenarios.link_check import LinkCheckError
from scenarios.measurement import Measurement, MeasurementError, measure
from scenarios.processes import ProcessFailed
from scenarios.progress import progress_bar
from scenarios.stage import Stage
from terminal import message, stopping
from terminal.console import standard_error
from topologies import catalogue, wifi
from topologies.links import LinkError
from topologies.openvswitch import OpenVSwitchError
from topologies.tap import TapError

#: A run in which 1% of the links' timers were later than this (s) is marked: its delays are not
#: those of the profile.
LATE = 0.005

EXPECTED_ERRORS = (
    OSError,  # a full disk, say
    CaptureError,
    LinkCheckError,
    LinkError,
    MeasurementError,
    OpenVSwitchError,
    PlotError,
    ProcessFailed,
    ResultsError,
    SourceError,
    StallError,
    SummaryError,
    TapError,
    catalogue.NetworkError,
    wifi.NetworkError,
)


def run(plan: Plan, out: Path, *, show: bool = True) -> int:
    """Run the plan inside a sandbox; returns the exit status. Whatever was measured is kept."""
    console = standard_error()
    try:
        folder = ResultsFolder.create(out)
    except ResultsError as error:
        message.error(error)
        return 2
    # Warnings of the analysis (a capture that breaks off, say) are for the user: a line each.
    warnings.showwarning = lambda what, *_: message.warning(what)
    experiment = Experiment(plan, folder, console)
    status, told = 0, ""
    try:
        experiment.run()
    except KeyboardInterrupt as stop:
        console.print("Interrupted.")
        status = stopping.status(stop)
    except EXPECTED_ERRORS as error:
        message.error(error)
        status, told = 1, str(error)
    experiment.manifest["finished"] = status == 0
    try:
        # Who stops it is in a hurry.
        pictures = show and not stopping.was_stopped(status)
        experiment.finish(pictures=pictures, show=show)
    except EXPECTED_ERRORS as error:
        if str(error) != told:  # a disk that is full is full for the summary, too
            message.error(error)
        status = status or 1
    return status


class Experiment:
    """One results folder in the making."""

    def __init__(self, plan: Plan, folder: ResultsFolder, console: Console) -> None:
        self.plan = plan
        self.folder = folder
        self.console = console
        self.manifest: dict[str, Any] = manifest.describe(plan)
        self.details: list[dict[str, Any]] = []
        self.manifest["run_details"] = self.details
        self.stage: Stage = (plan.scenario.stage or Stage)(plan, folder.path, self.say)
        self.testbed = Testbed(plan, self.stage, folder.path, console)
        self.asking = Asking(self.testbed, folder.path / "pcap")

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False, highlight=False)

    def run(self) -> None:
        """Set the network up, measure everything, take it down."""
        plan = self.plan
        self.folder.write_manifest(self.manifest)
        stack = contextlib.ExitStack()
        self.testbed.start(stack)
        self.manifest |= self.testbed.facts
        self.folder.write_manifest(self.manifest)
        order = random.Random(plan.seed)
        with progress_bar(self.console) as progress:
            task = progress.add_task("", total=plan.runs * len(plan.schemes))
            for number in range(1, plan.runs + 1):
                # A fixed order would give the same scheme the same place in any drift.
                for scheme in order.sample(plan.schemes, len(plan.schemes)):
                    progress.update(task, description=f"run {number}/{plan.runs} {scheme}")
                    self._one(scheme, number)
                    progress.advance(task)
        # Only a good end is an orderly one. After an error or Ctrl-C nobody waits for processes
        # that may hang: they end with the sandbox.
        stack.close()

    def finish(self, *, pictures: bool, show: bool) -> None:
        """Merge and show what there is."""
        self.folder.write_manifest(self.manifest)
        plan, folder = self.plan, self.folder
        report.finish(plan, folder, self.console, self.testbed.link, pictures=pictures, show=show)
        if not show:
            return
        slow = [f"{d['scheme']} {d['run']}" for d in self.details if d.get("too_slow")]
        if slow:
            self.say(
                f"The machine was too slow in {len(slow)} of {len(self.details)} runs: more than "
                f"1% of the links' timers were over {1e3 * LATE:g} ms late ({', '.join(slow)}). Do "
                "not believe these; --engine virtual does not depend on the machine's speed."
            )
        differing = [d for d in self.details if d.get("agreement", {}).get("beyond")]
        checked = [d["agreement"] for d in self.details if "agreement" in d]
        if checked:
            tokens = sum(a["tokens"] for a in checked)
            beyond = sum(a["beyond"] for a in checked)
            worst = max(a["max"] for a in checked)
            self.say(
                f"Client logs against captures: {tokens - beyond} of {tokens} tokens agree within "
                f"2 ms, the worst differs by {1e3 * worst:.2f} ms"
                + (
                    f" (runs of {', '.join(sorted({d['scheme'] for d in differing}))})"
                    if differing
                    else ""
                )
            )

    def _one(self, scheme: str, number: int) -> None:
        plan, testbed = self.plan, self.testbed
        seed = report.run_seed(plan.seed, number)
        detail: dict[str, Any] = {"scheme": scheme, "run": number, "seed": seed}
        detail["probe"] = self.stage.check_links(seed, testbed.prober)
        for name, link in testbed.network.links.items():
            link.seed(seed)
            if link.backend == "user":
                link.record_fates(testbed.log(f"{file_name(scheme, number)}-{name}.fates.csv"))
        self.stage.begin(scheme, number)
        files = self.asking.stream(scheme, number, seed)
        detail |= self.stage.end()
        detail["links"] = {name: link.stats() for name, link in testbed.network.links.items()}
        late = max(stats["lateness"]["p99"] for stats in detail["links"].values())
        detail["too_slow"] = late > LATE
        measured: Measurement = measure(
            files, testbed.link, plan.network_engine, plan.scenario.theta
        )
        if measured.agreement is not None:
            detail["agreement"] = measured.agreement
        self.folder.write_tokens(scheme, number, measured.tokens)
        for host, packets in measured.packets.items():
            self.folder.write_packets(scheme, number, host, packets)
        limit = limit_stall_ratio(
            measured.tokens["generated_at"].tolist(), plan.network, seed, plan.scenario.theta
        )
        ratio = measured.row["stall_ratio"] / limit if limit else None
        limits = {"limit_stall_ratio": limit, "ratio_to_limit": ratio}
        self.folder.append_summary(measured.row | limits)
        self.details.append(detail)  # a run that counts
        self.folder.write_manifest(self.manifest)
