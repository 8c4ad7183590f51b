"""Changes of address: the client is followed, and nobody takes its stream away (RFC 9000, 9.3)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from network import Network, lossy, outage  # type: ignore[import-not-found]

from eloquent import schemes
from eloquent.wire import Ack, Cancel, CancelReason, Data, decode, encode

TOKENS = [b"a word or two " * 3] * 200
FORGED = ("forged", 1)
SCHEMES = pytest.mark.parametrize("scheme", schemes.names())


class Attacked(Network):  # type: ignore[misc]
    """A network on whose way to the server somebody sends what ``forge`` makes of each datagram.

    It comes first, from FORGED. What goes to FORGED is counted by kind.
    """

    forge: Callable[[bytes], list[bytes]]

    def _send(self, datagram: bytes, direction: str, address: object) -> None:
        if direction == "up":
            for copy in self.forge(datagram):
                self.at(self.now + 0.001, self._arrival(copy, "up", FORGED))
        elif address == FORGED:
            self.got[type(decode(datagram)).__name__] += len(datagram)
        super()._send(datagram, direction, address)


def attacked(forge: Callable[[bytes], list[bytes]], scheme: str = "eloquent") -> Attacked:
    network = Attacked(TOKENS, lossy(1, 0.0), scheme=scheme)
    network.forge, network.got = forge, Counter()
    return network


@SCHEMES
def test_copies_from_a_forged_address_take_nothing(scheme: str) -> None:
    """After the prompt, each datagram of the client comes from elsewhere first."""
    network = attacked(lambda d: [] if network.now < 0.5 else [d], scheme)
    network.run(60)
    assert network.answer == TOKENS
    assert network.got["Data"] == 0 and network.got["Ack"] > 0  # not a byte of text
    late = [b - a for a, b in zip(network.generated, network.rendered, strict=True)]
    assert max(late) < 0.05  # the reader does not notice


def test_a_stamp_that_is_far_ahead_ends_nothing() -> None:
    def forge(datagram: bytes) -> list[bytes]:
        ahead = (decode(datagram).sent_at + 2**31 - 10**6) % 2**32
        ping = Ack(network.client.stream_id, ahead, False, 0, 0, asks=True)
        return [encode(ping)] if 0.5 < network.now < 0.6 else []

    network = attacked(forge)
    network.move_client(2.0)
    network.run(60)
    assert network.answer == TOKENS and network.got["Data"] == 0


def test_a_guessed_proof_is_none() -> None:
    rng = random.Random(1)

    def forge(datagram: bytes) -> list[bytes]:
        stream, now = network.client.stream_id, network.now
        guess = [Ack(stream, 0, False, 0, rng.getrandbits(32), asks=True) for _ in range(20)]
        return [encode(ack) for ack in guess] if now > 0.5 else []

    network = attacked(forge)
    network.run(60)
    assert network.answer == TOKENS and network.got["Data"] == 0


def test_a_proof_for_one_address_is_none_for_another() -> None:
    """An echo of what the client's own address got, heard on the way and sent from elsewhere."""
    network = attacked(lambda d: [d])
    network.run(60)
    assert network.answer == TOKENS and network.got["Data"] == 0


@SCHEMES
@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_a_client_that_moves_is_followed_within_a_round_trip(scheme: str, loss: float) -> None:
    network = Network(TOKENS, lossy(3, loss), scheme=scheme)
    for n in range(8):
        network.move_client(1.0 + n)
    network.run(100)
    assert network.answer == TOKENS
    if loss == 0.0 and scheme != "retransmit":
        late = [b - a for a, b in zip(network.generated, network.rendered, strict=True)]
        # Until it says something (a PING after 0.15 s at the latest), and the proof: 2 RTT.
        assert max(late) < 0.15 + 5 * 0.02 + 0.01


def test_a_move_in_an_outage() -> None:
    network = Network(TOKENS, outage(2.0, 4.0, lossy(1, 0.0)))
    network.move_client(3.0)
    network.run(100)
    assert network.answer == TOKENS
    late = [b - a for a, b in zip(network.generated, network.rendered, strict=True)]
    assert max(late) < 2.0 + 1.0 + 5 * 0.02


def test_a_client_that_moves_before_its_address_is_proven() -> None:
    network = Network(TOKENS, lossy(1, 0.0))
    network.move_client(0.01)
    network.run(100)
    assert network.answer == TOKENS and network.asked == [b"why is the sky blue?"]


def test_a_datagram_of_the_old_address_that_comes_late_moves_nothing() -> None:
    network = Network(TOKENS, lossy(1, 0.0))
    network.move_client(1.0)
    network.run(60, stop=lambda: network.now > 2.0)
    late = encode(Ack(network.client.stream_id, 5, False, 0, 0, asks=True))
    network.server.receive(late, ("client", 1), network.now)
    (stream,) = network.server._streams.values()
    assert stream.address == ("client", 2)
    asked = [d for d, to in network.server.datagrams(network.now) if to == ("client", 1)]
    assert len(asked) == 1 and isinstance(decode(asked[0]), Ack)  # for a proof, and no text


def test_what_makes_no_sense_is_no_sign_of_life() -> None:
    """DATA that contradicts the END of the prompt: counted, and that is all."""
    network = Network(TOKENS, lossy(1, 0.0))
    network.run(60, stop=lambda: network.now > 1.0)
    (stream,) = network.server._streams.values()
    before = stream._heard_at
    stream._answer._backoff = 3
    wrong = Data(network.client.stream_id, 0, False, 7, (b"x",))
    network.server.receive(encode(wrong), network.client_address, network.now)
    assert network.server.malformed == 1
    assert (stream._heard_at, stream._answer._backoff) == (before, 3)


@pytest.mark.parametrize("how", ["cancelled", "lost"])
def test_a_refusal_that_was_lost_is_said_again(how: str) -> None:
    """Not "unknown stream", which says that the server was restarted."""
    network = Network(TOKENS, lossy(1, 0.0))
    network.run(60, stop=lambda: network.now > 1.0)
    (stream,) = network.server._streams.values()
    if how == "cancelled":
        network.server.cancel(stream, network.now)
        expected = CancelReason.BUSY
    else:
        network.now += 70
        network.server.datagrams(network.now)
        expected = CancelReason.UNKNOWN_STREAM
    network.server.datagrams(network.now)  # lost
    ping = Ack(stream.stream_id, 9, False, 0, 0, asks=True)
    network.server.receive(encode(ping), network.client_address, network.now)
    ((datagram, _),) = network.server.datagrams(network.now)
    assert decode(datagram) == Cancel(stream.stream_id, 9, True, expected)
