"""UDP sockets that know at which of their addresses they were asked, and that keep no queue.

A server on 0.0.0.0 or :: has many addresses, and a client takes an answer only from the one that
it asked. IP_PKTINFO (ip(7)) and IPV6_RECVPKTINFO (RFC 3542, section 6) say where a datagram
arrived, and make the answer leave from there. Where a system lacks them it chooses the source
itself: let a server with several addresses listen on one of them there.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

#: Larger than any datagram of the protocol, so that one that is too long is seen to be.
_ROOM = 2048
_CONTROL_ROOM = socket.CMSG_SPACE(64) if hasattr(socket, "CMSG_SPACE") else 0
#: Errors of earlier datagrams that are read at once.
_ERRORS = 64

# <linux/in.h>, <linux/in6.h>: Python 3.11 has no names for these.
_LINUX = sys.platform == "linux"
_IP_PKTINFO: int | None = getattr(socket, "IP_PKTINFO", 8 if _LINUX else None)
_IPV6_RECVPKTINFO: int | None = getattr(socket, "IPV6_RECVPKTINFO", None)
_IPV6_PKTINFO: int | None = getattr(socket, "IPV6_PKTINFO", None)
_IP_RECVERR, _IPV6_RECVERR = 11, 25
#: struct in_pktinfo: interface, local address, address in the header.
_PKTINFO = struct.Struct("=i4s4s")
#: struct in6_pktinfo: address, interface.
_PKTINFO6 = struct.Struct("=16sI")


class Address(NamedTuple):
    """One path: who is at its other end, and which address of ours is at this one.

    Hashable, as ``Server`` needs it. ``local`` is the ancillary data with which a datagram leaves
    from there; empty where the socket has one address only or the system chooses.
    """

    peer: tuple[Any, ...]
    local: bytes = b""


class UdpSocket:
    """A non-blocking socket. ``on_unreachable`` hears of addresses that datagrams cannot reach."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        local: bool = False,
        errors: bool = False,
        on_unreachable: Callable[[tuple[Any, ...], OSError], None] | None = None,
    ) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.on_unreachable = on_unreachable
        self._level, self._kind = socket.IPPROTO_IP, 0
        if local:
            self._ask_for_local()
        self._errors = errors and _enable(sock, self._error_option())

    def __del__(self) -> None:
        self.sock.close()  # one that a closed event loop has left open

    def _ask_for_local(self) -> None:
        if self.sock.family == socket.AF_INET6:
            level, option, kind = socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, _IPV6_PKTINFO
        else:
            level, option, kind = socket.IPPROTO_IP, _IP_PKTINFO, _IP_PKTINFO
        if kind is not None and _CONTROL_ROOM and _enable(self.sock, (level, option)):
            self._level, self._kind = level, kind

    def _error_option(self) -> tuple[int, int | None]:
        if self.sock.family == socket.AF_INET6:
            return socket.IPPROTO_IPV6, _IPV6_RECVERR if _LINUX else None
        return socket.IPPROTO_IP, _IP_RECVERR if _LINUX else None

    @property
    def knows_local(self) -> bool:
        """Whether ``receive`` tells at which address a datagram arrived."""
        return self._kind != 0

    def receive(self, most: int) -> list[tuple[bytes, Address]]:
        """What has arrived, at most that many datagrams."""
        out: list[tuple[bytes, Address]] = []
        for _ in range(most):
            try:
                out.append(self._receive())
            except BlockingIOError:
                if not out:  # it was an error that woke us
                    self._read_errors()
                break
            except OSError:  # that of an earlier datagram, told by whatever call comes next
                self._read_errors()
        return out

    def _receive(self) -> tuple[bytes, Address]:
        if not self._kind:
            data, peer = self.sock.recvfrom(_ROOM)
            return data, Address(peer)
        data, control, _, peer = self.sock.recvmsg(_ROOM, _CONTROL_ROOM)
        for level, kind, raw in control:
            if level == self._level and kind == self._kind:
                return data, Address(peer, _reply_from(level, raw))
        return data, Address(peer)

    def send(self, data: bytes, address: Address) -> bool:
        """Hand a datagram to the system. Returns whether it took it.

        Raises BlockingIOError when the socket is full: try again when it is writable.
        """
        for _ in range(2):
            try:
                if address.local:
                    control = [(self._level, self._kind, address.local)]
                    self.sock.sendmsg([data], control, 0, address.peer)
                else:
                    self.sock.sendto(data, address.peer)
                return True
            except BlockingIOError:
                raise
            except OSError as error:
                # Perhaps that of an earlier datagram, then this one was not tried.
                if not self._read_errors():
                    self._tell(address.peer, error)
                    return False
        return False

    def _read_errors(self) -> bool:
        """Empty the queue of ICMP errors (ip(7), IP_RECVERR). Returns whether there was one."""
        if not self._errors:
            return False
        for count in range(_ERRORS):
            try:
                _, control, _, peer = self.sock.recvmsg(0, 512, socket.MSG_ERRQUEUE)
            except OSError:
                return count > 0
            for level, kind, raw in control:
                if (level, kind) == self._error_option():
                    # struct sock_extended_err begins with the error number.
                    (number,) = struct.unpack_from("=I", raw)
                    self._tell(peer, OSError(number, os.strerror(number)))
        return True

    def _tell(self, peer: tuple[Any, ...], error: OSError) -> None:
        # What is too large for one link proves nothing about the peer.
        if self.on_unreachable is not None and error.errno != errno.EMSGSIZE:
            self.on_unreachable(peer, error)

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()


