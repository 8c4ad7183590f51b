"""Text as an output can show it: readable in every encoding, and without control characters."""

# ruff: noqa: RUF001 - characters that look like others are what this is about

from __future__ import annotations

import codecs
import os
import unicodedata

PLAIN = "terminal-plain"
"""Name of the codecs error handler that writes what an encoding lacks as `plain` does."""

# What the commands use beyond ASCII, and the punctuation that language models write.
_SUBSTITUTES = {
    "±": "+/-",
    "→": "->",
    "←": "<-",
    "↔": "<->",
    "≥": ">=",
    "≤": "<=",
    "≠": "!=",
    "≈": "~",
    "×": "x",
    "÷": "/",
    "−": "-",
    "–": "-",
    "—": "--",
    "‐": "-",
    "‑": "-",
    "…": "...",
    "·": ".",
    "•": "*",
    "µ": "u",  # MICRO SIGN
    "μ": "u",  # GREEK SMALL LETTER MU
    "σ": "sigma",
    "θ": "theta",
    "λ": "lambda",
    "Δ": "delta ",
    "°": " deg",
    "²": "^2",
    "³": "^3",
    "½": "1/2",
    "∞": "inf",
    "§": "section ",
    "‘": "'",
    "’": "'",
    "‚": ",",
    "“": '"',
    "”": '"',
    "„": '"',
    "«": '"',
    "»": '"',
    "\N{NO-BREAK SPACE}": " ",
    "\N{NARROW NO-BREAK SPACE}": " ",
    "\N{THIN SPACE}": " ",
    "✓": "ok",
    "✗": "x",
    "✘": "x",
}


def visible(text: str, *, keep: str = "") -> str:
    r"""The text with control and formatting characters as escapes: `\x1b`, `\n`, `\u202e`.

    A file's name may hold any of them, and a terminal would obey. Bytes of a name that are no
    UTF-8 (lone surrogates, PEP 383) are shown as the bytes they were. `keep` are let through.
    """
    if text.isprintable():
        return text
    return "".join(c if c in keep or _is_shown(c) else _escape(c) for c in text)


def plain(text: str, encoding: str) -> str:
    r"""The text with what `encoding` lacks in plain characters: `->` for an arrow.

    What has no plain likeness becomes an escape (`\u4e2d`): nothing is lost without a sign.
    """
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.encode(encoding, PLAIN).decode(encoding)
    return text


def one_line(text: object) -> str:
    """What an error says, visible, on one line; its kind where it says nothing.

    Of the system's errors the file and the reason, without the number.
    """
    said = str(text)
    if isinstance(text, OSError) and text.strerror:
        name = text.filename
        shown = os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else ""
        said = f"{shown}: {text.strerror}" if shown else str(text.strerror)
    line = " ".join(filter(None, (line.strip() for line in said.splitlines())))
    return visible(line) or (type(text).__name__ if isinstance(text, BaseException) else "")


def _is_shown(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # PEP 383
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


def _likeness(character: str) -> str:
    if "─" <= character <= "╿":  # box drawing: lines, corners, crossings
        name = unicodedata.name(character)
        if name.endswith(("HORIZONTAL", " LEFT", " RIGHT")) and " AND " not in name:
            return "-"
        return "|" if name.endswith("VERTICAL") else "+"
    if "▀" <= character <= "▟":  # block elements
        return "#"
    return _SUBSTITUTES.get(character) or _escape(character)


def _substitute(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    said = "".join(map(_likeness, error.object[error.start : error.end]))
    # A substitute goes through the same encoding: it must not need one itself.
    return said.encode("ascii", "backslashreplace").decode("ascii"), error.end


codecs.register_error(PLAIN, _substitute)
