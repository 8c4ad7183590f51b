"""The sealed format: against a second implementation, and what the sealer and opener refuse."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import threading

import pytest
import second_seal  # type: ignore[import-not-found]
from hypothesis import given
from hypothesis import strategies as st

from eloquent import wire
from eloquent.sealed import Aead, Opener, SealedOut, Sealer, SealMisused
from eloquent.sealed.keys import derive
from eloquent.sealed.packets import (
    HEADER_SIZE,
    MAX_PACKET,
    MIN_PACKET,
    OVERHEAD,
    VERSION,
    datagram_of,
    message_of,
    packet_size,
    session_of,
    stream_of,
)
from eloquent.sealed.replay import WINDOW
from eloquent.wire import Data

SECRET, SESSION = bytes(range(32)), 0x0123456789ABCDEF
PLAIN = wire.encode(Data(77, 0x00112233, False, 0, (b"Why?",), wire.Reason.STOP))


def sealer(aead: Aead = Aead.AES_256_GCM, *, server: bool = False, pad: int = 0) -> Sealer:
    return Sealer(derive(SECRET, SESSION, aead, from_server=server), SESSION, aead, pad=pad)


def opener(
    aead: Aead = Aead.AES_256_GCM, *, server: bool = False, session: int = SESSION
) -> Opener:
    """Of what the server sends, or else the client."""
    return Opener(derive(SECRET, session, aead, from_server=server), session, aead)


@given(
    message=st.binary(max_size=1188),
    aead=st.sampled_from(Aead),
    server=st.booleans(),
    pad=st.sampled_from([0, 1, 16, 64, 100, 1232]),
)
def test_as_a_second_implementation(message: bytes, aead: Aead, server: bool, pad: int) -> None:
    one, sender = sealer(aead, server=server, pad=pad), ["client", "server"][server]
    session = SESSION.to_bytes(8, "big")
    for number in (0, 1):
        packet = one.seal(message)
        assert packet == second_seal.seal(SECRET, session, aead.value, sender, number, message, pad)
        assert opener(aead, server=server).open(packet) == message


@given(message=st.binary(max_size=1188), pad=st.integers(0, MAX_PACKET))
def test_sizes(message: bytes, pad: int) -> None:
    """Steps of ``pad``, but what passes every IPv6 path: RFC 8200, section 5; nothing is cut."""
    size = len(sealer(pad=pad).seal(message))
    assert size == packet_size(len(message) + 12, pad)
    least = len(message) + 30
    assert least <= size <= 1280 - 40 - 8
    assert size == least if not pad else size % pad == 0 or size == 1232
    assert size - least < max(pad, 1)


@given(plain=st.binary(min_size=wire.HEADER_SIZE + wire.CRC_SIZE, max_size=wire.MAX_DATAGRAM))
def test_the_largest_datagram_fits(plain: bytes) -> None:
    message = message_of(plain)
    assert len(sealer().seal(message)) == len(plain) + OVERHEAD <= MAX_PACKET
    again = datagram_of(message, plain[2:10])
    assert again[:-4] == plain[:-4]


def test_the_stream_id_and_the_checksum_come_back() -> None:
    assert datagram_of(message_of(PLAIN), (77).to_bytes(8, "big")) == PLAIN
    assert stream_of(PLAIN) == 77
    other = wire.decode(datagram_of(message_of(PLAIN), (78).to_bytes(8, "big")))
    assert other == Data(78, 0x00112233, False, 0, (b"Why?",), wire.Reason.STOP)


def test_nothing_but_version_session_and_number_is_in_clear() -> None:
    first, second = (sealer().seal(b"\0" * 600) for _ in range(2))
    assert first == second  # of two sessions with one secret, which tickets prevent
    one = sealer()
    packets = [one.seal(b"\0" * 600) for _ in range(2)]
    assert [p[:HEADER_SIZE].hex() for p in packets] == [
        "f10123456789abcdef00000000",
        "f10123456789abcdef00000001",
    ]
    pairs = zip(*(packet[HEADER_SIZE:] for packet in packets), strict=True)
    same = sum(a == b for a, b in pairs)
    assert same < 20  # 617 / 256 = 2.4 are expected by chance


@pytest.mark.parametrize("aead", Aead)
def test_each_bit_counts(aead: Aead) -> None:
    packet, one = sealer(aead).seal(b"message"), opener(aead)
    for bit in range(8 * len(packet)):
        changed = bytearray(packet)
        changed[bit // 8] ^= 1 << bit % 8
        assert one.open(bytes(changed)) is None
    for size in range(len(packet)):
        assert one.open(packet[:size]) is None
    assert one.open(packet + b"\0") is None
    assert one.open(packet) == b"message"  # and none of these has used its number up
    assert one.open(packet) is None
    assert one.replayed == 1


def test_what_is_not_for_this_opener() -> None:
    ours = sealer(server=True).seal(b"message")
    assert opener(server=False).open(ours) is None  # reflected to its sender
    assert opener(Aead.CHACHA20_POLY1305, server=True).open(ours) is None
    assert opener(server=True, session=SESSION + 1).open(ours) is None
    assert opener(server=True).open(PLAIN) is None
    assert opener(server=True).open(ours) == b"message"


@pytest.mark.parametrize("inside", [b"", b"\0" * 40, b"message", b"message\x81"])
def test_authentic_without_the_mark(inside: bytes) -> None:
    """A faulty peer: nothing is made of it, and it is no exception."""
    keys = derive(SECRET, SESSION, Aead.AES_256_GCM, from_server=False)
    header = b"\xf1" + SESSION.to_bytes(8, "big") + bytes(4)
    packet = header + second_seal.aes_gcm(keys.key, keys.nonce_salt, inside, header)
    assert opener().open(packet) is None


def test_overtaken_packets_are_taken_within_the_window() -> None:
    one, other = sealer(), opener()
    packets = [one.seal(b"%d" % n) for n in range(WINDOW + 1)]
    assert other.open(packets[-1]) == b"%d" % WINDOW
    assert other.open(packets[1]) == b"1"
    assert other.open(packets[0]) is None


@pytest.mark.parametrize(
    ("aead", "most"), [(Aead.AES_256_GCM, 2**23), (Aead.CHACHA20_POLY1305, 2**32)]
)
def test_the_numbers_end(aead: Aead, most: int) -> None:
    """RFC 9001, section 6.6: 2^23 with AES-GCM; ChaCha20-Poly1305 by the size of the number."""
    one = sealer(aead)
    one._numbers = itertools.count(most - 1)  # nobody waits for so many
    last = one.seal(b"last")
    assert int.from_bytes(last[9:13], "big") == most - 1
    for _ in range(2):
        with pytest.raises(SealedOut, match=r"packets are sealed .*: take a fresh ticket"):
            one.seal(b"too much")


def test_forgeries_end_a_key() -> None:
    """RFC 9001, section 6.6: 2^52 with AES-GCM, 2^36 with ChaCha20-Poly1305."""
    assert [aead.most_forgeries for aead in Aead] == [2**52, 2**36]
    one, two = sealer(), opener()
    two.forged = 2**52 - 1
    assert two.open(one.seal(b"message")) == b"message"
    forged = bytearray(one.seal(b"message"))
    forged[-1] ^= 1
    assert two.open(bytes(forged)) is None
    assert two.open(one.seal(b"message")) is None


def test_a_failed_seal_uses_its_number_up() -> None:
    one = sealer()
    with pytest.raises(TypeError):
        one.seal("text")
    assert one.seal(b"bytes")[9:13] == bytes([0, 0, 0, 1])


@pytest.mark.parametrize("twice", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_sealer_is_not_copied(twice) -> None:
    with pytest.raises(SealMisused, match="cannot be copied"):
        twice(sealer())


def test_a_sealer_does_not_survive_a_fork() -> None:
    one = sealer()
    pid = os.fork()
    if pid == 0:
        try:
            one.seal(b"message")
        except SealMisused:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert one.seal(b"message")


def test_threads_get_no_number_twice() -> None:
    one, packets = sealer(), []
    workers = [
        threading.Thread(target=lambda: packets.extend([one.seal(b"") for _ in range(2000)]))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len({packet[9:13] for packet in packets}) == 8000


@pytest.mark.parametrize("pad", [-1, MAX_PACKET + 1])
def test_a_pad_that_cannot_be(pad: int) -> None:
    with pytest.raises(ValueError, match=rf"pad is {pad}: give a step of 1 to 1232 bytes"):
        sealer(pad=pad)


def test_whose_packet() -> None:
    packet = sealer().seal(b"")
    assert len(packet) == MIN_PACKET
    assert session_of(packet) == SESSION and packet[0] == VERSION != wire.VERSION
    assert session_of(packet[:-1]) is None
    assert session_of(packet + bytes(MAX_PACKET)) is None
    assert session_of(PLAIN + bytes(20)) is None
    assert session_of(b"") is None
