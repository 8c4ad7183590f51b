"""Start the OpenFlow controller: ``python -m apps.controller --port 6653 --stats FILE``.

Ryu 4.34 is its last release (2022). Its own starter, ``ryu-manager``, fails with the eventlet of
today; this one puts back the single name that Ryu misses and runs :mod:`apps.learning_switch`.

Standard output carries one JSON object a line: ``listening``, then ``connected`` (with the
switch's ports) and ``disconnected`` for each switch. The log goes to ``--log`` or standard error.

With ``--control SOCKET`` it listens at a Unix socket for one JSON object a line: ``paths``,
``move``, ``state`` and ``counters``, answered by one each; :mod:`apps.path_switch` says how.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import time
import warnings

from terminal import message, program
from terminal.arguments import Parser
from topologies.quantities import TIME


class ControllerError(RuntimeError):
    """The controller cannot be started. The message is one line."""


def run(
    port: int,
    host: str = "0.0.0.0",
    stats: str | None = None,
    interval: float = 1.0,
    control: str | None = None,
) -> None:
    """Run the controller until it is interrupted.

    Args:
        port: TCP port for OpenFlow; host: address to listen at.
        stats: CSV file for the statistics, overwritten; None polls nothing.
        interval: seconds between two polls.
        control: path of the Unix socket to be controlled through; None: nobody does.

    Raises:
        ControllerError: the port is taken, a file cannot be written, or Ryu is missing.
    """
    if not interval > 0:
        raise ControllerError(f"the poll interval must be > 0 s, not {interval}")
    _check_port(host, port)
    _check_writable(stats)
    _check_control(control)
    # Eventlet would load a resolver of its own for names, of which there are none here.
    os.environ.setdefault("EVENTLET_NO_GREENDNS", "yes")
    try:
        with warnings.catch_warnings():
            # Eventlet warns that it is deprecated: known, and nothing that a reader could change.
            warnings.simplefilter("ignore")
            import eventlet.wsgi
    except ImportError as error:
        raise ControllerError(f"the controller needs eventlet and ryu: {error}") from None
    # Ryu imports this name, which eventlet 0.34 removed; Ryu only compares with it.
    setattr(eventlet.wsgi, "ALREADY_HANDLED", b"")  # noqa: B010
    try:
        from ryu import cfg
        from ryu.base.app_manager import AppManager
        from ryu.controller import ofp_handler  # noqa: F401 (registers the port option)

        import apps.learning_switch  # noqa: F401 (registers the statistics options)
    except ImportError as error:
        raise ControllerError(f"the controller needs ryu 4.34: {error}") from None
    options = ["--ofp-listen-host", host, "--ofp-tcp-listen-port", str(port)]
    if stats is not None:
        options += ["--stats-file", stats, "--stats-interval", str(interval)]
    if control is not None:
        options += ["--control-socket", control]
    cfg.CONF(args=options, project="ryu", default_config_files=[])
    print(json.dumps({"event": "listening", "port": port, "time": time.monotonic()}), flush=True)
    AppManager.run_apps(["apps.learning_switch", "ryu.controller.ofp_handler"])


def _check_port(host: str, port: int) -> None:
    # Ryu listens in a green thread and would only log the failure.
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ControllerError(f"cannot listen at {host}, TCP port {port}: {reason}") from None


def _check_writable(path: str | None) -> None:
    if path is not None:
        try:
            with open(path, "a"):
                pass
        except OSError as error:
            raise ControllerError(f"cannot write statistics to {path}: {error.strerror}") from None


def _check_control(path: str | None) -> None:
    """Try the socket: its green thread would only log the failure, as Ryu's does."""
    if path is None:
        return
    try:
        if os.path.exists(path) and not stat.S_ISSOCK(os.stat(path).st_mode):
            raise ControllerError(f"cannot listen at {path}: a file that is no socket is there")
        with socket.socket(socket.AF_UNIX) as probe:
            if os.path.exists(path):
                if probe.connect_ex(path) == 0:
                    raise ControllerError(f"cannot listen at {path}: another controller does")
                os.unlink(path)  # left by one that was killed
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(path)
    except OSError as error:
        raise ControllerError(f"cannot listen at {path}: {error.strerror or error}") from None
    os.unlink(path)


_EXAMPLES = """examples:
  python -m apps.controller --port 6653 --stats switch.csv
  python -m apps.controller --host 127.0.0.1 --control /tmp/paths.sock
"""


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = Parser(
        prog="python -m apps.controller",
        description="An OpenFlow 1.3 controller (Ryu) with a learning switch. Prints one JSON "
        "object a line: listening, then connected and disconnected for each switch.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--port", type=int, default=6653, help="TCP port (default 6653, IANA's)")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen at (default all)")
    parser.add_argument("--stats", metavar="FILE", help="CSV for port and flow statistics")
    parser.add_argument(
        "--interval",
        type=TIME.option(1.0),
        default=1.0,
        metavar="TIME",
        help="between two polls of the statistics, as 500ms or 2 (1 s)",
    )
    parser.add_argument("--control", metavar="SOCKET", help="Unix socket for commands")
    parser.add_argument("--log", metavar="FILE", help="log file (default: standard error)")
    options = parser.parse_args(arguments)
    try:
        logging.basicConfig(
            filename=options.log,
            level=logging.INFO,
            format="%(asctime)s %(name)s %(levelname)s %(message)s",
        )
        run(options.port, options.host, options.stats, options.interval, options.control)
    except ControllerError as error:
        message.error(error)
        logging.getLogger(__name__).error("%s", error)
        return 2
    except OSError as error:
        message.error(f"cannot write log {options.log}: {error.strerror}")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    program.run(main)
