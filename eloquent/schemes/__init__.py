"""Schemes: a sender's policy, one file each.

A scheme answers two questions: what goes into the next datagram, and what is sent again when
nothing was heard for a probe timeout? Everything else (wire format, receiver, timers, limits) is
the same for all schemes, so that a comparison compares policies alone.

To add one, write a file in this folder with a subclass of ``Scheme``; it is found by its ``name``.
"""

from __future__ import annotations

import importlib
import pkgutil

from .base import Scheme

__all__ = ["Scheme", "create", "names"]


def _classes() -> dict[str, type[Scheme]]:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    found: dict[str, type[Scheme]] = {}
    pending = Scheme.__subclasses__()
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        if "name" in vars(cls):  # not an inherited one
            found[cls.name] = cls
    return found


def names() -> list[str]:
    """The names of all schemes, sorted."""
    return sorted(_classes())


def create(spec: str) -> Scheme:
    """A new scheme from ``name`` or ``name:argument``. Raises ValueError with a clear line."""
    name, _, argument = spec.partition(":")
    cls = _classes().get(name)
    if cls is None:
        raise ValueError(f"unknown scheme {name!r}; known: {', '.join(names())}")
    return cls(argument)
