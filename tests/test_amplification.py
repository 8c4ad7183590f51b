"""An address that never answers gets at most three times what came from it (RFC 9000, 8.1)."""

from __future__ import annotations

import random

import pytest
from network import AmplificationObserver, Network, lossy  # type: ignore[import-not-found]

from eloquent import Asked, Reason, Server, Stream, schemes
from eloquent.wire import Ack, Data, Message, encode

VICTIM = "victim"
SCHEMES = pytest.mark.parametrize("scheme", schemes.names())


class Spoofer:
    """Sends in the victim's name and sees nothing of what the victim gets."""

    def __init__(self, scheme: str = "eloquent") -> None:
        self.server = Server(scheme, random_bits=random.Random(1).getrandbits)
        self.observer = AmplificationObserver()
        self.now = 0.0

    def send(self, message: Message) -> None:
        datagram = encode(message)
        self.observer.arrived(datagram, VICTIM)
        self.server.receive(datagram, VICTIM, self.now)
        self.flush()

    def flush(self) -> None:
        for datagram, address in self.server.datagrams(self.now):
            self.observer.left(datagram, address)
        due = self.server.next_timeout()
        assert due is None or due > self.now, "a busy loop"

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.server.next_timeout()) is not None and due <= end:
            self.now = due
            self.flush()
        self.now = end

    def ask(self, size: int) -> Stream:
        self.send(Data(7, 1, False, 0, (bytes(size),), Reason.STOP))
        (event,) = self.server.events()
        assert isinstance(event, Asked)
        return event.stream


@SCHEMES
@pytest.mark.parametrize("size", [0, 1, 7, 20, 100, 1024])
def test_an_answer_to_a_spoofed_prompt(scheme: str, size: int) -> None:
    attack = Spoofer(scheme)
    stream = attack.ask(size)
    for _ in range(100):
        stream.push(b"some words ", attack.now)
        attack.flush()
        attack.wait(0.02)
    stream.finish(Reason.STOP, attack.now)
    attack.wait(100)
    assert attack.observer.went[VICTIM] > 0
    assert attack.server.streams == 0  # the lease has ended


@SCHEMES
def test_forged_acknowledgements_do_not_prove_an_address(scheme: str) -> None:
    attack = Spoofer(scheme)
    stream = attack.ask(10)
    rng = random.Random(3)
    for n in range(1, 300):
        stream.push(b"word " * 20, attack.now)
        attack.flush()
        guess = rng.getrandbits(32)  # the stamp has a random salt of 32 bits
        attack.send(Ack(7, 1 + n, False, stream.tokens_sent, guess))
        attack.wait(0.02)
    assert VICTIM not in attack.observer.proven


@SCHEMES
def test_a_forged_end_acknowledgement(scheme: str) -> None:
    attack = Spoofer(scheme)
    stream = attack.ask(10)
    stream.finish(Reason.STOP, attack.now)
    attack.flush()
    for n in range(5):
        attack.send(Ack(7, 2 + n, False, 1, 0))  # completes the answer: a CANCEL confirms it
    attack.wait(1)
    assert attack.server.streams == 0


def test_a_server_that_gives_a_spoofed_prompt_up() -> None:
    for size in range(40):
        attack = Spoofer()
        stream = attack.ask(size)
        for _ in range(60):
            stream.push(b"w", attack.now)
            attack.flush()
            attack.wait(0.02)
        attack.server.cancel(stream, attack.now)
        attack.flush()


@pytest.mark.parametrize("seed", range(20))
def test_floods_of_small_pieces_with_holes(seed: int) -> None:
    """Long ACKs for short datagrams: the limit holds, and no timer spins."""
    attack, rng = Spoofer(), random.Random(seed)
    for n in range(300):
        first = rng.randrange(200)
        attack.send(Data(7, n + 1, False, first, (b"",), None))
        if rng.random() < 0.3:
            attack.wait(rng.random())
    attack.wait(100)


@SCHEMES
@pytest.mark.parametrize("seed", range(5))
def test_a_thief_moves_a_running_stream_to_the_victim(scheme: str, seed: int) -> None:
    """Who copies the id can redirect an answer, but then the victim gets little of it."""
    tokens = [b"a long piece of text " * 20] * 200
    network = Network(tokens, lossy(seed, 0.1), scheme=scheme, spacing=0.02, seed=seed)

    def steal() -> None:
        stamp = (network.client._path.clock(network.now) + 5000) % 2**32
        message = Ack(network.client.stream_id, stamp, False, 0, 0, asks=seed % 2 == 0)
        network._arrival(encode(message), "up", VICTIM)()

    for n in range(10):
        network.at(0.5 + 0.3 * n, steal)
    network.run()
    assert network.answer == tokens  # the client takes it back with its next datagram
    assert VICTIM not in network.amplification.proven
    assert 0 < network.amplification.went[VICTIM] <= 3 * network.amplification.came[VICTIM]
