"""The receiver: order, acknowledgements, signs of life. Expected ACKs are worked out by hand."""

from __future__ import annotations

import itertools
import random

import pytest

from eloquent import MalformedDatagram, Reason, Receiver, Token
from eloquent.path import Path
from eloquent.receiver import FAST_PING_TIME, KEEPALIVE, PING_INTERVAL
from eloquent.window import TOKEN_OVERHEAD, WINDOW_BYTES, WINDOW_TOKENS
from eloquent.wire import Ack, Cancel, CancelReason, Data, decode, encode


def data(first: int, *tokens: bytes, end: Reason | None = None, sent_at: int = 0) -> Data:
    return Data(1, sent_at, True, first, tokens, end)


def acks(receiver: Receiver, now: float) -> list[Ack]:
    out = []
    for datagram in receiver.datagrams(now):
        message = decode(datagram)
        assert isinstance(message, Ack)
        out.append(message)
    return out


def acknowledged(receiver: Receiver, now: float) -> tuple[int, tuple[tuple[int, int], ...]]:
    (ack,) = acks(receiver, now)
    return ack.next, ack.ranges


def reader(now: float = 0.0) -> Receiver:
    """A client's receiver whose prompt has arrived: it waits for an answer."""
    receiver = Receiver(1, from_server=False, now=now)
    receiver.pings = True
    return receiver


def test_tokens_in_order_are_delivered_at_once() -> None:
    receiver = reader()
    assert receiver.receive(encode(data(0, b"a", b"b")), 1.0) == [
        Token(0, b"a", 1.0),
        Token(1, b"b", 1.0),
    ]
    assert receiver.receive(data(2, b"c"), 2.0) == [Token(2, b"c", 2.0)]
    assert (receiver.next, receiver.complete) == (3, False)


def test_a_hole_holds_back_what_follows_and_keeps_when_it_came() -> None:
    receiver = reader()
    assert receiver.receive(data(1, b"b", b"c"), 1.0) == []
    assert receiver.bytes_held == 2 + 2 * TOKEN_OVERHEAD
    assert receiver.receive(data(0, b"a"), 2.0) == [
        Token(0, b"a", 2.0),
        Token(1, b"b", 1.0),
        Token(2, b"c", 1.0),
    ]
    assert receiver.bytes_held == 0


def test_applying_a_datagram_again_is_harmless() -> None:
    receiver = reader()
    receiver.receive(data(0, b"a", b"b"), 1.0)
    assert receiver.receive(data(0, b"a", b"b"), 2.0) == []
    assert receiver.receive(data(0, b"a", b"b", b"c"), 3.0) == [Token(2, b"c", 3.0)]


def test_acknowledgements_name_what_came_beyond_the_hole() -> None:
    receiver = reader()
    receiver.receive(data(0, b"a"), 0.0)
    assert acknowledged(receiver, 0.0) == (1, ())
    receiver.receive(data(3, b"d", b"e"), 0.0)
    receiver.receive(data(7, b"h"), 0.0)
    assert acknowledged(receiver, 0.0) == (1, ((3, 5), (7, 8)))
    receiver.receive(data(8, b"i", end=Reason.STOP), 0.0)  # the END has index 9
    assert acknowledged(receiver, 0.0) == (1, ((3, 5), (7, 10)))
    receiver.receive(data(1, b"b", b"c"), 0.0)
    assert acknowledged(receiver, 0.0) == (5, ((7, 10),))
    receiver.receive(data(5, b"f", b"g"), 0.0)
    assert acknowledged(receiver, 0.0) == (10, ())
    assert receiver.complete and (receiver.total, receiver.reason) == (9, Reason.STOP)


def test_one_acknowledgement_for_all_that_came_with_echo_and_delay() -> None:
    receiver = reader()
    receiver.receive(data(0, b"a", sent_at=111), 5.0)
    receiver.receive(data(1, b"b", sent_at=222), 5.001)
    due = receiver.next_timeout()
    assert due is not None and due <= 5.001  # at once
    (ack,) = acks(receiver, 5.003)
    assert (ack.next, ack.echo, ack.asks) == (2, 222, False)
    assert ack.delay == pytest.approx(2000, abs=1)
    assert acks(receiver, 5.003) == []


def test_acks_are_not_acknowledged_but_pings_are() -> None:
    receiver = reader()
    receiver.receive(Ack(1, 7, True, 0, 0), 0.0)
    assert acks(receiver, 0.0) == []
    receiver.receive(Ack(1, 8, True, 0, 0, asks=True), 0.0)
    assert [ack.echo for ack in acks(receiver, 0.0)] == [8]


