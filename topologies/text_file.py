"""Text files as people's editors leave them: UTF-8, with or without a byte order mark.

Everything that a user writes for the testbed by hand is read here: profiles, traces, prompts.
"""

from __future__ import annotations

import codecs
from pathlib import Path

# UTF-32's first: its little-endian mark begins with that of UTF-16.
_OTHERS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


class TextFileError(ValueError):
    """A file cannot be read as text. The message says why, without the file's name."""


#: Larger files are mistakes, and would fill the memory before they are seen to be.
MOST_BYTES = 1 << 30


def read(path: Path) -> bytes:
    """The bytes of a file. Raises TextFileError."""
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
            if len(raw) > MOST_BYTES:
                raise TextFileError(f"it is larger than {MOST_BYTES / 1e9:.1f} GB")
            return raw
    except OSError as error:
        raise TextFileError(error.strerror or str(error)) from None
    except TextFileError:
        raise
    except ValueError:  # Python's own check
        raise TextFileError("there is a NUL character in its name") from None


def decode(raw: bytes) -> str:
    """The text of a file, without byte order mark, each line ended by a newline alone.

    Raises TextFileError: another encoding, or no text.
    """
    for mark, name in _OTHERS:
        if raw.startswith(mark):
            raise TextFileError(f"it is no text in UTF-8 but in {name}: save it as UTF-8")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte, line = error.object[error.start], 1 + error.object.count(b"\n", 0, error.start)
        raise TextFileError(f"it is no text in UTF-8: byte 0x{byte:02x} in line {line}") from None
    if "\0" in text:
        line = 1 + text.count("\n", 0, text.index("\0"))
        raise TextFileError(
            f"it is no text in UTF-8: there is a NUL character in line {line} (UTF-16, perhaps?)"
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")


def lines(text: str) -> list[str]:
    """The lines of a decoded text. Not ``splitlines``: U+2028, say, may stand in a prompt."""
    return text.removesuffix("\n").split("\n") if text else []
