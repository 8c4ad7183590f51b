"""Handovers: the controller's paths without any switch, and the scenario as a user runs it."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from analysis.capture_file import frames
from analysis.results import load
from apps.path_switch import (
    DRAIN,
    MARK,
    MARK_MASK,
    PRIORITY,
    Count,
    PathError,
    PathSwitch,
    Rule,
)
from apps.pcapng import INBOUND, PcapngWriter
from scenarios import handover
from scenarios.stage import Timeline, merge_captures
from topologies.profile import ProfileError

SCRIPT = Path(__file__).parent.parent / "scenarios" / "handover.py"
MARKED = f"eloquent-test-{os.getpid()}"
emulation = pytest.mark.emulation

MAC, FIRST, SECOND = "00:00:00:00:00:01", "10.0.0.1", "10.0.0.101"
PATHS = {
    "a": [["s1-eth1", "s1-eth2"], ["s3-eth1", "s3-eth3"]],
    "b": [["s2-eth1", "s2-eth2"], ["s3-eth2", "s3-eth3"]],
}


class Table:
    """Three switches as OpenFlow has them: rules, the highest priority wins, cookies."""

    def __init__(self) -> None:
        self.names = {
            f"s{switch}-eth{port}": (switch, port)
            for switch, ports in ((1, 2), (2, 2), (3, 3))
            for port in range(1, ports + 1)
        }
        self.rules: list[Rule] = []
        self.hits: dict[int, int] = {}
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.log: list[str] = []

    def ports(self) -> Mapping[str, tuple[int, int]]:
        return self.names

    def add(self, rule: Rule) -> None:
        self.log.append(f"add {rule.datapath}")
        self.rules.append(rule)

    def remove(self, datapath: int, cookie: int, mask: int) -> None:
        self.log.append(f"remove {datapath}")
        gone = [r for r in self.rules if r.datapath == datapath and r.cookie & mask == cookie]
        self.rules = [rule for rule in self.rules if rule not in gone]
        for rule in gone:
            hits = self.hits.pop(id(rule), 0)
            self.paths.removed(Count(rule.cookie, hits, 100 * hits))

    def barrier(self, datapath: int) -> None:
        self.log.append(f"barrier {datapath}")

    def counts(self, datapath: int, cookie: int, mask: int) -> list[Count]:
        return [
            Count(rule.cookie, self.hits.get(id(rule), 0), 100 * self.hits.get(id(rule), 0))
            for rule in self.rules
            if rule.datapath == datapath and rule.cookie & mask == cookie
        ]

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        self.later.append((seconds, function))

    def packet(self, datapath: int, **fields: Any) -> int | None:
        """Where a packet goes; a rule that takes it counts."""
        fitting = [
            rule
            for rule in self.rules
            if rule.datapath == datapath
            and all(fields.get(name) == value for name, value in rule.match.items())
        ]
        rule = max(fitting, key=lambda rule: rule.priority)
        self.hits[id(rule)] = self.hits.get(id(rule), 0) + 1
        return rule.output

    paths: PathSwitch


def up(table: Table, access: int, address: str = FIRST) -> bool:
    """Whether a packet of the client's gets to the server through s1 or s2."""
    common = {"eth_type": 0x0800, "eth_src": MAC, "ipv4_src": address}
    if table.packet(access, in_port=1, **common) is None:
        return False
    return table.packet(3, in_port=access, **common) == 3


def down(table: Table, address: str = FIRST) -> int | None:
    """The switch, 1 or 2, through which a packet of the server's gets to the client."""
    common = {"eth_type": 0x0800, "eth_dst": MAC, "ipv4_dst": address}
    access = table.packet(3, in_port=3, **common)
    if access is None or table.packet(access, in_port=2, **common) != 1:
        return None
    return access


@pytest.fixture
def table() -> Table:
    found = Table()
    found.paths = PathSwitch(found, clock=lambda: 7.0)
    return found


def do(table: Table, command: str, **more: Any) -> dict[str, Any]:
    return table.paths.handle(json.dumps({"do": command, **more}))


def ready(table: Table) -> None:
    assert do(table, "paths", client=MAC, paths=PATHS) == {"paths": ["a", "b"]}


def test_nothing_passes_before_the_first_move(table: Table) -> None:
    ready(table)
    assert not up(table, 1) and not up(table, 2) and down(table) is None
    assert do(table, "move", path="a", address=FIRST) == {"path": "a", "address": FIRST, "at": 7.0}
    assert up(table, 1) and not up(table, 2) and down(table) == 1


