"""Fate logs: what a link wrote down happens again, bit for bit, through a real forwarder.

The forwarder's two devices are pairs of sockets, so no network and no root is needed.
"""

from __future__ import annotations

import csv
import math
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from topologies.channel import Bernoulli, Bottleneck, Channel, ChannelError, DelayModel, Fate
from topologies.channel.replay import FATE_COLUMNS, ReplayChannel, read_fates
from topologies.forwarder import Forwarder
from topologies.profile import Direction, LinkProfile

HEADER = ",".join(FATE_COLUMNS) + "\n"
WILD = Direction(
    0.004,
    0.001,
    Bernoulli(0.2),
    Bottleneck(20e6, queue_packets=1),
    duplicate=0.2,
    corrupt=0.2,
)
PROFILE = LinkProfile("x", WILD, WILD, "test", mtu=400)
N = 250


class Link:
    """A forwarder in a thread, and the two far ends of its devices."""

    def __init__(self, profile: LinkProfile) -> None:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        self.ends = [end for end, _ in pairs]
        self._devices = [device for _, device in pairs]
        for device in self._devices:
            device.setblocking(False)
        channels = profile.channel("up", "access"), profile.channel("down", "access")
        first, second = (device.fileno() for device in self._devices)
        self.forwarder = Forwarder((first, second), channels)
        self._read, self._write = os.pipe()
        self._orders: list[Callable[[], Any]] = []
        self._done = threading.Event()
        self.forwarder.watch(self._read, self._obey)
        self._thread = threading.Thread(target=self.forwarder.run, daemon=True)
        self._thread.start()

    def _obey(self) -> None:
        os.read(self._read, 1)
        self._orders.pop(0)()
        self._done.set()

    def ask(self, order: Callable[[], Any]) -> None:
        """Have it done in the forwarder's own loop."""
        self._done.clear()
        self._orders.append(order)
        os.write(self._write, b"x")
        assert self._done.wait(10)

    def drain(self, seconds: float) -> list[tuple[int, bytes]]:
        """What arrives at the ends, until nothing more does for some time."""
        seen = []
        while ready := select.select(self.ends, [], [], seconds)[0]:
            for end in ready:
                seen.append((self.ends.index(end), end.recv(2000)))
        return seen

    def talk(self, n: int = N) -> list[tuple[int, bytes]]:
        """Frames both ways, some of them above the mtu, in bursts; what arrives."""
        seen = []
        for i in range(n):
            for way, end in enumerate(self.ends):
                end.send(frame(i, 500 if i % 17 == 3 else 60 + i))
                if (i + way) % 3:
                    seen += self.drain(0.0)
            time.sleep(0.0003)
        return seen + self.drain(0.05)

    def close(self) -> None:
        self.ask(self.forwarder.stop)
        self._thread.join(10)
        for part in (*self.ends, *self._devices):
            part.close()
        os.close(self._read)
        os.close(self._write)


def frame(number: int, size: int = 100) -> bytes:
    return b"\2" * 12 + b"\x08\x00" + number.to_bytes(2, "big") + bytes(size - 16)


@contextmanager
def link(profile: LinkProfile = PROFILE) -> Iterator[Link]:
    made = Link(profile)
    try:
        yield made
    finally:
        made.close()


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as lines:
        return list(csv.DictReader(lines))


def by_frame(path: Path) -> dict[tuple[str, int, bool], dict[str, str]]:
    """By direction, number, and whether it is the copy."""
    return {
        (row["direction"], int(row["number"]), row["fate"] == "copy"): row for row in rows(path)
    }


def fate(row: dict[str, str]) -> tuple[str, str, str]:
    return row["size"], row["fate"], row["flip"]


def delay(row: dict[str, str]) -> float:
    return float(row["due"]) - float(row["time"])


