"""Redundancy as in RFC 4103, mosh's rule, and copies that are spaced: by example."""

from __future__ import annotations

import pytest

from eloquent import Reason, Sender, schemes
from eloquent.path import Path
from eloquent.wire import Ack, Data, decode

#: A datagram's indices.
Span = list[int]


class Line:
    """A sender, its clock, and what leaves it. ACKs echo nothing, so the RTT stays as it is."""

    def __init__(self, scheme: str, rtt: float) -> None:
        path = Path(validated=True, salt=0)
        path.rtt.add(rtt)
        self.sender = Sender(1, scheme, from_server=True, path=path)
        #: (time, indices) of each datagram.
        self.sent: list[tuple[float, Span]] = []
        self._now = 0.0

    def _collect(self, now: float) -> None:
        for datagram in self.sender.datagrams(now):
            message = decode(datagram)
            assert isinstance(message, Data)
            span = list(range(message.first, message.first + len(message.tokens)))
            self.sent.append((round(now, 6), span))
        self._now = now

    def wait(self, until: float) -> None:
        """Wake the sender whenever it asks for it."""
        while (due := self.sender.next_timeout()) is not None and due <= until:
            self._collect(max(due, self._now))
        self._now = until

    def push(self, token: bytes, now: float, *more: bytes) -> Span:
        """What leaves with these tokens."""
        self.wait(now)
        before = len(self.sent)
        for data in (token, *more):
            self.sender.push(data, now)
        self._collect(now)
        return [index for _, span in self.sent[before:] for index in span]

    def ack(self, next_index: int, now: float, *ranges: tuple[int, int]) -> None:
        self.wait(now)
        self.sender.receive(Ack(1, 0, False, next_index, 7, 0, ranges), now)


# -- redundancy ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("redundancy", [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]),
        ("redundancy:1", [[0], [0, 1], [1, 2], [2, 3], [3, 4]]),
        ("redundancy:3", [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 4]]),
    ],
)
def test_new_tokens_travel_with_those_of_the_last_n_datagrams(
    spec: str, expected: list[Span]
) -> None:
    """RFC 4103, section 4: the primary, and the redundant generations before it, oldest first."""
    line = Line(spec, rtt=0.5)
    assert [line.push(b"%d" % n, 0.05 * n) for n in range(5)] == expected


def test_a_generation_is_a_datagram_not_a_token() -> None:
    line = Line("redundancy", rtt=0.5)
    line.push(b"0", 0.0)
    assert line.push(b"1", 0.05, b"2", b"3") == [0, 1, 2, 3]
    assert line.push(b"4", 0.1) == [0, 1, 2, 3, 4]
    assert line.push(b"5", 0.15) == [1, 2, 3, 4, 5]
    assert line.push(b"6", 0.2) == [4, 5, 6]


def test_redundancy_leaves_out_what_has_arrived() -> None:
    line = Line("redundancy", rtt=0.5)
    for n in range(3):
        line.push(b"x" * 60, 0.05 * n)
    line.ack(2, 0.12)
    assert line.push(b"3", 0.15) == [2, 3]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_in_a_pause_each_token_goes_out_n_more_times(count: int) -> None:
    """RFC 4103, section 5.2: without new text, redundant text alone, after 300 ms each time.

    RTT 0.5 s, one sample: the probe timeout is 1 s at most and comes after the pause's repetitions.
    """
    line = Line("redundancy", rtt=0.5)
    for n in range(count):
        line.push(b"%d" % n, 0.05 * n)
    last = 0.05 * (count - 1)
    line.wait(last + 0.85)
    pause = [(round(at - last, 6), span) for at, span in line.sent if at > last]
    assert pause == [(0.3, list(range(max(0, count - 2), count))), (0.6, [count - 1])]
    times = [sum(n in span for _, span in line.sent) for n in range(count)]
    assert times == [3] * count


def test_a_new_token_ends_the_pause() -> None:
    line = Line("redundancy", rtt=0.5)
    line.push(b"0", 0.0)
    line.wait(0.35)
    assert line.push(b"1", 0.4) == [0, 1]
    line.wait(0.99)
    assert line.sent[-1] == (0.7, [0, 1])


def test_nothing_is_repeated_in_a_pause_when_all_has_arrived() -> None:
    line = Line("redundancy", rtt=0.1)
    line.push(b"0", 0.0)
    line.ack(1, 0.1)
    line.wait(5.0)
    assert line.sent == [(0.0, [0])]


def test_what_redundancy_gives_up_the_probe_timeout_brings() -> None:
    line = Line("redundancy:1", rtt=0.1)
    for n in range(4):
        line.push(b"%d" % n, 0.02 * n)
    line.wait(0.02 + 0.3 + 1e-6)  # token 0 was sent last with token 1; PTO = 100 + 4 x 50 ms
    assert line.sent[-1] == (0.32, [0, 1, 2, 3])


# -- mosh ----------------------------------------------------------------------------------------


def test_mosh_sends_everything_while_that_is_cheap() -> None:
    """Less than 100 bytes more than the new token: 24 tokens of 3 bytes and a length are 96."""
    line = Line("mosh", rtt=1.0)
    spans = [line.push(b"abc", 0.01 * n) for n in range(27)]
    assert spans[24] == list(range(25))
    assert spans[25] == [25]
    assert spans[26] == [26]


