"""Write captured Ethernet frames as pcapng, with nanoseconds and direction."""

from __future__ import annotations

import struct

from scapy.utils import RawPcapNgWriter

_LINKTYPE_ETHERNET = 1
#: Larger than the largest frame before segmentation offload cuts it.
SNAP_LENGTH = 262144
#: Direction of a frame, as in the option epb_flags.
INBOUND, OUTBOUND = 1, 2


class PcapngWriter(RawPcapNgWriter):
    """scapy's pcapng writer with nanoseconds and without a detour over floats.

    The format is draft-ietf-opsawg-pcapng; the section and interface blocks are scapy's.
    """

    def __init__(self, path: str, interface: str) -> None:
        super().__init__(path)
        self.linktype = _LINKTYPE_ETHERNET
        self._interface = interface.encode()
        self._write_header(None)
        self.f.flush()

    def _write_block_idb(self, linktype: int, ifname: bytes | None = None) -> None:
        # Options: if_name (2), and if_tsresol (9) = 10^-9 s, which scapy does not write.
        name = self._interface
        options = struct.pack("<HH", 2, len(name)) + self._add_padding(name)
        options += struct.pack("<HHB3xI", 9, 1, 9, 0)
        body = struct.pack("<HHI", linktype, 0, SNAP_LENGTH)
        self.f.write(self.build_block(struct.pack("<I", 1), body, options=options))

    def packet(self, frame: bytes, nanoseconds: int, direction: int) -> None:
        """Append one frame, stamped with nanoseconds since 1970, inbound 1 or outbound 2."""
        padding = -len(frame) % 4
        size = 44 + len(frame) + padding
        head = struct.pack(
            "<IIIIIII",
            6,
            size,
            0,
            nanoseconds >> 32,
            nanoseconds & 0xFFFFFFFF,
            len(frame),
            len(frame),
        )
        # Option epb_flags (2): the direction in its lowest two bits.
        tail = struct.pack("<HHIII", 2, 4, direction, 0, size)
        self.f.write(head + frame + bytes(padding) + tail)
