"""Send UDP datagrams at a rate that sendto() from Python does not reach: sendmmsg(2), in bursts.

python -m benchmarks.burst ADDRESS PORT RATE SECONDS

The datagrams are those of topologies.doctor.traffic, whose sink takes them.
"""

from __future__ import annotations

import ctypes
import json
import socket
import struct
import sys
import time

from terminal import message, program
from topologies.doctor.traffic import SIZE

_USAGE = "python -m benchmarks.burst ADDRESS PORT RATE SECONDS"
MOST = 64
"""Datagrams in one call; all bear the time right before it."""
_TICK = 0.001
_SO_SNDBUFFORCE = 32
_PROBE = struct.Struct("!Id")


class _Vector(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Message(ctypes.Structure):
    """struct msghdr."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("vectors", ctypes.POINTER(_Vector)),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Slot(ctypes.Structure):
    """struct mmsghdr."""

    _fields_ = (("message", _Message), ("sent", ctypes.c_uint32))


def flood(address: str, port: int, rate: float, seconds: float) -> None:
    """Send rate x seconds datagrams; prints how many, and how long it took."""
    sendmmsg = ctypes.CDLL(None, use_errno=True).sendmmsg
    buffer = bytearray(MOST * SIZE)
    place = ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))
    vectors = (_Vector * MOST)(*(_Vector(place + i * SIZE, SIZE) for i in range(MOST)))
    slots = (_Slot * MOST)()
    for slot, vector in zip(slots, vectors, strict=True):
        slot.message.vectors, slot.message.vector_count = ctypes.pointer(vector), 1
    count, sent = int(rate * seconds), 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 64 << 20)
        sock.connect((address, port))
        start = time.monotonic()
        while sent < count:
            now = time.monotonic()
            due = min(count, int((now - start + _TICK) * rate))
            while sent < due:
                most, stamp = min(MOST, due - sent), time.monotonic()
                for i in range(most):
                    _PROBE.pack_into(buffer, i * SIZE, sent + i, stamp)
                done = sendmmsg(sock.fileno(), slots, most, 0)
                if done <= 0:
                    raise OSError(ctypes.get_errno(), "sendmmsg failed")
                sent += done
            time.sleep(max(0.0, now + _TICK - time.monotonic()))
        took = time.monotonic() - start
    print(json.dumps({"sent": sent, "seconds": took}), flush=True)


def main(*words: str) -> int:
    """The command line; returns the exit status."""
    match words:
        case (address, port, rate, seconds):
            flood(address, int(port), float(rate), float(seconds))
        case ("-h" | "--help",):
            print(__doc__)
        case _:
            message.error(f"usage: {_USAGE}")
            return 2
    return 0


if __name__ == "__main__":
    program.run(main, *sys.argv[1:])