def test_mosh_never_repeats_beside_a_token_of_1000_bytes() -> None:
    line = Line("mosh", rtt=1.0)
    line.push(b"abc", 0.0)
    assert line.push(b"x" * 980, 0.01) == [0, 1]  # 4 + 982 bytes with their lengths
    assert line.push(b"y", 0.02) == [2]
    other = Line("mosh", rtt=1.0)
    other.push(b"abc", 0.0)
    assert other.push(b"x" * 994, 0.01) == [1]  # 4 + 996 are 1000


def test_mosh_takes_for_lost_what_is_a_timeout_and_100_ms_old() -> None:
    """RTT 50 ms, one sample: SRTT + 4 RTTVAR = 150 ms. Sent 250 ms ago is sent again.

    The scheme is asked directly: the PTO is 150 ms as well, so probes would renew the age.
    """
    scheme = schemes.create("mosh")
    sender = Sender(1, scheme, from_server=True, path=Path(validated=True, salt=0))

    def indices(now: float) -> Span:
        return list(scheme.on_token(sender.window, now))

    sender.path.rtt.add(0.05)
    sender.push(b"0", 0.0)
    sender.datagrams(0.0)
    sender.receive(Ack(1, 0, False, 1, 7, 0, ()), 0.05)
    for now in (1.0, 1.1):
        sender.push(b"x" * 150, now)
        assert len(sender.datagrams(now)) == 1
    sender.push(b"new", 1.2)
    assert indices(1.2) == [3]
    assert indices(1.249) == [3]
    assert indices(1.251) == [1, 2, 3]


# -- duplicates, spaced --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("duplicate:2:20", [0.0, 0.02]),
        ("duplicate:3:20", [0.0, 0.02, 0.04]),
        ("duplicate:5:5", [0.0, 0.005, 0.01, 0.015, 0.02]),
        ("duplicate:2:1000", [0.0, 1.0]),
    ],
)
def test_copies_leave_one_spacing_after_the_other(spec: str, expected: list[float]) -> None:
    line = Line(spec, rtt=2.0)
    line.push(b"0", 0.0)
    line.wait(expected[-1])
    assert line.sent == [(at, [0]) for at in expected]


def test_each_token_has_copies_of_its_own() -> None:
    """Every 50 ms a token, and 120 ms later its copy. No hole is filled with what is not due."""
    line = Line("duplicate:2:120", rtt=2.0)
    for n in range(3):
        line.push(b"x" * 60, 0.05 * n)
    line.wait(0.3)
    copies = [(0.12, [0]), (0.17, [1]), (0.22, [2])]
    assert line.sent == [(0.0, [0]), (0.05, [1]), (0.1, [2]), *copies]


def test_a_copy_of_what_has_arrived_is_left_out() -> None:
    line = Line("duplicate:2:100", rtt=0.05)
    line.push(b"0", 0.0)
    line.push(b"x" * 60, 0.01)
    line.push(b"2", 0.02)
    line.ack(0, 0.06, (1, 2))
    line.wait(0.125)
    assert [(at, span) for at, span in line.sent if at >= 0.1] == [(0.1, [0]), (0.12, [2])]


def test_repetitions_after_a_timeout_have_spaced_copies_as_well() -> None:
    """RTT 100 ms, one sample: PTO = 100 + 4 x 50 = 300 ms after the last copy."""
    line = Line("duplicate:2:20", rtt=0.1)
    line.push(b"0", 0.0)
    line.wait(0.35)
    assert line.sent == [(at, [0]) for at in (0.0, 0.02, 0.32, 0.34)]


def test_the_end_is_copied_too() -> None:
    line = Line("duplicate:2:20", rtt=2.0)
    line.push(b"0", 0.0)
    line.ack(1, 0.01)
    line.wait(0.05)
    line.sender.finish(Reason.STOP, 0.05)
    line.wait(0.2)
    assert line.sent[1:] == [(0.05, []), (0.07, [])]


WRONG = {
    "duplicate:2:4": "a spacing of 5 to 1000 ms, got '4'",
    "duplicate:2:1001": "a spacing of 5 to 1000 ms, got '1001'",
    "duplicate:2:x": "a spacing of 5 to 1000 ms, got 'x'",
    "duplicate:2:20:1": "a spacing of 5 to 1000 ms, got '20:1'",
    "duplicate::20": "2 to 5 copies, got ''",
    "redundancy:0": "1 to 20 generations, got '0'",
    "redundancy:21": "1 to 20 generations, got '21'",
    "redundancy:x": "1 to 20 generations, got 'x'",
    "mosh:1": "takes no argument, got '1'",
    "retransmit:1": "takes no argument, got '1'",
}


@pytest.mark.parametrize("spec", WRONG)
def test_a_wrong_argument_is_one_clear_line(spec: str) -> None:
    with pytest.raises(ValueError, match=WRONG[spec]) as error:
        schemes.create(spec)
    assert "\n" not in str(error.value)
