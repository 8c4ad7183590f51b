"""From one secret to the keys of a session: HKDF-SHA256 (RFC 5869), and which AEAD uses them.

The only module that needs the package ``cryptography``, and only once keys are made.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

SECRET_SIZE = 32
KEY_SIZE = 32
NONCE_SIZE = 12
TAG_SIZE = 16
#: Says which key schedule this is (RFC 5869, section 3.1: a salt need not be secret).
SALT = b"eloquent sealed 1"


class Aead(Enum):
    """How packets are sealed: the value is the name in tickets and in the key schedule."""

    AES_256_GCM = "AES-256-GCM"
    CHACHA20_POLY1305 = "ChaCha20-Poly1305"

    @property
    def most_packets(self) -> int:
        """How many packets one key may seal: RFC 9001, section 6.6, or all that a number can name.

        The RFC allows ChaCha20-Poly1305 more than 2^62.
        """
        return 2**23 if self is Aead.AES_256_GCM else 2**32

    @property
    def most_forgeries(self) -> int:
        """How many packets may fail to open under one key: RFC 9001, section 6.6."""
        return 2**52 if self is Aead.AES_256_GCM else 2**36


class Cipher(Protocol):
    """An AEAD with its key, as ``cryptography`` has them. The tag follows the ciphertext."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None, /) -> bytes: ...

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None, /) -> bytes: ...


class DirectionKeys(NamedTuple):
    """What one direction of a session is sealed with."""

    key: bytes
    nonce_salt: bytes

    def __repr__(self) -> str:
        return "<keys of one direction>"


def derive(secret: bytes, session_id: int, aead: Aead, *, from_server: bool) -> DirectionKeys:
    """The keys of one direction. Raises ImportError without the package ``cryptography``."""
    try:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise missing(error) from None
    sender = b"server" if from_server else b"client"
    info = b" ".join((aead.value.encode(), sender, session_id.to_bytes(8, "big")))
    both = HKDF(SHA256(), KEY_SIZE + NONCE_SIZE, salt=SALT, info=info).derive(secret)
    return DirectionKeys(both[:KEY_SIZE], both[KEY_SIZE:])


def cipher(aead: Aead, key: bytes) -> Cipher:
    """The AEAD with this key. Raises ImportError without the package ``cryptography``."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
    except ImportError as error:
        raise missing(error) from None
    return AESGCM(key) if aead is Aead.AES_256_GCM else ChaCha20Poly1305(key)


def missing(error: ImportError) -> ImportError:
    """What to say where the package is not there."""
    return ImportError(
        f"sealed streams need the package cryptography ({error}): "
        "pip install 'eloquent-testbed[sealed]'"
    )


def nonce(salt: bytes, number: int) -> bytes:
    """The nonce of a packet: its number, exclusive or the salt (RFC 9001, section 5.3)."""
    return (int.from_bytes(salt, "big") ^ number).to_bytes(NONCE_SIZE, "big")
