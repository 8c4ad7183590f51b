"""Child processes of a run that take commands and answer in JSON lines."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

Popen = Callable[..., "subprocess.Popen[str]"]

#: Who waits for one process looks after the others this often (s).
_GLANCE = 0.1
#: A client may end a little before the server has said why: it gets this long (s) to say it.
_GRACE = 0.5


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
        answer = self._next(timeout)
        if answer is None:
            raise self.failure(f"did not answer within {timeout:g} s")
        return answer

    def _next(self, timeout: float) -> dict[str, Any] | None:
        """The next object, None after ``timeout`` s. Raises ProcessFailed: there are no more."""
        try:
            line = self._lines.get(timeout=max(0.0, timeout))
        except queue.Empty:
            return None
        if line is None:
            self._lines.put(None)
            raise self.failure(f"ended{_how(self.process)}")
        return line

    def expect(
        self, *events: str, timeout: float, meanwhile: Callable[[], None] | None = None
    ) -> dict[str, Any]:
        """Skip objects until one has one of ``events`` as its event.

        ``meanwhile`` is called while nothing comes; what it raises ends the waiting.
        """
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            if meanwhile is not None and left > _GLANCE:
                answer = self._next(_GLANCE)
                if answer is None:
                    meanwhile()
                    continue
            else:
                answer = self.receive(left)
            if answer.get("event") in events:
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
            raise self.failure(f"ended{_how(self.process)}")

    def failure(self, what: str) -> ProcessFailed:
        """The error for this process, with what it said last."""
        return _failed(self.name, what, self.log)

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


class Clients:
    """The clients of one run, looked after while the server is listened to.

    Each has a name for messages, its process, and the file that takes its standard error.
    """

    def __init__(self) -> None:
        self._clients: list[tuple[str, Any, Path]] = []
        self._ended_at: float | None = None

    def add(self, name: str, process: Any, log: Path) -> None:
        """One more, which has just been started."""
        self._clients.append((name, process, log))

    def check(self) -> None:
        """Raise ProcessFailed if one has ended with an error, and the server has no word on it."""
        for name, process, log in self._clients:
            if process.poll():
                now = time.monotonic()
                self._ended_at = self._ended_at or now
                if now - self._ended_at >= _GRACE:
                    raise client_failed(name, process, log)


def client_failed(name: str, process: Any, log: Path) -> ProcessFailed:
    """The error for a client that has ended with one."""
    return _failed(name, f"ended{_how(process)}", log)


def _failed(name: str, what: str, log: Path) -> ProcessFailed:
    words = last_lines(log)
    if words.startswith(_ERROR):  # says it all
        return ProcessFailed(f"{name}: {words.removeprefix(_ERROR)}")
    return ProcessFailed(f"{name} {what}; {words}")


def _how(process: Any) -> str:
    """What is remarkable about the end of a process, in brackets."""
    try:
        status = process.wait(1)  # the end of its output comes a moment before its own
    except subprocess.TimeoutExpired:
        return ""
    return f" (by {signal.Signals(-status).name})" if status < 0 else ""


#: How commands of ours begin the one line that says why they end.
_ERROR = "error: "


def last_lines(log: Path, count: int = 5) -> str:
    """The last lines of a log, on one line; the last one alone where that says it all."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if not lines:
        return f"it left no word in {log.name}"
    if lines[-1].startswith(_ERROR):
        return lines[-1]
    return f"last words in {log.name}: " + " | ".join(lines[-count:])
