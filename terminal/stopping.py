"""SIGTERM and SIGHUP end a command as Ctrl-C does: by an exception, so that it ends in good order.

Who catches KeyboardInterrupt catches these too, and ends with ``status(error)``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What people and systems end a command with: Ctrl-C, ``kill``, a terminal that closes."""


_held = 0
"""How many ``held`` blocks the main thread is in."""
_waiting: list[int] = []
"""The signal that came meanwhile."""


class Stopped(KeyboardInterrupt):
    """A signal other than Ctrl-C's asks the command to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def status(stop: KeyboardInterrupt) -> int:
    """The exit status of a command that was stopped: 128 + the signal's number, as in a shell."""
    return 128 + (stop.number if isinstance(stop, Stopped) else signal.SIGINT)


def was_stopped(code: int) -> bool:
    """Is this the exit status of a command that was stopped?"""
    return code - 128 in SIGNALS


def stop_of(code: int) -> KeyboardInterrupt:
    """The exception to raise for the exit status of a part that was stopped."""
    return KeyboardInterrupt() if code == 128 + signal.SIGINT else Stopped(code - 128)


def ignored(number: int) -> bool:
    """Has whoever started this process let it not hear a signal, as nohup and ``&`` do?"""
    return number != signal.SIGTERM and signal.getsignal(number) is signal.SIG_IGN


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise Stopped in the main thread; Ctrl-C, KeyboardInterrupt.

    They do so once: an impatient user, a service manager and a closing terminal tell the same thing
    twice, and that must not interrupt the cleaning up. Elsewhere than in the main thread nothing is
    changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    told = False
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal told
        if number == signal.SIGHUP:
            let_go(terminals)
        if told:
            return
        told = True
        if _held:
            _waiting.append(number)
            return
        raise stop_of(128 + number)

    old = {n: signal.getsignal(n) for n in SIGNALS if not ignored(n)}
    try:
        for number in old:
            signal.signal(number, stop)
        yield
    finally:
        for number, handler in old.items():
            # None: a handler that Python did not install.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Inside, no stop is raised by ``stoppable``: it is at the end, so let that be soon.

    For calls into what keeps locks and books of its own (a pool of processes, say), which an
    exception between two of its lines leaves waiting for ever.
    """
    global _held
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _held += 1
    try:
        yield
    finally:
        _held -= 1
        if _waiting and not _held:
            raise stop_of(128 + _waiting.pop())


def let_go(terminals: list[int]) -> None:
    """Nobody reads these descriptors any more, and writing to them would fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in terminals:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
