"""A sandbox for a whole testbed: private network, mount and process namespaces.

    outer process ── PID 1 of the sandbox (reaps orphans) ── main

Everything a testbed makes (interfaces, switches, daemons, hosts) lives inside. When the outer
process ends in any way, SIGKILL included, the kernel kills PID 1 (PR_SET_PDEATHSIG), with it every
process inside, and then drops the namespaces with all their interfaces and mounts
(pid_namespaces(7)). So there is nothing to clean up, and two testbeds never meet.

Run a command in one by hand: `sudo python -m topologies.sandbox -- COMMAND...`
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import fcntl
import io
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar, cast

from terminal import message, program, stopping
from terminal.arguments import Parser
from terminal.stopping import SIGNALS

T = TypeVar("T")

GRACE = 5.0
"""Seconds between a forwarded signal and SIGKILL."""

_SCRATCH = Path("/run/eloquent-testbed")

# <linux/sched.h>, <linux/mount.h>, <linux/prctl.h>, <linux/if.h>, <linux/sockios.h>
_CLONE_NEWNS, _CLONE_NEWPID, _CLONE_NEWNET = 0x00020000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x8, 0x4000, 0x40000
_PR_SET_PDEATHSIG = 1
_IFF_UP, _SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x1, 0x8913, 0x8914

_libc = ctypes.CDLL(None, use_errno=True)


class SandboxError(RuntimeError):
    """The sandbox cannot be made, or was used in the wrong place."""


def scratch() -> Path:
    """A private tmpfs of this sandbox; it vanishes with it. Raises SandboxError outside of one."""
    if not os.path.ismount(_SCRATCH):
        raise SandboxError("not inside a sandbox: start this with topologies.sandbox")
    return _SCRATCH


def run(main: Callable[[], int]) -> int:
    """Run `main` in a new sandbox and return its exit status (128 + signal if it was killed).

    SIGINT, SIGTERM and SIGHUP are passed on: `main` sees KeyboardInterrupt (of terminal.stopping)
    once, however often they come, and has `GRACE` seconds to end before it is killed.

    Raises SandboxError when the sandbox cannot be made. Must be called from the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise SandboxError("a sandbox must be started from the main thread")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or the child would print what is still in the buffer once more
    report_read, report_write = os.pipe()
    alive_read, alive_write = os.pipe()
    child = 0
    asked = False
    alarm, begun = signal.getitimer(signal.ITIMER_REAL), time.monotonic()

    def forward(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
            if not asked:
                signal.setitimer(signal.ITIMER_REAL, GRACE)
            asked = True

    def expire(_number: int, _frame: FrameType | None) -> None:
        if child:  # 0 would be the whole process group
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    heard = [number for number in SIGNALS if not stopping.ignored(number)]
    old = {number: signal.signal(number, forward) for number in heard}
    old[signal.SIGALRM] = signal.signal(signal.SIGALRM, expire)
    try:
        child = _fork_into_new_pid_namespace()
        if child == 0:
            os.close(report_read)
            os.close(alive_write)
            _init(main, report_write, alive_read)
        os.close(report_write)
        report_write = -1
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        with open(report_read, closefd=False) as report:
            problem = report.read()
        _, status = os.waitpid(child, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        child = 0
        for number, handler in old.items():
            signal.signal(number, handler)
        if alarm[0]:  # the caller's own, such as the limit of a test
            left = max(1e-3, alarm[0] - (time.monotonic() - begun))
            signal.setitimer(signal.ITIMER_REAL, left, alarm[1])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        for fd in (report_read, report_write, alive_read, alive_write):
            if fd >= 0:
                os.close(fd)
    if problem:
        raise SandboxError(problem)
    return _exit_status(status)


def call(function: Callable[[], T]) -> T:
    """Run `function` in a new sandbox; return its result or raise its exception.

    Results cross as pickle has them. An exception crosses as itself if its class can be found out
    here and makes it again from its own `__reduce_ex__` (by default: the class called with `args`),
    with the same words; its traceback inside becomes a note. Anything else that cannot cross,
    results too, raises SandboxError with its type, words and traceback.
    """
    with os.fdopen(os.memfd_create("outcome"), "w+b") as file:

        def main() -> int:
            file.write(_outcome(function))
            file.flush()
            return 0

        status = run(main)
        file.seek(0)
        outcome = file.read()
    if not outcome:
        raise SandboxError(f"the function ended its sandbox with status {status}, without a result")
    good, crossed, words = pickle.loads(outcome)
    try:
        value = pickle.loads(crossed)
    except Exception:  # noqa: BLE001 - pickle raises whatever the object's own code does
        raise SandboxError(words) from None
    if good:
        return cast(T, value)
    raise value


class _Pickler(pickle.Pickler):
    """Pickles exceptions as their own classes say, whatever copyreg knows.

    A library may register another way for all exceptions when it is imported (tblib does, and with
    it `distributed`): what crosses would depend on what else the process does.
    """

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, BaseException):
            return value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented


def _pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def _outcome(function: Callable[[], object]) -> bytes:
    """(whether it is a result, the pickled result or exception, words if that cannot be read)."""
    try:
        result = function()
    except Exception as error:  # noqa: BLE001 - it is raised again outside
        return pickle.dumps((False, *_crossing(error)))
    words = f"the result, of type {type(result).__name__}, cannot leave the sandbox"
    try:
        return pickle.dumps((True, _pickled(result), words))
    except Exception as error:  # noqa: BLE001 - pickle raises whatever the object's own code does
        return pickle.dumps((True, b"", f"{words}: {error}"))


def _crossing(error: Exception) -> tuple[bytes, str]:
    """The pickled exception, or nothing if it cannot be made again; its words and traceback."""
    trace = traceback.format_exc()
    words = f"{type(error).__name__}: {error}\n{trace}"
    error.add_note("In the sandbox:\n" + trace)
    try:
        crossed = _pickled(error)
        again = pickle.loads(crossed)  # a class with arguments of its own may fail only here
        same = type(again) is type(error) and str(again) == str(error)
    except Exception:  # noqa: BLE001 - pickle raises whatever the object's own code does
        same = False
    return (crossed if same else b""), words


def _fork_into_new_pid_namespace() -> int:
    """Like os.fork(), with the child as PID 1 of a new PID namespace."""
    # unshare() leaves the caller where it is and only says where its next children are born.
    home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _unshare(_CLONE_NEWPID)
        pid = os.fork()
        if pid:
            _libc.setns(home, _CLONE_NEWPID)
        return pid
    finally:
        os.close(home)


def _init(main: Callable[[], int], report: int, alive: int) -> NoReturn:
    """PID 1 of the sandbox: set it up, fork `main`, reap orphans, exit with main's status."""
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The outer process may have died before that: then nobody holds the pipe's other end.
        # (getppid() is 0 here in any case.)
        if select.select([alive], [], [], 0)[0]:
            os._exit(128 + signal.SIGKILL)
        os.close(alive)
        _unshare(_CLONE_NEWNET | _CLONE_NEWNS)
        _furnish()
        pid = os.fork()
        if pid == 0:
            os.close(report)
            _main(main)
    except BaseException as error:  # noqa: BLE001 - it is raised again outside
        with open(report, "w") as stream:
            stream.write(" ".join(str(error).split()) or type(error).__name__)
        os._exit(1)

    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    # Without handlers the kernel would drop these signals: the process is PID 1.
    for number in SIGNALS:
        if not stopping.ignored(number):
            signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    os.close(report)
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            os._exit(_exit_status(status))


def _main(main: Callable[[], int]) -> NoReturn:
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]
    asked = 0

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = number
        for each in SIGNALS:  # the clean-up must not be interrupted by the same wish again
            signal.signal(each, signal.SIG_IGN)
        if number == signal.SIGHUP:
            stopping.let_go(terminals)
        raise stopping.stop_of(128 + number)

    status: Any = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for number in SIGNALS:
            if not stopping.ignored(number):
                signal.signal(number, stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        status = main()
        if status and asked:  # what failed while it was being stopped is a stop, too
            status = 128 + asked
        sys.stdout.flush()  # now, as whoever takes no more of it may end us (terminal.program)
    except KeyboardInterrupt as error:
        status = stopping.status(error)
    except SystemExit as error:
        status = error.code
        if isinstance(status, str):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:  # noqa: BLE001 - the end of the line: printed, then exit
        traceback.print_exc()
    finally:
        # Not sys.exit(): exit handlers belong to the outer process, which still lives.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, SystemExit):
                stream.flush()
        os._exit((status or 0) & 0xFF)


def _exit_status(status: int) -> int:
    """The shell's way to write a wait status in one number."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _furnish() -> None:
    """Private mounts, a fresh /proc and /sys, lo up, a scratch directory, no IPv6."""
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    safe = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _mount("proc", "/proc", "proc", safe)
    _mount("sysfs", "/sys", "sysfs", safe)
    _SCRATCH.mkdir(mode=0o755, parents=True, exist_ok=True)
    _mount("tmpfs", str(_SCRATCH), "tmpfs", _MS_NOSUID | _MS_NODEV)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sH22x", b"lo", 0))
        flags = struct.unpack_from("16sH", request)[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | _IFF_UP))
    for name in ("all", "default"):  # neighbour discovery is noise on measured links
        with contextlib.suppress(OSError):
            Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")


def _unshare(flags: int) -> None:
    if _libc.unshare(flags) == 0:
        return
    code = ctypes.get_errno()
    if code == errno.EPERM and os.geteuid() != 0:
        raise SandboxError(f"needs root: run it with sudo; you are uid {os.geteuid()}")
    if code == errno.EPERM:
        raise SandboxError(
            "the kernel refuses new namespaces (unshare: Operation not permitted); "
            "a container needs CAP_SYS_ADMIN (docker run --privileged)"
        )
    raise SandboxError(f"the kernel refuses new namespaces (unshare: {os.strerror(code)})")


def _mount(source: str, target: str, kind: str | None, flags: int) -> None:
    kind_bytes = kind.encode() if kind else None
    if _libc.mount(source.encode(), target.encode(), kind_bytes, ctypes.c_ulong(flags), None) != 0:
        text = os.strerror(ctypes.get_errno())
        raise SandboxError(
            f"cannot mount {kind or 'private mounts'} on {target} ({text}); "
            "a container needs CAP_SYS_ADMIN (docker run --privileged)"
        )


def _command(arguments: list[str]) -> int:
    try:
        for number in SIGNALS:
            if not stopping.ignored(number):
                signal.signal(number, signal.SIG_DFL)
        os.execvp(arguments[0], arguments)
    except OSError as error:
        message.error(f"cannot run {arguments[0]}: {error.strerror}")
        return 127


def _cli(arguments: list[str]) -> int:
    parser = Parser(
        prog="python -m topologies.sandbox",
        description="Run a command in private network, mount and process namespaces. Needs root.",
        epilog="examples:\n  sudo python -m topologies.sandbox -- ip link\n"
        "  sudo python -m topologies.sandbox -- bash",
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run"
    )
    arguments = parser.parse_args(arguments).command
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    if not arguments:
        parser.error("there is no command; put it behind --")
    try:
        return run(lambda: _command(arguments))
    except SandboxError as error:
        message.error(error)
        return 2


if __name__ == "__main__":
    program.run(_cli, sys.argv[1:])
