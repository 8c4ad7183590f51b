"""Link profiles: what a network is meant to be, as data, with the source of its numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from topologies.channel import (
    LOSS_MODELS,
    Channel,
    ChannelError,
    DelayModel,
    LossModel,
)


class ProfileError(ValueError):
    """A profile does not describe a link."""


@dataclass(frozen=True)
class Direction:
    """One direction of a link: one-way `delay` and `jitter` (standard deviation) in seconds."""

    delay: float = 0.0
    jitter: float = 0.0
    loss: LossModel | None = None

    def __post_init__(self) -> None:
        try:
            DelayModel(self.delay, self.jitter)
        except ChannelError as error:
            raise ProfileError(str(error)) from None

    @property
    def delay_model(self) -> DelayModel:
        """Delay and jitter as a channel model."""
        return DelayModel(self.delay, self.jitter)

    @property
    def mean_loss(self) -> float:
        """Long-run share of frames lost."""
        return self.loss.mean_loss if self.loss else 0.0

    @property
    def perfect(self) -> bool:
        """No delay and no loss: a plain cable does it."""
        return self.delay == 0 and self.mean_loss == 0

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        loss = None
        if self.loss is not None:
            loss = {"model": self.loss.kind} | dataclasses.asdict(self.loss)
        return {"delay": self.delay, "jitter": self.jitter, "loss": loss}

    @classmethod
    def from_dict(cls, data: Any, where: str = "direction") -> Direction:
        """From JSON data. Raises ProfileError with `where` in its line."""
        fields = _fields(data, where, required=(), optional=("delay", "jitter", "loss"))
        try:
            if fields.get("loss") is not None:
                fields["loss"] = _loss_from_dict(fields["loss"], f"{where}.loss")
            return cls(**fields)
        except (ChannelError, ProfileError) as error:
            text = str(error)
            raise ProfileError(text if text.startswith(where) else f"{where}: {text}") from None


@dataclass(frozen=True)
class LinkProfile:
    """A link between two nodes. `up` leads from the client's side to the server's.

    `source` says where the numbers come from: a paper, a measurement, or "assumed".
    """

    name: str
    up: Direction
    down: Direction
    source: str

    def __post_init__(self) -> None:
        for field in ("name", "source"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value.strip():
                raise ProfileError(f"{field} of a link must be a text that is not empty: {value!r}")

    @property
    def perfect(self) -> bool:
        """No delay and no loss both ways."""
        return self.up.perfect and self.down.perfect

    def direction(self, name: str) -> Direction:
        """The direction called "up" or "down"."""
        return {"up": self.up, "down": self.down}[name]

    def channel(self, direction: str, link: str, seed: int = 0) -> Channel:
        """One direction at work; `link` is the name of the link, which enters into the seed."""
        end = self.direction(direction)
        return Channel(end.delay_model, end.loss, link, direction, seed)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "name": self.name,
            "up": self.up.to_dict(),
            "down": self.down.to_dict(),
            "source": self.source,
        }

    @classmethod
    def from_dict(cls, data: Any, where: str = "link") -> LinkProfile:
        """From JSON data. Raises ProfileError with `where` in its line."""
        fields = _fields(data, where, required=("name", "up", "down", "source"))
        for name in ("up", "down"):
            fields[name] = Direction.from_dict(fields[name], f"{where}.{name}")
        try:
            return cls(**fields)
        except ProfileError as error:
            raise ProfileError(f"{where}: {error}") from None


@dataclass(frozen=True)
class NetworkProfile:
    """The access link (client to access point) and the link behind it (to the server)."""

    access: LinkProfile
    server: LinkProfile

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {"access": self.access.to_dict(), "server": self.server.to_dict()}

    @classmethod
    def from_dict(cls, data: Any, where: str = "network") -> NetworkProfile:
        """From JSON data. Raises ProfileError with `where` in its line."""
        fields = _fields(data, where, required=("access", "server"))
        return cls(
            access=LinkProfile.from_dict(fields["access"], f"{where}.access"),
            server=LinkProfile.from_dict(fields["server"], f"{where}.server"),
        )


def _loss_from_dict(data: Any, where: str) -> LossModel:
    if not isinstance(data, Mapping) or "model" not in data:
        raise ProfileError(f'{where} must be null or an object with "model", not {data!r}')
    model = LOSS_MODELS.get(data["model"]) if isinstance(data["model"], str) else None
    if model is None:
        known = ", ".join(LOSS_MODELS)
        raise ProfileError(f"{where}: unknown loss model {data['model']!r}; known are {known}")
    parameters = dataclasses.fields(model)
    fields = _fields(
        {key: value for key, value in data.items() if key != "model"},
        where,
        required=[f.name for f in parameters if f.default is dataclasses.MISSING],
        optional=[f.name for f in parameters if f.default is not dataclasses.MISSING],
    )
    try:
        return model(**fields)
    except ChannelError as error:
        raise ProfileError(f"{where}: {error}") from None


def _fields(
    data: Any, where: str, required: tuple[str, ...] | list[str], optional: Any = ()
) -> dict[str, Any]:
    """A copy of the mapping `data`, which has all required keys and no unknown one."""
    if not isinstance(data, Mapping):
        raise ProfileError(f"{where} must be an object, not {data!r}")
    for key in required:
        if key not in data:
            raise ProfileError(f'{where}: "{key}" is missing')
    for key in data:
        if key not in required and key not in optional:
            known = ", ".join([*required, *optional])
            raise ProfileError(f"{where}: unknown key {key!r}; known are {known}")
    return dict(data)
