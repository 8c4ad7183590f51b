"""All loss models by name, and from data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .in_time import SHORTEST, Blackouts, Gaps, GilbertElliott, ParetoOutages
from .loss import Bernoulli, LossModel
from .loss_trace import LossTrace
from .per_packet import Combined, DropList, FateList, GilbertElliottPackets
from .randomness import ChannelError

LOSS_MODELS: dict[str, type[LossModel]] = {
    model.kind: model
    for model in (
        Bernoulli,
        GilbertElliott,
        GilbertElliottPackets,
        ParetoOutages,
        Blackouts,
        Gaps,
        DropList,
        FateList,
        LossTrace,
        Combined,
    )
}
"""All loss models by their name in files."""


def bursts(loss: float, outage: float) -> LossModel | None:
    """A model that loses the share `loss` in outages of `outage` seconds on average.

    Outages and the good times between them are exponential. No loss is None, and an outage of 0
    means independent losses. Raises ChannelError where there is no such model.
    """
    if loss == 0:
        return None
    if outage == 0:
        return Bernoulli(loss)
    if not (0 < loss < 1 and outage >= SHORTEST):
        raise ChannelError(
            f"outages are 0 (independent losses) or at least {1e3 * SHORTEST:g} ms, and the loss "
            "is below 100%"
        )
    good = outage * (1 - loss) / loss
    if good < SHORTEST:
        raise ChannelError(
            f"the good times between outages would be {1e3 * good:.2g} ms on average, less than "
            f"{1e3 * SHORTEST:g} ms: take less loss or longer outages"
        )
    return GilbertElliott(mean_good=good, mean_bad=outage)


def loss_to_dict(model: LossModel) -> dict[str, Any]:
    """As JSON data."""
    data: dict[str, Any] = {"model": model.kind}
    for field in dataclasses.fields(model):
        if not field.init:
            continue
        value = getattr(model, field.name)
        if isinstance(model, Combined):
            value = [loss_to_dict(part) for part in value]
        data[field.name] = value
    return data


def loss_from_dict(data: Any, where: str) -> LossModel:
    """From JSON data. Raises ChannelError with `where` in its line."""
    if not isinstance(data, Mapping) or "model" not in data:
        raise ChannelError(f'{where} must be null or an object with "model", not {data!r}')
    name = data["model"]
    model = LOSS_MODELS.get(name) if isinstance(name, str) else None
    if model is None:
        known = ", ".join(LOSS_MODELS)
        raise ChannelError(f"{where}: unknown loss model {name!r}; known are {known}")
    parameters = {field.name: field for field in dataclasses.fields(model) if field.init}
    for key in data:
        if key != "model" and key not in parameters:
            known = ", ".join(parameters)
            raise ChannelError(f"{where}: unknown key {key!r}; known are {known}")
    values: dict[str, Any] = {}
    for key, field in parameters.items():
        if key in data:
            values[key] = data[key]
            if isinstance(values[key], list):
                values[key] = tuple(values[key])
        elif field.default is dataclasses.MISSING:
            raise ChannelError(f'{where}: "{key}" is missing')
    if model is Combined:
        parts = values["models"]
        if not isinstance(parts, tuple):
            raise ChannelError(f"{where}.models must be a list, not {parts!r}")
        values["models"] = tuple(
            loss_from_dict(part, f"{where}.models[{number}]") for number, part in enumerate(parts)
        )
    try:
        return model(**values)
    except (ChannelError, TypeError) as error:
        raise ChannelError(f"{where}: {error}") from None
