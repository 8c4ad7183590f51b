"""The sender's timers and limits, each figure worked out from the constants in the docs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from eloquent import MalformedDatagram, Reason, Sender, schemes
from eloquent.path import Path
from eloquent.window import Window
from eloquent.wire import Ack, Cancel, CancelReason, Data, decode, encode

#: PTO before any sample: 0.1 + 4 * 0.05 (RFC 9002).
FIRST_PTO = 0.3


def sent(sender: Sender, now: float) -> list[Data]:
    out = []
    for datagram in sender.datagrams(now):
        message = decode(datagram)
        assert isinstance(message, Data)
        out.append(message)
    return out


def ack(sender: Sender, next_index: int, now: float, echo: int = 0, delay: int = 0) -> None:
    sender.receive(encode(Ack(1, 0, False, next_index, echo, delay)), now)


def ready(rtt: float, scheme: str | schemes.Scheme = "eloquent") -> Sender:
    """A sender of stream 1 that has measured ``rtt`` once, at time 0; token 0 is acknowledged."""
    sender = Sender(1, scheme, from_server=True)
    sender.push(b"0", -rtt)
    (message, *_) = sent(sender, -rtt)
    ack(sender, 1, 0.0, message.sent_at)
    assert sender.path.rtt.samples == 1
    return sender


def drive(sender: Sender, start: float, stop: float) -> list[float]:
    """Times at which datagrams left, one entry for each, in [start, stop]."""
    times: list[float] = []
    now = start
    for _ in range(100_000):
        times += [now] * len(sender.datagrams(now))
        due = sender.next_timeout()
        assert due is None or due > now
        if due is None or due > stop:
            return times
        now = due
    raise AssertionError("a busy loop")


def test_nothing_to_send_means_no_timer() -> None:
    sender = Sender(1, from_server=True)
    assert sender.next_timeout() is None
    assert sender.datagrams(5.0) == []


def test_a_token_leaves_at_once() -> None:
    sender = Sender(1, from_server=True)
    assert sender.push(b"a", 5.0) == 0
    due = sender.next_timeout()
    assert due is not None and due <= 5.0
    (message,) = sent(sender, 5.0)
    assert (message.stream_id, message.first, message.tokens) == (1, 0, (b"a",))
    assert message.from_server and sender.tokens_sent == 1


def test_tokens_within_five_milliseconds_share_a_datagram() -> None:
    sender = ready(0.05)
    sender.push(b"1", 1.0)
    assert len(sent(sender, 1.0)) == 1
    sender.push(b"2", 1.001)
    sender.push(b"3", 1.002)
    assert sent(sender, 1.002) == []
    assert sender.next_timeout() == pytest.approx(1.005)
    (message,) = sent(sender, 1.0051)
    assert message.tokens == (b"1", b"2", b"3")


class Doubling(schemes.Scheme):
    """All that is unacknowledged, repeated as RFC 9002 says: doubled each time."""

    def on_token(self, window: Window, now: float) -> Iterable[int]:
        return window.unacknowledged()


def test_probes_back_off_to_half_a_second_before_the_first_sample() -> None:
    sender = Sender(1, Doubling(), from_server=True)
    sender.push(b"a", 0.0)
    times = drive(sender, 0.0, 2.0)
    # 0.3, then 0.6 is cut to 0.5
    assert times == pytest.approx([0.0, 0.3, 0.8, 1.3, 1.8])


def test_probes_back_off_from_the_pto_to_200_milliseconds() -> None:
    sender = ready(0.02, Doubling())  # PTO = 0.02 + 4 * 0.01 = 0.06
    sender.push(b"1", 0.0)
    times = drive(sender, 0.0, 1.0)
    # 0.06, 0.12, then 0.24 is cut to 0.2
    assert times == pytest.approx([0.0, 0.06, 0.18, 0.38, 0.58, 0.78, 0.98])


def test_a_steady_scheme_repeats_every_pto_until_it_is_quiet() -> None:
    sender = ready(0.02)  # PTO = 0.06
    sender.push(b"1", 0.0)
    times = drive(sender, 0.0, 2.0)
    steady = [0.06 * n for n in range(17)]  # up to 0.96; quiet after 1 s
    assert times[: len(steady)] == pytest.approx(steady)
    # The probe at 1.02 is the first that finds it quiet; from there 0.12, then 0.2 at most.
    assert times[17:] == pytest.approx([1.02, 1.14, 1.34, 1.54, 1.74, 1.94])


def test_a_steady_scheme_repeats_although_new_tokens_come() -> None:
    sender = ready(0.02)  # PTO = 0.06
    times = []
    for n in range(6):  # a token every 50 ms: the last flight is never a PTO ago
        sender.push(b"%d" % n, 0.05 * n)
        times += drive(sender, 0.05 * n, 0.05 * (n + 1) - 1e-6)
    assert times == pytest.approx([0.0, 0.05, 0.06, 0.1, 0.12, 0.15, 0.18, 0.2, 0.24, 0.25])


def test_on_a_long_path_the_plain_pto_is_kept() -> None:
    sender = ready(0.3)  # PTO = 0.3 + 4 * 0.15 = 0.9
    sender.push(b"1", 0.0)
    assert drive(sender, 0.0, 3.0) == pytest.approx([0.0, 0.9, 1.8, 2.7])


def test_an_answer_that_was_stuck_does_not_stop_the_probes() -> None:
    sender = ready(0.9)  # PTO = 0.9 + 4 * 0.45 = 2.7, but no more than 1
    sender.push(b"1", 0.0)
    assert drive(sender, 0.0, 3.5) == pytest.approx([0.0, 1.0, 2.0, 3.0])


def test_any_sign_of_life_ends_the_backoff() -> None:
    sender = ready(0.02, Doubling())
    sender.push(b"1", 0.0)
    drive(sender, 0.0, 0.5)  # the last one left at 0.38
    sender.heard(0.41)
    assert sender.next_timeout() == pytest.approx(0.38 + 0.06)


@pytest.mark.parametrize("rtt", [0.0, 0.001, 0.02, 0.2])
@pytest.mark.parametrize("scheme", schemes.names())
def test_at_most_ten_datagrams_a_second_once_quiet(scheme: str, rtt: float) -> None:
    sender = ready(rtt, scheme)
    times = []
    for i in range(1500):  # the model goes on at 50 tokens/s of 40 bytes, nothing is heard
        now = i * 0.02
        sender.push(bytes(40), now)
        times += drive(sender, now, now + 0.0199)
    quiet_from = max(1.0, 3 * sender.path.rtt.probe_timeout) + 0.5
    for second in range(int(quiet_from) + 1, 29):
        assert sum(second <= t < second + 1 for t in times) <= 10 + 1  # one more by phase


@pytest.mark.parametrize("scheme", schemes.names())
def test_flights_are_bounded_before_it_is_quiet(scheme: str) -> None:
    """Ten datagrams at a time at most (RFC 6928), however many tokens wait."""
    sender = ready(0.05, scheme)
    copies = sender.scheme.copies
    for _ in range(200):
        sender.push(bytes(1024), 1.0)
    sizes, now = [], 1.0
    while now < 1.0 + 0.14:  # until the first probe is near: PTO = 0.05 + 4 * 0.025
        sizes.append(len(sender.datagrams(now)))
        now = sender.next_timeout() or now
        assert len(sizes) < 100
    # One more where a tail loss probe comes before the PTO (RFC 8985), and where a copy comes late.
    assert max(sizes) <= 10 * copies and sum(sizes) <= 12 * copies


def test_a_long_stream_goes_on_as_acknowledgements_come() -> None:
    sender = ready(0.01)
    for _ in range(100):
        sender.push(bytes(1000), 1.0)
    sender.finish(Reason.STOP, 1.0)
    now, got = 1.0, 1
    while not sender.complete:
        messages = sent(sender, now)
        for message in messages:
            if message.first <= got:
                got = max(got, message.first + len(message.tokens) + (message.end is not None))
        now += 0.01
        ack(sender, got, now)
        assert now < 3.0
    assert sender.next_timeout() is None


def test_oldest_first_when_not_all_fits() -> None:
    sender = ready(0.05)
    for _ in range(20):
        sender.push(bytes(1000), 0.0)
    firsts = [message.first for message in sent(sender, 0.0)]
    assert firsts == list(range(1, 1 + len(firsts)))
    assert [message.first for message in sent(sender, 0.2)][:3] == [1, 2, 3]  # and the probe


def test_the_end_is_sent_until_it_is_acknowledged() -> None:
    sender = ready(0.02)
    sender.finish(Reason.LENGTH, 0.0)
    (message,) = sent(sender, 0.0)
    assert (message.first, message.tokens, message.end) == (1, (), Reason.LENGTH)
    times = drive(sender, 0.01, 10.0)
    assert max(b - a for a, b in itertools.pairwise(times)) <= 1.0 + 1e-9
    assert 10 < len(times) < 40  # steady for a second, then backing off to one a second
    ack(sender, 2, 10.0)
    assert sender.complete and sender.next_timeout() is None and sender.tokens_sent == 1


def test_a_forged_acknowledgement_is_malformed() -> None:
    sender = ready(0.02)
    sender.push(b"1", 0.0)
    sender.push(b"2", 0.0)
    for message in (
        Ack(1, 0, False, 2, 0),  # index 1 was not sent yet
        Ack(2, 0, False, 1, 0),  # another stream
        Data(1, 0, False, 0, (b"x",)),
        Cancel(1, 0, False, CancelReason.READER),
    ):
        with pytest.raises(MalformedDatagram):
            sender.receive(message, 0.0)
    with pytest.raises(MalformedDatagram):
        sender.receive(b"garbage", 0.0)


def test_an_unproven_address_gets_three_times_what_came_and_no_timer_spins() -> None:
    path = Path(validated=False)
    path.received(100)
    sender = Sender(1, from_server=True, path=path)
    total = 0
    for i in range(100):
        sender.push(b"token", i * 0.01)
        total += sum(len(datagram) for datagram in sender.datagrams(i * 0.01))
    assert 0 < total <= 300
    assert sender.next_timeout() is None  # only the peer can change something
    path.received(20)
    sender.heard(1.0)
    total += sum(len(datagram) for datagram in sender.datagrams(1.0))
    assert total <= 360


def test_after_an_address_change_what_was_in_flight_leaves_again_at_once() -> None:
    sender = ready(0.4)
    sender.push(b"1", 0.0)
    sent(sender, 0.0)
    sender.move(Path(validated=True), 0.01)
    (message,) = sent(sender, 0.01)
    assert message.tokens == (b"1",)


@pytest.mark.parametrize("size", [0, 1, 1024])
def test_tokens_of_any_size(size: int) -> None:
    sender = Sender(1, from_server=False)
    sender.push(bytes(size), 0.0)
    (message,) = sent(sender, 0.0)
    assert message.tokens == (bytes(size),) and not message.from_server
