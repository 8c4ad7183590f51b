"""Boot a guest, run one command in it as root, bring back its output and exit status."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar, NoReturn

from topologies.guest.kernel import HERE, Kernel, KernelError, find, packaged

TIMES = ("virtual", "real")
MEMORY = 1024
"""MiB of the guest. The host gives only what is touched."""

_START = 1_767_225_600 * 10**9
"""The guest's calendar in virtual time starts in 2026 (ns since 1970), so that it repeats."""
# A minimal system has no poweroff (it is systemd's), but Perl: Debian's perl-base is essential.
# reboot(2) with its two magic numbers and RB_POWER_OFF, as x86-64 counts system calls.
_POWER_OFF = "exec perl -e 'syscall(169, 0xfee1dead, 0x28121969, 0x4321fedc, 0)'"
_FAREWELL = b"reboot: Power down\n"  # the kernel's last words, at a level that cannot be silenced
_PR_SET_CHILD_SUBREAPER = 36
_TAIL = 15
_SHIM = "shim.so"


class GuestError(RuntimeError):
    """The guest did not boot, or ended before its command did."""


class GuestStopped(GuestError):
    """Somebody called `end_all`."""


@dataclass(frozen=True)
class Result:
    """What a guest left: its command's exit status, and how long it lasted on either clock."""

    status: int
    guest_seconds: float
    wall_seconds: float
    tail: tuple[str, ...]
    """The last lines that it printed."""

    @property
    def speed(self) -> float:
        """Guest seconds per second, boot included."""
        return self.guest_seconds / self.wall_seconds


def end_all() -> None:
    """End the guests of this process, whichever threads wait for them: those get GuestStopped."""
    for guest in list(_Guest.running):
        guest.stopped = True
        guest.end()


def select_kernel(clock: str) -> Kernel:
    """The kernel for a clock: the packaged one will do for real time. Raises KernelError."""
    if clock not in TIMES:
        raise KernelError(f"time must be one of {', '.join(TIMES)}, not {clock!r}")
    try:
        return find()
    except KernelError as error:
        if clock == "virtual":
            raise
        try:
            return packaged()
        except KernelError as other:
            raise KernelError(f"{error}; {other}") from None


def run(
    command: Sequence[str],
    *,
    out: Sequence[Path] = (),
    clock: str = "virtual",
    seed: int = 1,
    memory: int = MEMORY,
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
    stdout: IO[bytes] | None = None,
    stderr: IO[bytes] | None = None,
) -> Result:
    """Run a command as root in a guest that sees the host's files, and wait for it.

    Args:
        out: folders that the guest may write to; all other writes vanish with it.
        clock: `virtual` (idle time is skipped, CPU time counts as nothing) or `real`.
        seed: of the guest's random numbers in virtual time.
        memory: MiB.
        timeout: seconds of the host's time, after which the guest is ended.
        environment: variables of the command, beside PATH, HOME and the like.
        stdout, stderr: where its output goes; by default to those of this process.

    Raises KernelError without a kernel, and GuestError with the guest's last lines.
    """
    kernel = select_kernel(clock)
    for folder in out:
        folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="eloquent-guest-") as name:
        control = Path(name)
        _write_control(control, kernel, clock, command, out, environment or {})
        arguments, variables = _start(kernel, clock, seed, memory, control)
        with _Guest(arguments, variables, control) as guest:
            guest.follow(stdout or sys.stdout.buffer, stderr or sys.stderr.buffer, timeout)
        if guest.stopped:
            raise GuestStopped("the guest was stopped")
        report = control / "report"
        words = report.read_text().split() if report.exists() else []
    if len(words) != 2:
        last = " | ".join(guest.tail) or "it said nothing"
        raise GuestError(f"the guest ended before its command did; its last lines: {last}")
    status, uptime = int(words[0]), float(words[1])
    return Result(status, uptime, time.monotonic() - begun, tuple(guest.tail))


