"""The parser of every command: what is wrong is one line, with what was probably meant."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable
from typing import Any, NoReturn

_UNKNOWN = "unrecognized arguments: "


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about a name that is not known: ``: did you mean 'x'?``, or nothing."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f": did you mean {by_lower[near[0]]!r}?" if near else ""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that keeps the lines of its examples, and complains in one line."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*arguments, **options)

    def error(self, message: str) -> NoReturn:
        """End the process with status 2 and one line."""
        if message.startswith(_UNKNOWN):
            message = self._unknown(message.removeprefix(_UNKNOWN))
        text = re.sub(r"^argument ", "", " ".join(message.split()))
        self.exit(2, f"error: {text}" + ("" if "?" in text else "; see --help") + "\n")

    def _unknown(self, words: str) -> str:
        options = [word for word in words.split() if word.startswith("-") and word != "--"]
        if not options:
            return f"one argument too many: {words}"
        name = options[0].partition("=")[0]
        return f"there is no option {name}{did_you_mean(name, self._option_string_actions)}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(
                action, f"{value!r} is none of {', '.join(known)}{did_you_mean(str(value), known)}"
            )
