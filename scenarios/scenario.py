"""What a scenario is: the setup paragraph of a paper, as data."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from topologies.profile import NetworkProfile


@dataclass(frozen=True)
class Scenario:
    """An experiment on one network.

    ``network`` builds the network's profile; its keyword arguments, all floats with defaults,
    become options of the command (``outage`` becomes ``--outage``). Every number in the profile
    names its source there.
    """

    name: str
    title: str
    network: Callable[..., NetworkProfile]
    prompts: tuple[str, ...]
    schemes: tuple[str, ...] = ("eloquent", "duplicate", "tcp")
    baseline: str = "tcp"
    runs: int = 6
    tokens: int = 80
    theta: float = 0.2

    def knobs(self) -> dict[str, float]:
        """The network's parameters with their defaults."""
        parameters = inspect.signature(self.network).parameters.values()
        return {parameter.name: float(parameter.default) for parameter in parameters}
