"""The engine `emulated`: every scheme over the same network, seed by seed, in real time."""

from __future__ import annotations

import contextlib
import functools
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from analysis.capture_reader import CaptureError
from analysis.plots import PlotError
from analysis.results import ResultsError, ResultsFolder
from analysis.stalls import StallError
from analysis.summary import SummaryError
from apps.sources import SourceError
from eloquent.wire import MAX_DATAGRAM
from scenarios import manifest, report
from scenarios.command import TRANSPORTS, Plan
from scenarios.limit import limit_stall_ratio
from scenarios.link_check import LinkCheckError, prober_words
from scenarios.measurement import Measurement, MeasurementError, RunFiles, measure
from scenarios.processes import JsonProcess, ProcessFailed
from scenarios.progress import progress_bar
from scenarios.stage import Stage, Timeline, merge_captures
from topologies import catalogue, wifi
from topologies.backends import choose
from topologies.links import LinkError
from topologies.openvswitch import OpenVSwitch, OpenVSwitchError, datapath
from topologies.tap import TapError

#: The server's ports: TCP on this one, each UDP scheme on one of its own from here on.
FIRST_PORT = 4433
#: The other transports have ports at which the analysis expects no records of ours.
FIRST_STACK_PORT = 4450
PROBE_PORT = 4999
CONTROLLER_PORT = 6653
#: A stream is given up after this long (s), and this much more for each of its tokens.
PATIENCE, PATIENCE_A_TOKEN = 120.0, 1.5

#: A run in which 1% of the links' timers were later than this (s) is marked: its delays are not
#: those of the profile.
LATE = 0.005

