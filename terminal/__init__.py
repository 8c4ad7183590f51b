"""How things are said to a person or a pipe; imports nothing else of this repository."""

import sys
from types import TracebackType

_report = sys.excepthook


def _quiet(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if kind is not KeyboardInterrupt or hasattr(sys, "ps1"):
        _report(kind, error, traceback)


# Ctrl-C while a command still imports what it needs, before `program.run` is reached: Python then
# ends by SIGINT (130 in a shell), as it should, but would show where it was.
sys.excepthook = _quiet