def test_an_end_alone_completes_an_empty_answer() -> None:
    receiver = reader()
    assert receiver.receive(data(0, end=Reason.LENGTH), 0.0) == []
    assert receiver.complete and receiver.reason is Reason.LENGTH
    assert acknowledged(receiver, 0.0) == (1, ())
    assert receiver.next_timeout() is None


def test_a_complete_receiver_still_repeats_its_acknowledgement() -> None:
    receiver = reader()
    receiver.receive(data(0, b"a", end=Reason.STOP), 0.0)
    acks(receiver, 0.0)
    receiver.receive(data(0, b"a", end=Reason.STOP), 1.0)
    assert acknowledged(receiver, 1.0) == (2, ())


@pytest.mark.parametrize(
    "message",
    [
        data(1, b"b", b"c"),  # beyond the END
        data(5, b"x"),
        data(0, b"a", end=Reason.STOP),  # another END
        data(3, end=Reason.STOP),
        Data(2, 0, True, 0, (b"a",)),  # another stream
        Cancel(1, 0, True, CancelReason.READER),
    ],
)
def test_contradictions_are_malformed_and_change_nothing(message: Data) -> None:
    receiver = reader()
    receiver.receive(data(1, b"b", end=Reason.STOP), 0.0)
    acks(receiver, 0.0)
    with pytest.raises(MalformedDatagram):
        receiver.receive(message, 1.0)
    assert acks(receiver, 0.0) == []
    assert receiver.receive(data(0, b"a"), 2.0) == [Token(0, b"a", 2.0), Token(1, b"b", 0.0)]
    assert receiver.complete


def test_an_end_before_tokens_that_came_is_malformed() -> None:
    receiver = reader()
    receiver.receive(data(5, b"f"), 0.0)
    with pytest.raises(MalformedDatagram, match="token 5"):
        receiver.receive(data(3, b"d", end=Reason.STOP), 0.0)
    receiver.receive(data(0, b"a", b"b", b"c"), 0.0)
    with pytest.raises(MalformedDatagram):
        receiver.receive(data(2, end=Reason.STOP), 0.0)
    assert receiver.total is None


def test_no_more_than_the_window_is_kept() -> None:
    receiver = reader()
    for i in range(1, 1000):
        receiver.receive(data(i, bytes(1024)), 0.0)
    assert WINDOW_BYTES - 2048 < receiver.bytes_held <= WINDOW_BYTES
    kept = WINDOW_BYTES // (1024 + TOKEN_OVERHEAD)
    assert acknowledged(receiver, 0.0) == (0, ((1, 1 + kept),))  # the sender keeps the rest
    receiver.receive(data(0, b"a"), 0.0)
    if receiver.next == 0:  # full with what follows: only an honest sender leaves room for it
        assert receiver.bytes_held <= WINDOW_BYTES


def test_indices_far_ahead_are_not_taken() -> None:
    receiver = reader()
    receiver.receive(data(WINDOW_TOKENS, b"x"), 0.0)
    receiver.receive(data(2**48, b"x"), 0.0)
    assert acknowledged(receiver, 0.0) == (0, ())
    receiver.receive(data(WINDOW_TOKENS - 1, b"x"), 0.0)
    assert acknowledged(receiver, 0.0) == (0, ((WINDOW_TOKENS - 1, WINDOW_TOKENS),))


def test_at_most_32_ranges_oldest_first() -> None:
    receiver = reader()
    for i in range(1, 201, 2):
        receiver.receive(data(i, b""), 0.0)
    _, ranges = acknowledged(receiver, 0.0)
    assert ranges == tuple((i, i + 1) for i in range(1, 65, 2))


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_any_pieces_gives_the_stream_once(seed: int) -> None:
    rng = random.Random(seed)
    tokens = [rng.randbytes(rng.choice([0, 1, 4, 1024])) for _ in range(60)]
    receiver, got, whole, now = reader(), [], False, 0.0
    while not whole:
        now += 0.02  # so that repetitions are acknowledged as well
        start = rng.randrange(61)
        stop = min(60, start + rng.choice([0, 1, 1, 5]))
        end = Reason.STOP if stop == 60 and (start == stop or rng.random() < 0.5) else None
        if start == stop and end is None:
            continue
        if sum(map(len, tokens[start:stop])) > 1100:
            continue
        got += receiver.receive(data(start, *tokens[start:stop], end=end), now)
        (ack,) = acks(receiver, now)
        delivered = {token.index for token in got}
        assert delivered == set(range(min(ack.next, 60)))
        whole = ack.next == 61
    assert [token.data for token in got] == tokens