def _enable(sock: socket.socket, option: tuple[int, int | None]) -> bool:
    level, name = option
    if name is None:
        return False
    try:
        sock.setsockopt(level, name, 1)
    except OSError:
        return False
    return True


def _reply_from(level: int, raw: bytes) -> bytes:
    """The ancillary data of an answer to a datagram that came with ``raw``."""
    if level == socket.IPPROTO_IPV6:
        address, interface = _PKTINFO6.unpack_from(raw)
        if address[0] == 0xFF:  # multicast is nobody's source
            return b""
        # A route may lead back through another interface, except that of a link-local address.
        return _PKTINFO6.pack(address, interface if _is_link_local(address) else 0)
    _, local, _ = _PKTINFO.unpack_from(raw)
    return _PKTINFO.pack(0, local, bytes(4))


def _is_link_local(address: bytes) -> bool:
    return address[0] == 0xFE and address[1] & 0xC0 == 0x80


def check(address: Address) -> None:
    """Raise OSError for a link-local address that does not say on which link."""
    host, *_, scope = address.peer
    if ":" not in host or "%" in host or scope:
        return
    if _is_link_local(socket.inet_pton(socket.AF_INET6, host)):
        raise OSError(errno.EINVAL, f"on which link? {host}%eth0, for example")


def bound(found: Iterable[tuple[Any, ...]]) -> UdpSocket:
    """A socket at the first address of a ``getaddrinfo`` answer at which one can be bound.

    At 0.0.0.0 or :: it knows where it is asked; :: takes IPv4 as well, where the system can.
    Raises OSError.
    """
    problem = OSError(errno.EADDRNOTAVAIL, "no address to listen on")
    for family, kind, protocol, _, address in found:
        anywhere = address[0] in ("0.0.0.0", "::")
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            problem = error
            continue
        try:
            if family == socket.AF_INET6 and anywhere:
                _both_families(sock)
            sock.bind(address)
        except OSError as error:
            sock.close()
            problem = error
        else:
            return UdpSocket(sock, local=anywhere)
    raise problem


def _both_families(sock: socket.socket) -> None:
    try:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:
        pass  # then it is IPv6 alone


def unconnected(family: int) -> UdpSocket:
    """A client's socket; it is told of ICMP errors where the system can.

    Not connected: a connected one keeps its source address when the host gets a new one. Raises
    OSError where the system lacks the family.
    """
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sock.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", 0))
    except OSError:
        sock.close()
        raise
    return UdpSocket(sock, errors=True)


def candidates(found: Iterable[tuple[Any, ...]]) -> list[tuple[int, Address]]:
    """(family, address) of a ``getaddrinfo`` answer in the order in which to try them.

    The families take turns (RFC 8305, section 4). Who asks for "any address" means this host.
    """
    queues: dict[int, list[tuple[int, Address]]] = {}
    for family, _, _, _, sockaddr in found:
        if family not in (socket.AF_INET, socket.AF_INET6):
            continue
        here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(sockaddr[0], sockaddr[0])
        one = family, Address((here, *sockaddr[1:]))
        if one not in queues.setdefault(family, []):
            queues[family].append(one)
    out: list[tuple[int, Address]] = []
    for turn in range(max(map(len, queues.values()), default=0)):
        out += [queue[turn] for queue in queues.values() if turn < len(queue)]
    return out
