"""docs/protocol.md against the code: each example, and each constant in its tables."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from eloquent import wire
from eloquent.wire import Ack, Cancel, CancelReason, Data, MalformedDatagram, Message, Reason

DOCUMENT = (Path(__file__).parent.parent / "docs" / "protocol.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```hex\n(.*?)```\n+```python\n(.*?)```", DOCUMENT, re.DOTALL)
MALFORMED = [
    line.split(" : ", 1)
    for block in re.findall(r"```malformed\n(.*?)```", DOCUMENT, re.DOTALL)
    for line in block.splitlines()
]
#: | `module.NAME` | value unit | why |
CONSTANTS = re.findall(r"^\| `(\w+)\.(\w+)` \| ([^ |]+)[^|]*\|", DOCUMENT, re.MULTILINE)
MODULES = (
    *("wire", "rtt", "path", "sender", "window", "receiver", "client", "attempts"),
    *("server", "stream", "admission", "cookies", "timers"),
)
#: Sizes that follow from the layout, which has a table of its own.
LAYOUT = {
    "wire.HEADER_SIZE",
    "wire.INSTANCE_SIZE",
    "wire.CRC_SIZE",
    "wire._KIND_MASK",
    "wire._U32",
    "path._U32",
    "timers._SLACK",
}


def bytes_of(block: str) -> bytes:
    """The bytes in front of the explanations (which are set off by two spaces)."""
    return bytes.fromhex("".join(re.split(r"  +", line)[0] for line in block.splitlines()))


def message_of(code: str) -> Message:
    names = {kind.__name__: kind for kind in (Ack, Cancel, CancelReason, Data, Reason)}
    message = eval(code, {"__builtins__": {}}, names)
    assert isinstance(message, Message)
    return message


def value_of(text: str) -> float:
    if "^" in text:
        base, exponent = text.split("^")
        return int(base) ** int(exponent)
    return int(text, 16) if text.startswith("0x") else float(text)


@pytest.mark.parametrize(("block", "code"), EXAMPLES)
def test_example(block: str, code: str) -> None:
    message = message_of(code)
    assert wire.encode(message) == bytes_of(block)
    assert wire.decode(bytes_of(block)) == message


def test_there_is_an_example_of_each_kind() -> None:
    kinds = {bytes_of(block)[1] & 0x0F for block, _ in EXAMPLES}
    assert kinds == set(wire.Kind)
    assert len(EXAMPLES) == DOCUMENT.count("```hex")


@pytest.mark.parametrize(("datagram", "complaint"), MALFORMED)
def test_malformed_example(datagram: str, complaint: str) -> None:
    with pytest.raises(MalformedDatagram) as caught:
        wire.decode(bytes.fromhex(datagram))
    assert str(caught.value) == complaint


@pytest.mark.parametrize(("module", "name", "value"), CONSTANTS)
def test_constant(module: str, name: str, value: str) -> None:
    assert getattr(import_module(f"eloquent.{module}"), name) == value_of(value)


def test_no_constant_is_left_out() -> None:
    """Each number that a module names itself is in the table."""
    own = set()
    for module in MODULES:
        source = Path(str(import_module(f"eloquent.{module}").__file__)).read_text()
        values = vars(import_module(f"eloquent.{module}"))
        for name in re.findall(r"^(_?[A-Z][A-Z0-9_]*) = ", source, re.MULTILINE):
            if isinstance(values[name], int | float):
                own.add(f"{module}.{name}")
    assert own - LAYOUT == {f"{module}.{name}" for module, name, _ in CONSTANTS}


@pytest.mark.parametrize("names", [wire.Reason, wire.CancelReason])
def test_the_reasons_are_named(names: type[wire.Reason] | type[wire.CancelReason]) -> None:
    for reason in names:
        name = reason.name.lower().replace("_", " ")
        one = f"{int(reason)} {name}"
        assert one in DOCUMENT or f"| {int(reason)} | {name} |" in DOCUMENT


def test_the_amounts_in_the_text() -> None:
    """The smallest datagram, and the CANCEL that is never more than what it answers."""
    smallest = wire.HEADER_SIZE + wire.CRC_SIZE
    assert f"{smallest} to {wire.MAX_DATAGRAM} bytes of UDP payload" in DOCUMENT
    cancel = wire.encode(Cancel(0, 0, True, CancelReason.BUSY))
    words = " ".join(DOCUMENT.split())
    assert f"answers a datagram has {len(cancel)} bytes" in words
    ping = [Ack(0, 0, True, at, 0, asks=True) for at in (0, wire.MAX_INDEX)]
    least, most = (len(wire.encode(message)) for message in ping)
    assert f"It has {least} to {most} bytes and no ranges" in words
