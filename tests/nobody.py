"""The user nobody, for tests that show that something needs no root."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

UID = 65534
CHECKOUT = Path(__file__).parent.parent


def become() -> None:
    """In a child, before its program starts: be nobody, if this is root; anybody else stays."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(UID)
        os.setuid(UID)


@functools.cache
def lacks() -> str | None:
    """What keeps nobody from running this checkout's programs, in words, or None."""
    if os.geteuid() != 0:
        return None
    needed = [CHECKOUT, Path(sys.prefix), Path(sys.executable).resolve().parent]
    folders = [str(folder) for path in needed for folder in (*reversed(path.parents), path)]
    # The shell asks the kernel as nobody, so whatever forbids it counts, not only the mode.
    look = 'for folder; do test -x "$folder" || { echo "$folder"; exit; }; done'
    command = ["/bin/sh", "-c", look, "-", *folders]
    done = subprocess.run(command, preexec_fn=become, cwd="/", capture_output=True, text=True)
    closed = done.stdout.strip()
    if not closed:
        return None
    return f"the user nobody may not enter {closed}: a checkout elsewhere, such as in /opt, will do"
