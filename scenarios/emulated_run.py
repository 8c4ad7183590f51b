"""One answer over an emulated network: asked, captured on both hosts, and logged."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scenarios.command import TRANSPORTS
from scenarios.emulated_setup import Testbed
from scenarios.measurement import MeasurementError, RunFiles
from scenarios.processes import Clients, ProcessFailed, client_failed
from scenarios.stage import Timeline, merge_captures

#: A stream is given up after this long (s), and this much more for each of its tokens.
PATIENCE, PATIENCE_A_TOKEN = 120.0, 1.5


class Asking:
    """Asks for one answer after the other on a testbed that was started.

    `pcaps` is the folder for captures.
    """

    def __init__(self, testbed: Testbed, pcaps: Path) -> None:
        self.testbed, self._pcaps = testbed, pcaps
        self._patience = PATIENCE + PATIENCE_A_TOKEN * testbed.plan.tokens

    def stream(self, scheme: str, number: int, seed: int) -> RunFiles:
        """Let the client ask once, with both captures running."""
        testbed = self.testbed
        plan, server = testbed.plan, testbed.server
        name = file_name(scheme, number)
        pcaps = {h: self._pcaps / f"{name}-{h}.pcapng" for h in testbed.captures}
        client_log = testbed.log(f"{name}-client.json")
        server.send(f"seed {seed}")  # a timing profile's pace is the same on every engine
        server.expect("seed", timeout=10)
        before = self._server_datagrams(scheme)
        with self._capturing(pcaps) as offsets:
            prompt = plan.prompts.of_run(number)
            with (
                Timeline(testbed.stage.actions) as timeline,
                self._asking(scheme, prompt, client_log, name) as client,
            ):
                errors = testbed.log(f"{name}-client.log")
                server_log = self._follow(client, errors, scheme, timeline)
            for link in testbed.network.links.values():
                link.stop_epoch()  # what is left to say is not part of the measurement
            server.send("end")
            server.expect("end", timeout=10)
            time.sleep(0.15)  # the last packets reach both captures
        after = self._server_datagrams(scheme)
        return RunFiles(
            plan.scenario.name,
            scheme,
            number,
            seed,
            testbed.ports[scheme],
            client_log,
            server_log,
            pcaps,
            offsets,
            None if scheme in TRANSPORTS else {key: after[key] - before[key] for key in after},
        )

    def _server_datagrams(self, scheme: str) -> dict[str, int]:
        self.testbed.server.send("stats")
        stats = self.testbed.server.expect("stats", timeout=10)
        counters = stats["udp"].get(scheme, {"sent": 0, "received": 0})
        return {key: counters[key] for key in ("sent", "received")}

    @contextlib.contextmanager
    def _capturing(self, pcaps: dict[str, Path]) -> Iterator[dict[str, float]]:
        offsets: dict[str, float] = {}
        everywhere = self.testbed.captures.items()
        parts = {host: _parts(pcaps[host], len(found)) for host, found in everywhere}
        for host, captures in everywhere:
            for capture, part in zip(captures, parts[host], strict=True):
                capture.request(f"start {part}")
        yield offsets
        for host, captures in everywhere:
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
        testbed = self.testbed
        command = [sys.executable, "-m", "apps.client"]
        command += ["--scheme", scheme, "--port", str(testbed.ports[scheme]), "--realtime"]
        command += ["--log", str(log), "--timeout", str(self._patience)]
        command += ["--", testbed.network.server.IP(), prompt]  # a prompt may begin with a dash
        errors = testbed.log(f"{name}-client.log")
        with testbed.log(f"{name}.txt").open("wb") as answer, errors.open("wb") as stderr:
            client = testbed.network.client.popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=stderr,
            )
            try:
                yield client
                status = client.wait(self._patience)
            except subprocess.TimeoutExpired:
                raise ProcessFailed(f"client ({scheme}) did not end; see {errors}") from None
            finally:
                client.kill()
                client.wait()
        if status != 0:
            raise client_failed(f"client ({scheme})", client, errors)

    def _follow(self, client: Any, errors: Path, scheme: str, timeline: Timeline) -> Path:
        """Start the channel's clock with the first token; wait for the server's log."""
        server = self.testbed.server
        clients = Clients()
        clients.add(f"client ({scheme})", client, errors)
        watched: dict[str, Any] = {"timeout": self._patience, "meanwhile": clients.check}
        started = server.expect("first_token", "done", **watched)
        if started["event"] == "done":  # without a first token
            return answered(started)
        for link in self.testbed.network.links.values():
            link.start_epoch(started["at"])
        timeline.start(started["at"], client.kill)
        return answered(server.expect("done", **watched))


def answered(done: dict[str, Any]) -> Path:
    """The server's log of an answer. Raises MeasurementError if it is no whole answer."""
    scheme, tokens = done["scheme"], done["tokens"]
    if done["error"] is not None:
        after = f" after {tokens} tokens" if tokens else ""
        raise MeasurementError(f"{scheme}: no answer{after}: {done['error']}")
    if not tokens:
        raise MeasurementError(
            f"{scheme}: the server's answer is empty: it ends before its first token"
        )
    return Path(done["log"])


def file_name(scheme: str, run: int) -> str:
    """How the names of a run's files begin."""
    return f"{scheme.replace(':', '_')}-run{run:02}"


def _parts(path: Path, count: int) -> list[Path]:
    """One file for each interface of a host; with one interface it is the file itself."""
    if count == 1:
        return [path]
    return [path.with_name(f"{path.stem}-{number}{path.suffix}") for number in range(count)]
