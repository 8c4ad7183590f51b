"""TCP sockets for the stacks over kernel TCP, with TCP_NODELAY and their congestion control."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path

from .base import StackError

TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", 13)
_NODELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
#: Arguments of ``setsockopt``.
Option = tuple[int, int, int] | tuple[int, int, bytes | bytearray]
_SYSCTL = Path("/proc/sys/net/ipv4")


def listener(host: str, port: int, congestion_control: str) -> socket.socket:
    """A listening socket; what it accepts has the same options.

    Raises OSError (port taken) and StackError (no such congestion control here).
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.create_server((host, port), family=family)
    try:
        found.setsockopt(*_NODELAY)
        found.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, congestion_control.encode())
    except OSError as error:
        found.close()
        raise StackError(_refused(congestion_control, error)) from None
    found.setblocking(False)
    return found


def _refused(name: str, error: OSError) -> str:
    if error.errno == errno.EPERM:
        allowed = _sysctl("tcp_allowed_congestion_control")
        return f"congestion control {name!r} is for root only here; for everybody: {allowed}"
    known = _sysctl("tcp_available_congestion_control")
    hint = f"; as root try: modprobe tcp_{name}" if name == "bbr" else ""
    return f"this kernel has no congestion control {name!r}, only: {known}{hint}"


def _sysctl(name: str) -> str:
    try:
        return (_SYSCTL / name).read_text().strip()
    except OSError:
        return "unknown"


def congestion_control(connection: socket.socket) -> str:
    """What the kernel says that this socket uses."""
    raw: bytes = connection.getsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, 16)
    return raw.partition(b"\0")[0].decode()


def client_options(name: str) -> list[Option]:
    """Options of a client's socket: the server's, as far as this user may set them.

    A client sends its prompt and nothing else, so the kernel's default does no harm where another
    congestion control is for root only; the client's log says which it was.
    """
    options: list[Option] = [_NODELAY]
    with socket.socket() as trial:
        try:
            trial.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, name.encode())
        except OSError:
            return options
    return [*options, (socket.IPPROTO_TCP, TCP_CONGESTION, name.encode())]


async def connect(host: str, port: int, congestion_control: str) -> socket.socket:
    """A connected client socket. Raises StackError."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise StackError(f"cannot find {host}: {error.strerror}") from None
    family, kind, protocol, _, address = found[0]
    connection = socket.socket(family, kind, protocol)
    try:
        connection.setblocking(False)
        for option in client_options(congestion_control):
            connection.setsockopt(*option)
        await loop.sock_connect(connection, address)
    except OSError as error:
        connection.close()
        # asyncio puts the address into the text, which is in the line already.
        why = os.strerror(error.errno) if error.errno else str(error)
        raise StackError(f"cannot connect to {host}, TCP port {port}: {why}") from None
    except BaseException:  # the caller's patience is over
        connection.close()
        raise
    return connection
