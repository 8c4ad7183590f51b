"""Child processes of a run that take commands and answer in JSON lines."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

Popen = Callable[..., "subprocess.Popen[str]"]


class ProcessFailed(RuntimeError):
    """A process of the run died or did not answer; the message ends with its last log lines."""


class JsonProcess:
    """A process with commands on standard input and one JSON object per line on standard output.

    ``popen`` starts it (``host.popen`` of a Mininet host, or ``subprocess.Popen``); standard error
    goes to ``log``. It must be in a session of its own, so that Ctrl-C reaches the runner alone,
    which then stops everything in order; Mininet's ``popen`` sees to that.
    """

    def __init__(self, popen: Popen, command: list[str], name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._stderr: IO[str] = log.open("w")
        self.process = popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self._lines.put(json.loads(line))
            except ValueError:
                self._stderr.write(line)
                self._stderr.flush()
        self._lines.put(None)

    def send(self, command: str) -> None:
        """Write one command line."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise self.failure("ended") from None

    def receive(self, timeout: float) -> dict[str, Any]:
        """The next object. Raises ProcessFailed at the end of output or after ``timeout`` s."""
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise self.failure(f"did not answer within {timeout:g} s") from None
        if line is None:
            self._lines.put(None)
            raise self.failure("ended")
        return line

    def expect(self, event: str, timeout: float) -> dict[str, Any]:
        """Skip objects until one has ``event`` as its event."""
        deadline = time.monotonic() + timeout
        while True:
            answer = self.receive(max(0.0, deadline - time.monotonic()))
            if answer.get("event") == event:
                return answer
            if answer.get("event") == "error":  # what was expected will not come
                raise ProcessFailed(f"{self.name}: {answer.get('message')}")

    def request(self, command: str, timeout: float = 10.0) -> dict[str, Any]:
        """Send a command and return its answer."""
        self.send(command)
        answer = self.receive(timeout)
        if "error" in answer:
            raise ProcessFailed(f"{self.name}: {answer['error']}")
        return answer

    def check(self) -> None:
        """Raise ProcessFailed if the process has ended."""
        if self.process.poll() is not None:
            raise self.failure("ended")

    def failure(self, what: str) -> ProcessFailed:
        """The error for this process, with what it said last."""
        return ProcessFailed(f"{self.name} {what}; {last_lines(self.log)}")

    def stop(self, timeout: float = 3.0) -> None:
        """End it: by the end of its input, and by force if it does not listen."""
        if self.process.stdin is not None:
            try:
                self.process.stdin.close()
            except OSError:
                pass
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._stderr.close()


def last_lines(log: Path, count: int = 5) -> str:
    """The last lines of a log, on one line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if not lines:
        return f"it left no word in {log.name}"
    return f"last words in {log.name}: " + " | ".join(lines[-count:])