def test_make_before_break(table: Table) -> None:
    ready(table)
    do(table, "move", path="a", address=FIRST)
    table.log.clear()
    table.later.clear()
    do(table, "move", path="b")
    # The last switch, which sends packets the new way, is told when that way is whole.
    assert table.log == ["add 2", "add 2", "barrier 2", "add 3", "add 3", "barrier 3"]
    assert down(table) == 2
    assert up(table, 1) and up(table, 2)  # what is on its way still arrives
    ((delay, drained),) = table.later
    assert delay == DRAIN
    drained()
    assert not up(table, 1)
    assert up(table, 2) and down(table) == 2


def test_break_before_make_with_another_address(table: Table) -> None:
    ready(table)
    do(table, "move", path="a", address=FIRST)
    assert do(table, "move", path=None)["path"] is None
    assert not up(table, 1) and not up(table, 2) and down(table) is None
    do(table, "move", path="b", address=SECOND)
    assert up(table, 2, SECOND) and down(table, SECOND) == 2
    # The second network does not know the address of the first.
    assert not up(table, 2, FIRST) and down(table, FIRST) is None
    for _, drained in table.later:
        drained()
    assert up(table, 2, SECOND) and not up(table, 1, FIRST)


def test_counters_keep_what_removed_rules_had_counted(table: Table) -> None:
    ready(table)
    do(table, "move", path="a", address=FIRST)
    up(table, 1)
    down(table)
    do(table, "move", path=None)
    down(table)
    do(table, "move", path="b")
    for _ in range(3):
        up(table, 2)
    before = do(table, "counters")["paths"]
    for _, drained in table.later:
        drained()
    after = do(table, "counters")
    assert after["paths"] == before
    assert after["at"] == 7.0
    assert after["paths"] == {
        "a": {"up": {"packets": 1, "bytes": 100}, "down": {"packets": 1, "bytes": 100}},
        "b": {"up": {"packets": 3, "bytes": 300}, "down": {"packets": 0, "bytes": 0}},
        "none": {"up": {"packets": 0, "bytes": 0}, "down": {"packets": 1, "bytes": 100}},
    }


def test_there_and_back_within_the_drain(table: Table) -> None:
    ready(table)
    do(table, "move", path="a", address=FIRST)
    do(table, "move", path="b")
    do(table, "move", path="a")
    for _, drained in table.later:
        drained()
    assert up(table, 1) and down(table) == 1 and not up(table, 2)
    assert do(table, "counters")["paths"]["a"]["up"]["packets"] == 1
    # Rules do not pile up: those that drop, and one path's.
    assert len(table.rules) == 2 * 3 + 2 * 2


def test_rules_of_a_dead_controller_are_replaced(table: Table) -> None:
    ready(table)
    do(table, "move", path="a", address=FIRST)
    table.paths = PathSwitch(table)
    ready(table)
    assert not up(table, 1) and down(table) is None
    do(table, "move", path="b", address=FIRST)
    assert up(table, 2) and down(table) == 2


def test_rules_are_marked_and_above_learned_ones(table: Table) -> None:
    ready(table)
    do(table, "move", path="a", address=FIRST)
    assert all(rule.cookie & MARK_MASK == MARK for rule in table.rules)
    assert min(rule.priority for rule in table.rules) == PRIORITY > 1


