"""The simulated network of ``network.py`` with sealed ends."""

from __future__ import annotations

import random
from collections.abc import Hashable

from network import AmplificationObserver, Fate, Network  # type: ignore[import-not-found]

from eloquent.sealed import Aead, Opener, SealedClient, SealedServer, Ticket, TicketBook
from eloquent.sealed.keys import derive
from eloquent.sealed.packets import datagram_of

ADDRESS = ("server", 4433)


class Observer(AmplificationObserver):  # type: ignore[misc]
    """Counts what is on the wire, and looks into it with keys of its own."""

    def __init__(self, ticket: Ticket) -> None:
        super().__init__()
        head = ticket._secret, ticket.session_id, ticket.aead
        self._openers = {
            side: Opener(derive(*head, from_server=side), *head[1:]) for side in (False, True)
        }

    def _inside(self, packet: bytes, from_server: bool) -> bytes:
        message = self._openers[from_server].open(packet)
        return b"" if message is None else datagram_of(message, bytes(8))

    def arrived(self, datagram: bytes, address: Hashable) -> None:
        plain = self._inside(datagram, from_server=False)
        self.came[address] += len(datagram) - len(plain)
        super().arrived(plain, address)

    def left(self, datagram: bytes, address: Hashable) -> None:
        plain = self._inside(datagram, from_server=True)
        self.went[address] += len(datagram) - len(plain)
        super().left(plain, address)


class SealedNetwork(Network):  # type: ignore[misc]
    """One sealed conversation, packets filled up in steps of ``pad``, or ``client_pad``."""

    def __init__(
        self,
        tokens: list[bytes],
        fate: Fate,
        *,
        pad: int = 0,
        client_pad: int | None = None,
        aead: Aead = Aead.AES_256_GCM,
        prompt: bytes = b"why is the sky blue?",
        scheme: str = "eloquent",
        seed: int = 0,
    ) -> None:
        super().__init__(tokens, fate, prompt=prompt, scheme=scheme, seed=seed)
        rng = random.Random(seed)
        self.book = TicketBook(
            ADDRESS, aead=aead, clock=lambda: 1e9 + self.now, random_bytes=rng.randbytes
        )
        self.ticket = self.book.issue()
        bits = rng.getrandbits
        self.server = SealedServer(self.book, pad=pad, scheme=scheme, random_bits=bits)
        step = pad if client_pad is None else client_pad
        self.client = SealedClient(prompt, 0.0, self.ticket, pad=step, random_bits=bits)
        self.amplification = Observer(self.ticket)

    def packets(self, direction: str) -> list[bytes]:
        """What was sent that way."""
        return [packet for _, way, packet in self.log if way == direction]