def _write_control(
    control: Path,
    kernel: Kernel,
    clock: str,
    command: Sequence[str],
    out: Sequence[Path],
    environment: Mapping[str, str],
) -> None:
    """What init.sh and the shell behind it read."""
    shutil.copy(HERE / "init.sh", control / "init")
    (control / "init").chmod(0o755)
    (control / "power_off").write_text(_POWER_OFF + "\n")
    shutil.copy(kernel.shim, control / _SHIM)
    folders = shlex.join(str(path.resolve()) for path in out)
    modules = shlex.quote(str(kernel.modules or ""))
    (control / "settings").write_text(
        f"set -- {folders}\nmodules={modules}\n", "utf-8", "surrogateescape"
    )
    variables = {
        "PATH": os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin",
        "HOME": "/run/home",
        "ELOQUENT_GUEST": clock,
        "LANG": "C.UTF-8",
        **environment,
    }
    exports = "\n".join(f"export {key}={shlex.quote(value)}" for key, value in variables.items())
    (control / "command").write_text(
        f"""\
ip link set lo up
hostname guest
echo "127.0.0.1 localhost guest" >/etc/hosts
: >/etc/resolv.conf
stty -opost </dev/tty0
stty -opost </dev/tty1
{exports}
cd {shlex.quote(os.getcwd())}
{shlex.join(command)} </dev/null > >(exec cat >/dev/tty0) 2> >(exec cat >/dev/tty1)
status=$?
wait
read -r uptime _ </proc/uptime
echo "$status $uptime" >{shlex.quote(str(control))}/report
sync
{_POWER_OFF}
""",
        "utf-8",
        "surrogateescape",
    )


def _start(
    kernel: Kernel, clock: str, seed: int, memory: int, control: Path
) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment of the guest kernel."""
    arguments = [
        *("setarch", "-R", str(kernel.program)),
        *(f"mem={memory}M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet"),
        # Standard output and error of the command come out of two consoles.
        *("con=null", "con0=null,fd:1", "con1=null,fd:2"),
        "init=/proc/self/cwd/init",
    ]
    variables = {
        "HOME": str(control),
        "PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin",
        # Beside init: a path of the cache may hold a blank, which would end it.
        "LD_PRELOAD": f"./{_SHIM}",
        "TMPDIR": _memory_folder(memory),
    }
    if clock == "virtual":
        arguments += ["norandmaps", "time-travel=inf-cpu", f"time-travel-start={_START}"]
        variables["ELOQUENT_GUEST_SEED"] = str(seed % 2**64)
    return arguments, variables


def _memory_folder(memory: int) -> str:
    """Where the guest's memory lies, as a file without a name that must be executable."""
    for folder in ("/dev/shm", tempfile.gettempdir()):
        with contextlib.suppress(OSError):
            facts = os.statvfs(folder)
            if facts.f_flag & os.ST_NOEXEC or not os.access(folder, os.W_OK):
                continue
            if facts.f_bavail * facts.f_frsize >= memory << 20:
                return folder
    raise GuestError(
        f"neither /dev/shm nor {tempfile.gettempdir()} can hold a guest of {memory} MiB: "
        "take less with --memory, or set TMPDIR"
    )


