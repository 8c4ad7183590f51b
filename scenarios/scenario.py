"""What a scenario is: the setup paragraph of a paper, as data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scenarios.prompt_sets import PromptSet, load
from topologies.profile import NetworkProfile
from topologies.quantities import ANY, Kind

if TYPE_CHECKING:  # pandas takes a while, and --help needs none of it
    from analysis.results import Results
    from scenarios.stage import Stage


@dataclass(frozen=True)
class Scenario:
    """An experiment on one network.

    ``network`` builds the network's profile; its keyword arguments, all floats with defaults,
    become options of the command (``outage`` becomes ``--outage``), read as what their annotation
    says (``Seconds``, ``Share`` and others of ``topologies.quantities``; ``float`` takes any unit
    and says SI). Every number in the profile names its source there. ``prompts`` names a prompt
    set, or holds the prompts themselves.

    ``workload`` gives the source of the tokens (as ``--source`` names it); its keyword arguments
    become options too. Without it the language model answers. ``engine`` is the default one.
    ``stage`` makes what an emulation plays on, a ``scenarios.stage.Stage``, from the plan, the
    results folder and a function that tells the user a line; the default is topologies.wifi.
    ``conclude`` says more about the results than the summary does, from them and the parameters.
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
    workload: Callable[..., str] | None = None
    engine: str = "emulated"
    stage: Callable[..., Stage] | None = None
    conclude: Callable[[Results, Mapping[str, float]], str] | None = None

    def prompt_set(self) -> PromptSet:
        """The prompts of this scenario. Raises prompt_sets.PromptError: no such set."""
        if isinstance(self.prompts, str):
            return load(self.prompts)
        return PromptSet(self.name, self.prompts)

    def knobs(self) -> dict[str, float]:
        """The parameters of network and workload with their defaults."""
        return _parameters(self.network) | _parameters(self.workload)

    def kinds(self) -> dict[str, Kind]:
        """How the parameters are written, by the annotations of network and workload."""
        return _kinds(self.network) | _kinds(self.workload)

    def network_of(self, knobs: Mapping[str, float]) -> NetworkProfile:
        """The network for these values. Raises ChannelError, ProfileError, ZeroDivisionError."""
        return self.network(**{name: knobs[name] for name in _parameters(self.network)})

    def source_of(self, knobs: Mapping[str, float]) -> str:
        """The source of the tokens for these values."""
        if self.workload is None:
            return "model"
        return self.workload(**{name: knobs[name] for name in _parameters(self.workload)})


def _parameters(function: Callable[..., object] | None) -> dict[str, float]:
    if function is None:
        return {}
    parameters = inspect.signature(function).parameters.values()
    return {parameter.name: float(parameter.default) for parameter in parameters}


def _kinds(function: Callable[..., object] | None) -> dict[str, Kind]:
    if function is None:
        return {}
    try:
        annotations = inspect.get_annotations(function, eval_str=True)
    except NameError:  # a name that is there for type checkers alone
        annotations = {}
    found = {}
    for name in _parameters(function):
        extras = getattr(annotations.get(name), "__metadata__", ())
        found[name] = next((extra for extra in extras if isinstance(extra, Kind)), ANY)
    return found
