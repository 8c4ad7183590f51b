"""What a scenario is: the setup paragraph of a paper, as data."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from scenarios.prompt_sets import PromptSet, load
from topologies.profile import NetworkProfile


@dataclass(frozen=True)
class Scenario:
    """An experiment on one network.

    ``network`` builds the network's profile; its keyword arguments, all floats with defaults,
    become options of the command (``outage`` becomes ``--outage``). Every number in the profile
    names its source there. ``prompts`` names a prompt set, or holds the prompts themselves.
    """

    name: str
    title: str
    network: Callable[..., NetworkProfile]
    prompts: str | tuple[str, ...] = "questions"
    schemes: tuple[str, ...] = ("eloquent", "duplicate", "tcp")
    baseline: str = "tcp"
    runs: int = 6
    tokens: int = 80
    theta: float = 0.2

    def prompt_set(self) -> PromptSet:
        """The prompts of this scenario. Raises prompt_sets.PromptError: no such set."""
        if isinstance(self.prompts, str):
            return load(self.prompts)
        return PromptSet(self.name, self.prompts)

    def knobs(self) -> dict[str, float]:
        """The network's parameters with their defaults."""
        parameters = inspect.signature(self.network).parameters.values()
        return {parameter.name: float(parameter.default) for parameter in parameters}
