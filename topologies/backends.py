"""Which back end carries out the links of a network."""

from __future__ import annotations

from dataclasses import dataclass

from topologies.links import LinkError
from topologies.netem import netem_available
from topologies.netem_words import inexpressible
from topologies.profile import LinkProfile
from topologies.tap import tap_available

BACKENDS = ("auto", "netem", "user")


@dataclass(frozen=True)
class Choice:
    """The back end taken, `netem` or `user`, and why."""

    name: str
    reason: str


def choose(request: str, *profiles: LinkProfile) -> Choice:
    """Resolve `auto`, `netem` or `user` on this machine for these links. Call it in a sandbox.

    `auto` takes netem where the kernel has it and it can do all that the profiles ask for. Raises
    LinkError when what was asked for by name is not there or cannot do it: no back end ever stands
    in for another silently.
    """
    if request not in BACKENDS:
        raise LinkError(f"unknown link back end {request!r}; known are {', '.join(BACKENDS)}")
    if request == "user":
        usable, reason = tap_available()
        if not usable:
            raise LinkError(reason)
        return Choice("user", "asked for by name")
    usable, reason = netem_available()
    beyond = next(filter(None, map(inexpressible, profiles)), None)
    if beyond:
        if request == "netem":
            raise LinkError(beyond)
        usable, reason = False, beyond
    if usable:
        return Choice("netem", "asked for by name" if request == "netem" else reason)
    if request == "netem":
        raise LinkError(f"the back end netem is not usable: {reason}; take user or auto")
    tap, tap_reason = tap_available()
    if not tap:
        raise LinkError(f"no link back end is usable: {reason}; {tap_reason}")
    return Choice("user", reason)
