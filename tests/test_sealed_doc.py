"""docs/protocol.md, section 15, against the library and against the second implementation."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
import second_seal  # type: ignore[import-not-found]

from eloquent import wire
from eloquent.sealed import Aead, Opener, Sealer, Ticket
from eloquent.sealed.keys import DirectionKeys, derive
from eloquent.sealed.packets import MIN_PACKET, OVERHEAD, message_of, packet_size

DOCUMENT = (Path(__file__).parent.parent / "docs" / "protocol.md").read_text(encoding="utf-8")
SECRET, SESSION = bytes(range(32)), 0x0123456789ABCDEF
VECTORS = [
    dict(re.findall(r"^(\w+): ((?:.|\n  )*)$", block, re.MULTILINE))
    for block in re.findall(r"```vector\n(.*?)```", DOCUMENT, re.DOTALL)
]
CONSTANTS = re.findall(r"^\| `(sealed\.\w+)\.(\w+)` \| ([^ |]+)[^|]*\|", DOCUMENT, re.MULTILINE)
#: Which is the layout itself, and has a table of its own.
LAYOUT = {
    "sealed.keys.KEY_SIZE",
    "sealed.keys.NONCE_SIZE",
    "sealed.keys.TAG_SIZE",
    "sealed.packets.HEADER_SIZE",
    "sealed.packets.MIN_PACKET",
    "sealed.packets.OVERHEAD",
}


@pytest.mark.parametrize("vector", VECTORS)
def test_vector(vector: dict[str, str]) -> None:
    aead, sender = Aead(vector["aead"]), vector["sender"]
    key, salt, plain, message, packet = (
        bytes.fromhex(vector[name]) for name in ("key", "salt", "plain", "message", "packet")
    )
    number, pad = int(vector["number"]), int(vector["pad"])
    assert message_of(plain) == message
    assert (
        second_seal.seal(
            SECRET, SESSION.to_bytes(8, "big"), aead.value, sender, number, message, pad
        )
        == packet
    )
    keys = derive(SECRET, SESSION, aead, from_server=sender == "server")
    assert keys == DirectionKeys(key, salt)
    sealer = Sealer(keys, SESSION, aead, pad=pad)
    for _ in range(number):
        sealer.seal(b"")
    assert sealer.seal(message) == packet
    assert Opener(keys, SESSION, aead).open(packet) == message


def test_the_vectors_cover_both_ciphers_both_ways() -> None:
    covered = {(vector["aead"], vector["sender"]) for vector in VECTORS}
    assert covered == {(aead.value, sender) for aead in Aead for sender in ("client", "server")}
    prk, _ = second_seal.hkdf(SECRET, b"eloquent sealed 1", b"", 32)
    assert f"PRK is\n{prk.hex()}." in DOCUMENT


@pytest.mark.parametrize(("module", "name", "value"), CONSTANTS)
def test_constant(module: str, name: str, value: str) -> None:
    said = int(value, 16) if value.startswith("0x") else float(value)
    assert getattr(import_module(f"eloquent.{module}"), name) == said


def test_no_constant_is_left_out() -> None:
    own = set()
    for name in ("keys", "replay", "packets", "tickets", "ends"):
        module = import_module(f"eloquent.sealed.{name}")
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        for constant in re.findall(r"^([A-Z][A-Z0-9_]*) = ", source, re.MULTILINE):
            if isinstance(getattr(module, constant), int | float):
                own.add(f"sealed.{name}.{constant}")
    assert own - LAYOUT == {f"{module}.{name}" for module, name, _ in CONSTANTS}


def test_the_amounts_in_the_text() -> None:
    assert f"has {MIN_PACKET} to 1232 bytes" in DOCUMENT
    assert f"makes one of {packet_size(wire.MAX_DATAGRAM)}" in DOCUMENT
    assert f"is {OVERHEAD} bytes larger than the plain" in DOCUMENT
    assert [aead.most_packets for aead in Aead] == [2**23, 2**32]
    assert [aead.most_forgeries for aead in Aead] == [2**52, 2**36]


def test_with_pad_64_a_lone_token_of_19_bytes_does_not_show() -> None:
    for index in (0, 63, 64, 16383):
        for size in (1, 19):
            data = wire.Data(1, 0, True, index, (bytes(size),), None, 1)
            assert packet_size(len(wire.encode(data)), 64) == 64
    ack = wire.Ack(1, 0, False, 16383, 0, 25_000)
    assert packet_size(len(wire.encode(ack)), 64) == 64


def test_the_ticket_in_the_text() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", DOCUMENT, re.DOTALL)
    ticket = Ticket.parse(text.replace("000102…1f", SECRET.hex()))
    assert (ticket.session_id, ticket.address) == (SESSION, ("server.example", 4433))
