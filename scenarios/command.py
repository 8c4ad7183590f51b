"""The command line of every scenario: options, early checks, the sandbox, the exit status."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from apps import stacks
from apps.model_files import default_model, locate
from apps.sources import MODEL_SPECS, SourceError, open_source
from eloquent import schemes as eloquent_schemes
from scenarios.executors import ExecutorError, reach
from scenarios.executors import check as check_executor
from scenarios.folders import FolderError, results_folder
from scenarios.prompt_sets import PromptError, PromptSet, load, names
from scenarios.scenario import Scenario
from terminal import message, stopping
from terminal.arguments import Parser, did_you_mean
from topologies import sandbox
from topologies.channel import ChannelError
from topologies.profile import NetworkProfile, ProfileError
from topologies.quantities import Kind

#: Transports beside the schemes of the protocol library.
TRANSPORTS = tuple(stacks.names())
ENGINES = ("emulated", "virtual", "simulated")
#: What stands in for kernel TCP where there is no kernel.
STAND_IN = {"tcp": "retransmit"}
#: Set inside of a guest kernel, see topologies.guest.boot.
GUEST_VARIABLE = "ELOQUENT_GUEST"


class UsageError(ValueError):
    """An option has a value that cannot be used; the message is one line."""


@dataclass(frozen=True)
class Plan:
    """What the options ask for, checked."""

    scenario: Scenario
    network: NetworkProfile
    knobs: dict[str, float]
    prompts: PromptSet
    schemes: tuple[str, ...]
    runs: int
    tokens: int
    seed: int
    source: str
    model: str | None
    device: str
    link: str
    engine: str
    clock: str
    executor: str
    json: bool
    command_line: tuple[str, ...]

    @property
    def baseline(self) -> str:
        """The scheme that the others are held against."""
        baseline = self.scenario.baseline
        if self.engine == "simulated" and baseline not in self.schemes:
            return STAND_IN.get(baseline, baseline)
        return baseline

    @property
    def network_engine(self) -> str:
        """What the results say: an emulation inside of a guest is the engine `virtual`."""
        return "virtual" if os.environ.get(GUEST_VARIABLE) else self.engine


def main(scenario: Scenario, argv: Sequence[str] | None = None) -> int:
    """Run a scenario as the options say; returns the exit status."""
    options = arguments_parser(scenario).parse_args(argv)
    try:
        with stopping.stoppable():
            plan = _plan(scenario, options, tuple(sys.argv if argv is None else argv))
            if plan.engine == "simulated":
                reach(plan.executor)
            if options.sweep:
                return _sweep(plan, options.sweep, options.out)
            check_root(plan)
            with results_folder(options.out, scenario.name) as out:
                return _run(plan, out)
    except (UsageError, SourceError, PromptError, ExecutorError, FolderError) as error:
        message.error(error)
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:
        message.error(error)
        return 1
    except KeyboardInterrupt as stop:
        return stopping.status(stop)


def _sweep(plan: Plan, words: Sequence[str], out: Path | None) -> int:
    from scenarios.sweep import cells, parse
    from scenarios.sweep import run as run_sweep

    values = parse(words, plan.knobs, plan.scenario.kinds())
    grid = cells(plan, values)
    with results_folder(out, plan.scenario.name, goes_on=True) as folder:
        return run_sweep(plan, list(values), grid, folder)


def _run(plan: Plan, out: Path) -> int:
    # The engines are imported only when asked for: pandas, matplotlib and Mininet are slow.
    if plan.engine == "virtual":
        from scenarios.virtual import run as run_virtual

        return run_virtual(plan, out)
    if plan.engine == "simulated":
        from scenarios.simulated import run as run_simulated

        return run_simulated(plan, out)
    return emulate(plan, out)


def plan_of(scenario: Scenario, words: Sequence[str]) -> Plan:
    """What these options of the scenario ask for. Raises UsageError for what makes no plan."""
    try:
        return _plan(scenario, arguments_parser(scenario).parse_args(words), tuple(sys.argv))
    except (SourceError, PromptError, ExecutorError) as error:
        raise UsageError(str(error)) from None


def check_root(plan: Plan) -> None:
    """Raise UsageError for an engine that needs root, without root: before anything is made."""
    if plan.engine == "emulated" and os.geteuid() != 0:
        raise UsageError(
            f"--engine emulated needs root: run it with sudo; you are uid {os.geteuid()} "
            "(--engine virtual and simulated need no root)"
        )


def emulate(plan: Plan, out: Path, *, show: bool = True) -> int:
    """Run the plan with the engine `emulated`, in a sandbox; returns the exit status."""

    def inside() -> int:
        # Ctrl-C waits meanwhile: inside an import, callbacks of C code can swallow it.
        signal.pthread_sigmask(signal.SIG_BLOCK, stopping.SIGNALS)
        from scenarios.emulated import run

        signal.pthread_sigmask(signal.SIG_UNBLOCK, stopping.SIGNALS)

        return run(plan, out, show=show)

    try:
        return sandbox.run(inside)
    except sandbox.SandboxError as error:
        message.error(error)
        return 2


def options_of(plan: Plan) -> list[str]:
    """The options that make the same plan again, without engine, source and folder."""
    words = ["--schemes", ",".join(plan.schemes), "--runs", str(plan.runs)]
    words += ["--tokens", str(plan.tokens), "--seed", str(plan.seed), "--link", plan.link]
    if plan.prompts.spec is not None:
        words += ["--prompts", plan.prompts.spec]
    kinds = plan.scenario.kinds()
    words += [f"--{name}={kinds[name].write(value)}" for name, value in plan.knobs.items()]
    return [*words, "--json"] if plan.json else words


def _plan(scenario: Scenario, options: argparse.Namespace, command_line: tuple[str, ...]) -> Plan:
    knobs = {name: getattr(options, name) for name in scenario.knobs()}
    schemes = _schemes(scenario, options)
    check_executor(options.executor)
    prompts = scenario.prompt_set() if options.prompts is None else load(options.prompts)
    network = network_for(scenario, knobs)
    if options.time == "real" and options.engine != "virtual":
        raise UsageError("--time real is for --engine virtual: emulated is always in real time")
    source = options.source or _usual_source(scenario, options, knobs)
    _check_source(source, options.model)  # last: a wrong word is told without a model too
    return Plan(
        scenario,
        network,
        knobs,
        prompts,
        schemes,
        options.runs or (1 if options.quick else scenario.runs),
        options.tokens or prompts.tokens or scenario.tokens,
        options.seed,
        source,
        options.model,
        options.device,
        options.link,
        options.engine,
        options.time or "virtual",
        options.executor,
        options.json,
        command_line,
    )


def _usual_source(scenario: Scenario, options: argparse.Namespace, knobs: dict[str, float]) -> str:
    """Where the tokens come from if nobody says: a quick run needs a word to load a model."""
    if options.quick:
        return "trace" if options.model is None else "model"
    return scenario.source_of(knobs)


def _check_source(source: str, model: str | None) -> None:
    """A missing model or a broken file is an error now, not later. Raises SourceError."""
    if source in MODEL_SPECS:
        if model is not None:
            locate(Path(model))
        else:
            default_model()
        return
    try:
        open_source(source, model)
    except SourceError as error:
        raise SourceError(f"--source: {error}") from None


def network_for(scenario: Scenario, knobs: dict[str, float]) -> NetworkProfile:
    """The scenario's network. Raises UsageError for values that make none."""
    try:
        return scenario.network_of(knobs)
    except (ChannelError, ProfileError, ZeroDivisionError) as error:
        kinds = scenario.kinds()
        values = ", ".join(f"--{name} {kinds[name].show(value)}" for name, value in knobs.items())
        raise UsageError(f"{values} make no network: {error}") from None


