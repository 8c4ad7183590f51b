"""Sealed streams: each datagram is sealed with an AEAD under a secret that both ends know already.

A layer between datagrams and the ends: ``SealedClient`` and ``SealedServer`` are used as ``Client``
and ``Server`` are, which know nothing of keys. Needs the package ``cryptography`` (the extra
``sealed``) once a session begins, not for the import. Specified in ``docs/protocol.md``.
"""

from .ends import SealedClient, SealedServer
from .keys import Aead
from .packets import Opener, SealedOut, Sealer, SealMisused
from .tickets import Session, Ticket, TicketBook, TicketError, Tickets, take_ticket, write_ticket

__all__ = [
    "Aead",
    "Opener",
    "SealMisused",
    "SealedClient",
    "SealedOut",
    "SealedServer",
    "Sealer",
    "Session",
    "Ticket",
    "TicketBook",
    "TicketError",
    "Tickets",
    "take_ticket",
    "write_ticket",
]
