"""The groups of values in a profile file, each made into its part of a Direction."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from topologies import quantities
from topologies.channel import (
    LOSS_MODELS,
    Bernoulli,
    Bottleneck,
    ChannelError,
    Combined,
    DelayModel,
    DelayTrace,
    DeliveryTrace,
    LossModel,
)
from topologies.profile import Direction, ProfileError
from topologies.toml_lines import Keys, TomlFile

T = TypeVar("T")

GROUPS = ("delay", "loss", "bottleneck", "faults")

#: What the key of a group is called in the messages of the channel models, where that differs.
_SPOKEN = {"delay": "one_way", "queue_packets": "queue", "queue_bytes": "queue"}
#: Ways to say how often a channel is bad, instead of mean_good.
_INSTEAD = ("mean_loss", "bad_per_minute")


def fail(file: TomlFile, keys: Keys, message: str) -> ProfileError:
    """The error to raise: one line that begins with file and line."""
    return ProfileError(f"{file.place(keys)}: {' '.join(message.split())}")


def text_of(file: TomlFile, keys: Keys, value: Any) -> str:
    """A text that is not empty, such as a source; its line breaks become spaces."""
    if not isinstance(value, str) or not value.strip():
        raise fail(file, keys, f"{keys[-1]} must be a text that is not empty, not {value!r}")
    return " ".join(value.split())


@dataclass(frozen=True)
class Group:
    """A group of values, where it stands, and their source."""

    file: TomlFile
    place: Keys
    values: Mapping[str, Any]
    source: str

    @classmethod
    def read(
        cls, file: TomlFile, place: Keys, value: Any, source: str | None, short: str = ""
    ) -> Group:
        """From a table, or from a value alone where there is a short form for it."""
        name = str(place[-1])
        values: dict[str, Any]
        if isinstance(value, dict):
            values = dict(value)
        elif isinstance(value, list):
            values = {"models": value}
        else:
            short = short or {"delay": "one_way", "loss": "loss"}.get(name, "")
            if not short:
                raise fail(file, place, f"{name} must be a table, not {value!r}")
            values = {short: value}
        if "source" in values:
            source = text_of(file, (*place, "source"), values.pop("source"))
        elif isinstance(value, list):
            source = source or _source_of_parts(file, place, value)
        if source is None:
            way = ".".join(str(key) for key in place)
            raise fail(file, place, f'{way} has no source: say where it comes from, or "assumed"')
        return cls(file, place, values, source)

    def fail(self, key: str | None, message: str) -> ProfileError:
        """An error at the line of a key, or of the whole group."""
        keys = self.place if key is None else (*self.place, key)
        return fail(self.file, keys, f"{'.'.join(str(each) for each in self.place)}: {message}")

    def check(self, known: Iterable[str]) -> None:
        """No keys but these."""
        for key in self.values:
            if key not in known:
                raise self.fail(key, f"unknown key {key!r}; known are {', '.join(known)}, source")

    def value(self, key: str, convert: Callable[[Any], T]) -> T:
        """A value that must be there, converted."""
        if key not in self.values:
            raise self.fail(None, f"{key} is missing")
        try:
            return convert(self.values[key])
        except (quantities.QuantityError, TypeError) as error:
            raise self.fail(key, f"{key} {error}") from None

    def given(self, **converters: Callable[[Any], Any]) -> dict[str, Any]:
        """Those of the values that are there."""
        return {
            key: self.value(key, convert)
            for key, convert in converters.items()
            if key in self.values
        }

    def made(self, make: Callable[[], T], key: str | None = None) -> T:
        """What `make` makes; its refusal at the line of the key (its own, else the first word)."""
        try:
            return make()
        except (ChannelError, ProfileError, TypeError) as error:
            message = str(error).removeprefix(f"{self.place[-1]}: ")
            first = re.match(r"\w*", message)
            word = first[0] if first else ""
            word = _SPOKEN.get(word, word)
            raise self.fail(key or (word if word in self.values else None), message) from None

    def path(self, name: Any) -> str:
        """A file, relative to the one in which it is named."""
        if not isinstance(name, str) or not name:
            raise quantities.QuantityError(f"must be the name of a file, not {name!r}")
        return str((self.file.path.parent / name).resolve())


def _source_of_parts(file: TomlFile, place: Keys, parts: list[Any]) -> str | None:
    """The sources of all models in a list; None if one has none."""
    sources = []
    for number, part in enumerate(parts):
        if not isinstance(part, dict) or "source" not in part:
            return None
        sources.append(text_of(file, (*place, number, "source"), part["source"]))
    return "; ".join(dict.fromkeys(sources))


def direction_from(groups: Mapping[str, Group]) -> Direction:
    """A direction with these groups. Raises ProfileError with file and line."""
    fields: dict[str, Any] = {}
    for name, group in groups.items():
        fields |= _MAKERS[name](group)
    return Direction(**fields)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise quantities.QuantityError(f"must be true or false, not {value!r}")
    return value


def _as_it_is(value: Any) -> Any:
    return value


def _delay(group: Group) -> dict[str, Any]:
    group.check(("one_way", "jitter", "distribution", "reorder", "clamp", "trace", "sha256"))
    fields = group.given(jitter=quantities.seconds, reorder=_flag, clamp=_flag)
    fields |= group.given(distribution=_as_it_is)
    trace = None
    if "trace" in group.values:
        file, sha256 = group.value("trace", group.path), group.values.get("sha256", "")
        trace = group.made(lambda: DelayTrace(file, sha256), "trace")
    if "one_way" in group.values or trace is None:
        fields["delay"] = group.value("one_way", quantities.seconds)
    group.made(lambda: DelayModel(**fields, trace=trace))
    return fields | {"delay_trace": trace}


def _bottleneck(group: Group) -> dict[str, Any]:
    group.check(("rate", "queue", "discipline", "trace", "sha256"))
    fields = group.given(rate=quantities.bits_per_second, discipline=_as_it_is)
    length = group.value("queue", quantities.queue)
    if "trace" in group.values:
        file, sha256 = group.value("trace", group.path), group.values.get("sha256", "")
        fields["trace"] = group.made(lambda: DeliveryTrace(file, sha256), "trace")
    fields |= {"queue_packets": length.packets, "queue_bytes": length.size}
    return {"bottleneck": group.made(lambda: Bottleneck(**fields))}


def _faults(group: Group) -> dict[str, Any]:
    group.check(("duplicate", "corrupt"))
    fields = group.given(duplicate=quantities.share, corrupt=quantities.share)
    group.made(lambda: Direction(**fields))
    return fields


def _loss(group: Group) -> dict[str, Any]:
    if "models" not in group.values:
        return {"loss": _loss_model(group)}
    models = []
    for number, part in enumerate(group.values["models"]):
        each = Group.read(group.file, (*group.place, number), part, group.source, short="loss")
        models.append(_loss_model(each))
    return {"loss": group.made(lambda: Combined(tuple(models)))}


def _loss_model(group: Group) -> LossModel:
    name = group.values.get("model", Bernoulli.kind)
    model = LOSS_MODELS.get(name) if isinstance(name, str) else None
    if model is None or model is Combined:
        known = ", ".join(kind for kind in LOSS_MODELS if kind != Combined.kind)
        raise group.fail("model", f"unknown loss model {name!r}; known are {known}")
    parameters = [field for field in dataclasses.fields(model) if field.init]
    keys = [field.name for field in parameters]
    instead = _INSTEAD if "mean_good" in keys else ()
    group.check(("model", *keys, *instead))
    converters = {key: _CONVERTERS.get(key, _as_it_is) for key in keys} | {"file": group.path}
    fields = group.given(**{key: converters[key] for key in keys})
    if instead:
        fields |= _mean_good(group, fields)
    for field in parameters:
        if field.name not in fields and field.default is dataclasses.MISSING:
            choice = " (or ".join([field.name, " or ".join(_INSTEAD) + ")"])
            missing = choice if field.name == "mean_good" else field.name
            raise group.fail(None, f"{missing} is missing")
    return group.made(lambda: model(**fields), "file" if "file" in fields else None)


def _mean_good(group: Group, fields: Mapping[str, Any]) -> dict[str, float]:
    """mean_good from how much is lost, or from how often the channel is bad, and mean_bad."""
    said = [key for key in ("mean_good", *_INSTEAD) if key in group.values]
    if len(said) > 1:
        raise group.fail(said[1], f"{said[0]} and {said[1]} exclude each other")
    if not said or said == ["mean_good"]:
        return {}
    bad = group.value("mean_bad", quantities.seconds)
    if said == ["mean_loss"]:
        loss = group.value("mean_loss", quantities.share)
        if not 0 < loss < 1:
            raise group.fail("mean_loss", f"mean_loss must be between 0 and 1, not {loss:g}")
        for key, value in (("loss_good", 0), ("loss_bad", 1)):
            if fields.get(key, value) != value:
                raise group.fail(key, f"mean_loss needs {key} = {value}; say mean_good instead")
        return {"mean_good": bad * (1 - loss) / loss}
    often = group.value("bad_per_minute", quantities.number)
    if not 0 < often * bad < 60:
        limit = f"between 0 and 60 s / mean_bad ({60 / bad if bad > 0 else 0:g})"
        raise group.fail("bad_per_minute", f"bad_per_minute must be {limit}, not {often!r}")
    return {"mean_good": 60 / often - bad}


def _spells(value: Any) -> tuple[tuple[float, ...], ...]:
    if not isinstance(value, list) or not all(isinstance(spell, list) for spell in value):
        raise quantities.QuantityError(f"must be a list of [start, end], not {value!r}")
    return tuple(tuple(quantities.seconds(time) for time in spell) for spell in value)


def _fates(value: Any) -> tuple[bool, ...]:
    """Delivered (.) or lost (x), a letter a packet; or a list of true (lost) and false."""
    if isinstance(value, str):
        letters = "".join(value.split())
        if set(letters) <= {".", "x"}:
            return tuple(letter == "x" for letter in letters)
    elif isinstance(value, list) and all(isinstance(fate, bool) for fate in value):
        return tuple(value)
    raise quantities.QuantityError("must be a text of . (delivered) and x (lost), or a list")


def _packets(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise quantities.QuantityError(f"must be a list of whole numbers, not {value!r}")
    return tuple(value)


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("mean_good", "mean_bad", "on", "off"), quantities.seconds),
    **dict.fromkeys(("loss", "loss_good", "loss_bad", "p", "r"), quantities.share),
    "shape": quantities.number,
    "spells": _spells,
    "fates": _fates,
    "packets": _packets,
}
_MAKERS: dict[str, Callable[[Group], dict[str, Any]]] = {
    "delay": _delay,
    "loss": _loss,
    "bottleneck": _bottleneck,
    "faults": _faults,
}
