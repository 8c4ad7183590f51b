"""Eloquent: token streams over UDP on lossy networks, after arXiv 2401.12961.

Sans-I/O and without dependencies: these objects never touch a socket or a clock. ``eloquent.aio``
binds them to asyncio. The wire format is specified in ``docs/protocol.md``.
"""

from .client import Client
from .receiver import Receiver, Token
from .sender import Sender
from .server import Asked, Ended, Server, Stream
from .text import TextDecoder
from .window import WindowFull
from .wire import MalformedDatagram, Reason

__all__ = [
    "Asked",
    "Client",
    "Ended",
    "MalformedDatagram",
    "Reason",
    "Receiver",
    "Sender",
    "Server",
    "Stream",
    "TextDecoder",
    "Token",
    "WindowFull",
]
