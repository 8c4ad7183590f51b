"""A NAT whose mapping changes: what a mobile client's server sees after a rebinding.

Until the first change nothing is touched. From then on the client's UDP and TCP ports appear as
others to the far side, and what is still sent to an earlier mapping is dropped. As behind a real
NAT, a TCP connection does not survive that: its segments come from a port that nobody knows.
"""

from __future__ import annotations

from topologies.profile import Rebind

_STEP = 1009  # the ports of two mappings never meet in fewer than 64 changes
_LOW, _SPAN = 1024, 65536 - 1024
_TCP, _UDP = 6, 17
_CHECKSUM = {_TCP: 16, _UDP: 6}  # offset in the transport header


class Nat:
    """Translates Ethernet frames with IPv4 in them; all other frames pass."""

    def __init__(self, rebind: Rebind) -> None:
        self._rebind = rebind
        self._ports: set[tuple[int, int]] = set()

    def reset(self) -> None:
        """Forget all mappings."""
        self._ports.clear()

    def translate(self, frame: bytes, direction: str, t: float) -> bytes | None:
        """The frame as it goes on at channel time `t`; None: there is no mapping for it."""
        shift = self._rebind.count(t) * _STEP
        found = _transport(frame)
        if found is None:
            return frame
        protocol, start = found
        offset = start if direction == "up" else start + 2
        port = int.from_bytes(frame[offset : offset + 2], "big")
        if direction == "up":
            self._ports.add((protocol, port))
            return _with_port(frame, protocol, start, offset, _move(port, shift))
        if shift == 0:
            return frame
        inner = _move(port, -shift)
        if (protocol, inner) not in self._ports:
            return None
        return _with_port(frame, protocol, start, offset, inner)


def _move(port: int, shift: int) -> int:
    return port if port < _LOW else _LOW + (port - _LOW + shift) % _SPAN


def _transport(frame: bytes) -> tuple[int, int] | None:
    """Protocol and offset of a UDP or TCP header, if the frame holds one."""
    if len(frame) < 42 or frame[12:14] != b"\x08\x00":
        return None
    protocol, start = frame[23], 14 + 4 * (frame[14] & 15)
    later_fragment = int.from_bytes(frame[20:22], "big") & 0x1FFF
    if protocol not in _CHECKSUM or later_fragment:
        return None
    if len(frame) < start + _CHECKSUM[protocol] + 2:
        return None
    return protocol, start


def _with_port(frame: bytes, protocol: int, start: int, offset: int, port: int) -> bytes:
    """The frame with another port, its checksum updated (RFC 1624, equation 3)."""
    old = int.from_bytes(frame[offset : offset + 2], "big")
    if old == port:
        return frame
    changed = bytearray(frame)
    changed[offset : offset + 2] = port.to_bytes(2, "big")
    place = start + _CHECKSUM[protocol]
    checksum = int.from_bytes(frame[place : place + 2], "big")
    if protocol == _UDP and checksum == 0:  # the sender computed none (RFC 768)
        return bytes(changed)
    total = (~checksum & 0xFFFF) + (~old & 0xFFFF) + port
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    result = ~total & 0xFFFF
    if protocol == _UDP and result == 0:
        result = 0xFFFF
    changed[place : place + 2] = result.to_bytes(2, "big")
    return bytes(changed)