def test_repetitions_are_acknowledged_every_20_ms_at_most() -> None:
    receiver = reader()
    receiver.receive(data(0, b"a", sent_at=1), 1.0)
    assert len(acks(receiver, 1.0)) == 1
    for number in range(2, 8):  # the ACK was lost: the sender repeats
        now = 1.0 + number * 0.002
        receiver.receive(data(0, b"a", sent_at=number), now)
        assert acks(receiver, now) == [] and receiver.next_timeout() == pytest.approx(1.02)
    (message,) = acks(receiver, 1.02)
    assert (message.next, message.echo) == (1, 2)  # the oldest stamp, with how long it was held
    assert message.delay == pytest.approx(16_000, abs=2)
    receiver.receive(data(0, b"a", b"b"), 1.021)
    assert len(acks(receiver, 1.021)) == 1  # news are acknowledged at once


# -- signs of life -------------------------------------------------------------------------------


def ping_times(receiver: Receiver, start: float, stop: float, answered: bool) -> list[float]:
    """When PINGs left between ``start`` and ``stop``; each is answered after 10 ms or never."""
    times: list[float] = []
    now = start
    while True:
        due = receiver.next_timeout()
        assert due is None or due > now or now == start, "a busy loop"
        if due is None or due > stop:
            return times
        now = due
        for message in acks(receiver, now):
            assert message.asks
            times.append(now)
            if answered:
                receiver.receive(Ack(1, 0, True, 0, message.sent_at), now + 0.01)


def test_answered_pings_become_rare() -> None:
    receiver = reader()
    receiver.receive(data(0, b"a"), 0.0)
    acks(receiver, 0.0)
    gaps = [b - a for a, b in itertools.pairwise([0.0, *ping_times(receiver, 0.0, 60.0, True)])]
    # 0.15 s, doubled with each answer up to 5 s, counted from the answer 10 ms later
    assert gaps[:6] == pytest.approx([0.15, 0.31, 0.61, 1.21, 2.41, 4.81])
    assert gaps[6:] == pytest.approx([KEEPALIVE + 0.01] * len(gaps[6:]))
    assert len(gaps) <= 60 / KEEPALIVE + 4


def test_unanswered_pings_go_on_fast_for_ten_seconds_then_once_a_second() -> None:
    receiver = reader()
    receiver.receive(data(0, b"a"), 0.0)
    acks(receiver, 0.0)
    times = ping_times(receiver, 0.0, 59.0, False)
    gaps = [b - a for a, b in itertools.pairwise([0.0, *times])]
    assert gaps[0] == pytest.approx(0.15)  # the reader is about to stall
    assert min(gaps[1:]) >= PING_INTERVAL - 1e-9 and max(gaps) <= 1.0 + 1e-9
    late = [t for t in times if t > FAST_PING_TIME + 2]
    assert all(b - a == pytest.approx(1.0) for a, b in itertools.pairwise(late))


def test_after_a_token_the_reader_is_attentive_again() -> None:
    receiver = reader()
    receiver.receive(data(0, b"a"), 0.0)
    acks(receiver, 0.0)
    ping_times(receiver, 0.0, 30.0, True)
    receiver.receive(data(1, b"b"), 30.0)
    acks(receiver, 30.0)
    due = receiver.next_timeout()
    assert due is not None and due <= 31.0


def test_tokens_that_come_steadily_need_no_pings() -> None:
    receiver = reader()
    for i in range(100):
        receiver.receive(data(i, b"x"), i * 0.2)
        assert [ack.asks for ack in acks(receiver, i * 0.2)] == [False]


def test_who_waits_for_nothing_does_not_ping() -> None:
    receiver = Receiver(1, from_server=False)
    assert receiver.next_timeout() is None
    receiver.receive(data(0, b"a"), 0.0)
    acks(receiver, 0.0)
    assert receiver.next_timeout() is None


def test_an_unproven_peer_is_asked_until_it_answers() -> None:
    path = Path(validated=False)
    receiver = Receiver(1, from_server=True, path=path)
    assert receiver.next_timeout() is None and acks(receiver, 0.0) == []  # nothing came: no credit
    path.received(1000)
    receiver.receive(Data(1, 5, False, 0, (bytes(900),)), 0.0)
    (ping,) = acks(receiver, 0.0)
    assert ping.asks and ping.from_server and ping.next == 1  # the ACK and the question in one
    times = ping_times(receiver, 0.0, 5.0, False)
    assert times == pytest.approx([PING_INTERVAL * k for k in range(1, len(times) + 1)])
    assert path.answered(ping.sent_at, 0, 5.0)
    assert receiver.next_timeout() is None


def test_after_a_move_the_new_address_is_asked_at_once() -> None:
    receiver = Receiver(1, from_server=True)
    path = Path(validated=False)
    path.received(50)
    receiver.move(path)
    due = receiver.next_timeout()
    assert due is not None and due <= 3.0
    assert [ack.asks for ack in acks(receiver, 3.0)] == [True]
