"""The client: asking, receiving, cancelling, giving up. The server is played by hand."""

from __future__ import annotations

import random

import pytest
from network import Network, lossy  # type: ignore[import-not-found]

from eloquent import Asked, Client, Reason, Server, Token, schemes
from eloquent.client import CANCEL_INTERVAL, CANCEL_TRIES, LEASE, LINGER
from eloquent.wire import Ack, Cancel, CancelReason, Data, Message, decode, encode

SCHEMES = pytest.mark.parametrize("scheme", schemes.names())


def client(prompt: bytes = b"hello") -> Client:
    return Client(prompt, 0.0, random_bits=random.Random(2).getrandbits)


def sent(user: Client, now: float) -> list[Message]:
    return [decode(datagram) for datagram in user.datagrams(now)]


def answer(user: Client, first: int, *tokens: bytes, end: Reason | None = None) -> bytes:
    return encode(Data(user.stream_id, 0, True, first, tokens, end))


def refusal(user: Client, reason: CancelReason, sent_at: int = 0) -> bytes:
    return encode(Cancel(user.stream_id, sent_at, True, reason))


def drive(user: Client, start: float, stop: float) -> list[tuple[float, Message]]:
    """What the client sends, and when, if it hears nothing."""
    out, now = [], start
    for _ in range(100_000):
        out += [(now, message) for message in sent(user, now)]
        due = user.next_timeout()
        assert due is None or due > now
        if due is None or due > stop:
            return out
        now = due
    raise AssertionError("a busy loop")


def test_the_prompt_leaves_at_once_in_one_datagram() -> None:
    user = client()
    (message,) = sent(user, 0.0)
    assert isinstance(message, Data)
    assert (message.first, message.tokens, message.end) == (0, (b"hello",), Reason.STOP)
    assert not message.from_server and message.stream_id == user.stream_id


def test_an_empty_prompt_is_an_end_alone() -> None:
    (message,) = sent(client(b""), 0.0)
    assert isinstance(message, Data) and (message.tokens, message.end) == ((), Reason.STOP)


def test_stream_ids_are_random_by_default() -> None:
    assert len({Client(b"", 0.0).stream_id for _ in range(50)}) == 50


def test_a_long_prompt_is_cut_and_bounded_per_flight() -> None:
    user = client(bytes(65_536))
    first = sent(user, 0.0)
    assert len(first) <= 11 and all(isinstance(message, Data) for message in first)
    assert [message.first for message in first if isinstance(message, Data)] == list(
        range(len(first))
    )


def test_the_prompt_is_repeated_until_something_answers() -> None:
    user = client()
    assert len(drive(user, 0.0, 20.0)) >= 20  # 0.5 s at most before the first RTT sample
    user.receive(answer(user, 0, b"a"), 20.1)  # who answers has the prompt
    later = drive(user, 20.1, 25.0)
    assert later and not any(isinstance(message, Data) for _, message in later)


def test_tokens_come_out_in_order() -> None:
    user = client()
    assert user.receive(answer(user, 1, b"b"), 0.1) == []
    assert user.receive(answer(user, 0, b"a"), 0.2) == [Token(0, b"a", 0.2), Token(1, b"b", 0.1)]
    assert user.tokens_received == 2 and not user.complete and user.reason is None


def test_foreign_and_broken_datagrams_are_counted_and_dropped() -> None:
    user = client()
    from_client = encode(Data(user.stream_id, 0, False, 0, (b"x",)))
    other = encode(Data(user.stream_id ^ 1, 0, True, 0, (b"x",)))
    impossible = encode(Ack(user.stream_id, 0, True, 99, 0))
    for datagram in (b"", b"garbage" * 10, from_client, other, impossible):
        assert user.receive(datagram, 0.1) == []
    assert user.malformed == 5
    assert user.error is None and not user.complete


def test_after_the_end_it_lingers_and_repeats_its_acknowledgement() -> None:
    user = client()
    sent(user, 0.0)
    user.receive(answer(user, 0, b"a", end=Reason.LENGTH), 1.0)
    assert user.complete and user.reason is Reason.LENGTH and not user.closed
    assert [type(message) for message in sent(user, 1.0)] == [Ack]
    user.receive(answer(user, 0, b"a", end=Reason.LENGTH), 1.5)
    assert [type(message) for message in sent(user, 1.5)] == [Ack]
    assert user.next_timeout() == pytest.approx(1.0 + LINGER)
    sent(user, 1.0 + LINGER)
    assert user.closed and user.next_timeout() is None and user.error is None


@pytest.mark.parametrize("reason", [CancelReason.COMPLETE, CancelReason.UNKNOWN_STREAM])
def test_the_server_ends_the_lingering(reason: CancelReason) -> None:
    user = client()
    user.receive(answer(user, 0, b"a", end=Reason.STOP), 1.0)
    user.receive(refusal(user, reason), 1.1)
    assert user.closed and user.complete and user.error is None


@pytest.mark.parametrize(
    ("reason", "text"),
    [(CancelReason.BUSY, "busy"), (CancelReason.TOO_LARGE, "too large")],
)
def test_a_refusal_says_why(reason: CancelReason, text: str) -> None:
    user = client()
    user.receive(refusal(user, reason), 0.1)
    assert user.closed and user.error == f"refused by the server: {text}"
    assert user.datagrams(0.1) == [] and user.next_timeout() is None
    assert user.receive(answer(user, 0, b"late"), 0.2) == []


