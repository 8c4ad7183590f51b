"""Link profiles: what a network is meant to be, as data, with the source of its numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from topologies.channel import (
    Bernoulli,
    Bottleneck,
    Channel,
    ChannelError,
    DelayModel,
    DelayTrace,
    DeliveryTrace,
    LossModel,
    check_number,
    loss_from_dict,
    loss_to_dict,
)


class ProfileError(ValueError):
    """A profile does not describe a link."""


@dataclass(frozen=True)
class Direction:
    """One direction of a link: a bottleneck, then losses, then a delay.

    `delay` (one way) and `jitter` are in seconds; `distribution`, `reorder`, `clamp` and
    `delay_trace` as in channel.DelayModel; `duplicate` and `corrupt` (one bit inverted, so that a
    checksum catches it) are probabilities per frame.
    """

    delay: float = 0.0
    jitter: float = 0.0
    loss: LossModel | None = None
    bottleneck: Bottleneck | None = None
    distribution: str = "normal"
    reorder: bool = False
    clamp: bool = False
    delay_trace: DelayTrace | None = None
    duplicate: float = 0.0
    corrupt: float = 0.0

    def __post_init__(self) -> None:
        try:
            self.delay_model  # noqa: B018 - it checks the values
            for name in ("reorder", "clamp"):
                if not isinstance(getattr(self, name), bool):
                    value = getattr(self, name)
                    raise ChannelError(f"{name} must be true or false, not {value!r}")
            check_number("duplicate", self.duplicate, 0, 1)
            check_number("corrupt", self.corrupt, 0, 1)
        except ChannelError as error:
            raise ProfileError(str(error)) from None

    @property
    def delay_model(self) -> DelayModel:
        """Delay and jitter as a channel model."""
        return DelayModel(
            self.delay,
            self.jitter,
            self.distribution,
            self.reorder,
            self.clamp,
            self.delay_trace,
        )

    @property
    def mean_delay(self) -> float:
        """Mean one-way delay in seconds, queueing not counted."""
        return self.delay_model.mean_delay

    @property
    def mean_loss(self) -> float:
        """Long-run share of frames lost."""
        return self.loss.mean_loss if self.loss else 0.0

    @property
    def perfect(self) -> bool:
        """Nothing is set: a plain cable does it."""
        plain = self
        if isinstance(self.loss, Bernoulli) and self.loss.loss == 0:
            plain = dataclasses.replace(self, loss=None)
        return plain == Direction()

    def to_dict(self) -> dict[str, Any]:
        """As JSON data; what is not set beyond delay, jitter and loss is left out."""
        data: dict[str, Any] = {"delay": self.delay, "jitter": self.jitter, "loss": None}
        if self.loss is not None:
            data["loss"] = loss_to_dict(self.loss)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in data or value == field.default:
                continue
            data[field.name] = _plain(value) if dataclasses.is_dataclass(value) else value
        return data

    @classmethod
    def from_dict(cls, data: Any, where: str = "direction") -> Direction:
        """From JSON data. Raises ProfileError with `where` in its line."""
        known = [field.name for field in dataclasses.fields(cls)]
        fields = _fields(data, where, required=(), optional=known)
        try:
            if fields.get("loss") is not None:
                fields["loss"] = loss_from_dict(fields["loss"], f"{where}.loss")
            if fields.get("bottleneck") is not None:
                place = f"{where}.bottleneck"
                values = _nested(fields["bottleneck"], Bottleneck, place)
                if values.get("trace") is not None:
                    trace = _nested(values["trace"], DeliveryTrace, f"{place}.trace")
                    values["trace"] = DeliveryTrace(**trace)
                fields["bottleneck"] = Bottleneck(**values)
            if fields.get("delay_trace") is not None:
                trace = _nested(fields["delay_trace"], DelayTrace, f"{where}.delay_trace")
                fields["delay_trace"] = DelayTrace(**trace)
            return cls(**fields)
        except (ChannelError, ProfileError) as error:
            text = str(error)
            raise ProfileError(text if text.startswith(where) else f"{where}: {text}") from None


@dataclass(frozen=True)
class Rebind:
    """The client behind a NAT gets another address: at `at` seconds of channel time.

    With `every`, again each so many seconds. The client itself does not notice.
    """

    at: float
    every: float | None = None

    def __post_init__(self) -> None:
        try:
            check_number("at", self.at, 0)
            if self.every is not None:
                check_number("every", self.every, 1e-3)
        except ChannelError as error:
            raise ProfileError(f"rebind: {error}") from None

    def count(self, t: float) -> int:
        """How many changes of address have happened by channel time `t`."""
        if t < self.at:
            return 0
        return 1 + int((t - self.at) / self.every) if self.every else 1


@dataclass(frozen=True)
class LinkProfile:
    """A link between two nodes. `up` leads from the client's side to the server's.

    `source` says where the numbers come from: a paper, a measurement, or "assumed". Frames whose
    IP packet is longer than `mtu` bytes are lost without a word, as in a black hole.
    """

    name: str
    up: Direction
    down: Direction
    source: str
    mtu: int | None = None
    rebind: Rebind | None = None

    def __post_init__(self) -> None:
        for field in ("name", "source"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value.strip():
                raise ProfileError(f"{field} of a link must be a text that is not empty: {value!r}")
        if self.mtu is not None and not (type(self.mtu) is int and 68 <= self.mtu <= 65535):
            # RFC 791: every link carries 68 bytes.
            raise ProfileError(f"mtu must be a whole number from 68 to 65535, not {self.mtu!r}")

    @property
    def perfect(self) -> bool:
        """Nothing is set either way: a plain cable does it."""
        plain = self.mtu is None and self.rebind is None
        return plain and self.up.perfect and self.down.perfect

    def direction(self, name: str) -> Direction:
        """The direction called "up" or "down"."""
        return {"up": self.up, "down": self.down}[name]

    def channel(self, direction: str, link: str, seed: int = 0) -> Channel:
        """One direction at work; `link` is the name of the link, which enters into the seed."""
        end = self.direction(direction)
        return Channel(
            end.delay_model,
            end.loss,
            link,
            direction,
            seed,
            bottleneck=end.bottleneck,
            duplicate=end.duplicate,
            corrupt=end.corrupt,
            mtu=self.mtu,
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        data: dict[str, Any] = {
            "name": self.name,
            "up": self.up.to_dict(),
            "down": self.down.to_dict(),
            "source": self.source,
        }
        if self.mtu is not None:
            data["mtu"] = self.mtu
        if self.rebind is not None:
            data["rebind"] = dataclasses.asdict(self.rebind)
        return data

    @classmethod
    def from_dict(cls, data: Any, where: str = "link") -> LinkProfile:
        """From JSON data. Raises ProfileError with `where` in its line."""
        required, optional = ("name", "up", "down", "source"), ("mtu", "rebind")
        fields = _fields(data, where, required=required, optional=optional)
        for name in ("up", "down"):
            fields[name] = Direction.from_dict(fields[name], f"{where}.{name}")
        try:
            if fields.get("rebind") is not None:
                fields["rebind"] = Rebind(**_nested(fields["rebind"], Rebind, f"{where}.rebind"))
            return cls(**fields)
        except ProfileError as error:
            text = str(error)
            raise ProfileError(text if text.startswith(where) else f"{where}: {text}") from None


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


def _plain(value: Any) -> dict[str, Any]:
    """A dataclass of a channel as JSON data: what it is made from, without what is not set."""
    data = {}
    for field in dataclasses.fields(value):
        entry = getattr(value, field.name)
        if field.init and entry != field.default:
            data[field.name] = _plain(entry) if dataclasses.is_dataclass(entry) else entry
    return data


def _nested(data: Any, cls: Any, where: str) -> dict[str, Any]:
    """Arguments of a dataclass from JSON data."""
    fields = [field for field in dataclasses.fields(cls) if field.init]
    required = [field.name for field in fields if field.default is dataclasses.MISSING]
    return _fields(data, where, required, [field.name for field in fields])


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
            known = ", ".join(dict.fromkeys([*required, *optional]))
            raise ProfileError(f"{where}: unknown key {key!r}; known are {known}")
    return dict(data)
