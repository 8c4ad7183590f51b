"""The sandbox: what comes back out of it, and that nothing stays behind."""

from __future__ import annotations

import copyreg
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

from topologies import sandbox
from topologies.sandbox import SandboxError

pytestmark = pytest.mark.emulation

ROOT = Path(__file__).parent.parent


class Custom(Exception):
    """An exception that pickle cannot rebuild from its arguments."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


class Worded(Exception):
    """An exception that would come back with other words: "not not x"."""

    def __init__(self, what: str) -> None:
        super().__init__(f"not {what}")


def namespaces(pid: int | str = "self") -> dict[str, str]:
    return {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("net", "mnt", "pid")}


def start(code: str) -> subprocess.Popen[str]:
    """A fresh interpreter that runs `code`, with `sandbox` imported."""
    text = "import os, signal, subprocess, sys, time\nfrom topologies import sandbox\n"
    return subprocess.Popen(
        [sys.executable, "-c", text + textwrap.dedent(code)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def marked(marker: str) -> list[int]:
    """Processes of this machine that have `marker` in their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def until(condition, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_results_and_large_results_come_back():
    assert sandbox.call(lambda: {"a": [1, 2.5, None]}) == {"a": [1, 2.5, None]}
    assert len(sandbox.call(lambda: b"x" * 5_000_000)) == 5_000_000


def test_exceptions_come_back():
    def fail() -> None:
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose") as caught:
        sandbox.call(fail)
    assert "in fail" in "".join(caught.value.__notes__)
    with pytest.raises(SandboxError, match="status 3, without a result"):
        sandbox.call(lambda: os._exit(3))


def fail_with(error: Exception) -> Any:
    """What comes out when `error` is raised in a sandbox."""

    def fail() -> None:
        raise error

    with pytest.raises(Exception) as caught:  # noqa: PT011 - its type is what is asked
        sandbox.call(fail)
    return caught.value


@pytest.fixture(params=["plain", "tblib"])
def taught(request):
    """Without and with a library that teaches pickle to carry any exception."""
    saved = dict(copyreg.dispatch_table)
    for kind in saved:
        if isinstance(kind, type) and issubclass(kind, (BaseException, types.TracebackType)):
            del copyreg.dispatch_table[kind]
    if request.param == "tblib":
        pytest.importorskip("tblib.pickling_support").install()
        assert Custom in copyreg.dispatch_table
    yield
    copyreg.dispatch_table.clear()
    copyreg.dispatch_table.update(saved)


@pytest.mark.usefixtures("taught")
def test_what_crosses_does_not_depend_on_what_is_imported():
    assert type(fail_with(ZeroDivisionError("on purpose"))) is ZeroDivisionError
    missing = fail_with(FileNotFoundError(2, "No such file or directory", "/no/such"))
    assert (type(missing), missing.filename) == (FileNotFoundError, "/no/such")
    process = fail_with(subprocess.CalledProcessError(3, ["false"], b"out"))
    assert (process.returncode, process.cmd, process.output) == (3, ["false"], b"out")
    assert type(fail_with(SandboxError("one"))) is SandboxError

    class Local(Exception):
        """Nobody outside finds this class by its name."""

    for error, words in (
        (Custom(1, 2), "Custom: 1 and 2"),
        (Worded("x"), "Worded: not x"),
        (Local("here"), "Local: here"),
        (ValueError(threading.Lock()), "ValueError: <unlocked _thread.lock"),
    ):
        came = fail_with(error)
        assert type(came) is SandboxError
        assert str(came).startswith(words)
        assert "in fail" in str(came)


@pytest.mark.usefixtures("taught")
def test_exceptions_in_results_cross_by_the_same_rule():
    (value,) = sandbox.call(lambda: [KeyError("k")])
    assert (type(value), value.args) == (KeyError, ("k",))
    with pytest.raises(SandboxError, match="the result, of type list, cannot leave the sandbox"):
        sandbox.call(lambda: [Custom(1, 2)])


def test_a_result_that_cannot_cross_says_so():
    with pytest.raises(SandboxError) as caught:
        sandbox.call(threading.Lock)
    assert str(caught.value) == (
        "the result, of type lock, cannot leave the sandbox: cannot pickle '_thread.lock' object"
    )


@pytest.mark.parametrize("status", [0, 1, 7, 255])
def test_the_exit_status_passes_through(status):
    assert sandbox.run(lambda: status) == status


def test_other_ways_to_end():
    def leave() -> int:
        raise SystemExit(9)

    def die() -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    assert sandbox.run(leave) == 9
    assert sandbox.run(die) == 128 + signal.SIGKILL


def test_everything_is_private():
    before = namespaces()

    def look() -> dict:
        return {
            "namespaces": namespaces(),
            "interfaces": os.listdir("/sys/class/net"),
            "processes": sorted(int(p) for p in os.listdir("/proc") if p.isdigit()),
            "pid": os.getpid(),
            "lo": Path("/sys/class/net/lo/operstate").read_text().strip(),
            "flags": int(Path("/sys/class/net/lo/flags").read_text(), 16),
            "scratch": os.listdir(sandbox.scratch()),
            "written": (sandbox.scratch() / "file").write_text("x"),
        }

    inside = sandbox.call(look)
    for kind, name in before.items():
        assert inside["namespaces"][kind] != name
    assert inside["interfaces"] == ["lo"]
    assert inside["processes"] == [1, inside["pid"]]
    assert inside["flags"] & 1
    assert inside["scratch"] == []
    # The outer process stayed where it was, and sees nothing of it.
    assert namespaces() == before
    assert os.readlink("/proc/self/ns/pid_for_children") == before["pid"]
    assert not Path("/run/eloquent-testbed/file").exists()
    with pytest.raises(SandboxError, match="not inside a sandbox"):
        sandbox.scratch()


def test_signal_handlers_are_restored():
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    sandbox.run(lambda: 0)
    assert handlers == [
        signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    ]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_orphans_are_reaped():
    def leave_orphans() -> list[str]:
        for _ in range(5):
            subprocess.run(["sh", "-c", "sleep 0.05 &"], check=True)
        time.sleep(0.5)
        states = []
        for entry in Path("/proc").glob("[0-9]*"):
            states.append((entry / "stat").read_text().rsplit(")", 1)[1].split()[0])
        return states

    states = sandbox.call(leave_orphans)
    assert len(states) == 2
    assert "Z" not in states


SLEEP = 'print("ready", flush=True); time.sleep(600)'
HANG = """
def main():
    subprocess.run(["ip", "link", "add", "{marker}", "type", "veth", "peer", "name", "peer0"])
    subprocess.Popen(["sleep", "600.{marker}"])
    subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM INT HUP; sleep 600.{marker}; true"])
    time.sleep(0.3)
    {body}
sys.exit(sandbox.run(main))
"""


def test_kill_of_the_outer_process_takes_everything_with_it():
    for delay in (0.0, 0.05, 0.2):
        marker = f"71{os.getpid()}"
        outer = start(HANG.format(marker=marker, body=SLEEP))
        assert outer.stdout is not None
        assert outer.stdout.readline() == "ready\n"
        assert len(marked(f"600.{marker}")) >= 2
        time.sleep(delay)
        outer.kill()
        outer.wait()
        assert until(lambda m=marker: not marked(f"600.{m}"))
        assert marker not in os.listdir("/sys/class/net")


def test_kill_at_any_moment_of_the_start():
    for i in range(10):
        marker = f"72{os.getpid()}"
        outer = start(HANG.format(marker=marker, body=SLEEP))
        time.sleep(0.05 * i)
        outer.kill()
        outer.communicate()
        assert until(lambda m=marker: not marked(m))


def test_a_failure_while_it_is_being_stopped_is_a_stop():
    body = """
    try:
        print("ready", flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        return 1
    """
    outer = start(HANG.format(marker=f"74{os.getpid()}", body=body))
    assert outer.stdout is not None
    assert outer.stdout.readline() == "ready\n"
    outer.send_signal(signal.SIGTERM)
    outer.communicate(timeout=10)
    assert outer.returncode == 143


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_main_in_good_order(number, status):
    body = """
    try:
        print("ready", flush=True)
        time.sleep(600)
    finally:
        time.sleep(0.5)
        print("cleaned up", flush=True)
    """
    outer = start(HANG.format(marker=f"73{os.getpid()}", body=body))
    assert outer.stdout is not None
    assert outer.stdout.readline() == "ready\n"
    began = time.monotonic()
    for _ in range(3):  # a terminal delivers it to everybody, and people press twice
        outer.send_signal(number)
        time.sleep(0.05)
    out, err = outer.communicate(timeout=20)
    assert (out, err, outer.returncode) == ("cleaned up\n", "", status)
    assert time.monotonic() - began < sandbox.GRACE


def test_who_does_not_listen_is_killed():
    body = """
    said = False
    while True:
        try:
            if not said:  # inside: a signal may come right after the line
                said = print("ready", flush=True) is None
            time.sleep(600)
        except BaseException:
            pass
    """
    outer = start(HANG.format(marker=f"74{os.getpid()}", body=body))
    assert outer.stdout is not None
    assert outer.stdout.readline() == "ready\n"
    began = time.monotonic()
    outer.send_signal(signal.SIGTERM)
    outer.communicate(timeout=30)
    assert outer.returncode == 128 + signal.SIGKILL
    assert 0.9 * sandbox.GRACE < time.monotonic() - began < sandbox.GRACE + 5


def command(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "topologies.sandbox", *arguments],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        **options,
    )


def test_command_line():
    result = command("--", "sh", "-c", "ls /sys/class/net; exit 4")
    assert (result.stdout, result.returncode) == ("lo\n", 4)
    missing = command("--", "no-such-command")
    assert missing.returncode == 127
    assert missing.stderr == "error: cannot run no-such-command: No such file or directory\n"
    assert command().returncode == 2


def test_without_root_there_is_one_clear_line(tmp_path):
    code = """
    os.setgid(1000); os.setuid(1000)
    try:
        sandbox.run(lambda: 0)
    except sandbox.SandboxError as error:
        print(error)
    """
    out, err = start(code).communicate(timeout=20)
    assert (out, err) == ("needs root: run it with sudo; you are uid 1000\n", "")
