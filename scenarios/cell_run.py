"""Runs of the shared cell: bulk flows first, then the readers, then the overload."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from analysis.fairness import FairnessError
from analysis.results import ResultsError, ResultsFolder
from scenarios import cell_measure, cell_report, manifest
from scenarios.cell_network import ARRIVALS, OVERLOAD, WARM_UP, Timetable, write_trace
from scenarios.cell_reader import ClientFiles, RunFiles
from scenarios.cell_setup import BULK_PORT, Cell
from scenarios.cell_start import prompt_of
from scenarios.command import TRANSPORTS, Plan
from scenarios.emulated import EXPECTED_ERRORS
from scenarios.emulated_run import answered
from scenarios.measurement import MeasurementError
from scenarios.processes import Clients, ProcessFailed, client_failed, last_lines
from scenarios.progress import progress_bar
from scenarios.report import run_seed
from terminal import message, stopping
from terminal.console import standard_error
from topologies.catalogue import NetworkError, TopologyError
from topologies.channel import subseed

MIXED = "mixed"
FIRST_PORT, FIRST_STACK_PORT = 4433, 4450
#: Beyond its answer's length, a client may take this long (s).
_PATIENCE = 120.0

ERRORS = (*EXPECTED_ERRORS, FairnessError, NetworkError, TopologyError)


def run(plan: Plan, times: Timetable, out: Path) -> int:
    """Run the plan inside a sandbox; whatever was measured is kept."""
    console = standard_error()
    try:
        folder = ResultsFolder.create(out)
    except ResultsError as error:
        message.error(error)
        return 2
    warnings.showwarning = lambda what, *_: message.warning(what)
    experiment = Experiment(plan, times, folder, console)
    status, told = 0, ""
    try:
        experiment.run()
    except KeyboardInterrupt as stop:
        console.print("Interrupted.")
        status = stopping.status(stop)
    except ERRORS as error:
        message.error(error)
        status, told = 1, str(error)
    experiment.manifest["finished"] = status == 0
    try:
        folder.write_manifest(experiment.manifest)
        folder.consolidate()
        pictures = not stopping.was_stopped(status)
        cell_report.finish(plan, folder, experiment.tables, console, pictures=pictures)
    except ERRORS as error:
        if str(error) != told:  # a disk that is full is full for the summary, too
            message.error(error)
        status = status or 1
    return status


class Experiment:
    """One results folder in the making."""

    def __init__(
        self, plan: Plan, times: Timetable, folder: ResultsFolder, console: Console
    ) -> None:
        self.plan, self.folder, self.console = plan, folder, console
        self.clients = [f"client{n}" for n in range(1, int(plan.knobs["clients"]) + 1)]
        self.flows = int(plan.knobs["flows"])
        kinds = [MIXED] if plan.knobs["mixed"] and len(plan.schemes) > 1 else []
        self.kinds = [*plan.schemes, *kinds]
        self.ports = {
            name: FIRST_STACK_PORT + n if name in TRANSPORTS and name != "tcp" else FIRST_PORT + n
            for n, name in enumerate(plan.schemes)
        }
        self.tables: dict[str, pd.DataFrame] = {}
        self.manifest: dict[str, Any] = manifest.describe(plan)
        self.details: list[dict[str, Any]] = []
        self.manifest["run_details"] = self.details
        self.times = times

    def log(self, name: str) -> Path:
        return self.folder.path / "logs" / name

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False, highlight=False)

    # -- the whole -------------------------------------------------------------------------------

    def run(self) -> None:
        """Set the network up, measure everything, take it down."""
        plan = self.plan
        self.folder.write_manifest(self.manifest)
        stack = contextlib.ExitStack()
        trace = None
        if self.times.overload is not None:
            trace = self.folder.path / "cell.trace"
            rate, reduced = 1e6 * plan.knobs["rate"], 1e3 * plan.knobs["overload"]
            write_trace(trace, rate, reduced, self.times.overload)
        self.cell = Cell(plan, self.clients, self.ports, self.folder.path, trace)
        self.cell.start(stack)
        self.say(self.cell.description)
        self.manifest |= self.cell.facts | {
            "bulk": {"flows": self.flows, "congestion_control": "cubic"},
            "timetable": vars(self.times),
            "assumed_seconds": {"warm_up": WARM_UP, "overload": OVERLOAD, "arrivals": ARRIVALS},
        }
        self.folder.write_manifest(self.manifest)
        order = random.Random(plan.seed)
        with progress_bar(self.console) as progress:
            task = progress.add_task("", total=plan.runs * len(self.kinds))
            for number in range(1, plan.runs + 1):
                # A fixed order would give the same scheme the same place in any drift.
                for kind in order.sample(self.kinds, len(self.kinds)):
                    progress.update(task, description=f"run {number}/{plan.runs} {kind}")
                    self._one(kind, number)
                    progress.advance(task)
        stack.close()  # after an error or Ctrl-C all ends with the sandbox

    # -- one run ---------------------------------------------------------------------------------

    def _one(self, kind: str, number: int) -> None:
        seed = run_seed(self.plan.seed, number)
        files = self._traffic(kind, number, seed)
        detail: dict[str, Any] = {"scheme": kind, "run": number, "seed": seed}
        detail["links"] = {name: link.stats() for name, link in self.cell.network.links.items()}
        self.details.append(detail)
        measured = cell_measure.measure(
            files, self.plan, self.cell.link, detail["links"]["cell"]["down"]
        )
        for host, packets in measured.packets.items():
            self.folder.write_packets(kind, number, host, packets)
        self.folder.append_summary(measured.row)
        for name, table in measured.tables.items():
            before = self.tables.get(name)
            whole = table if before is None else pd.concat([before, table], ignore_index=True)
            self.tables[name] = whole
            cell_report.write_table(self.folder.path / f"{name}.csv", whole)
        self.folder.write_manifest(self.manifest)

    def _traffic(self, kind: str, number: int, seed: int) -> RunFiles:
        """All flows of one run, from the first bulk segment to the last reader's last token."""
        speaks = self._speakers(kind)
        starts = random.Random(subseed(seed, "arrivals"))
        arrivals = sorted(starts.uniform(0, ARRIVALS) for _ in self.clients)
        name = f"{kind.replace(':', '_')}-run{number:02}"
        pcaps = {h: self.folder.path / "pcap" / f"{name}-{h}.pcapng" for h in self.cell.captures}
        offsets: dict[str, float] = {}
        for host, capture in self.cell.captures.items():
            capture.request(f"start {pcaps[host]}")
        for link in self.cell.network.links.values():
            link.seed(seed)
        with self._sinks():
            epoch = time.monotonic()
            for link in self.cell.network.links.values():
                link.start_epoch(epoch)
            self.cell.bulk.request("start")
            files = self._ask(name, number, speaks, [epoch + WARM_UP + a for a in arrivals])
            self.cell.bulk.send("stop")
            samples = self.cell.bulk.expect("stopped", timeout=30)["samples"]
        for link in self.cell.network.links.values():
            link.stop_epoch()
        self.cell.server.send("end")
        self.cell.server.expect("end", timeout=10)
        time.sleep(0.5)  # the last packets cross the queue and reach both captures
        for host, capture in self.cell.captures.items():
            stopped = capture.request("stop", timeout=60)
            if stopped["dropped"]:
                raise MeasurementError(
                    f"the capture on {host} dropped {stopped['dropped']} packets"
                )
            offsets[host] = stopped["offset"]
        return RunFiles(kind, number, seed, epoch, self.times, files, samples, pcaps, offsets)

    def _speakers(self, kind: str) -> dict[str, str]:
        """What each client speaks."""
        schemes = self.plan.schemes if kind == MIXED else (kind,)
        return {client: schemes[n % len(schemes)] for n, client in enumerate(self.clients)}

    @contextlib.contextmanager
    def _sinks(self) -> Iterator[None]:
        host, address = self.cell.network.hosts["cross"], self.cell.network.server.IP()
        words = [sys.executable, "-m", "apps.bulk", "receive", address, "--port", str(BULK_PORT)]
        errors = self.log("sinks.log")
        with errors.open("ab") as stderr, contextlib.ExitStack() as stack:
            sinks = []
            for _ in range(self.flows):
                sink = host.popen(
                    words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr
                )
                stack.callback(_end, sink)
                sinks.append(sink)
            self.cell.bulk.send(f"flows {self.flows}")
            try:
                self.cell.bulk.expect("flows", timeout=30)
            except ProcessFailed as error:
                raise ProcessFailed(f"{error}; {last_lines(errors)}") from None
            yield

    def _ask(
        self, name: str, number: int, speaks: dict[str, str], due: list[float]
    ) -> list[ClientFiles]:
        """Let every client ask at its time, and wait for all of them."""
        patience = due[-1] - time.monotonic() + self.times.measured_to + _PATIENCE
        asked: dict[str, ClientFiles] = {}
        with contextlib.ExitStack() as stack:
            running, clients = {}, Clients()
            for (client, scheme), at in zip(speaks.items(), due, strict=True):
                while (left := at - time.monotonic()) > 0:
                    time.sleep(min(left, 0.1))
                    clients.check()
                prompt = prompt_of(self.plan, client, number)
                log = self.log(f"{name}-{client}.json")
                words = ["--scheme", scheme, "--port", str(self.ports[scheme]), "--realtime"]
                words += ["--log", str(log), "--timeout", str(patience), "--"]
                running[client] = self._client(stack, name, client, [*words, prompt])
                address = self.cell.network.hosts[client].IP()
                asked[prompt] = ClientFiles(client, scheme, address, self.ports[scheme], log)
                errors = self.log(f"{name}-{client}.log")
                clients.add(f"{client} ({scheme})", running[client], errors)
            for _ in running:
                path = answered(
                    self.cell.server.expect("done", timeout=patience, meanwhile=clients.check)
                )
                found = asked[json.loads(path.read_text())["prompt"]]
                found.server_log = path
            for client, process in running.items():
                if process.wait(patience + 10) != 0:
                    errors = self.log(f"{name}-{client}.log")
                    raise client_failed(f"{client} ({speaks[client]})", process, errors)
        return list(asked.values())

    def _client(self, stack: contextlib.ExitStack, name: str, client: str, words: list[str]) -> Any:
        *options, prompt = words
        answer = stack.enter_context(self.log(f"{name}-{client}.txt").open("wb"))
        errors = stack.enter_context(self.log(f"{name}-{client}.log").open("wb"))
        process = self.cell.network.hosts[client].popen(
            [sys.executable, "-m", "apps.client", *options, self.cell.network.server.IP(), prompt],
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=errors,
        )
        stack.callback(_end, process)
        return process


def _end(process: Any) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
