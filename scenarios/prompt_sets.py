"""Prompt sets: what is asked, as data.

``scenarios/prompts/NAME.toml`` holds a title, the prompts, and optionally the longest answer
(``tokens``). A file of one's own may have the same form, or be a ``.txt`` with a prompt a line.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terminal.arguments import did_you_mean
from topologies import text_file
from topologies.toml_lines import TomlError, TomlFile

FOLDER = Path(__file__).parent / "prompts"
#: Bytes of a prompt: Linux takes no single argument of a program beyond 128 KiB.
MAX_BYTES = 100_000


class PromptError(ValueError):
    """A prompt set cannot be used; the message is one line."""


@dataclass(frozen=True)
class PromptSet:
    """The prompts of an experiment, taken in turn by its runs.

    ``tokens`` is the longest answer that the set is meant for; None leaves that to the scenario.
    ``sha256`` is that of the file and ``spec`` what ``load`` finds it by: both None for prompts
    that are written into a scenario.
    """

    name: str
    prompts: tuple[str, ...]
    title: str = ""
    tokens: int | None = None
    sha256: str | None = None
    spec: str | None = None

    def of_run(self, number: int) -> str:
        """The prompt of run ``number``, counted from 1: the same for every scheme."""
        return self.prompts[(number - 1) % len(self.prompts)]

    def to_dict(self) -> dict[str, Any]:
        """As JSON data, for the manifest."""
        return {
            "name": self.name,
            "title": self.title,
            "prompts": list(self.prompts),
            "tokens": self.tokens,
            "sha256": self.sha256,
        }


def names() -> list[str]:
    """The sets that ship with the testbed."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(spec: str) -> PromptSet:
    """The set called ``spec``, or that of the file ``spec`` (.toml, or .txt with a prompt a line).

    Raises PromptError: no such set or file, or a file that holds no prompts.
    """
    if spec in names():
        return _read(FOLDER / f"{spec}.toml", spec, spec)
    path = Path(spec)
    if path.suffix not in (".toml", ".txt"):
        known = f": use {', '.join(names())}, or a .toml or .txt file"
        raise PromptError(f"no prompt set {spec!r}{did_you_mean(spec, names()) or known}")
    return _read(path, path.stem, str(path.resolve()))


def _read(path: Path, name: str, spec: str) -> PromptSet:
    try:
        if path.suffix == ".txt":
            raw = text_file.read(path)
            found = text_file.lines(text_file.decode(raw))
            data: dict[str, Any] = {"prompts": [line for line in found if line.strip()]}
        else:
            file = TomlFile(path)
            raw, data = file.raw, file.data
    except text_file.TextFileError as error:
        raise PromptError(f"cannot read prompts {path}: {error}") from None
    except TomlError as error:
        raise PromptError(f"prompts: {error}") from None
    digest = hashlib.sha256(raw).hexdigest()
    return PromptSet(name, **_checked(data, path), sha256=digest, spec=spec)


def _checked(data: dict[str, Any], path: Path) -> dict[str, Any]:
    unknown = set(data) - {"title", "prompts", "tokens"}
    if unknown:
        raise PromptError(
            f"prompts {path}: unknown key {min(unknown)!r}; known are title, prompts, tokens"
        )
    prompts = data.get("prompts")
    if prompts is not None and not isinstance(prompts, list):
        raise PromptError(f"prompts {path}: prompts must be a list of texts, not {prompts!r}")
    if not prompts:
        raise PromptError(f"prompts {path}: there is no prompt in it")
    for number, prompt in enumerate(prompts, start=1):
        if not isinstance(prompt, str) or not prompt.strip():
            raise PromptError(f"prompts {path}: prompt {number} is no text: {prompt!r}")
        if len(prompt.encode()) > MAX_BYTES:
            size = len(prompt.encode())
            raise PromptError(
                f"prompts {path}: prompt {number} has {size} bytes, more than {MAX_BYTES}"
            )
    tokens = data.get("tokens")
    if tokens is not None and (type(tokens) is not int or tokens < 1):
        raise PromptError(f"prompts {path}: tokens must be a whole number >= 1, not {tokens!r}")
    title = data.get("title", "")
    if not isinstance(title, str):
        raise PromptError(f"prompts {path}: the title must be a text, not {title!r}")
    return {"prompts": tuple(prompts), "title": title, "tokens": tokens}