def test_an_unknown_stream_is_believed_only_if_it_answers_the_prompt() -> None:
    user = client()
    (prompt,) = sent(user, 0.0)
    user.receive(refusal(user, CancelReason.UNKNOWN_STREAM, prompt.sent_at + 1), 0.1)
    assert user.error is None  # that was an ACK which overtook the prompt
    user.receive(refusal(user, CancelReason.UNKNOWN_STREAM, prompt.sent_at), 0.1)
    assert user.error == "refused by the server: unknown stream"


def test_a_server_that_forgot_the_answer_is_believed() -> None:
    user = client()
    user.receive(answer(user, 0, b"a"), 0.1)
    user.receive(refusal(user, CancelReason.UNKNOWN_STREAM), 0.2)
    assert user.error == "refused by the server: unknown stream"


def test_a_silent_server_is_given_up_after_the_lease() -> None:
    user = client()
    times = [now for now, _ in drive(user, 0.0, 100.0)]
    assert user.closed and user.error == "lost"
    assert LEASE - 1 < times[-1] < LEASE
    assert len(times) <= 125  # two a second


def test_every_sign_of_life_renews_the_lease() -> None:
    user = client()
    for minute in range(10):
        now = minute * (LEASE - 1)
        user.receive(encode(Ack(user.stream_id, 0, True, 0, 0)), now)
        sent(user, now)
        assert not user.closed


def test_cancel_is_repeated_and_then_taken_as_done() -> None:
    user = client()
    sent(user, 0.0)
    user.cancel(1.0)
    out = drive(user, 1.0, 60.0)
    assert all(isinstance(message, Cancel) for _, message in out)
    assert [now for now, _ in out] == pytest.approx(
        [1.0 + CANCEL_INTERVAL * n for n in range(CANCEL_TRIES)]
    )
    assert user.closed and user.error == "cancelled"


def test_cancel_is_confirmed_by_the_server() -> None:
    user = client()
    user.cancel(0.0)
    (message,) = sent(user, 0.0)
    assert isinstance(message, Cancel) and message.reason is CancelReason.READER
    user.receive(refusal(user, CancelReason.READER), 0.1)
    assert user.closed and user.error == "cancelled"


def test_cancel_after_the_end_does_nothing() -> None:
    user = client()
    user.receive(answer(user, 0, end=Reason.STOP), 0.1)
    user.cancel(0.2)
    assert not any(isinstance(message, Cancel) for message in sent(user, 0.2))
    sent(user, 2.0)
    assert user.closed and user.error is None


def test_cancel_twice_is_cancel_once() -> None:
    user = client()
    user.cancel(0.0)
    sent(user, 0.0)
    user.cancel(0.05)
    assert user.next_timeout() == pytest.approx(CANCEL_INTERVAL)


@pytest.mark.parametrize("seed", range(10))
def test_at_half_loss_the_server_stops_after_a_cancel(seed: int) -> None:
    network = Network([b"more "] * 10_000, lossy(seed, 0.5, jitter=0.1), seed=seed)
    network.at(2.0, lambda: network.client.cancel(network.now))
    network.run(60)
    assert network.client.error == "cancelled"
    # Where no copy of the prompt got through in 2 s, there was nothing to stop.
    assert network.ended == ["cancelled"] * len(network.asked)
    # 2^-25 that all are lost; each try is 0.2 s
    assert network.now < 2.0 + CANCEL_TRIES * CANCEL_INTERVAL + 0.5
    spoken = len(network.generated)
    network.run(network.now + 10, stop=lambda: False)
    assert [d for t, way, d in network.log if way == "down" and t > network.now - 8] == []
    assert spoken < 200


def test_the_round_trip_is_measured_with_the_prompt() -> None:
    user, end = client(), Server(random_bits=random.Random(1).getrandbits)
    assert user.rtt is None
    for datagram in user.datagrams(0.0):
        end.receive(datagram, "user", 0.03)
    for datagram, _ in end.datagrams(0.03):
        user.receive(datagram, 0.05)
    assert user.rtt == pytest.approx(0.05, abs=1e-5)
    assert any(isinstance(event, Asked) for event in end.events())


def ends_well(scheme: str, rtt: float, lost: int) -> bool:
    """Whether the server learns that all has arrived though ``lost`` final ACKs are lost."""
    left = lost

    def fate(datagram: bytes, way: str, now: float) -> list[tuple[bytes, float]]:
        nonlocal left
        message = decode(datagram)
        if left and way == "up" and isinstance(message, Ack) and message.next == 6:
            left -= 1
            return []
        return [(datagram, rtt / 2)]

    network = Network([b"x"] * 5, fate, scheme=scheme).run()
    assert network.client.complete
    network.run(200, stop=lambda: False)
    return bool(network.ended == ["complete"])


@SCHEMES
def test_when_the_last_ack_is_lost_the_client_repeats_it_while_it_lingers(scheme: str) -> None:
    """The END is repeated while the client still listens: both sides end well."""
    assert ends_well(scheme, rtt=0.04, lost=3)


@SCHEMES
def test_on_a_long_path_the_client_lingers_for_longer(scheme: str) -> None:
    assert ends_well(scheme, rtt=1.2, lost=1)
