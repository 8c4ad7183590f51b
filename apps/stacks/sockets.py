"""Sockets for the stacks: those of kernel TCP with TCP_NODELAY and their congestion control, and
the race between the addresses of a name."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

from eloquent.attempts import ATTEMPT_DELAY
from eloquent.udp import Address, candidates, check

from .base import StackError

T = TypeVar("T")

TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", 13)
_NODELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
#: Arguments of ``setsockopt``.
Option = tuple[int, int, int] | tuple[int, int, bytes | bytearray]
_SYSCTL = Path("/proc/sys/net/ipv4")


def listener(host: str, port: int, congestion_control: str) -> socket.socket:
    """A listening socket; what it accepts has the same options. On :: it takes IPv4 as well.

    Raises OSError (port taken) and StackError (no such congestion control here).
    """
    found = _bound(host, port)
    try:
        found.setsockopt(*_NODELAY)
        found.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, congestion_control.encode())
    except OSError as error:
        found.close()
        raise StackError(_refused(congestion_control, error)) from None
    found.setblocking(False)
    return found


def _bound(host: str, port: int) -> socket.socket:
    """At the first address of the host at which one can listen."""
    problem = OSError(errno.EADDRNOTAVAIL, "no address to listen on")
    places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, _, _, _, address in places:
        both = address[0] == "::" and socket.has_dualstack_ipv6()
        try:
            return socket.create_server(address, family=family, dualstack_ipv6=both)
        except OSError as error:
            problem = error
    raise problem


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


async def addresses(host: str, port: int, kind: int) -> list[tuple[int, Address]]:
    """(family, address) of a server in the order in which to try them. Raises StackError."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=kind)
        places = candidates(found)
        for _, address in places:
            check(address)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no name of a host"
        raise StackError(f"cannot find {host}: {why}") from None
    return places


async def first_of(
    attempts: Iterable[Callable[[], Coroutine[Any, Any, T]]], discard: Callable[[T], None]
) -> T:
    """The result of the first attempt that succeeds (RFC 8305).

    One more starts every 250 ms, or when one has failed with OSError or StackError. When one has
    succeeded the others are cancelled, and what they have got is discarded. Raises the error of
    the last one if all fail.
    """
    untried = deque(attempts)
    running: set[asyncio.Task[T]] = set()
    won: list[T] = []
    problem: BaseException | None = None
    try:
        while not won and (untried or running):
            if untried:
                running.add(asyncio.create_task(untried.popleft()()))
            delay = ATTEMPT_DELAY if untried else None
            done, running = await asyncio.wait(
                running, timeout=delay, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                if (error := task.exception()) is None:
                    won.append(task.result())
                elif isinstance(error, (OSError, StackError)):
                    problem = error
                else:
                    raise error
    finally:
        for task in running:
            task.cancel()
        for late in await asyncio.gather(*running, return_exceptions=True):
            if not isinstance(late, BaseException):
                won.append(late)
        for result in won[1:]:
            discard(result)
    if won:
        return won[0]
    assert problem is not None
    raise problem


async def connect(host: str, port: int, congestion_control: str) -> socket.socket:
    """A connected client socket, to the first address of ``host`` that takes it.

    Raises StackError.
    """
    options = client_options(congestion_control)
    places = await addresses(host, port, socket.SOCK_STREAM)
    attempts = [functools.partial(_connect, family, one.peer, options) for family, one in places]
    try:
        return await first_of(attempts, socket.socket.close)
    except OSError as error:
        # asyncio puts the address into the text, which is in the line already.
        why = os.strerror(error.errno) if error.errno else str(error)
        raise StackError(f"cannot connect to {host}, TCP port {port}: {why}") from None


async def _connect(family: int, address: tuple[Any, ...], options: list[Option]) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        for option in options:
            connection.setsockopt(*option)
        await asyncio.get_running_loop().sock_connect(connection, address)
    except BaseException:  # also a caller whose patience is over
        connection.close()
        raise
    return connection
