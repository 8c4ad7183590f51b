"""Who gets a place and memory at a server, and who gives way when there is too little.

Nobody can take more than a share that others do not need: the stream that gives way is an idle one,
or else one of the host that has the most (as in RFC 8290, section 4.1.1, which drops from the
longest queue).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .stream import Stream

MAX_STREAMS = 1024
#: One of so many places is for clients that have not proven their address. Once these are taken, an
#: address must be proven before the stream is opened (RFC 9000, section 8.1).
UNPROVEN_SHARE = 16
#: A client that has not proven its address by then (s) gives way to another one of that kind.
PROOF_DEADLINE = 10.0
#: A prompt must be complete this long (s) after its first datagram.
PROMPT_DEADLINE = 600.0
#: A client that owes an acknowledgement or the rest of its prompt and makes no progress for so long
#: (s) is idle.
IDLE_AFTER = 15.0

#: Memory for tokens and prompts. Of prompts that are not complete:
MAX_PROMPT_BYTES = 16 * 1024 * 1024
#: Of answers, in equal parts, each part for one stream alone:
RESERVED_BYTES = 32 * 1024 * 1024
#: Of answers that need more than their part:
POOL_BYTES = 16 * 1024 * 1024
MAX_TOTAL_BYTES = MAX_PROMPT_BYTES + RESERVED_BYTES + POOL_BYTES


def host_of(address: Hashable) -> Hashable:
    """Whom ``address`` belongs to: an IPv4 address, or a /64, which one host has in IPv6."""
    name: Hashable = address
    while isinstance(name, tuple) and name:  # (host, port, ...), or such a one with more
        name = name[0]
    if not isinstance(name, str):
        return name
    try:
        ip = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name
    if isinstance(ip, ipaddress.IPv4Address):
        return int(ip)
    return int(ip.ipv4_mapped) if ip.ipv4_mapped is not None else ("/64", int(ip) >> 64)


class Admission:
    """The places and the memory of one server."""

    def __init__(self, max_streams: int) -> None:
        self.max_streams = max_streams
        self.max_unproven = max(1, max_streams // UNPROVEN_SHARE)
        self.reserve = RESERVED_BYTES // max(1, max_streams)
        #: Bytes of prompts and tokens that are held.
        self.prompt_bytes = self.answer_bytes = 0
        self._pool_used = 0
        self._held: dict[Stream, tuple[int, int]] = {}  # of the prompt, of the answer
        self._hosts: dict[Hashable, dict[Stream, None]] = {}
        self._host_of: dict[Stream, Hashable] = {}
        self._unproven: dict[Stream, None] = {}  # the oldest first

    # -- places ----------------------------------------------------------------------------------

    def enter(self, stream: Stream) -> None:
        """``stream`` takes a place."""
        self._held[stream] = (0, 0)
        self._place(stream)
        if not stream.proven:
            self._unproven[stream] = None

    def leave(self, stream: Stream) -> None:
        """``stream`` is over."""
        self.account(stream, 0, 0)
        del self._held[stream]
        self._displace(stream)
        self._unproven.pop(stream, None)

    def proved(self, stream: Stream) -> None:
        """``stream`` has proven an address, which may be another one than before."""
        self._unproven.pop(stream, None)
        self._displace(stream)
        self._place(stream)

    def _place(self, stream: Stream) -> None:
        host = self._host_of[stream] = host_of(stream.address)
        self._hosts.setdefault(host, {})[stream] = None

    def _displace(self, stream: Stream) -> None:
        host = self._host_of.pop(stream)
        del self._hosts[host][stream]
        if not self._hosts[host]:
            del self._hosts[host]

    @property
    def full(self) -> bool:
        """Every place is taken."""
        return len(self._held) >= self.max_streams

    @property
    def wants_proof(self) -> bool:
        """A newcomer has to prove its address first."""
        return self.full or len(self._unproven) >= self.max_unproven

    def overdue(self, now: float) -> Stream | None:
        """A client that had the time to prove its address, and did not."""
        oldest = next(iter(self._unproven), None)
        if oldest is None or now < oldest.opened_at + PROOF_DEADLINE:
            return None
        return oldest

    def gives_way(self, address: Hashable, now: float) -> Stream | None:
        """Who makes room for a newcomer that has proven ``address``; None: nobody."""
        idle = [s for s in self._held if (since := s.waits_since) and now - since > IDLE_AFTER]
        if idle:
            return min(idle, key=lambda stream: stream.waits_since or now)
        most = max(self._hosts.values(), key=len)
        if len(most) < len(self._hosts.get(host_of(address), ())) + 2:
            return None
        return min(most, key=lambda stream: stream.progress_at)

    # -- memory ----------------------------------------------------------------------------------

    def account(self, stream: Stream, prompt: int, answer: int) -> None:
        """Note what ``stream`` holds now, in bytes."""
        old_prompt, old_answer = self._held[stream]
        self._held[stream] = (prompt, answer)
        self.prompt_bytes += prompt - old_prompt
        self.answer_bytes += answer - old_answer
        self._pool_used += max(0, answer - self.reserve) - max(0, old_answer - self.reserve)

    def room(self, stream: Stream) -> int:
        """Bytes that the answer of ``stream`` may still take."""
        _, answer = self._held.get(stream, (0, 0))
        return max(0, self.reserve - answer) + max(0, POOL_BYTES - self._pool_used)

    def overfull(self) -> Stream | None:
        """Whose prompt gives way when prompts hold too much; None while there is enough.

        Of the host that holds most, the largest.
        """
        if self.prompt_bytes <= MAX_PROMPT_BYTES:
            return None
        most = max(self._hosts.values(), key=self._prompts)
        return max(most, key=lambda stream: self._held[stream][0])

    def _prompts(self, streams: Iterable[Stream]) -> int:
        return sum(self._held[stream][0] for stream in streams)
