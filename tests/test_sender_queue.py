"""The sender where datagrams queue: it neither fills the queue nor takes it for an outage."""

from __future__ import annotations

import pytest
from network import Fate, Network  # type: ignore[import-not-found]
from test_sender import ack, ready, sent  # type: ignore[import-not-found]

from eloquent import Sender
from eloquent.rtt import RttEstimator
from eloquent.wire import MAX_DATAGRAM, Ack

WAY, QUEUE = 0.02, 0.2
#: The path answers nothing from SILENT to BACK.
SILENT, BACK = 4.0, 9.0


def estimator(*samples: float) -> RttEstimator:
    rtt = RttEstimator()
    for sample in samples:
        rtt.add(sample)
    return rtt


def test_queueing_delay_by_hand() -> None:
    assert RttEstimator().queueing(5.0) == 0.0
    # smoothed = 7/8 * 0.1 + 1/8 * 0.5 = 0.15: too little above 0.1 for a long queue
    assert estimator(0.1, 0.5).queueing(5.0) == pytest.approx(0.05)
    # smoothed = 7/8 * 0.1 + 1/8 * 1.7 = 0.3: now the last sample counts, and a longer silence
    assert estimator(0.1, 1.7).queueing(0.0) == pytest.approx(1.6)
    assert estimator(0.1, 1.7).queueing(3.0) == pytest.approx(2.9)


@pytest.mark.parametrize("queue", [0.0, 0.2, 2.0, 4.0])
def test_a_queue_of_any_length_gets_each_token_a_few_times_only(queue: float) -> None:
    """The first sending and two repetitions half the queue apart.

    Flights, with a token each 50 ms, are 7/s, or one a token.
    """
    sender = ready(0.05)
    answers: list[tuple[float, int, int]] = []
    tokens, flights, got = 0, 0, 1
    for step in range(60 * 200):
        now = 1.0 + step / 200
        if step % 10 == 0:
            sender.push(b"word", now)
        while answers and answers[0][0] <= now:
            _, upto, stamp = answers.pop(0)
            ack(sender, upto, now, stamp)
        for message in sent(sender, now):
            got = max(got, message.first + len(message.tokens))
            answers.append((now + 0.05 + queue, got, message.sent_at))
            if step >= 20 * 200:  # by then it knows the queue
                flights += 1
                tokens += len(message.tokens)
    pushed = 40 * 20
    assert tokens / pushed <= 3.2
    assert flights / 40 <= (8 if queue > 0.3 else 21)


def silence(queue: float, *, lost: bool) -> Fate:
    """A path that queues for ``queue`` from 0.5 s on, and stands still from SILENT to BACK."""

    def fate(datagram: bytes, direction: str, now: float) -> list[tuple[bytes, float]]:
        waiting = WAY + (queue if direction == "down" and now > 0.5 else 0.0)
        if not SILENT <= now < BACK or direction == "up":
            return [(datagram, waiting)]
        return [] if lost else [(datagram, BACK - now + waiting)]

    return fate


def rates(network: Network, start: float, stop: float) -> tuple[float, float]:
    """Datagrams and bytes (with IPv4 and UDP headers) per second that the server sent."""
    sizes = [28 + len(d) for at, way, d in network.log if way == "down" and start <= at < stop]
    return len(sizes) / (stop - start), sum(sizes) / (stop - start)


def recovery(network: Network) -> float:
    """Seconds after BACK until the reader has everything that was made before."""
    made = sum(at <= BACK for at in network.generated)
    return network.rendered[made - 1] - BACK


@pytest.mark.parametrize("scheme", ["eloquent", "eloquent-deadline"])
@pytest.mark.parametrize("lost", [False, True])
def test_a_silence_after_a_queue_is_met_with_less(scheme: str, lost: bool) -> None:
    network = Network([b"word%d" % n for n in range(200)], silence(QUEUE, lost=lost), scheme=scheme)
    network.run()
    assert network.answer == network.tokens
    before, then = rates(network, 2.0, SILENT), rates(network, SILENT, BACK)
    assert then[0] < before[0] and then[1] < before[1]
    # The first probe within 0.2 s; it and its answer take an RTT, what it left out one way.
    assert recovery(network) <= 0.2 + (2 * WAY + QUEUE) + (WAY + QUEUE) + 0.01


def test_a_silence_after_prompt_answers_is_an_outage() -> None:
    """Every probe brings everything: the first one that arrives is all that the reader needs."""
    network = Network([b"word%d" % n for n in range(200)], silence(0.0, lost=True))
    network.run()
    assert network.answer == network.tokens
    assert recovery(network) <= 0.2 + WAY + 0.01


def after_a_queue() -> Sender:
    """At 3.0 s: samples of 0.05, 0.5 and 1.5 s, token 2 is acknowledged, nothing is in flight."""
    sender = ready(0.05)
    for start, stop in ((1.0, 1.5), (1.5, 3.0)):
        sender.push(b"word", start)
        (message,) = sent(sender, start)
        ack(sender, message.first + 1, stop, message.sent_at)
    assert sender.path.rtt.smoothed == pytest.approx(0.28, abs=0.01)  # by hand, RFC 9002
    return sender


def test_what_the_probes_left_out_is_due_with_the_first_answer() -> None:
    sender, probes = after_a_queue(), []
    for step in range(1, 153):  # quiet after 3 PTO of 1 s, and a probe after that
        sender.push(b"word", 3.0 + step / 40)
        probes += sent(sender, 3.0 + step / 40)
    latest = probes[-1]
    assert latest.first > 3  # it went without the oldest
    stop = latest.first + len(latest.tokens)
    sender.receive(Ack(1, 0, False, 3, latest.sent_at, 0, ((latest.first, stop),)), 6.82)
    due = sender.next_timeout()
    assert due is not None and due <= 6.82  # although PTO is 1 s, and no new token waits
    (message,) = sent(sender, 6.82)
    assert (message.first, len(message.tokens)) == (3, latest.first - 3)


def test_a_long_silence_does_not_overfill_the_flight() -> None:
    sender = after_a_queue()
    for step in range(40 * 15):
        now = 3.0 + step / 40
        sender.push(bytes(300), now)
        assert all(len(datagram) <= MAX_DATAGRAM for datagram in sender.datagrams(now))
        assert sender.window.bytes_in_flight <= 11_000 + MAX_DATAGRAM
    assert sender.window.bytes_in_flight > 9_000
