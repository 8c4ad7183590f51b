"""A second implementation of the sealed format, from the RFCs: slow, and nothing of ours in it.

Only AES itself, one block at a time, comes from the package cryptography.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes


def hkdf(secret: bytes, salt: bytes, info: bytes, size: int) -> tuple[bytes, bytes]:
    """RFC 5869, sections 2.2 and 2.3, with SHA-256: PRK and OKM."""
    prk = hmac.new(salt or bytes(32), secret, hashlib.sha256).digest()
    okm, block, counter = b"", b"", 0
    while len(okm) < size:
        counter += 1
        block = hmac.new(prk, block + info + bytes([counter]), hashlib.sha256).digest()
        okm += block
    return prk, okm[:size]


def _quarter(state: list[int], a: int, b: int, c: int, d: int) -> None:
    for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[x] = (state[x] + state[y]) & 0xFFFFFFFF
        mixed = state[z] ^ state[x]
        state[z] = (mixed << turn | mixed >> (32 - turn)) & 0xFFFFFFFF


def _chacha_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """RFC 8439, section 2.3."""
    start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter]
    start += struct.unpack("<3I", nonce)
    state = list(start)
    for _ in range(10):
        for n in range(4):
            _quarter(state, n, n + 4, n + 8, n + 12)
        for n in range(4):
            _quarter(state, n, 4 + (n + 1) % 4, 8 + (n + 2) % 4, 12 + (n + 3) % 4)
    words = ((x + y) & 0xFFFFFFFF for x, y in zip(state, start, strict=True))
    return struct.pack("<16I", *words)


def _poly1305(key: bytes, text: bytes) -> bytes:
    """RFC 8439, section 2.5."""
    r = int.from_bytes(key[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    s, total = int.from_bytes(key[16:], "little"), 0
    for at in range(0, len(text), 16):
        total = (total + int.from_bytes(text[at : at + 16] + b"\x01", "little")) * r % (2**130 - 5)
    return ((total + s) % 2**128).to_bytes(16, "little")


def _filled(text: bytes) -> bytes:
    return text + bytes(-len(text) % 16)


def _exclusive_or(text: bytes, stream: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(text, stream, strict=False))


def chacha20_poly1305(key: bytes, nonce: bytes, text: bytes, associated: bytes) -> bytes:
    """RFC 8439, section 2.8: ciphertext and tag."""
    blocks = (_chacha_block(key, 1 + n, nonce) for n in range(-(-len(text) // 64)))
    sealed = _exclusive_or(text, b"".join(blocks))
    sizes = struct.pack("<QQ", len(associated), len(sealed))
    one_time = _chacha_block(key, 0, nonce)[:32]
    return sealed + _poly1305(one_time, _filled(associated) + _filled(sealed) + sizes)


def aes_gcm(key: bytes, nonce: bytes, text: bytes, associated: bytes) -> bytes:
    """NIST SP 800-38D, with a nonce of 96 bits: ciphertext and tag."""
    aes = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    counters = b"".join(nonce + struct.pack(">I", 2 + n) for n in range(-(-len(text) // 16)))
    sealed = _exclusive_or(text, aes.update(counters))
    h, total = int.from_bytes(aes.update(bytes(16)), "big"), 0
    sizes = struct.pack(">QQ", 8 * len(associated), 8 * len(sealed))
    hashed = _filled(associated) + _filled(sealed) + sizes
    for at in range(0, len(hashed), 16):
        total = _gf_multiply(total ^ int.from_bytes(hashed[at : at + 16], "big"), h)
    return sealed + _exclusive_or(
        total.to_bytes(16, "big"), aes.update(nonce + struct.pack(">I", 1))
    )


def _gf_multiply(x: int, y: int) -> int:
    product = 0
    for bit in range(127, -1, -1):
        if x >> bit & 1:
            product ^= y
        y = y >> 1 ^ (0xE1 << 120 if y & 1 else 0)
    return product


AEADS = {"AES-256-GCM": aes_gcm, "ChaCha20-Poly1305": chacha20_poly1305}


def seal(
    secret: bytes, session: bytes, aead: str, sender: str, number: int, message: bytes, pad: int
) -> bytes:
    """The packet, as docs/protocol.md says."""
    info = f"{aead} {sender} ".encode() + session
    _, okm = hkdf(secret, b"eloquent sealed 1", info, 44)
    header = b"\xf1" + session + number.to_bytes(4, "big")
    inside = message + b"\x80"
    while pad and (13 + len(inside) + 16) % pad and 13 + len(inside) + 16 < 1232:
        inside += b"\x00"
    nonce = _exclusive_or(okm[32:], bytes(8) + number.to_bytes(4, "big"))
    return header + AEADS[aead](okm[:32], nonce, inside, header)
