"""docs/protocol.md tells the truth: its examples and its constants are those of the code."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from eloquent.wire import Ack, Cancel, CancelReason, Data, Message, Reason, decode, encode

TEXT = (Path(__file__).parent.parent / "docs" / "protocol.md").read_text()
STREAM = 0x0123456789ABCDEF

#: What the sentences above the examples say, in their order.
EXAMPLES: list[Message] = [
    Data(STREAM, 1_000_000, False, 0, (b"Hi",), Reason.STOP),
    Data(STREAM, 0xFFFFFFF0, True, 3, (b"a", b" b", b"")),
    Data(STREAM, 7, True, 300, (), Reason.LENGTH),
    Ack(STREAM, 1_000_000, False, 3, 0xFFFFFFF0, 0, ((5, 7), (70, 71))),
    Ack(STREAM, 5, True, 2, 1_000_000, 250, (), asks=True),
    Cancel(STREAM, 9, False, CancelReason.READER),
]
BLOCKS = re.findall(r"```hex\n(.*?)```", TEXT, re.DOTALL)
CONSTANTS = re.findall(r"^\| `(\w+)\.([A-Z_]+)` \| (\S+) \|", TEXT, re.MULTILINE)


@pytest.mark.parametrize(("block", "message"), list(zip(BLOCKS, EXAMPLES, strict=True)))
def test_the_examples(block: str, message: Message) -> None:
    datagram = bytes.fromhex(block)
    assert decode(datagram) == message
    assert encode(message) == datagram


@pytest.mark.parametrize(("module", "name", "value"), CONSTANTS)
def test_the_constants(module: str, name: str, value: str) -> None:
    actual = getattr(importlib.import_module(f"eloquent.{module}"), name)
    assert actual == (int(value, 16) if value.startswith("0x") else float(value))


@pytest.mark.parametrize(
    "module", ["wire", "window", "path", "rtt", "sender", "receiver", "client"]
)
def test_no_constant_is_missing(module: str) -> None:
    told = {name for other, name, _ in CONSTANTS if other == module}
    code = vars(importlib.import_module(f"eloquent.{module}"))
    numbers = {n for n, v in code.items() if n.isupper() and isinstance(v, int | float)}
    numbers = {n for n in numbers if not n.startswith("_")}
    own = numbers & set(re.findall(r"^([A-Z_]+) = ", Path(code["__file__"]).read_text(), re.M))
    derived = {"HEADER_SIZE", "CRC_SIZE", "FROM_SERVER", "MAX_INDEX", "DATAGRAM_TOKENS"}
    assert own - derived <= told
