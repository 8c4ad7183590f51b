"""Run the help of many commands, each in a fork of one interpreter that has imported them all.

python tests/every_command.py COMMAND... prints, as JSON, what became of each on an output whose
reader has left, on a full disk and on a terminal that knows ASCII alone. A command is a module's
name, or a path with .py at its end.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import runpy
import sys
import tempfile
from typing import Any, NoReturn

OUTPUTS = ("left", "left unbuffered", "full", "ascii")


def help_of(command: str, kind: str) -> dict[str, Any]:
    """Status, standard output and standard error of `COMMAND --help`."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        descriptor = out.fileno()
        if kind.startswith("left"):
            reader, descriptor = os.pipe()
            os.close(reader)
        elif kind == "full":
            descriptor = os.open("/dev/full", os.O_WRONLY)
        child = os.fork()
        if child == 0:
            os.dup2(descriptor, 1)
            os.dup2(err.fileno(), 2)
            _be(command, kind)
        if descriptor != out.fileno():
            os.close(descriptor)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode("utf-8"))
    return {"command": command, "kind": kind, "status": status, "out": said[0], "err": said[1]}


def _be(command: str, kind: str) -> NoReturn:
    """Start as the interpreter does with these outputs, and end as it does."""
    encoding = "ascii" if kind == "ascii" else "utf-8"
    now = kind.endswith("unbuffered")
    binary = open(1, "wb", buffering=0) if now else open(1, "wb")  # noqa: SIM115
    sys.stdout = io.TextIOWrapper(binary, encoding, write_through=now)
    sys.stderr = open(2, "w", encoding=encoding)  # noqa: SIM115
    _started = sys.stdout, sys.stderr  # as sys.__stdout__, which nobody may close, holds it
    sys.argv = [command, "--help"]
    status: Any = 1
    try:
        try:
            if command.endswith(".py"):
                runpy.run_path(command, run_name="__main__")
            else:
                del sys.modules[command]  # or runpy warns
                runpy.run_module(command, run_name="__main__", alter_sys=True)
            status = 0
        except SystemExit as end:
            status = end.code
            if isinstance(status, str):
                print(status, file=sys.stderr)
                status = 1
        try:
            sys.stdout.flush()
        except OSError as error:
            print(f"Exception ignored: {error}", file=sys.stderr)
            status = 120
    except BaseException as error:  # noqa: BLE001 - told, in place of a traceback
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(status or 0)


def main() -> None:
    """Everything, once."""
    commands = sys.argv[1:]
    for command in commands:
        if not command.endswith(".py"):
            importlib.import_module(command)
        else:
            runpy.run_path(command, run_name="imported")
    found = [help_of(command, kind) for command in commands for kind in OUTPUTS]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