def _schemes(scenario: Scenario, options: argparse.Namespace) -> tuple[str, ...]:
    simulated = options.engine == "simulated"
    text = options.schemes
    if text is None:
        names = [STAND_IN.get(name, name) if simulated else name for name in scenario.schemes]
        text = ",".join(dict.fromkeys(names))
    schemes = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in schemes:
        if name in TRANSPORTS:
            if simulated:
                raise UsageError(
                    f"--schemes: {name} needs a kernel; the simulator's stand-in for TCP is "
                    f"{STAND_IN['tcp']}"
                )
            try:
                stacks.create(name)  # a missing package is an error now, not later
            except stacks.StackError as error:
                raise UsageError(f"--schemes: {error}") from None
            continue
        try:
            eloquent_schemes.create(name)
        except ValueError as error:
            kind = name.partition(":")[0]
            known = [*eloquent_schemes.names(), *TRANSPORTS]
            if kind in known:
                raise UsageError(f"--schemes: {name}: {error}") from None
            meant = did_you_mean(kind, known) or f"; known: {', '.join(known)}"
            raise UsageError(f"--schemes: there is no scheme {kind!r}{meant}") from None
    if not schemes or len(set(schemes)) < len(schemes):
        raise UsageError(f"--schemes: {text!r} must name each scheme once")
    return schemes


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def arguments_parser(scenario: Scenario) -> argparse.ArgumentParser:
    """The options of a scenario."""
    name = f"scenarios/{scenario.name}.py"
    parser = Parser(
        prog=name,
        description=f"{scenario.title}: runs every scheme over the same lossy network.",
        epilog=(
            "examples:\n"
            f"  sudo python {name}\n"
            f"  sudo python {name} --quick --json\n"
            f"  python {name} --engine virtual --runs 30\n"
            f"  python {name} --engine simulated --source trace --runs 100\n"
            f"  sudo python {name} --source trace --runs 30 --schemes eloquent,tcp\n"
        ),
    )
    add = parser.add_argument
    known = ", ".join([*eloquent_schemes.names(), *TRANSPORTS])
    add("--schemes", help=f"of {known} ({','.join(scenario.schemes)})")
    add("--runs", type=positive, help=f"runs of each scheme ({scenario.runs})")
    add(
        "--tokens",
        type=positive,
        help=f"longest answer (the prompt set's, or {scenario.tokens})",
    )
    add(
        "--prompts",
        metavar="NAME|FILE",
        help=f"what is asked: {', '.join(names())}, or a .toml or .txt file (the scenario's)",
    )
    add("--seed", type=int, default=1, help="of all randomness (%(default)s)")
    add(
        "--source",
        metavar="SOURCE",
        help="model (live), model:prompt-lookup (speculative decoding), trace (the recording that "
        "ships), trace:FILE or :FOLDER, timing:NAME (a serving system's pace) "
        f"({'model' if scenario.workload is None else 'the scenario has its own'})",
    )
    add("--model", metavar="DIR", help="folder or GGUF file of another causal language model")
    add("--device", default="auto", choices=["auto", "cpu", "cuda"], help="(%(default)s)")
    add(
        "--link",
        default="auto",
        choices=["auto", "netem", "user"],
        help="what loses and delays packets: the kernel or a user-space process (%(default)s)",
    )
    add(
        "--engine",
        default=scenario.engine,
        choices=ENGINES,
        help="emulated: Mininet on this kernel, as root; virtual: the same in a guest kernel, as "
        "anybody; simulated: no kernel, for sweeps (%(default)s)",
    )
    add("--time", choices=["virtual", "real"], help="of the guest (virtual)")
    add(
        "--executor",
        default="local",
        metavar="WHERE",
        help="of simulated runs: local, local:N (processes) or dask:ADDRESS (%(default)s)",
    )
    add("--out", type=Path, metavar="DIR", help="results folder; must not exist")
    add(
        "--sweep",
        nargs="+",
        metavar="NAME=V1,V2",
        help="run every combination of these values; the same command goes on after Ctrl-C",
    )
    add(
        "--quick",
        action="store_true",
        help="one run of each scheme from the shipped trace, unless --runs, --source or --model "
        "say otherwise",
    )
    add("--json", action="store_true", help="print the summary as one JSON object")
    kinds = scenario.kinds()
    for knob, default in scenario.knobs().items():
        add(
            f"--{knob}",
            type=kinds[knob].option(default),
            default=default,
            metavar=kinds[knob].metavar,
            help=_knob_help(kinds[knob], default),
        )
    return parser


def _knob_help(kind: Kind, default: float) -> str:
    return f"of the scenario, as {kind.example} ({kind.show(default)})".replace("%", "%%")
