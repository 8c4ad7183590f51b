"""What a check says, and how one is run so that it can neither fail loudly nor hang."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Literal, NoReturn, TypeVar, cast

from terminal import stopping
from topologies import sandbox

Status = Literal["ok", "note", "problem"]
T = TypeVar("T")

SETUP = "sudo ./setup.sh"
AS_ROOT = "run it with sudo"
PATIENCE = 15.0
"""Seconds for a check in a sandbox, or for a program that a check starts."""


@dataclass(frozen=True)
class Check:
    """One finding. A `note` is worth knowing; a `problem` means that something needed is missing.

    `remedy` is empty only where all is well.
    """

    name: str
    status: Status
    finding: str
    remedy: str = ""


def guarded(name: str, function: Callable[[], Check]) -> Check:
    """The finding of a check; one that fails by itself is a problem, with the error's text."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - the doctor must get to the end of the list
        text = " ".join(str(error).split())
        kind = type(error).__name__
        finding = f"the check itself failed ({kind}: {text})" if text else f"it failed ({kind})"
        return Check(name, "problem", finding, f"if {SETUP} does not help, report this line")


def in_sandbox(function: Callable[[], T], seconds: float = PATIENCE) -> T:
    """The result of `function` in a sandbox of its own, or TimeoutError.

    Raises SystemExit if the user interrupted: the sandbox passes the signal to the function only,
    so this process would not notice.
    """

    def main() -> tuple[bool, T | int]:
        try:
            with _time_limit(seconds):
                return True, function()
        except KeyboardInterrupt as stop:
            return False, stopping.status(stop)

    finished, result = sandbox.call(main)
    if not finished:
        raise SystemExit(result)
    return cast(T, result)


def output(command: list[str]) -> tuple[bool, str]:
    """Run a program: did it succeed, and its output; or else the last line of its complaint."""
    try:
        done = subprocess.run(
            command,
            cwd="/",  # a module that lies in this folder must not stand for an installed one
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"no end within {PATIENCE:g} s"
    except OSError as error:
        return False, f"{command[0]}: {error.strerror}"
    if done.returncode == 0:
        return True, done.stdout.strip()
    lines = done.stderr.strip().splitlines()
    return False, lines[-1].strip() if lines else f"exit status {done.returncode}"


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """TimeoutError in the middle of whatever hangs. The sandbox's main process has no timer."""

    def expire(_number: int, _frame: FrameType | None) -> NoReturn:
        raise TimeoutError(f"no end within {seconds:g} s")

    signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