def test_recorded_fates_happen_again_bit_for_bit(tmp_path: Path) -> None:
    logs = [tmp_path / f"{name}.csv" for name in ("first", "again", "third")]
    arrived, counts = [], []
    with link() as made:
        for number, log in enumerate(logs):
            before = logs[number - 1]
            if number == 0:
                made.ask(partial(made.forwarder.seed, 5))
            else:
                made.ask(partial(made.forwarder.replay, read_fates(before)))
            made.ask(partial(made.forwarder.record_fates, log))
            arrived.append(sorted(made.talk()))
            made.ask(partial(made.forwarder.record_fates, None))
            counts.append(made.forwarder.stats())
    recorded = by_frame(logs[0])
    assert {row["fate"] for row in recorded.values()} >= {"ok", "copy", "corrupt", "lost", "mtu"}
    assert {number for _, number, copy in recorded if not copy} == set(range(1, N + 1))
    for log in logs[1:]:
        again = by_frame(log)
        assert again.keys() == recorded.keys()
        for key, row in recorded.items():
            assert fate(again[key]) == fate(row)  # a flip's place is written to the last bit
            assert abs(delay(again[key]) - delay(row)) < 1e-8
    # What arrives is the same to the byte: the same frames, bits and copies.
    assert arrived[0] == arrived[1] == arrived[2]
    for count in counts[1:]:
        assert count["beyond"] == 0
        assert [count[way] for way in ("up", "down")] == [counts[0][w] for w in ("up", "down")]


def test_a_log_that_ends_while_frames_are_on_their_way_can_be_replayed(tmp_path: Path) -> None:
    slow = Direction(0.3, loss=Bernoulli(0.5))
    log = tmp_path / "fates.csv"
    with link(LinkProfile("x", slow, slow, "test")) as made:
        made.ask(partial(made.forwarder.seed, 1))
        made.ask(partial(made.forwarder.record_fates, log))
        for i in range(20):
            made.ends[0].send(frame(i))
        time.sleep(0.05)
        made.ask(partial(made.forwarder.record_fates, None))
    seen = rows(log)
    assert sorted(int(row["number"]) for row in seen) == list(range(1, 21))
    assert all(row["written"] == "" for row in seen)
    up, _ = read_fates(log)
    drawn = Channel(DelayModel(0.3), Bernoulli(0.5), "access", "up", 1)
    assert [up.fate(0.0).lost for _ in range(20)] == [drawn.fate(0.0).lost for _ in range(20)]


def test_frames_from_before_a_seed_are_not_in_the_log(tmp_path: Path) -> None:
    slow = Direction(0.1)
    log = tmp_path / "fates.csv"
    with link(LinkProfile("x", slow, slow, "test")) as made:
        for i in range(7):
            made.ends[0].send(frame(i))
        time.sleep(0.03)
        made.ask(partial(made.forwarder.seed, 1))
        made.ask(partial(made.forwarder.record_fates, log))
        for i in range(3):
            made.ends[0].send(frame(100 + i))
        assert len(made.drain(0.2)) == 10  # those in flight stay
        made.ask(partial(made.forwarder.record_fates, None))
    assert [row["number"] for row in rows(log)] == ["1", "2", "3"]


def test_a_frame_that_could_not_be_written_says_so_and_can_be_replayed(tmp_path: Path) -> None:
    twice = Direction(duplicate=1.0)
    log = tmp_path / "fates.csv"
    with link(LinkProfile("x", twice, Direction(), "test")) as made:
        made.ask(partial(made.forwarder.seed, 1))
        made.ask(partial(made.forwarder.record_fates, log))
        for i in range(500):  # nobody reads them: the far socket is full before the end
            made.ends[0].send(frame(i, 1000))
        time.sleep(0.05)
        made.ask(partial(made.forwarder.record_fates, None))
        counts = made.forwarder.stats()["up"]
    seen = rows(log)
    unwritten = [row for row in seen if row["written"] == ""]
    assert 0 < counts["dropped"] == len(unwritten)
    assert {row["fate"] for row in seen} == {"ok", "copy", "dropped"}
    assert all(row["written"] == "" for row in seen if row["fate"] == "dropped")
    up, _ = read_fates(log)
    for _ in range(500):  # it was the far end's doing: the channel delivered frame and copy
        met = up.fate(0.0)
        assert not met.lost and met.copy_due is not None


