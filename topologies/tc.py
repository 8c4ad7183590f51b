"""The programs `ip` and `tc`: one command, or a `tc` that stays and takes a line at a time."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from typing import Any

from topologies.links import LinkError

#: Seconds that a tc may take to catch up.
_SETTLED_WITHIN = 5.0


def find(tool: str) -> str | None:
    """Where a program is; sudo's and users' search paths may lack /usr/sbin."""
    return shutil.which(tool, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command, whatever its exit status."""
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def line(result: subprocess.CompletedProcess[str]) -> str:
    """What a failed command said, on one line."""
    return " ".join(result.stderr.split()) or f"exit status {result.returncode}"


def must(command: list[str]) -> None:
    """Run `ip` or `tc`. Raises LinkError with the command and its words when it fails."""
    done = run([find(command[0]) or command[0], *command[1:]])
    if done.returncode != 0:
        raise LinkError(f"`{' '.join(command)}` failed: {line(done)}")


@functools.cache
def knows_seed() -> bool:
    """Has this tc netem's parameter `seed` (iproute2 6.6)?"""
    shown = run([find("tc") or "tc", "qdisc", "add", "netem", "help"])
    return "seed" in f"{shown.stdout} {shown.stderr}".lower()


class Batch:
    """A `tc -batch` that stays: starting one takes 2 ms, and in a guest kernel 40 ms."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            [find("tc") or "tc", "-s", "-j", "-force", "-batch", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # a terminal's SIGINT is not for it
        )

    def send(self, words: list[str]) -> None:
        """One command, without a look at what comes of it; see check."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then check() tells
            self._process.stdin.write(" ".join(words).encode() + b"\n")
            self._process.stdin.flush()

    def must(self, *commands: list[str]) -> None:
        """Commands that must succeed. Raises LinkError with tc's words."""
        for words in commands:
            self.send(words)
        self.settle()
        problem = self.check()
        if problem:
            raise LinkError(f"tc failed: {problem}")

    def qdiscs(self, device: str) -> list[dict[str, Any]]:
        """The qdiscs of a device with their counters, after all that was sent before.

        Raises LinkError if tc does not answer.
        """
        assert self._process.stdout is not None
        self.send(["qdisc", "show", "dev", device])
        answer, deadline = b"", time.monotonic() + _SETTLED_WITHIN
        while not answer.endswith(b"\n"):  # JSON on one line
            left = max(0.0, deadline - time.monotonic())
            data = b""
            if select.select([self._process.stdout], [], [], left)[0]:
                data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                raise LinkError(f"tc does not answer: {self.check() or 'it is busy or stopped'}")
            answer += data
        found: list[dict[str, Any]] = json.loads(answer)
        return found

    def settle(self) -> None:
        """Wait until tc has carried out all that was sent, so that other tc commands come after.

        Raises LinkError if it does not answer.
        """
        self.qdiscs("lo")

    def check(self) -> str | None:
        """What went wrong so far, on one line. ``settle`` first to miss nothing."""
        ended = self._process.poll()
        self._errors.seek(0)
        errors = " ".join(self._errors.read().decode(errors="replace").split())
        return errors or (None if ended is None else f"exit status {ended}")

    def close(self) -> None:
        """End tc. Safe to call again."""
        if self._errors.closed:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
