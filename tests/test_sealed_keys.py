"""The key schedule and both AEADs against published vectors, and a second implementation."""

from __future__ import annotations

import pytest
import second_seal  # type: ignore[import-not-found]
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from eloquent.sealed.keys import SALT, Aead, cipher, derive, nonce

#: RFC 5869, appendix A: IKM, salt, info, PRK, OKM.
RFC_5869 = [
    (
        b"\x0b" * 22,
        bytes(range(0x0D)),
        bytes(range(0xF0, 0xFA)),
        "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5",
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
    ),
    (
        bytes(range(0x50)),
        bytes(range(0x60, 0xB0)),
        bytes(range(0xB0, 0x100)),
        "06a6b88c5853361a06104c9ceb35b45cef760014904671014a193f40c15fc244",
        "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c"
        "59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db71"
        "cc30c58179ec3e87c14c01d5c1f3434f1d87",
    ),
    (
        b"\x0b" * 22,
        b"",
        b"",
        "19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04",
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
    ),
]

#: Key, nonce, plaintext, associated data, ciphertext and tag.
AEADS = {
    # The GCM specification submitted to NIST, appendix B, test case 16.
    Aead.AES_256_GCM: (
        "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308",
        "cafebabefacedbaddecaf888",
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
        "feedfacedeadbeeffeedfacedeadbeefabaddad2",
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
        "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
        "76fc6ece0f4e1768cddf8853bb2d551b",
    ),
    # RFC 8439, section 2.8.2.
    Aead.CHACHA20_POLY1305: (
        "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
        "070000004041424344454647",
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the "
        b"future, sunscreen would be it.".hex(),
        "50515253c0c1c2c3c4c5c6c7",
        "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6"
        "3dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b36"
        "92ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc"
        "3ff4def08e4b7a9de576d26586cec64b6116"
        "1ae10b594f09e26a7e902ecbd0600691",
    ),
}


@pytest.mark.parametrize(("ikm", "salt", "info", "prk", "okm"), RFC_5869)
def test_hkdf(ikm: bytes, salt: bytes, info: bytes, prk: str, okm: str) -> None:
    """The second implementation is right, and so is the one that the library takes."""
    size = len(okm) // 2
    assert [part.hex() for part in second_seal.hkdf(ikm, salt, info, size)] == [prk, okm]
    assert HKDF(SHA256(), size, salt=salt, info=info).derive(ikm).hex() == okm


@pytest.mark.parametrize("aead", Aead)
def test_aead(aead: Aead) -> None:
    key, number, text, associated, sealed = (bytes.fromhex(part) for part in AEADS[aead])
    assert cipher(aead, key).encrypt(number, text, associated) == sealed
    assert second_seal.AEADS[aead.value](key, number, text, associated) == sealed
    assert cipher(aead, key).decrypt(number, sealed, associated) == text


def test_each_direction_session_and_aead_has_keys_of_its_own() -> None:
    secret = bytes(range(32))
    made = {
        derive(secret, session, aead, from_server=side)
        for session in (0, 1, 2**64 - 1)
        for aead in Aead
        for side in (False, True)
    }
    assert len(made) == 12
    assert len({keys.key for keys in made}) == len({keys.nonce_salt for keys in made}) == 12


@given(secret=st.binary(min_size=32, max_size=32), session=st.integers(0, 2**64 - 1))
def test_the_schedule_as_it_is_written_down(secret: bytes, session: int) -> None:
    info = b"ChaCha20-Poly1305 server " + session.to_bytes(8, "big")
    _, okm = second_seal.hkdf(secret, b"eloquent sealed 1", info, 44)
    assert SALT == b"eloquent sealed 1"
    keys = derive(secret, session, Aead.CHACHA20_POLY1305, from_server=True)
    assert (keys.key, keys.nonce_salt) == (okm[:32], okm[32:])


def test_the_nonce_of_rfc_9001() -> None:
    """RFC 9001, appendix A.5: iv e0459b3474bdd0e44a41c144, packet number 654360564."""
    salt = bytes.fromhex("e0459b3474bdd0e44a41c144")
    assert nonce(salt, 654360564).hex() == "e0459b3474bdd0e46d417eb0"


def test_keys_are_not_shown() -> None:
    keys = derive(bytes(range(32)), 7, Aead.AES_256_GCM, from_server=True)
    assert repr(keys) == str(keys) == f"{keys}" == "<keys of one direction>"
