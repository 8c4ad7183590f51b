"""What every stack offers, and what it is given."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from typing import ClassVar, Protocol

from eloquent import Reason, Token
from terminal import message
from terminal.text import one_line

#: A client from which no prompt comes for this long (s) is dropped.
PROMPT_TIMEOUT = 60.0
#: After the END the server waits this long (s) for the client to close: the last bytes may still
#: be on their way.
CLOSE_TIMEOUT = 60.0


class StackError(RuntimeError):
    """A stack cannot be used, or an answer broke off. The message is one line."""


class Answer(Protocol):
    """One answer, as a stack takes it from the server. Its log is kept by the server."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The tokens as they are generated. Ends in any case, see ``reason``."""
        ...

    def sent(self) -> None:
        """The token taken last has been handed to the socket."""
        ...

    @property
    def total(self) -> int:
        """Number of tokens so far."""
        ...

    @property
    def reason(self) -> Reason:
        """Why there are no more."""
        ...


#: Opens the answer to a prompt; the text is the congestion control, for the log. Leaving the
#: context says that the last byte was handed over, or, by an exception, that the reader has gone.
Answering = Callable[[bytes, str], AbstractContextManager[Answer]]


class Reader(Protocol):
    """Who asks and reads."""

    congestion_control: str
    stream_bytes: int
    """Bytes of the answer as the stack carries them, its own headers left out."""
    reached: bool
    """A server has answered, if with nothing but a handshake."""
    unreachable: str
    """What the kernel says of datagrams that did not arrive, empty where it says nothing."""

    def show(self, tokens: list[Token]) -> None:
        """Show tokens; each says when it was received."""
        ...


class Stack(ABC):
    """Both ends of one transport. One object serves one port, or asks one prompt."""

    name: ClassVar[str]
    #: Modules to import before use.
    packages: ClassVar[tuple[str, ...]] = ()
    #: Whether the analysis can find the tokens in a capture: they are plain records over TCP.
    readable: ClassVar[bool] = False

    def __init__(self, congestion_control: str = "cubic") -> None:
        self.congestion_control = congestion_control

    @abstractmethod
    async def listen(self, host: str, port: int, answering: Answering) -> None:
        """Answer prompts at this address from now on, in tasks of the running loop.

        Raises OSError (port taken) and StackError.
        """

    @abstractmethod
    async def ask(self, host: str, port: int, prompt: bytes, reader: Reader) -> Reason:
        """Ask one prompt; returns when the answer is complete. The caller bounds the time.

        Raises StackError if the answer breaks off, or there is nobody to ask.
        """

    def end(self) -> None:
        """A run is over: say nothing more to clients that have gone.

        Kernel TCP sees to that itself, so most stacks have nothing to do.
        """
        return

    def dropped(self, error: BaseException) -> None:
        """Note on standard error that a client was given up."""
        message.note(f"{self.name} connection dropped: {one_line(error)}")


def end_text(total: int, reason: Reason) -> str:
    """The END for stacks that carry messages."""
    return json.dumps({"total": total, "reason": reason.name.lower()})


def read_end(text: str, count: int) -> Reason:
    """Why the answer ended. Raises StackError if the END does not fit ``count`` tokens."""
    try:
        end = json.loads(text)
        total, reason = end["total"], Reason[end["reason"].upper()]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StackError(f"an END that cannot be read: {text[:60]!r}") from None
    if total != count:
        raise StackError(f"END says {total} tokens, but {count} came")
    return reason


class _OneLine(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        line = one_line(RuntimeError(record.getMessage()))
        if record.exc_info and record.exc_info[1] is not None:
            line += f": {one_line(record.exc_info[1])}"
        message.note(f"{record.name}: {line}")


def quiet_logger(name: str) -> logging.Logger:
    """A package's logger that says errors only, and each on one line instead of a traceback."""
    logger = logging.getLogger(name)
    logger.handlers = [_OneLine()]
    logger.propagate = False
    logger.setLevel(logging.ERROR)
    return logger