class _Guest:
    """A running guest, below a supervisor that ends it when this process ends in any way.

    A guest kernel traces its programs. Were it killed alone, they would run on as programs of the
    host; so the supervisor, which becomes their parent then, kills them one by one.
    """

    running: ClassVar[set[_Guest]] = set()

    def __init__(self, arguments: list[str], variables: dict[str, str], control: Path) -> None:
        self.stopped = False
        self._alive = threading.Lock()
        self.tail: deque[str] = deque(maxlen=_TAIL)
        self._partial = {0: b"", 1: b""}
        self._alive_read, self._alive_write = os.pipe()
        self._outputs = [os.pipe() for _ in range(2)]
        self._pid = os.fork()
        if self._pid == 0:
            self._supervise(arguments, variables, control)
        os.close(self._alive_read)
        for _, write in self._outputs:
            os.close(write)

    def _supervise(
        self, arguments: list[str], variables: dict[str, str], control: Path
    ) -> NoReturn:
        status = 125
        try:
            os.setsid()  # a terminal's Ctrl-C is for the caller alone
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            libc = ctypes.CDLL(None)
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            # Not only our own: other guests of this process have pipes too.
            _close_all_but({0, 1, 2, self._alive_read, *(pair[1] for pair in self._outputs)})
            core = _take_core()
            child = subprocess.Popen(
                ["taskset", "-c", str(core), *arguments],
                cwd=control,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=self._outputs[0][1],
                stderr=self._outputs[1][1],
                start_new_session=True,
                restore_signals=True,
                preexec_fn=_default_signals,
            )
            for pair in self._outputs:
                os.close(pair[1])
            ended = os.pidfd_open(child.pid)
            ready, _, _ = select.select([self._alive_read, ended], [], [])
            orphaned = self._alive_read in ready
            _kill_children()
            status = 0
            if orphaned:
                shutil.rmtree(control, ignore_errors=True)
        except BaseException as error:  # noqa: BLE001 - the end of the line of a forked process
            with contextlib.suppress(OSError):
                os.write(self._outputs[1][1], f"guest: {error}\n".encode())
        finally:
            os._exit(status)

    def follow(self, stdout: IO[bytes], stderr: IO[bytes], timeout: float | None) -> None:
        """Pass its output on until it ends. Raises GuestError after `timeout` seconds."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        targets = {self._outputs[0][0]: stdout, self._outputs[1][0]: stderr}
        ended = os.pidfd_open(self._pid)
        waited = {*targets, ended}
        # The guest closes its consoles before it is done: its last act is the report.
        while waited:
            left = deadline - time.monotonic()
            ready = select.select(waited, [], [], None if left == math.inf else max(0.0, left))[0]
            if not ready:
                last = " | ".join(self.tail) or "it said nothing"
                raise GuestError(
                    f"the guest did not end within {timeout:g} s; its last lines: {last}"
                )
            for descriptor in ready:
                data = b"" if descriptor == ended else os.read(descriptor, 1 << 16)
                if not data:
                    waited.remove(descriptor)
                    continue
                data = data.replace(_FAREWELL, b"")
                targets[descriptor].write(data)
                targets[descriptor].flush()
                self._remember(int(descriptor == self._outputs[1][0]), data)
        os.close(ended)

    def _remember(self, stream: int, data: bytes) -> None:
        *lines, self._partial[stream] = (self._partial[stream] + data).split(b"\n")
        self.tail.extend(text for line in lines if (text := line.decode(errors="replace").strip()))

    def __enter__(self) -> _Guest:
        self.running.add(self)
        return self

    def end(self) -> None:
        """Tell the supervisor to end what is still there."""
        if self._alive.acquire(blocking=False):  # once
            os.close(self._alive_write)

    def __exit__(self, *_: object) -> None:
        self.running.discard(self)
        self.end()
        os.waitpid(self._pid, 0)
        for read, _write in self._outputs:
            os.close(read)


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _take_core() -> int:
    """A core of its own for each guest, where there are enough: one core makes it much faster.

    The claim is a socket with an abstract name, which goes with this process, however it ends.
    """
    cores = sorted(os.sched_getaffinity(0))
    for core in cores:
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0eloquent-guest-core-{core}")
        except OSError:
            claim.close()
            continue
        claim.detach()  # held until the process ends
        return core
    return cores[os.getpid() % len(cores)]


def _close_all_but(kept: set[int]) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in kept:
            with contextlib.suppress(OSError):
                os.close(number)


def _kill_children() -> None:
    """Kill and reap everything below this process, the traced before those who trace them.

    Killing the tracer first would let its programs run on, for a moment, without a guest.
    """
    while below := _descendants(os.getpid()):
        for pid in reversed(below):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def _descendants(pid: int) -> list[int]:
    """All processes below one, parents before children."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                found += [child, *_descendants(child)]
    return found
