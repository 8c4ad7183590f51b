"""The doctor: what it says about this machine, and about one in which something is broken."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from topologies import sandbox, tc
from topologies.doctor import __main__ as command
from topologies.doctor import (
    kernel_checks,
    leftovers,
    machine_checks,
    measured_link,
    report,
    software_checks,
    timing,
)
from topologies.doctor.check import Check, guarded, in_sandbox, output
from topologies.doctor.examination import FIRST, ITEMS, Examination
from topologies.doctor.measured_link import Belief, Flood
from topologies.doctor.timing import Lateness
from topologies.guest import kernel
from topologies.openvswitch import OpenVSwitch

ROOT = Path(__file__).parent.parent
emulation = pytest.mark.emulation


def doctor(*options: str, **extra: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "topologies.doctor", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
        **extra,
    )


def diagnosis(done: subprocess.CompletedProcess[str]) -> tuple[dict[str, Check], dict[str, Any]]:
    """The checks by name, and the whole object, which has the promised shape."""
    assert done.stderr == ""
    whole = json.loads(done.stdout)
    assert set(whole) == {"checks", "believed", "ok"}
    checks = [Check(**entry) for entry in whole["checks"]]
    for check in checks:
        assert check.status in ("ok", "note", "problem")
        assert check.name and check.finding and "\n" not in check.finding
        assert bool(check.remedy) == (check.status != "ok"), check
    assert whole["ok"] == all(check.status != "problem" for check in checks)
    assert done.returncode == (0 if whole["ok"] else 1)
    assert len({check.name for check in checks}) == len(checks)
    return {check.name: check for check in checks}, whole


def in_a_broken_world(preparation: str) -> tuple[dict[str, Check], dict[str, Any]]:
    """What the doctor says in a sandbox after some shell commands (private mounts)."""

    def main() -> subprocess.CompletedProcess[str]:
        subprocess.run(["bash", "-ec", preparation], check=True)
        return doctor("--json", "--quick")

    return diagnosis(sandbox.call(main))


# This machine.


@emulation
def test_this_machine_is_fit_and_its_links_are_measured() -> None:
    start = time.monotonic()
    done = doctor("--json")
    assert time.monotonic() - start < 30
    checks, whole = diagnosis(done)
    assert whole["ok"], [check for check in checks.values() if check.status == "problem"]
    names = [item.name for item in (*FIRST, *ITEMS)]
    assert set(names) < set(checks)
    assert set(whole["believed"]) == (
        {"user", "netem"} if checks["netem"].status == "ok" else {"user"}
    )
    for name, belief in whole["believed"].items():
        assert belief["backend"] == name
        assert belief["datapath"] in ("user", "kernel")
        assert 0 <= belief["rtt_error_p50"] <= belief["rtt_error_p99"]
        assert belief["rtt_error_p50"] < measured_link.TOLERANCE
        assert belief["answered"] == 1
        held = [flood["rate"] for flood in belief["floods"] if not flood["fault"]]
        assert belief["max_rate"] == max(held) >= 1000
        for flood in belief["floods"]:
            assert flood["sent"] == flood["rate"] * measured_link.SECONDS
            assert 0 < flood["received"] <= flood["sent"]


@emulation
def test_for_people_it_is_one_line_a_check_and_quick_measures_nothing() -> None:
    done = doctor("--quick")
    lines = done.stdout.splitlines()
    assert done.stderr == ""
    assert len(lines) == len(FIRST) + 1 + len(ITEMS) + 1
    assert all(line.split()[0] in ("ok", "note", "problem") for line in lines[:-1])
    assert all((". Remedy: " in line) == (not line.startswith("ok")) for line in lines[:-1])
    assert lines[-1] == "All that is needed is there."
    assert "link user:" not in done.stdout


@pytest.mark.parametrize("words", [("topologies.doctor", "--quick"), ("topologies", "--list")])
def test_a_reader_that_leaves_ends_it_without_a_word(words: tuple[str, ...]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode in (0, 1)  # 0: all was written before


def shell(commands: str) -> str:
    return subprocess.run(["bash", "-c", commands], capture_output=True, text=True).stdout


@emulation
def test_what_is_not_the_testbeds_survives() -> None:
    bridge = "ovs-vsctl -t 5 add-br s1 -- set bridge s1 datapath_type=netdev"
    devices = "ip link add doctor0 type veth peer doctor1; ip link add s1-eth1 type veth peer h1"
    state = "ip -br link; mount; ls -R /run/eloquent-testbed; ip netns"
    # Processes are looked for inside only: outside, other tests' switches come and go.
    look = f"ovs-vsctl show; tc qdisc; pgrep ovs; {state}"

    def main() -> tuple[str, str, dict[str, Check]]:
        with OpenVSwitch():
            shell(f"{bridge}; {devices}; touch /run/eloquent-testbed/foreign")
            before = shell(look)
            checks, _ = diagnosis(doctor("--quick", "--json"))
            return before, shell(look), checks

    host = shell(state)
    before, after, checks = sandbox.call(main)
    for name in ("Bridge s1", "doctor0", "s1-eth1", "foreign"):
        assert name in before
    assert after == before
    assert all(check.status != "problem" for check in checks.values())
    assert shell(state) == host


@emulation
@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_without_a_traceback(number: signal.Signals) -> None:
    before = set(leftovers.running())
    process = subprocess.Popen(
        [sys.executable, "-m", "topologies.doctor"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "left-overs:" in line:  # the last check: now the links are measured
            break
    time.sleep(2)
    assert set(leftovers.running()) - before
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    assert set(leftovers.running()) <= before


# Something is broken, really.


@pytest.mark.nobody
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_without_root_everything_else_is_still_checked() -> None:
    checks, whole = diagnosis(doctor("--json", user=65534, group=65534, extra_groups=[]))
    # udev lets everybody open the device file; where there is none, its mode may be 0600.
    closed = ["tun"] if Path("/dev/net/tun").stat().st_mode & 0o006 != 0o006 else []
    problems = [check.name for check in checks.values() if check.status == "problem"]
    # Timers are late where others use the processor.
    assert [name for name in problems if name != "timers"] == ["root", *closed]
    assert "sudo" in checks["root"].remedy
    for name in ("namespaces", "tap", "veth", "netem", "htb", "openvswitch", "offload"):
        assert checks[name].finding == "not checked: that needs root"
    assert checks["mininet"].status == checks["ryu"].status == "ok"
    assert checks["links"].status == "note"
    assert whole["believed"] == {}


@emulation
def test_without_open_vswitch() -> None:
    place = tc.find("ovs-vswitchd")
    checks, whole = in_a_broken_world(f"mount --bind /dev/null {place}")
    assert not whole["ok"]
    assert checks["openvswitch"].status == "problem"
    assert "ovs-vswitchd is missing" in checks["openvswitch"].finding
    assert checks["openvswitch"].remedy == "sudo ./setup.sh"
    assert checks["programs"].finding == "not on the PATH: ovs-vswitchd"
    assert checks["veth"].status == "ok"


@emulation
def test_with_an_open_vswitch_that_does_not_start() -> None:
    place = tc.find("ovs-vswitchd")
    checks, _ = in_a_broken_world(f"mount --bind /bin/false {place}")
    assert checks["openvswitch"].status == "problem"
    assert "failed" in checks["openvswitch"].finding
    assert checks["programs"].status == "ok"


@emulation
def test_without_tun_and_without_ethtool() -> None:
    ethtool = tc.find("ethtool")
    checks, whole = in_a_broken_world(
        f"mount -t tmpfs none /dev/net; mount --bind /dev/null {ethtool}"
    )
    assert not whole["ok"]
    assert checks["tun"] == Check(
        *("tun", "problem", "cannot open /dev/net/tun (No such file or directory)"),
        "load the module with `modprobe tun`; a container needs --device /dev/net/tun",
    )
    assert checks["tap"].status == "problem"
    assert checks["offload"].finding == "ethtool is not installed"


@emulation
def test_without_the_right_to_make_namespaces() -> None:
    dropped = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    done = subprocess.run(
        [*dropped, sys.executable, "-m", "topologies.doctor", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    checks, whole = diagnosis(done)
    assert not whole["ok"]
    assert checks["namespaces"].status == "problem"
    assert "refuses new namespaces" in checks["namespaces"].finding
    assert "privileged" in checks["namespaces"].remedy
    assert checks["veth"].finding == "not checked: that needs namespaces"
    assert checks["links"].status == "note"


def test_programs_off_the_path(tmp_path: Path) -> None:
    empty = software_checks.check_programs(str(tmp_path))
    assert empty.status == "problem"
    for name in software_checks.PROGRAMS:
        assert name in empty.finding
    for name in software_checks.PROGRAMS:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert software_checks.check_programs(str(tmp_path)).status == "ok"
    (tmp_path / "tc").unlink()
    lacking = software_checks.check_programs(str(tmp_path))
    assert lacking.finding == "not on the PATH: tc"
    if tc.find("tc"):  # it is there, where `su` does not look
        assert "export PATH" in lacking.remedy


def test_a_python_without_packages(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    python = str(bare / "bin" / "python")
    ryu, mininet = software_checks.check_ryu(python), software_checks.check_mininet(python)
    assert ryu.status == mininet.status == "problem"
    assert "No module named 'eventlet'" in ryu.finding
    assert "No module named 'mininet'" in mininet.finding
    assert "No such file" in software_checks.check_ryu(str(bare / "nothing")).finding
    other = software_checks.check_python(bare)
    assert (other.status, other.remedy) == ("note", f"{python} -m topologies.doctor")
    assert software_checks.check_python(tmp_path / "nowhere").status == "ok"
    # It must work before setup.sh has installed anything.
    done = subprocess.run(
        [python, "-m", "topologies.doctor", "--quick", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    checks, _ = diagnosis(done)
    assert done.returncode == 1
    assert checks["model"].status == "note"
    assert "torch" in checks["model"].finding


def test_congestion_controls(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    listed.write_text("reno bbr\n")
    lacking = kernel_checks.check_congestion(listed)
    assert lacking.status == "problem"
    assert lacking.finding == "TCP's cubic is missing; there are: reno, bbr"
    assert lacking.remedy == "modprobe tcp_cubic"
    listed.write_text("reno cubic\n")
    assert kernel_checks.check_congestion(listed).status == "ok"
    assert kernel_checks.check_congestion(tmp_path / "none").status == "problem"


def test_disk_memory_and_load(tmp_path: Path) -> None:
    huge = 1 << 60
    assert machine_checks.check_disk(tmp_path, needed=huge, wanted=huge).status == "problem"
    assert machine_checks.check_disk(tmp_path, needed=0, wanted=huge).status == "note"
    assert machine_checks.check_disk(tmp_path, needed=0, wanted=0).status == "ok"
    info = tmp_path / "meminfo"
    for mebibytes, status in ((100, "problem"), (800, "note"), (4000, "ok")):
        info.write_text(f"MemTotal: 1 kB\nMemAvailable:  {mebibytes * 1024} kB\n")
        assert machine_checks.check_memory(info).status == status
    assert machine_checks.check_cores(load=0.1, cores=1).status == "note"
    assert machine_checks.check_cores(load=0.1, cores=4).status == "ok"
    assert "busy" in machine_checks.check_cores(load=3.9, cores=4).finding


def test_timers() -> None:
    late = timing.measured(promptly=False)
    assert 0 < late.p50 <= late.p99
    assert not late.realtime
    assert os.sched_getscheduler(0) == os.SCHED_OTHER  # it was another thread's
    good = Lateness(0.0001, 0.0002, 5e-5, True)
    assert timing.judge(late, good).status == "ok"
    assert timing.judge(late, Lateness(0.0001, 0.004, 0, True)).status == "note"
    assert timing.judge(late, Lateness(0.0001, 0.0002, 0, False)).status == "note"
    assert timing.judge(late, Lateness(0.003, 0.004, 0, True)).status == "problem"
    assert timing.check_clock().status == "ok"


def test_no_guest_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ELOQUENT_GUEST", raising=False)
    found = software_checks.check_guest()
    assert (found.status, found.remedy) == ("note", "./setup.sh --virtual")
    (tmp_path / "eloquent-testbed" / "guest-kernel").parent.mkdir()
    (tmp_path / "eloquent-testbed" / "guest-kernel").symlink_to("guest-kernel")  # a loop
    assert software_checks.check_guest().status == "note"
    monkeypatch.setenv("ELOQUENT_GUEST", "real")
    assert software_checks.check_guest().status == "ok"


def test_left_overs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    scratch, temporary = tmp_path / "scratch", tmp_path / "tmp"
    cache = kernel.cache()
    for folder in (scratch, temporary, cache):
        folder.mkdir(parents=True)
    assert "of earlier runs:" not in leftovers.check_leftovers(scratch, temporary).finding
    (scratch / "conf.db").write_text("")
    old = [temporary / "eloquent-guest-a", temporary / "eloquent-traces-b"]
    used, foreign = temporary / "eloquent-guest-used", temporary / "other"
    for folder in (*old, used, foreign):
        folder.mkdir()
        os.utime(folder, (0, 0))
    (temporary / "eloquent-guest-young").mkdir()
    (cache / "building-x").mkdir()
    (cache / "lock").touch()
    worker = subprocess.Popen(["sleep", "60"], cwd=used)
    try:
        finding = leftovers.check_leftovers(scratch, temporary)
        assert finding.status == "note"
        # While a guest runs (here: one at work in `used`), recorded answers may be in use.
        wanted = {str(path) for path in (scratch / "conf.db", old[0], cache / "building-x")}
        assert set(finding.remedy.removeprefix("sudo rm -rf ").split()) == wanted
    finally:
        worker.kill()
        worker.wait()
    finding = leftovers.check_leftovers(scratch, temporary)
    assert str(old[1]) in finding.remedy
    assert str(used) in finding.remedy
    assert "other" not in finding.remedy.split("/")
    # A builder at work holds the lock.
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "building-x" not in leftovers.check_leftovers(scratch, temporary).finding
    assert (scratch / "conf.db").exists() and old[0].exists()  # only reported


@emulation
def test_a_running_testbed_is_named() -> None:
    code = "from topologies import sandbox; import time; sandbox.run(lambda: time.sleep(60))"
    other = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    try:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if any(line.startswith(f"{other.pid}: ") for line in leftovers.running()):
                return
            time.sleep(0.1)
        pytest.fail(f"{other.pid} is not among {leftovers.running()}")
    finally:
        other.kill()
        other.wait()


# The machinery.


def test_a_check_that_fails_is_a_line() -> None:
    def fail() -> Check:
        raise ZeroDivisionError("two\nlines")

    failed = guarded("x", fail)
    assert (failed.status, failed.name) == ("problem", "x")
    assert "ZeroDivisionError: two lines" in failed.finding
    assert failed.remedy


@emulation
def test_a_check_that_hangs_is_a_line() -> None:
    def hang() -> Check:
        time.sleep(60)
        raise AssertionError

    failed = guarded("x", lambda: in_sandbox(hang, 0.2))
    assert failed.status == "problem"
    assert "TimeoutError: no end within 0.2 s" in failed.finding


def test_output_of_programs() -> None:
    assert output(["sh", "-c", "echo a"]) == (True, "a")
    assert output(["sh", "-c", "echo a >&2; echo b >&2; exit 3"]) == (False, "b")
    assert output(["sh", "-c", "exit 3"]) == (False, "exit status 3")
    assert output(["/no/such"]) == (False, "/no/such: No such file or directory")


def belief(**changed: Any) -> Belief:
    return Belief("user", "user", 0.0003, 0.0006, 1.0, **changed)


def test_what_is_believed() -> None:
    good = belief(max_rate=30_000, floods=[Flood(30_000, 30_000, 30_000, 3e4, 0, 0, "")])
    assert good.sentence() == (
        "link back end user: delay within 0.60 ms (P99; P50 0.30 ms) at 1,000 packets/s; "
        "up to 30,000 packets/s without loss"
    )
    assert measured_link.judge(good).status == "ok"
    bad = Flood(2000, 2000, 1500, 2e3, 0.001, 0.002, "at 2,000, 500 of 2,000 were lost")
    slow = belief(floods=[bad], limit=bad.fault)
    assert not bad.held
    assert "no rate without loss (at 2,000, 500" in slow.sentence()
    assert measured_link.judge(slow).status == "note"
    assert "no rate was tried" in belief(limit="no time was left").sentence()
    late = Belief("user", "user", 0.003, 0.006, 1.0)
    assert measured_link.judge(late).status == "problem"
    assert measured_link.judge(Belief("user", "user", 0.0, 0.0, 0.5)).status == "problem"


def test_the_conclusion_names_the_problems() -> None:
    examination = Examination()
    examination.found = [Check("a", "ok", "fine"), Check("b", "note", "so so", "mend it")]
    assert report.conclusion(examination) == ["All that is needed is there."]
    examination.found += [Check("c", "problem", "bad", "buy one")]
    examination.believed["user"] = belief()
    lines = report.conclusion(examination)
    assert lines[0] == "This machine can be believed to emulate:"
    assert lines[-1] == "1 problem: c"
    assert report.line(examination.found[2]) == "problem  c:            bad. Remedy: buy one"


def test_help_and_bad_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--help"])
    assert ended.value.code == 0
    assert "examples:" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        command.main(["--fast"])
    assert ended.value.code == 2


def test_even_a_failure_of_its_own_has_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: bool) -> int:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(command, "_examine", fail)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert command.main([]) == 1
    assert "(on purpose)" in capsys.readouterr().err