def test_the_state(table: Table) -> None:
    empty: dict[str, Any] = {"path": None, "address": None, "paths": [], "moves": 0, "missing": []}
    assert do(table, "state") == empty
    ready(table)
    do(table, "move", path="a", address=FIRST)
    del table.names["s2-eth2"]
    assert do(table, "state") == {
        "path": "a",
        "address": FIRST,
        "paths": ["a", "b"],
        "moves": 1,
        "missing": ["s2-eth2"],
    }


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("move", "no JSON"),
        ("[]", "JSON object"),
        ("{}", "no command None"),
        ('{"do": ["move"]}', "no command"),
        ('{"do": "dance"}', "do paths, move, state, counters"),
        ('{"do": "state", "loud": 1}', "state has no 'loud'"),
        ('{"do": "move", "path": "c"}', "no path 'c': there are a, b"),
        ('{"do": "move", "path": ["a"]}', "no path"),
        ('{"do": "move", "path": "a"}', "needs the client's address"),
        ('{"do": "move", "path": "a", "address": 1}', "needs the client's address"),
        ('{"do": "paths"}', "needs client"),
        ('{"do": "paths", "client": "x", "paths": {"a": [["s1-eth1", "s3-eth1"]]}}', "two switch"),
        ('{"do": "paths", "client": "x", "paths": {"a": [["s1-eth1", "s9-eth1"]]}}', "no port"),
        ('{"do": "paths", "client": "x", "paths": {"a": [["s1-eth1", 5]]}}', "no port 5"),
        ('{"do": "paths", "client": "x", "paths": {"a": [["s1-eth1", []]]}}', "no port []"),
        ('{"do": "paths", "client": "x", "paths": {"a": ["s1"]}}', "no pair"),
        ('{"do": "paths", "client": "x", "paths": {"a": []}}', "needs a list"),
        (
            '{"do": "paths", "client": "x", "paths": {"none": [["s1-eth1", "s1-eth2"]]}}',
            "called none",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line_and_changes_nothing(
    table: Table, line: str, word: str
) -> None:
    ready(table)
    rules = list(table.rules)
    error = table.paths.handle(line)["error"]
    assert word in error and "\n" not in error
    assert table.rules == rules


def test_before_there_are_paths(table: Table) -> None:
    assert "do paths first" in do(table, "move", path="a", address=FIRST)["error"]
    assert do(table, "counters")["paths"]["none"]["up"]["packets"] == 0


def test_a_switch_that_has_gone(table: Table) -> None:
    ready(table)
    do(table, "move", path="a", address=FIRST)
    do(table, "move", path="b")
    del table.names["s3-eth1"]
    assert "s3-eth1 is not connected" in do(table, "move", path="a")["error"]
    assert "not connected" in do(table, "counters")["error"]
    for _, drained in table.later:
        drained()  # says nothing


def test_one_move_at_a_time(table: Table) -> None:
    ready(table)
    answers: list[dict[str, Any]] = []

    def meanwhile(datapath: int) -> None:
        answers.append(do(table, "move", path="b", address=FIRST))

    table.barrier = meanwhile  # type: ignore[method-assign]
    assert do(table, "move", path="a", address=FIRST)["path"] == "a"
    assert all("under way" in answer["error"] for answer in answers) and answers


def test_a_switch_that_does_not_answer_is_one_line(table: Table) -> None:
    ready(table)

    def silent(datapath: int) -> None:
        raise PathError("switch 1 did not answer in 5 s")

    table.barrier = silent  # type: ignore[method-assign]
    assert "did not answer" in do(table, "move", path="a", address=FIRST)["error"]


# -- the stage ------------------------------------------------------------------------------------


def test_a_timeline_acts_in_order_and_stops() -> None:
    done: list[str] = []
    epoch = time.monotonic()
    actions = [(0.0, lambda: done.append("now")), (0.05, lambda: done.append("then"))]
    actions.append((60.0, lambda: done.append("never")))
    with Timeline(lambda _: iter(actions)) as timeline:
        timeline.start(epoch, lambda: done.append("failed"))
        time.sleep(0.3)
    assert done == ["now", "then"]
    with Timeline(lambda _: iter(actions)):
        pass  # the first token never came
    assert len(done) == 2


def test_an_action_that_fails_ends_the_run_with_its_error() -> None:
    failed: list[bool] = []

    def action() -> None:
        raise ProfileError("no")

    def play() -> None:
        with Timeline(lambda _: iter([(0.0, action)])) as timeline:
            timeline.start(time.monotonic(), lambda: failed.append(True))
            time.sleep(0.2)
            raise RuntimeError("the client was killed")  # is not what the user needs to read

    with pytest.raises(ProfileError, match="no"):
        play()
    assert failed == [True]


def test_captures_of_two_interfaces_become_one(tmp_path: Path) -> None:
    parts = [tmp_path / "a.pcapng", tmp_path / "b.pcapng"]
    stamps = {parts[0]: (1, 4, 5), parts[1]: (2, 3, 6)}
    for part, times in stamps.items():
        writer = PcapngWriter(str(part), f"eth-{part.stem}")
        for stamp in times:
            frame = bytes(12) + struct.pack(">H", 0x0800) + bytes(stamp)
            writer.packet(frame, stamp * 10**9 + 1, INBOUND)
        writer.f.close()
    merge_captures(parts, tmp_path / "both.pcapng")
    found = list(frames(tmp_path / "both.pcapng"))
    assert [round(frame.time) for frame in found] == [1, 2, 3, 4, 5, 6]
    assert [frame.size for frame in found] == [15, 16, 17, 18, 19, 20]


@pytest.mark.parametrize(("at", "gap"), [(-1, 0.3), (4, -0.1), (4, 0.01)])
def test_values_that_make_no_handover(at: float, gap: float) -> None:
    with pytest.raises(ProfileError, match="gap 0 or at least"):
        handover.network(at, gap)


def test_the_gap_is_in_the_profile_for_engines_without_switches() -> None:
    access = handover.network(4.0, 0.3).access
    channel = access.channel("down", "access", 1)
    channel.epoch = 0.0
    assert [channel.loss_at(t) for t in (3.9, 4.1, 4.4)] == [0, 1, 0]
    assert handover.network(4.0, 0.0).access.down.loss is None


def test_simulated(tmp_path: Path) -> None:
    options = ["--engine", "simulated", "--quick", "--json", "--out", str(tmp_path / "out")]
    done = run(*options)
    assert done.returncode == 0, done.stderr
    for scheme in json.loads(done.stdout)["schemes"].values():
        assert scheme["tokens_lost"]["mean"] == 0


# -- as a user runs it ----------------------------------------------------------------------------


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *options],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@dataclasses.dataclass
class Seen:
    summary: dict[str, Any]
    out: Path
    stderr: str

    @property
    def details(self) -> list[dict[str, Any]]:
        return json.loads((self.out / "manifest.json").read_text())["run_details"]

    def counters(self, scheme: str, path: str, way: str) -> list[tuple[float, int]]:
        """Time and packets so far, sample by sample."""
        with (self.out / "paths.csv").open() as file:
            return [
                (float(row["time"]), int(row["packets"]))
                for row in csv.DictReader(file)
                if (row["scheme"], row["path"], row["direction"]) == (scheme, path, way)
            ]

    def wait(self, scheme: str) -> float:
        """The longest time between two tokens around the handover."""
        (detail,) = [d["handover"] for d in self.details if d["scheme"] == scheme]
        tokens = load(self.out).tokens
        shown = tokens[tokens["scheme"] == scheme]["rendered_at"].tolist()
        around = [(a, b) for a, b in itertools.pairwise(shown) if b > detail["asked"]]
        return max(b - a for a, b in around if a < detail["works"] + 0.5)


