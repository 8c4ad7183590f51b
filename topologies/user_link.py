"""The link back end `user`: two TAP devices held by a process of its own.

`UserLink` starts `python -m topologies.user_link CONFIGURATION` and talks to it: one command a
line on its stdin, one JSON object a line on its stdout. Commands: `seed N`, `epoch T`,
`stop-epoch`, `stats`, `fates FILE` (`fates` alone ends the log), `replay FILE`. End of file ends
the process.

ARP, and all that is not IPv4, passes with the mean delay and is never lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from topologies.channel import DIRECTIONS, ChannelError
from topologies.channel.replay import read_fates
from topologies.forwarder import Forwarder
from topologies.links import End, Link, LinkError
from topologies.nat import Nat
from topologies.profile import LinkProfile
from topologies.tap import TapError, open_tap

_REPLY_TIMEOUT = 10.0
#: The first reply takes longer: recorded traces are read before it.
_START_TIMEOUT = 30.0
_PR_SET_TIMERSLACK = 29
_PRIORITY = 10


class UserLink(Link):
    """Control side of the link process."""

    backend = "user"

    def __init__(self, name: str, profile: LinkProfile) -> None:
        super().__init__(name, profile)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._received = b""
        self._ends: tuple[End, End] | None = None
        self._overflow = (0, 0)
        self._realtime: str | None = None

    def create(self, first: str, second: str) -> None:
        """Start the process, which makes the two interfaces in this namespace."""
        configuration = {
            "name": self.name,
            "devices": [first, second],
            "profile": self.profile.to_dict(),
        }
        path = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "topologies.user_link", json.dumps(configuration)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))},
            bufsize=0,
        )
        self._realtime = self._reply(_START_TIMEOUT)["realtime"]

    def attach(self, first: End, second: End) -> None:
        """See Link; here only to read the interfaces' own counters."""
        self._ends = (first, second)
        self._overflow = self._overflows()

    def seed(self, seed: int) -> None:
        """See Link."""
        self._ask(f"seed {seed}")
        self._overflow = self._overflows()

    def start_epoch(self, epoch: float) -> None:
        """See Link."""
        self._ask(f"epoch {epoch!r}")

    def stop_epoch(self) -> None:
        """See Link."""
        self._ask("stop-epoch")

    def record_fates(self, path: Path | None) -> None:
        """See Link; the columns are channel.replay.FATE_COLUMNS."""
        self._ask(f"fates {path.absolute()}" if path else "fates")

    def replay(self, path: Path) -> None:
        """Repeat the fates of a log, frame by frame, until the next seed. Counters start at 0.

        The log must have begun right after a `seed`. Raises LinkError if it cannot be read.
        """
        self._ask(f"replay {path.absolute()}")

    def stats(self) -> dict[str, Any]:
        """See Link; also `cpu`, the process's CPU seconds, and `realtime`, has it priority?"""
        stats = self._ask("stats")
        overflows = zip(DIRECTIONS, self._overflows(), self._overflow, strict=True)
        for direction, now, before in overflows:
            # Frames that never reached the process: the queue of the interface was full.
            stats[direction]["received"] += now - before
            stats[direction]["dropped"] += now - before
        notes = [] if self._realtime is None else [f"no real-time priority: {self._realtime}"]
        extra = {"backend": self.backend, "realtime": self._realtime is None, "notes": notes}
        return stats | extra

    def close(self) -> None:
        """End the process; its interfaces vanish with it."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(_REPLY_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        self._errors.close()

    def _overflows(self) -> tuple[int, int]:
        if self._ends is None:
            return 0, 0
        first, second = (_transmit_drops(end) for end in self._ends)
        return first, second

    def _ask(self, command: str) -> dict[str, Any]:
        if self._process is None or self._process.stdin is None:
            raise LinkError(f"link {self.name} is not running")
        with contextlib.suppress(BrokenPipeError):  # then the missing reply tells why
            self._process.stdin.write(command.encode() + b"\n")
        reply = self._reply()
        if "error" in reply:
            raise LinkError(f"link {self.name}: {reply['error']}")
        return reply

    def _reply(self, timeout: float = _REPLY_TIMEOUT) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout
        while b"\n" not in self._received:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                raise LinkError(f"link {self.name}: no reply within {timeout:g} s")
            data = os.read(self._process.stdout.fileno(), 65536)
            if not data:
                self._process.wait()
                self._errors.seek(0)
                lines = self._errors.read().decode(errors="replace").strip().splitlines()
                reason = lines[-1] if lines else f"exit status {self._process.returncode}"
                raise LinkError(f"link {self.name}: its process ended: {reason}")
            self._received += data
        line, self._received = self._received.split(b"\n", 1)
        reply: dict[str, Any] = json.loads(line)
        return reply


def _transmit_drops(end: End) -> int:
    """How many frames the queue of an interface refused, from its namespace's /proc/net/dev."""
    try:
        lines = Path(f"/proc/{end.pid}/net/dev").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        name, _, numbers = line.partition(":")
        if name.strip() == end.interface:
            return int(numbers.split()[11])  # receive has 8 columns; then bytes packets errs drop
    return 0


class _Commands:
    """The control side's lines, read inside the loop of the forwarder."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._buffer = b""
        os.set_blocking(0, False)
        forwarder.watch(0, self._read)

    def _read(self) -> None:
        try:
            data = os.read(0, 65536)
        except BlockingIOError:
            return
        if not data:
            self._forwarder.stop()
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            try:
                reply = self._answer(*line.decode().split(" ", 1))
            except ChannelError as error:
                reply = {"error": str(error)}
            except (TypeError, ValueError) as error:
                reply = {"error": f"bad command {line.decode(errors='replace')!r}: {error}"}
            except OSError as error:
                reply = {"error": f"{error.filename}: {error.strerror}"}
            _say(reply)

    def _answer(self, command: str, argument: str = "") -> dict[str, Any]:
        match command:
            case "seed":
                self._forwarder.seed(int(argument))
            case "epoch":
                self._forwarder.set_epoch(float(argument))
            case "stop-epoch":
                self._forwarder.set_epoch(None)
            case "fates":
                self._forwarder.record_fates(Path(argument) if argument else None)
            case "replay":
                self._forwarder.replay(read_fates(Path(argument)))
            case "stats":
                return {"ok": True, "cpu": time.process_time()} | self._forwarder.stats()
            case _:
                raise ValueError("unknown")
        return {"ok": True}


def _say(reply: dict[str, Any]) -> None:
    os.write(1, json.dumps(reply).encode() + b"\n")


def _make_prompt() -> str | None:
    """Wake up on time: real-time priority, no timer slack, no pauses. Why not, if refused."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    gc.disable()  # nothing here makes cycles
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
    except OSError as error:
        return error.strerror
    return None


def main(arguments: list[str]) -> int:
    """The link process."""
    configuration = json.loads(arguments[0])
    name, profile = configuration["name"], LinkProfile.from_dict(configuration["profile"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who holds the other end of stdin decides
    try:
        first, second = (open_tap(device) for device in configuration["devices"])
    except TapError as error:
        print(error, file=sys.stderr)
        return 2
    up, down = (profile.channel(direction, name) for direction in DIRECTIONS)
    nat = Nat(profile.rebind) if profile.rebind else None
    forwarder = Forwarder((first, second), (up, down), nat)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    _Commands(forwarder)
    _say({"ok": True, "realtime": _make_prompt()})
    forwarder.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
