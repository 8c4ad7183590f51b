"""The guest: what it runs, what it leaves, and how it ends."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from topologies.guest import boot, kernel

pytestmark = pytest.mark.guest
GUEST = [sys.executable, "-m", "topologies.guest"]
CHECKOUT = Path(__file__).parent.parent

NETWORK = """
ip link add name v0 type veth peer name v1
ip netns add far && ip link set v1 netns far
ip addr add 10.0.0.1/24 dev v0 && ip link set v0 up
ip -n far addr add 10.0.0.2/24 dev v1 && ip -n far link set v1 up
tc qdisc add dev v0 root netem delay 20ms 5ms loss 10%
ping -c 100 -i 0.2 10.0.0.2
"""


def guest(*command: str, **options) -> tuple[boot.Result, str, str]:
    out, err = io.BytesIO(), io.BytesIO()
    options = {"timeout": 120.0, **options}
    result = boot.run(command, stdout=out, stderr=err, **options)
    return result, out.getvalue().decode(), err.getvalue().decode()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the guests of one test lie: other tests run guests at the same time.

    Its name is short, as a guest's sockets in it have names of at most 108 bytes.
    """
    with tempfile.TemporaryDirectory(prefix="guests-", dir="/tmp") as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


def leftovers(folder: Path) -> set[str]:
    """What is left of this folder's guests, and files of guests' memory.

    Other tests' semaphores come and go in /dev/shm, so only what User Mode Linux makes counts.
    """
    found = {str(path) for path in [*folder.iterdir(), *Path("/dev/shm").glob("vm_file*")]}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            where = os.readlink(process / "cwd")
        except OSError:
            continue
        if where.startswith(str(folder)):
            found.add(str(process))
    return found


def nothing_is_left(folder: Path, before: set[str]) -> bool:
    """Whether all is as before soon: guests of other tests name their memory for a moment."""
    deadline = time.monotonic() + 10
    while not leftovers(folder) <= before and time.monotonic() < deadline:
        time.sleep(0.05)
    return leftovers(folder) <= before


def test_status_and_both_outputs_reach_the_caller():
    result, out, err = guest("sh", "-c", "id -u; echo problem >&2; exit 7")
    assert (result.status, out, err) == (7, "0\n", "problem\n")
    assert set(result.tail) == {"0", "problem"}


def test_large_outputs_come_whole():
    _, out, _ = guest("sh", "-c", "seq 1 20000")
    assert out == "".join(f"{n}\n" for n in range(1, 20001))


def test_idle_time_is_skipped():
    result, out, _ = guest("sh", "-c", "sleep 600; read up _ </proc/uptime; echo $up")
    assert float(out) >= 600
    assert result.guest_seconds >= 600
    assert result.wall_seconds < 60  # it takes 0.4 s on an idle machine


def test_real_time_is_real():
    result, _, _ = guest("sleep", "2", clock="real")
    assert result.status == 0
    assert result.wall_seconds >= 2


def test_a_seed_repeats_to_the_byte_and_another_does_not():
    first, again, other = (guest("sh", "-c", NETWORK, seed=seed)[1] for seed in (1, 1, 2))
    assert first.count("bytes from") > 70
    assert first == again
    assert first != other


def test_two_at_once_do_not_meet():
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(guest("sh", "-c", NETWORK)[1]))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert "100 packets transmitted" in found[0]


def test_only_the_folders_of_out_are_written(tmp_path):
    kept, lost = tmp_path / "kept", tmp_path / "lost"
    lost.mkdir()
    script = f"echo a >{kept}/file; echo b >{lost}/file; rm -rf /usr/bin"
    guest("bash", "-c", script, out=[kept])
    assert (kept / "file").read_text() == "a\n"
    assert not list(lost.iterdir())
    assert Path("/usr/bin/env").exists()


def test_a_hanging_guest_is_ended_and_says_where_it_stood(folder):
    before = leftovers(folder)
    with pytest.raises(boot.GuestError, match=r"did not end within 3 s.*halfway"):
        guest("sh", "-c", "echo halfway; sleep 1; while :; do :; done", timeout=3.0)
    assert nothing_is_left(folder, before)


def test_a_guest_that_dies_says_so():
    with pytest.raises(boot.GuestError, match=r"ended before its command did.*last words"):
        guest("sh", "-c", "echo last words; sleep 1; poweroff -f")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_caller_is_the_end_of_the_guest(number, folder):
    before = leftovers(folder)
    command = [*GUEST, "--time", "real", "--", "sh", "-c", "sleep 1000 & sleep 1001 & wait"]
    process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while leftovers(folder) <= before and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.0)  # until it is in the midst of its command
    assert not leftovers(folder) <= before
    process.send_signal(number)
    process.wait(20)
    assert nothing_is_left(folder, before)
    if number == signal.SIGINT:
        assert process.returncode == 130


@pytest.mark.nobody
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_with_a_read_only_cache(tmp_path):
    home = Path("/tmp") / f"eloquent-test-home-{os.getpid()}"
    try:
        folder = kernel.find().program.parent
        cache = home / "cache" / "eloquent-testbed" / "guest-kernel"
        shutil.copytree(folder, cache / folder.name)
        for path in [home, *home.rglob("*")]:
            path.chmod(0o555)
        user = [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--bounding-set=-all",
        ]
        environment = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
        done = subprocess.run(
            [*user, *GUEST, "--", "sh", "-c", NETWORK],
            cwd=CHECKOUT,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        for path in [home, *home.rglob("*")]:
            path.chmod(0o755)
        shutil.rmtree(home)
    assert done.returncode == 0, done.stderr
    assert "100 packets transmitted" in done.stdout


def test_little_memory_will_do():
    assert guest("sh", "-c", NETWORK, memory=192)[0].status == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "there is no command; put it behind --"),
        (["--memory", "5", "--", "true"], "--memory must be at least 128 MiB, not 5"),
        (["--timeout", "0", "--", "true"], "--timeout must be above 0 s, not 0"),
    ],
)
def test_bad_options(arguments, line):
    done = subprocess.run([*GUEST, *arguments], cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 2
    assert line in done.stderr
