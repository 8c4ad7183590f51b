"""Transport stacks that others wrote, as baselines: kernel TCP, HTTP, WebSocket, QUIC.

Each carries the same tokens and is measured at the same points as Eloquent. The packages they
need are imported by ``create`` alone, so that looking up a name costs nothing.

To add one, write a file in this folder with a subclass of ``Stack``; it is found by its ``name``.
What cannot be imported without a package goes into a file whose name begins with ``_``.
"""

from __future__ import annotations

import importlib
import pkgutil

from .base import Answer, Answering, Reader, Stack, StackError

__all__ = ["Answer", "Answering", "Reader", "Stack", "StackError", "create", "find", "names"]


def _classes() -> dict[str, type[Stack]]:
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{__name__}.{module.name}")
    found: dict[str, type[Stack]] = {}
    pending = Stack.__subclasses__()
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        if "name" in vars(cls):  # not an inherited one
            found[cls.name] = cls
    return found


def names() -> list[str]:
    """The names of all stacks, sorted, whether their packages are installed or not."""
    return sorted(_classes())


def find(name: str) -> type[Stack]:
    """The class of a stack, without its packages. Raises StackError for an unknown name."""
    classes = _classes()
    if name not in classes:
        raise StackError(f"unknown stack {name!r}; known: {', '.join(sorted(classes))}")
    return classes[name]


def create(name: str, congestion_control: str = "cubic") -> Stack:
    """A stack that is ready to serve or to ask.

    Args:
        name: one of ``names()``.
        congestion_control: of kernel TCP, for the stacks on it that do not set their own.

    Raises:
        StackError: unknown name, or a package is missing; the line names it and the extra.
    """
    cls = find(name)
    # Now, because an import takes a tenth of a second: nobody may be waiting for an answer yet.
    for package in cls.packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise StackError(
                f"{name} needs a package that cannot be imported here ({error}): "
                "run setup.sh, or pip install -e '.[stacks]'"
            ) from None
    return cls(congestion_control)