def write(folder: Path, *lines: str) -> Path:
    path = folder / "fates.csv"
    path.write_text(HEADER + "".join(line + "\n" for line in lines))
    return path


def test_each_kind_of_line_is_read(tmp_path: Path) -> None:
    log = write(
        tmp_path,
        "2,10.5,up,100,lost,10.75,,",
        "1,10.0,up,100,corrupt,10.5,10.5,0.3",
        "0,10.1,up,60,exempt,10.2,10.2,",
        "1,10.0,up,100,copy,11.0,11.0,",
        "0,10.1,up,60,nat,10.1,,",
        "1,10.0,down,100,queue,10.0,,",
        "3,10.5,up,100,mtu,10.5,,",
        "4,12.0,up,100,dropped,12.25,,",
    )
    up, down = read_fates(log)
    assert [up.fate(1.0) for _ in range(4)] == [
        Fate(False, 1.5, "", 2.0, 0.3),
        Fate(True, 1.25, "lost"),
        Fate(True, 1.0, "mtu"),
        Fate(False, 1.25),
    ]
    assert down.fate(7.0) == Fate(True, 7.0, "queue")
    empty, _ = read_fates(write(tmp_path))
    assert empty.fate(math.pi) == Fate(False, math.pi)


def test_after_the_end_frames_are_delivered_and_counted() -> None:
    channel = ReplayChannel([Fate(False, 0.25), Fate(True, 0.5, "lost")])
    assert [channel.fate(1.0).lost for _ in range(5)] == [False, True, False, False, False]
    assert channel.fate(2.0) == Fate(False, 2.25)
    assert channel.exempt(2.0) == 2.25
    assert channel.beyond == 4
    channel.epoch = 3.0
    channel.seed(77)
    assert channel.beyond == 0 and channel.epoch is None
    assert [channel.fate(1.0).lost for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["1,1.0,up,100,ok,nan,,"], ":2: "),
        (["1,1.0,up,100,ok,inf,,"], ":2: "),
        (["1,1.0,up,100,ok,0.5,,"], ":2: "),  # a negative delay
        (["1,1.0,up,100,ok,1.5,,", "2,1.0,up,100,okay,1.5,,"], ":3: "),
        (["1,1.0,side,100,ok,1.5,,"], ":2: "),
        (["1,1.0,side,100,copy,1.5,,"], ":2: "),
        (["1,1.0,up,100,ok"], ":2: "),
        (["1,1.0,up,100,ok,1.5"], ":2: "),  # cut off
        (["1,1.0,up,100,ok,1.5,,,9"], ":2: "),
        (["one,1.0,up,100,ok,1.5,,"], ":2: "),
        (["0,1.0,up,100,ok,1.5,,"], ":2: "),
        (["1,1.0,up,100,corrupt,1.5,,1.0"], ":2: "),
        (["1,1.0,up,100,corrupt,1.5,,nan"], ":2: "),
        (["1,1.0,up,100,ok,1.5,,"] * 2, ":3: "),  # twice the same frame
        (["1,1.0,up,100,ok,1.5,," + "x" * 140_000], ""),
        (["2,1.0,up,100,ok,1.5,,"], ": frame 1 up is missing"),
        (["1,1.0,down,100,ok,1.5,,", "3,1.0,down,100,ok,1.5,,"], ": frame 2 down is missing"),
    ],
)
def test_a_bad_log_is_named_with_its_line(tmp_path: Path, lines: list[str], words: str) -> None:
    log = write(tmp_path, *lines)
    with pytest.raises(ChannelError) as caught:
        read_fates(log)
    assert str(caught.value).startswith(f"{log}{words}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "time,state\n0,up\n", HEADER.replace("flip", "flop")])
def test_a_file_that_is_no_log_is_refused(tmp_path: Path, text: str) -> None:
    log = tmp_path / "fates.csv"
    log.write_text(text)
    with pytest.raises(ChannelError) as caught:
        read_fates(log)
    assert str(caught.value).startswith(f"{log}:1: this is no fate log")
    with pytest.raises(ChannelError, match="cannot read the fate log"):
        read_fates(tmp_path / "none.csv")
