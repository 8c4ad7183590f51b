"""The command line of every scenario: options, early checks, the sandbox, the exit status."""

from __future__ import annotations

import argparse
import datetime
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from apps.model import default_model, locate
from apps.sources import SourceError
from apps.trace import DEFAULT_TRACE, TraceSource
from eloquent import schemes as eloquent_schemes
from scenarios.scenario import Scenario
from topologies import sandbox
from topologies.channel import ChannelError
from topologies.profile import NetworkProfile, ProfileError

#: Transports beside the schemes of the protocol library.
TRANSPORTS = ("tcp",)
_STOP = {signal.SIGINT, signal.SIGTERM}


class UsageError(ValueError):
    """An option has a value that cannot be used; the message is one line."""


@dataclass(frozen=True)
class Plan:
    """What the options ask for, checked."""

    scenario: Scenario
    network: NetworkProfile
    knobs: dict[str, float]
    schemes: tuple[str, ...]
    runs: int
    tokens: int
    seed: int
    source: str
    model: str | None
    device: str
    link: str
    json: bool
    command_line: tuple[str, ...]


def main(scenario: Scenario, argv: Sequence[str] | None = None) -> int:
    """Run a scenario as the options say; returns the exit status."""
    options = _parser(scenario).parse_args(argv)
    try:
        plan = _plan(scenario, options, tuple(sys.argv if argv is None else argv))
    except (UsageError, SourceError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2

    def inside() -> int:
        # Imported here: slow (pandas, matplotlib, Mininet), and of no use if an option is wrong.
        # Ctrl-C waits meanwhile: inside an import, callbacks of C code can swallow it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)
        from scenarios.experiment import run

        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP)

        return run(plan, options.out or _default_folder(scenario))

    try:
        return sandbox.run(inside)
    except sandbox.SandboxError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _plan(scenario: Scenario, options: argparse.Namespace, command_line: tuple[str, ...]) -> Plan:
    schemes = tuple(name.strip() for name in options.schemes.split(",") if name.strip())
    for name in schemes:
        if name not in TRANSPORTS:
            try:
                eloquent_schemes.create(name)
            except ValueError as error:
                raise UsageError(f"--schemes: {error}, {', '.join(TRANSPORTS)}") from None
    if not schemes or len(set(schemes)) < len(schemes):
        raise UsageError(f"--schemes: {options.schemes!r} must name each scheme once")
    source = "trace" if options.quick else options.source
    if source == "trace" or source.startswith("trace:"):
        TraceSource(source[6:] or DEFAULT_TRACE)  # a broken file is an error now, not later
    elif source != "model":
        raise UsageError(f"--source: {source!r} is neither model nor trace nor trace:FILE")
    if options.model is not None:
        locate(Path(options.model))
    elif source == "model":
        default_model()
    knobs = {name: getattr(options, name) for name in scenario.knobs()}
    try:
        network = scenario.network(**knobs)
    except (ChannelError, ProfileError, ZeroDivisionError) as error:
        values = ", ".join(f"--{name} {value:g}" for name, value in knobs.items())
        raise UsageError(f"{values} make no network: {error}") from None
    return Plan(
        scenario,
        network,
        knobs,
        schemes,
        1 if options.quick else options.runs,
        options.tokens,
        options.seed,
        source,
        options.model,
        options.device,
        options.link,
        options.json,
        command_line,
    )


def _default_folder(scenario: Scenario) -> Path:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("results") / scenario.name / stamp


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def _parser(scenario: Scenario) -> argparse.ArgumentParser:
    name = f"scenarios/{scenario.name}.py"
    parser = argparse.ArgumentParser(
        prog=name,
        description=f"{scenario.title}: runs every scheme over the same lossy network.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=(
            "examples:\n"
            f"  sudo python {name}\n"
            f"  sudo python {name} --quick --json\n"
            f"  sudo python {name} --source trace --runs 30 --schemes eloquent,tcp\n"
        ),
    )
    add = parser.add_argument
    known = ", ".join([*eloquent_schemes.names(), *TRANSPORTS])
    add("--schemes", default=",".join(scenario.schemes), help=f"of {known} (%(default)s)")
    add("--runs", type=_positive, default=scenario.runs, help="runs of each scheme (%(default)s)")
    add("--tokens", type=_positive, default=scenario.tokens, help="longest answer (%(default)s)")
    add("--seed", type=int, default=1, help="of all randomness (%(default)s)")
    add(
        "--source",
        default="model",
        metavar="SOURCE",
        help="model (live), trace (the recording that ships), or trace:FILE (%(default)s)",
    )
    add("--model", metavar="DIR", help="folder or GGUF file of another causal language model")
    add("--device", default="auto", choices=["auto", "cpu", "cuda"], help="(%(default)s)")
    add(
        "--link",
        default="auto",
        choices=["auto", "netem", "user"],
        help="what loses and delays packets: the kernel or a user-space process (%(default)s)",
    )
    add("--out", type=Path, metavar="DIR", help="results folder; must not exist")
    add("--quick", action="store_true", help="one run of each scheme from the shipped trace")
    add("--json", action="store_true", help="print the summary as one JSON object")
    for knob, default in scenario.knobs().items():
        add(f"--{knob}", type=float, default=default, help="of the network (%(default)g)")
    return parser
