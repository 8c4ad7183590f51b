"""The registry of schemes, and what each scheme sends."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator

import pytest
from network import Network, lossy  # type: ignore[import-not-found]

from eloquent import Reason, Sender, schemes
from eloquent.window import Window
from eloquent.wire import Ack, Data, decode


def sent(sender: Sender, now: float) -> list[tuple[int, tuple[bytes, ...]]]:
    """(first, tokens) of each datagram that leaves at ``now``."""
    out = [decode(datagram) for datagram in sender.datagrams(now)]
    return [(message.first, message.tokens) for message in out if isinstance(message, Data)]


def acknowledge(sender: Sender, next_index: int, now: float, *ranges: tuple[int, int]) -> None:
    sender.receive(Ack(1, 0, False, next_index, 0, 0, ranges), now)


def test_names() -> None:
    assert {"duplicate", "eloquent"} <= set(schemes.names())
    assert schemes.names() == sorted(schemes.names())


@pytest.mark.parametrize("name", schemes.names())
def test_every_scheme_is_made_by_its_name(name: str) -> None:
    assert schemes.create(name).name == name
    assert schemes.create(name) is not schemes.create(name)


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("quic", "unknown scheme 'quic'; known: .*eloquent"),
        ("", "unknown scheme ''"),
        ("eloquent:3", "takes no argument"),
        ("duplicate:1", "2 to 5 copies"),
        ("duplicate:x", "2 to 5 copies"),
        ("duplicate:6", "2 to 5 copies"),
    ],
)
def test_a_wrong_name_is_one_clear_line(spec: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        schemes.create(spec)


def test_eloquent_sends_all_that_is_not_acknowledged_with_each_token() -> None:
    sender = Sender(1, "eloquent", from_server=True)
    sender.push(b"a", 0.0)
    assert sent(sender, 0.00) == [(0, (b"a",))]
    sender.push(b"b", 0.01)
    assert sent(sender, 0.01) == [(0, (b"a", b"b"))]
    acknowledge(sender, 1, 0.02)
    sender.push(b"c", 0.02)
    assert sent(sender, 0.02) == [(1, (b"b", b"c"))]


@pytest.mark.parametrize(("spec", "copies"), [("duplicate", 2), ("duplicate:3", 3)])
def test_duplicate_sends_new_tokens_only_several_times(spec: str, copies: int) -> None:
    sender = Sender(1, spec, from_server=True)
    sender.push(b"a", 0.0)
    assert sent(sender, 0.00) == [(0, (b"a",))] * copies
    sender.push(b"b", 0.01)
    assert sent(sender, 0.01) == [(1, (b"b",))] * copies
    assert len(set(sender.datagrams(1.0))) == 1  # the probe, in copies as well


def test_duplicate_repeats_what_is_overdue_only() -> None:
    sender = Sender(1, "duplicate", from_server=True)
    sender.push(b"a", 0.0)
    sent(sender, 0.0)
    sender.push(b"b", 0.2)
    sent(sender, 0.2)
    assert sent(sender, 0.301) == [(0, (b"a",))] * 2  # PTO without a sample is 0.3 s


@pytest.mark.parametrize("start", [0.0, 12345.678, 3e6 + 0.1, 1e8 + 1 / 3])
@pytest.mark.parametrize("name", schemes.names())
def test_every_scheme_repeats_the_oldest_token_whatever_the_clock(name: str, start: float) -> None:
    """Also on a host that has been up for years, where a float of seconds is coarse."""
    sender = Sender(1, name, from_server=True)
    now = start
    for i in range(30):
        sender.push(b"%d" % i, now)
        sender.datagrams(now)
        now += 0.0301
    sender.finish(Reason.STOP, now)
    oldest = []
    for _ in range(50):
        firsts = [first for first, _ in sent(sender, now)]
        oldest += firsts[:1]
        due = sender.next_timeout()
        assert due is not None and due > now
        now = due
    assert oldest.count(0) >= len(oldest) / 3 > 0


@pytest.fixture(scope="module")
def forgetful() -> Iterator[type[schemes.Scheme]]:
    """A careless policy: it never repeats anything, and skips every other token."""

    class Forgetful(schemes.Scheme):
        name = "forgetful"

        def on_token(self, window: Window, now: float) -> Iterable[int]:
            return (i for i in range(window.unsent, window.next_index) if i % 2 == 0)

        def on_timeout(self, window: Window, now: float, timeout: float) -> Iterable[int]:
            return ()

    yield Forgetful
    del Forgetful.name  # so that no other test meets it


def test_a_scheme_that_never_repeats_still_loses_nothing(
    forgetful: type[schemes.Scheme],
) -> None:
    sender = Sender(1, forgetful(), from_server=True)
    for i in range(6):
        sender.push(b"%d" % i, i * 0.01)
        sender.datagrams(i * 0.01)
    sender.finish(Reason.STOP, 0.06)
    got: set[int] = set()
    now = 0.06
    for _ in range(40):
        for first, tokens in sent(sender, now):
            got |= set(range(first, first + len(tokens)))
        now = sender.next_timeout() or now + 1
    assert got == set(range(6))


@pytest.mark.parametrize("seed", range(8))
def test_a_scheme_that_skips_what_is_waited_for_makes_no_busy_loop(
    forgetful: type[schemes.Scheme], seed: int
) -> None:
    tokens = [b"token %d " % n for n in range(40)]
    net = Network(tokens, lossy(seed, 0.1 + seed / 20, jitter=0.05), scheme="forgetful", seed=seed)
    for moved_at in range(seed % 4):
        net.move_client(0.3 + moved_at)
    assert net.run().answer == tokens


def test_a_new_scheme_is_found_by_its_name(forgetful: type[schemes.Scheme]) -> None:
    assert isinstance(schemes.create("forgetful"), forgetful)


def test_a_subclass_without_a_name_does_not_replace_its_parent() -> None:
    parent = type(schemes.create("eloquent"))
    child = type("Unnamed", (parent,), {})
    try:
        assert type(schemes.create("eloquent")) is parent
    finally:
        del child
        gc.collect()
