"""All checks in their order, and then the measurement of the links."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from topologies.doctor import (
    kernel_checks,
    leftovers,
    machine_checks,
    measured_link,
    software_checks,
    timing,
)
from topologies.doctor.check import AS_ROOT, Check, guarded, in_sandbox
from topologies.doctor.measured_link import Belief

DURATION = 27.0
"""Seconds for everything; what is left of it after the checks is shared by the back ends."""


@dataclass(frozen=True)
class Item:
    """A check to be run; `sandbox`: it makes devices or starts daemons, so it gets one."""

    name: str
    function: Callable[[], Check]
    sandbox: bool = False


FIRST = (
    Item("root", kernel_checks.check_root),
    Item("python", software_checks.check_python),
)
ITEMS = (
    Item("tun", kernel_checks.check_tun),
    Item("tap", kernel_checks.check_tap, sandbox=True),
    Item("veth", kernel_checks.check_veth, sandbox=True),
    Item("netem", kernel_checks.check_netem, sandbox=True),
    Item("htb", kernel_checks.check_htb, sandbox=True),
    Item("congestion", kernel_checks.check_congestion),
    Item("programs", software_checks.check_programs),
    Item("openvswitch", software_checks.check_openvswitch, sandbox=True),
    Item("offload", software_checks.check_offload, sandbox=True),
    Item("mininet", software_checks.check_mininet),
    Item("ryu", software_checks.check_ryu),
    Item("clock", timing.check_clock),
    Item("timers", timing.check_timers),
    Item("cores", machine_checks.check_cores),
    Item("memory", machine_checks.check_memory),
    Item("disk", machine_checks.check_disk),
    Item("model", software_checks.check_model),
    Item("guest", software_checks.check_guest),
    Item("left-overs", leftovers.check_leftovers),
)
FOR_A_LINK = ("namespaces", "tun", "tap", "veth", "programs", "openvswitch", "offload", "mininet")
"""Without these, no link can be measured."""


@dataclass
class Examination:
    """One look at the machine. Run `checks`, then `links`; both are filled on the way."""

    found: list[Check] = field(default_factory=list)
    believed: dict[str, Belief] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)

    @property
    def ok(self) -> bool:
        """All that is needed is there."""
        return all(check.status != "problem" for check in self.found)

    def checks(self) -> Iterator[Check]:
        """Every check, one after the other."""
        for item in FIRST:
            yield self._add(guarded(item.name, item.function))
        reason, remedy = self._why_no_sandbox()
        yield self.found[-1]
        for item in ITEMS:
            if not item.sandbox:
                yield self._add(guarded(item.name, item.function))
            elif reason:
                yield self._add(Check(item.name, "note", f"not checked: {reason}", remedy))
            else:
                yield self._add(guarded(item.name, partial(in_sandbox, item.function)))

    def links(self) -> Iterator[Check]:
        """Measure each link back end that can be had here."""
        status = {check.name: check.status for check in self.found}
        lacking = [name for name in FOR_A_LINK if status.get(name) != "ok"]
        if lacking:
            finding = f"no link was measured: see {', '.join(lacking)}"
            yield self._add(Check("links", "note", finding, "mend that first"))
            return
        backends = ["user", "netem"] if status.get("netem") == "ok" else ["user"]
        for done, backend in enumerate(backends):
            now, end = time.monotonic(), self.begun + DURATION
            until = now + (end - now) / (len(backends) - done)
            yield self._add(guarded(f"link {backend}", partial(self._link, backend, until)))

    def _link(self, backend: str, until: float) -> Check:
        belief = measured_link.measure(backend, until)
        self.believed[backend] = belief
        return measured_link.judge(belief)

    def _why_no_sandbox(self) -> tuple[str, str]:
        """Reason and remedy, both empty if sandboxes can be made; adds the check of them."""
        if os.geteuid() != 0:
            self._add(Check("namespaces", "note", "not checked: that needs root", AS_ROOT))
            return "that needs root", AS_ROOT
        made = self._add(guarded("namespaces", kernel_checks.check_namespaces))
        return ("", "") if made.status == "ok" else ("that needs namespaces", made.remedy)

    def _add(self, check: Check) -> Check:
        self.found.append(check)
        return check