EXPECTED_ERRORS = (
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
    console = Console(stderr=True)
    try:
        folder = ResultsFolder.create(out)
    except ResultsError as error:
        console.print(f"error: {error}", style="red", soft_wrap=True, markup=False)
        return 2
    # Warnings of the analysis (a capture that breaks off, say) are for the user: a line each.
    warnings.showwarning = lambda message, *_: console.print(f"warning: {message}", markup=False)
    experiment = Experiment(plan, folder, console)
    status = 0
    try:
        experiment.run()
    except KeyboardInterrupt:
        console.print("Interrupted: finished runs are kept.")
        status = 130
    except EXPECTED_ERRORS as error:
        console.print(f"error: {error}", style="red", soft_wrap=True, markup=False)
        status = 1
    experiment.manifest["finished"] = status == 0
    try:
        # Ctrl-C is in a hurry.
        experiment.finish(pictures=show and status != 130, show=show)
    except EXPECTED_ERRORS as error:
        console.print(f"error: {error}", style="red", soft_wrap=True, markup=False)
        status = status or 1
    return status


class Experiment:
    """One results folder in the making."""

    def __init__(self, plan: Plan, folder: ResultsFolder, console: Console) -> None:
        self.plan = plan
        self.folder = folder
        self.console = console
        self.choice = ""
        self.patience = PATIENCE + PATIENCE_A_TOKEN * plan.tokens
        self.manifest: dict[str, Any] = manifest.describe(plan)
        self.details: list[dict[str, Any]] = []
        self.manifest["run_details"] = self.details
        self.stage: Stage = (plan.scenario.stage or Stage)(plan, folder.path, self.say)
        udp = [scheme for scheme in plan.schemes if scheme not in TRANSPORTS]
        self.ports = {scheme: FIRST_PORT + number for number, scheme in enumerate(udp)}
        for number, scheme in enumerate(TRANSPORTS):
            if scheme in plan.schemes:
                self.ports[scheme] = FIRST_PORT if scheme == "tcp" else FIRST_STACK_PORT + number

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
        self._start(stack)
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
        report.finish(plan, folder, self.console, self.choice, pictures=pictures, show=show)
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

    # -- setting up ------------------------------------------------------------------------------

    def _start(self, stack: contextlib.ExitStack) -> None:
        plan = self.plan
        choice = choose(plan.link, plan.network.access, plan.network.server)
        self.choice = choice.name
        stack.enter_context(OpenVSwitch())
        kind = datapath()
        self.say(f"Link: {choice.name} ({choice.reason}). Switch: Open vSwitch, {kind} datapath.")
        self.controller = self._process(
            stack,
            functools.partial(subprocess.Popen, start_new_session=True),
            "controller",
            [
                *("apps.controller", "--host", "127.0.0.1", "--port", str(CONTROLLER_PORT)),
                *("--stats", str(self.folder.path / "switch.csv")),
                *self.stage.controller_options(),
            ],
        )
        self.network = self.stage.build(choice, datapath=kind, controller_port=CONTROLLER_PORT)
        stack.callback(self.network.stop)
        self.network.start()
        # Open vSwitch would tell of its controllers every 5 s; the controller tells at once.
        for _ in self.network.mininet.switches:
            self.controller.expect("connected", timeout=30)
        self.stage.connected()
        for host in (self.network.client, self.network.server):
            # What TCP learned in one run must not help it in the next.
            host.cmd("sysctl -qw net.ipv4.tcp_no_metrics_save=1")
        server, client = self.network.server, self.network.client
        self.echo = self._process(
            stack, server.popen, "echo", ["apps.probe", "echo", "--port", str(PROBE_PORT)]
        )
        self.prober = self._process(
            stack, client.popen, "prober", prober_words(server.IP(), PROBE_PORT)
        )
        self.captures = {
            name: [
                self._process(
                    stack,
                    host.popen,
                    f"capture-{name}{number or ''}",
                    ["apps.capture", "--interface", interface],
                )
                for number, interface in enumerate(self.stage.interfaces()[name])
            ]
            for name, host in (("client", client), ("server", server))
        }
        self.server = self._process(stack, server.popen, "server", self._server_command())
        with self.console.status("Starting the token server (a model takes about 15 s) …"):
            ready = self.server.expect("ready", timeout=300)
        self.manifest |= {
            "link": choice.name,
            "link_reason": choice.reason,
            "datapath": kind,
            "source": ready["source"],
            "tcp": {"congestion_control": "cubic", "no_metrics_save": True, "nodelay": True},
            "datagram_limit": MAX_DATAGRAM,
        }
        self.folder.write_manifest(self.manifest)

    def _process(
        self,
        stack: contextlib.ExitStack,
        popen: Callable[..., Any],
        name: str,
        arguments: list[str],
    ) -> JsonProcess:
        command = [sys.executable, "-m", *arguments]
        process = JsonProcess(popen, command, name, self.log(f"{name}.log"))
        stack.callback(process.stop)
        return process

    def _server_command(self) -> list[str]:
        plan = self.plan
        command = ["apps.server", "--host", self.network.server.IP(), "--tokens", str(plan.tokens)]
        for scheme, port in self.ports.items():
            command += ["--stack" if scheme in TRANSPORTS else "--udp", f"{scheme}:{port}"]
        command += ["--source", plan.source, "--device", plan.device]
        command += ["--log-dir", str(self.folder.path / "logs")]
        if plan.model is not None:
            command += ["--model", plan.model]
        return command

    # -- one run ---------------------------------------------------------------------------------

    def _one(self, scheme: str, number: int) -> None:
        plan = self.plan
        seed = report.run_seed(plan.seed, number)
        detail: dict[str, Any] = {"scheme": scheme, "run": number, "seed": seed}
        detail["probe"] = self.stage.check_links(seed, self.prober)
        for name, link in self.network.links.items():
            link.seed(seed)
            if link.backend == "user":
                link.record_fates(self.log(f"{_file_name(scheme, number)}-{name}.fates.csv"))
        self.stage.begin(scheme, number)
        files = self._stream(scheme, number, seed)
        detail |= self.stage.end()
        detail["links"] = {name: link.stats() for name, link in self.network.links.items()}
        late = max(stats["lateness"]["p99"] for stats in detail["links"].values())
        detail["too_slow"] = late > LATE
        measured: Measurement = measure(
            files, self.choice, plan.network_engine, plan.scenario.theta
        )
        if measured.agreement is not None:
            detail["agreement"] = measured.agreement
        self.details.append(detail)
        self.folder.write_tokens(scheme, number, measured.tokens)
        for host, packets in measured.packets.items():
            self.folder.write_packets(scheme, number, host, packets)
        limit = limit_stall_ratio(
            measured.tokens["generated_at"].tolist(), plan.network, seed, plan.scenario.theta
        )
        ratio = measured.row["stall_ratio"] / limit if limit else None
        limits = {"limit_stall_ratio": limit, "ratio_to_limit": ratio}
        self.folder.append_summary(measured.row | limits)
        self.folder.write_manifest(self.manifest)

    def _stream(self, scheme: str, number: int, seed: int) -> RunFiles:
        """Let the client ask once, with both captures running."""
        plan = self.plan
        name = _file_name(scheme, number)
        pcaps = {h: self.folder.path / "pcap" / f"{name}-{h}.pcapng" for h in self.captures}
        client_log = self.log(f"{name}-client.json")
        self.server.send(f"seed {seed}")  # a timing profile's pace is the same on every engine
        self.server.expect("seed", timeout=10)
        before = self._server_datagrams(scheme)
        with self._capturing(pcaps) as offsets:
            prompt = plan.prompts.of_run(number)
            with (
                Timeline(self.stage.actions) as timeline,
                self._asking(scheme, prompt, client_log, name) as client,
            ):
                server_log = self._follow(client, scheme, timeline)
            for link in self.network.links.values():
                link.stop_epoch()  # what is left to say is not part of the measurement
            self.server.send("end")
            self.server.expect("end", timeout=10)
            time.sleep(0.15)  # the last packets reach both captures
        after = self._server_datagrams(scheme)
        return RunFiles(
            plan.scenario.name,
            scheme,
            number,
            seed,
            self.ports[scheme],
            client_log,
            server_log,
            pcaps,
            offsets,
            None if scheme in TRANSPORTS else {key: after[key] - before[key] for key in after},
        )

    def _server_datagrams(self, scheme: str) -> dict[str, int]:
        self.server.send("stats")
        stats = self.server.expect("stats", timeout=10)
        counters = stats["udp"].get(scheme, {"sent": 0, "received": 0})
        return {key: counters[key] for key in ("sent", "received")}

    @contextlib.contextmanager
    def _capturing(self, pcaps: dict[str, Path]) -> Iterator[dict[str, float]]:
        offsets: dict[str, float] = {}
        parts = {host: _parts(pcaps[host], len(found)) for host, found in self.captures.items()}
        for host, captures in self.captures.items():
            for capture, part in zip(captures, parts[host], strict=True):
                capture.request(f"start {part}")
        yield offsets
        for host, captures in self.captures.items():
            for capture in captures:
                stopped = capture.request("stop", timeout=30)
                if stopped["dropped"]:
                    raise MeasurementError(
                        f"the capture on the {host} dropped {stopped['dropped']} packets: "
                        "the machine is too slow or too busy for this rate"
                    )
                offsets[host] = stopped["offset"]
            if len(captures) > 1:
                merge_captures(parts[host], pcaps[host])
                for part in parts[host]:
                    part.unlink()

    @contextlib.contextmanager
    def _asking(self, scheme: str, prompt: str, log: Path, name: str) -> Iterator[Any]:
        command = [sys.executable, "-m", "apps.client"]
        command += ["--scheme", scheme, "--port", str(self.ports[scheme]), "--realtime"]
        command += ["--log", str(log), "--timeout", str(self.patience)]
        command += ["--", self.network.server.IP(), prompt]  # a prompt may begin with a dash
        errors = self.log(f"{name}-client.log")
        with self.log(f"{name}.txt").open("wb") as answer, errors.open("wb") as stderr:
            client = self.network.client.popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=stderr,
            )
            try:
                yield client
                status = client.wait(self.patience)
            except subprocess.TimeoutExpired:
                raise ProcessFailed(f"client ({scheme}) did not end; see {errors}") from None
            finally:
                client.kill()
                client.wait()
        if status != 0:
            raise ProcessFailed(f"client ({scheme}): {errors.read_text().strip()}")

    def _follow(self, client: Any, scheme: str, timeline: Timeline) -> Path:
        """Start the channel's clock with the first token; wait for the server's log."""
        started = self.server.expect("first_token", timeout=self.patience)
        for link in self.network.links.values():
            link.start_epoch(started["at"])
        timeline.start(started["at"], client.kill)
        done = self.server.expect("done", timeout=self.patience)
        if not done["tokens"]:
            raise MeasurementError(f"{scheme}: the server generated nothing")
        return Path(done["log"])


def _file_name(scheme: str, run: int) -> str:
    return f"{scheme.replace(':', '_')}-run{run:02}"


def _parts(path: Path, count: int) -> list[Path]:
    """One file for each interface of a host; with one interface it is the file itself."""
    if count == 1:
        return [path]
    return [path.with_name(f"{path.stem}-{number}{path.suffix}") for number in range(count)]
