"""Where jobs run: the cores of this machine, or a Dask cluster."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from typing import Any, TypeVar

from terminal import stopping

#: Jobs that are handed over ahead of the one whose result is waited for, per core.
_AHEAD = 16
_PR_SET_PDEATHSIG = 1

J = TypeVar("J")
R = TypeVar("R")


class ExecutorError(ValueError):
    """There is no such executor, or it cannot be reached."""


def check(spec: str) -> None:
    """Raise ExecutorError unless ``spec`` is ``local``, ``local:N`` or ``dask:ADDRESS``."""
    kind, colon, rest = spec.partition(":")
    if kind == "local" and (not colon or (rest.isdecimal() and int(rest) >= 1)):
        return
    if kind == "dask" and rest:
        return
    raise ExecutorError(f"executor {spec!r} is none of local, local:N (processes), dask:ADDRESS")


def reach(spec: str) -> None:
    """Raise ExecutorError unless the executor is there: before anything is made for its results."""
    if spec.startswith("dask:"):
        with _executor(spec):
            pass


def results_in_order(spec: str, function: Callable[[J], R], jobs: Iterable[J]) -> Iterator[R]:
    """``function`` of each job, in the order of the jobs, however the executor runs them.

    Raises ExecutorError: no such executor, Dask's scheduler does not answer, or a process died.
    """
    check(spec)
    with _executor(spec) as executor:
        waiting: deque[Future[R]] = deque()
        ahead = _AHEAD * (os.cpu_count() or 1)
        try:
            for job in jobs:
                with stopping.held():
                    waiting.append(executor.submit(function, job))
                if len(waiting) >= ahead:
                    yield _result(waiting.popleft())
            while waiting:
                yield _result(waiting.popleft())
        except BrokenExecutor as error:
            why = "a process of the executor died; was there too little memory?"
            raise ExecutorError(f"{why} ({error})") from None
        except (CancelledError, OSError) as error:
            if not spec.startswith("dask:"):
                raise
            said = " ".join(str(error).split())[:200] or type(error).__name__
            raise ExecutorError(f"the Dask cluster {spec[5:]} is gone ({said})") from None
        finally:
            for future in waiting:
                future.cancel()


def _result(future: Future[R]) -> R:
    """``future.result()``, during which a stop is heard between two looks only."""
    while True:
        with stopping.held():
            if wait((future,), timeout=0.1).done:
                return future.result()


def _end_with_owner() -> None:
    """Let the kernel end this worker with its owner: after SIGKILL it would wait for ever.

    What a terminal says to all of its processes is for the owner alone, which ends the others.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(AttributeError, OSError):  # Linux alone has it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def _executor(spec: str) -> Iterator[Executor]:
    kind, _, rest = spec.partition(":")
    if kind == "local":
        # Spawned, not forked: the parent may hold threads of torch or of a progress bar.
        context = multiprocessing.get_context("spawn")
        workers = int(rest or 0) or os.cpu_count()
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_owner) as pool:
            yield pool
        return
    try:
        from dask.distributed import Client
    except ImportError:
        raise ExecutorError(
            "the executor dask needs the package distributed: pip install 'distributed>=2025'"
        ) from None
    try:
        client: Any = Client(rest, timeout="10s")  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        said = " ".join(str(error).split())
        raise ExecutorError(f"no Dask scheduler answers at {rest}: {said}") from None
    with client:
        yield client.get_executor()