def a_run(out: Path, *options: str) -> Seen:
    done = run("--quick", "--json", "--out", str(out), *options)
    assert done.returncode == 0, done.stderr
    return Seen(json.loads(done.stdout), out, done.stderr)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Break before make, all default values."""
    return a_run(tmp_path_factory.mktemp("break") / "out")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Make before break."""
    out = tmp_path_factory.mktemp("make") / "out"
    return a_run(out, "--gap", "0", "--at", "2", "--tokens", "80", "--schemes", "eloquent,tcp")


@emulation
def test_no_token_is_lost_in_a_break(broken: Seen) -> None:
    assert set(broken.summary["schemes"]) == {"eloquent", "duplicate", "tcp"}
    for columns in broken.summary["schemes"].values():
        assert columns["tokens_lost"]["mean"] == 0
        assert columns["tokens"]["mean"] == 120
    assert "tcp may keep the client's address" in broken.stderr


@emulation
def test_the_break_lasts_as_long_as_it_should(broken: Seen) -> None:
    for detail in broken.details:
        seen = detail["handover"]
        assert seen["gone"] == pytest.approx(4.0, abs=0.1)
        assert seen["works"] - seen["gone"] == pytest.approx(0.3, abs=0.1)
        second = FIRST if detail["scheme"] == "tcp" else SECOND
        assert seen["addresses"] == [FIRST, second]
        assert seen["controller"] == "running"
        assert detail["probe"]["count"] == detail["probe"]["access_b"]["count"] == 250


@emulation
def test_the_stall_after_a_break(broken: Seen) -> None:
    """Gap, one round trip (42 ms), 300 ms; and a busy machine may take some more."""
    for scheme in ("eloquent", "duplicate"):
        assert 0.3 < broken.wait(scheme) < 0.3 + 0.042 + 0.3 + 0.15


@emulation
@pytest.mark.parametrize("scheme", ["eloquent", "duplicate", "tcp"])
def test_counters_of_a_break(broken: Seen, scheme: str) -> None:
    for way in ("up", "down"):
        first = broken.counters(scheme, "access-a", way)
        second = broken.counters(scheme, "access-b", way)
        assert all(packets == 0 for at, packets in second if at < 4.0)
        before = [packets for at, packets in first if at < 3.9]
        assert before == sorted(before) and before[-1] > 30
        # Nothing more on the old path once its last packets have been counted.
        assert len({packets for at, packets in first if at > 4.4}) == 1
        assert second[-1][1] > 20
    # The server goes on during the gap; those packets are on no path.
    assert broken.counters(scheme, "none", "down")[-1][1] > 2


