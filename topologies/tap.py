"""TAP devices and a timer file descriptor: the two things of Linux that Python 3.11 lacks."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct

_DEVICE = "/dev/net/tun"

# <linux/if_tun.h>, <linux/sockios.h>, <linux/if.h>
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_SIOCSIFTXQLEN, _IFNAMSIZ = 0x8943, 16
# <sys/timerfd.h>
_TFD_NONBLOCK, _TFD_CLOEXEC, _TFD_TIMER_ABSTIME = 0o4000, 0o2000000, 1
_CLOCK_MONOTONIC = 1

MAX_FRAME = 2048
"""Bytes: more than an Ethernet frame of MTU 1500 with any VLAN tags."""

QUEUE = 10_000
"""Frames that wait for the reader. Should it be late, that costs delay and not frames."""

_libc = ctypes.CDLL(None, use_errno=True)


class TapError(RuntimeError):
    """A TAP device cannot be made."""


def tap_available() -> tuple[bool, str]:
    """Can this process make TAP devices? (yes or no, the reason)."""
    try:
        os.close(_open())
    except TapError as error:
        return False, str(error)
    return True, f"{_DEVICE} can be opened"


def open_tap(name: str) -> int:
    """Make a TAP device; it lives as long as the returned, non-blocking file descriptor.

    The device may be moved into another network namespace afterwards. One read is one Ethernet
    frame, segmented and checksummed by the kernel, as there is no header to ask for offloads.
    """
    if not 0 < len(name) < _IFNAMSIZ:
        raise TapError(f"an interface name has 1 to {_IFNAMSIZ - 1} characters, not {name!r}")
    fd = _open()
    try:
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, _SIOCSIFTXQLEN, struct.pack("16si20x", name.encode(), QUEUE))
    except OSError as error:
        os.close(fd)
        raise TapError(f"cannot make the TAP device {name}: {error.strerror}") from None
    return fd


def _open() -> int:
    try:
        return os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        text = f"cannot open {_DEVICE} ({error.strerror})"
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
            text += ": load the module with `modprobe tun`; a container needs --device " + _DEVICE
        elif error.errno in (errno.EPERM, errno.EACCES):
            text += ": run it with sudo; a container needs --device " + _DEVICE
        raise TapError(text) from None


class Timer:
    """A timer on CLOCK_MONOTONIC to wait for with epoll, far below epoll's own millisecond."""

    def __init__(self) -> None:
        self._fd: int = _libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def fileno(self) -> int:
        """For epoll."""
        return self._fd

    def set(self, when: float) -> None:
        """Become readable at `when` (time.monotonic()); a moment in the past: at once."""
        nanoseconds = max(1, int(when * 1e9) + 1)
        seconds, rest = divmod(nanoseconds, 1_000_000_000)
        value = struct.pack("=qqqq", 0, 0, seconds, rest)
        _libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, value, None)

    def clear(self) -> None:
        """Take the tick that made it readable."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)

    def close(self) -> None:
        """Give the file descriptor back."""
        os.close(self._fd)