@emulation
def test_counters_agree_with_the_captures(made: Seen) -> None:
    """Without a break and without losses each packet is on one of the paths."""
    packets = load(made.out).packets
    for scheme in ("eloquent", "tcp"):
        sent = packets[(packets["scheme"] == scheme) & (packets["direction"] == "sent")]
        for host, way in (("client", "up"), ("server", "down")):
            counted = sum(
                made.counters(scheme, path, way)[-1][1] for path in ("access-a", "access-b")
            )
            # IPv6 is off and ARP static: nothing else is sent but by chance of timing.
            assert abs(counted - len(sent[sent["host"] == host])) <= 3
        assert made.counters(scheme, "none", "down")[-1][1] == 0


@emulation
def test_make_before_break_is_not_seen_by_the_reader(made: Seen) -> None:
    for scheme, columns in made.summary["schemes"].items():
        assert columns["tokens_lost"]["mean"] == 0
        assert made.wait(scheme) < 0.25
        for way in ("up", "down"):
            second = made.counters(scheme, "access-b", way)
            assert all(packets == 0 for at, packets in second if at < 2.0)
            assert second[-1][1] > 20
            first = made.counters(scheme, "access-a", way)
            assert len({packets for at, packets in first if at > 2.4}) == 1
    for detail in made.details:
        assert detail["handover"]["addresses"] == [FIRST, FIRST]


@emulation
def test_captures_hold_both_interfaces(broken: Seen) -> None:
    names = {path.name for path in (broken.out / "pcap").iterdir()}
    assert "eloquent-run01-client.pcapng" in names and len(names) == 6
    packets = load(broken.out).packets
    mine = packets[(packets["scheme"] == "eloquent") & (packets["host"] == "client")]
    assert (mine["time"] < 4).any() and (mine["time"] > 4.5).any()


def killed_in_mid_run(out: Path, seconds: float) -> tuple[int, str]:
    """A run with a handover at 3 s whose controller is killed at so many seconds."""
    options = ["--quick", "--schemes", "eloquent", "--at", "3", "--tokens", "100"]
    child = subprocess.Popen(
        [sys.executable, str(SCRIPT), *options, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"STARTED_BY": MARKED},
    )
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and child.poll() is None:
        lines = (out / "paths.csv").read_text().splitlines() if (out / "paths.csv").exists() else []
        if len(lines) > 1 and float(lines[-1].split(",")[2]) >= seconds:
            break
        time.sleep(0.05)
    assert child.poll() is None, child.communicate()[1]
    os.kill(controller_of_this_test(), signal.SIGKILL)
    _, stderr = child.communicate(timeout=150)
    return child.returncode, stderr


def controller_of_this_test() -> int:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                mine = MARKED.encode() in (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if mine and b"apps.controller" in command:
                found.append(int(entry.name))
    (pid,) = found
    return pid


@emulation
def test_a_controller_killed_after_the_handover_is_survived(tmp_path: Path) -> None:
    status, stderr = killed_in_mid_run(tmp_path / "out", 3.9)
    assert status == 0, stderr
    assert "the flows stayed" in stderr and "Traceback" not in stderr
    results = load(tmp_path / "out")
    assert results.summary["tokens_lost"].tolist() == [0]
    (detail,) = json.loads((tmp_path / "out" / "manifest.json").read_text())["run_details"]
    assert "controller" in detail["handover"]["controller"]
    assert detail["handover"]["paths"]["access-a"]["down"]["packets"] > 20


@emulation
def test_a_controller_killed_before_the_handover_is_told(tmp_path: Path) -> None:
    status, stderr = killed_in_mid_run(tmp_path / "out", 1.0)
    assert status == 1, stderr
    assert "error: the controller" in stderr and "move" in stderr
    assert "Traceback" not in stderr


@emulation
def test_an_answer_that_ends_too_early_is_told(tmp_path: Path) -> None:
    options = ["--quick", "--schemes", "eloquent", "--tokens", "20", "--at", "30"]
    done = run(*options, "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    assert "the answer ended before the handover" in done.stderr


@emulation
def test_the_socket_of_a_controller_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    command = [sys.executable, "-m", "apps.controller", "--host", "127.0.0.1", "--port", "0"]
    done = subprocess.run(
        [*command, "--control", str(tmp_path / "file")],
        cwd=SCRIPT.parents[1],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "no socket is there" in done.stderr.splitlines()[0]
    assert (tmp_path / "file").read_text() == "mine"
