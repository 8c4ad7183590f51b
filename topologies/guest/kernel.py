"""The guest kernel: built once from the distribution's source, kept in the user's cache.

python -m topologies.guest.kernel            find it, or build it (about 4 minutes on 2 cores)
python -m topologies.guest.kernel --find     find it, never build

User Mode Linux is Linux as an ordinary program: no root, no KVM. A folder of the cache is named
after what the kernel was made from: the configuration, the shim, and the version of the source.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CONFIG, SHIM = HERE / "kernel.config", HERE / "shim.c"
SOURCES = Path("/usr/src")
TOOLS = ("gcc", "make", "flex", "bison", "bc", "xz", "bzip2")
PACKAGED = Path("/usr/bin/linux.uml")
"""The distribution's own User Mode Linux (package user-mode-linux): without virtual time."""
_OBJECTS = 1350  # about as many files are compiled
_SUMS = "SHA256SUMS"
# The version text feeds the guest's random numbers: the same in every build.
_PINNED = {
    "KBUILD_BUILD_TIMESTAMP": "2026-01-01",
    "KBUILD_BUILD_USER": "eloquent",
    "KBUILD_BUILD_HOST": "testbed",
    "KBUILD_BUILD_VERSION": "1",
}


class KernelError(RuntimeError):
    """There is no guest kernel, or it cannot be built."""


@dataclass(frozen=True)
class Kernel:
    """A usable guest kernel. `modules` is the folder of a packaged one's modules."""

    program: Path
    shim: Path
    version: str
    virtual_time: bool
    modules: Path | None = None


def cache() -> Path:
    """The user's cache of guest kernels; under sudo, that of the user who called it."""
    base = os.environ.get("XDG_CACHE_HOME")
    if not base:
        home = Path.home()
        if os.geteuid() == 0 and os.environ.get("SUDO_UID", "0") != "0":
            with contextlib.suppress(KeyError, ValueError):
                home = Path(pwd.getpwuid(int(os.environ["SUDO_UID"])).pw_dir)
        base = str(home / ".cache")
    return Path(base) / "eloquent-testbed" / "guest-kernel"


def recipe() -> str:
    """12 hex digits that stand for configuration, shim and the pinned variables."""
    digest = hashlib.sha256()
    for path in (CONFIG, SHIM):
        digest.update(path.read_bytes() + b"\0")
    digest.update(repr(sorted(_PINNED.items())).encode())
    return digest.hexdigest()[:12]


def source() -> tuple[Path, str] | None:
    """The newest installed kernel source (package linux-source-*), and its version."""
    found = []
    for path in SOURCES.glob("linux-source-*.tar.*"):
        # Debian names minor versions (6.12) and packs with xz, Ubuntu has 6.8.0 and bz2.
        numbers = re.fullmatch(r"linux-source-(\d+)\.(\d+)(\.\d+)?\.tar\.(xz|bz2)", path.name)
        if numbers and path.is_file():
            found.append((int(numbers[1]), int(numbers[2]), path))
    if not found:
        return None
    *_, path = max(found)
    package = _tree(path)
    version = subprocess.run(
        ["dpkg-query", "-W", "-f=${Version}", package], capture_output=True, text=True, check=False
    )
    return path, version.stdout.strip() or path.name


def find() -> Kernel:
    """The kernel of the cache, verified. Raises KernelError when there is none that can be used.

    A kernel of the installed source is preferred; without the source, any of this recipe will do.
    """
    folders = sorted(cache().glob(f"{recipe()}-*"))
    present = source()
    if present is not None:
        folders.sort(key=lambda folder: folder.name == _name(present[1]))
    problems = []
    for folder in reversed(folders):
        problem = _broken(folder)
        if problem is None:
            version = folder.name.partition("-")[2]
            return Kernel(folder / "linux", folder / "shim.so", version, virtual_time=True)
        problems.append(problem)
    reason = f" ({'; '.join(problems)})" if problems else ""
    raise KernelError(f"no guest kernel in {cache()}{reason}: run ./setup.sh --virtual")


def packaged() -> Kernel:
    """The distribution's User Mode Linux, for real time. Raises KernelError."""
    modules = sorted(Path("/usr/lib/uml/modules").glob("*"))
    if not PACKAGED.exists() or not modules:
        raise KernelError(
            f"{PACKAGED} is not installed either: run ./setup.sh --virtual, or, for real time "
            "alone, apt-get install user-mode-linux"
        )
    folder = cache() / f"shim-{recipe()}"
    shim = folder / "shim.so"
    if not shim.exists():
        _require("gcc")
        _make_folder(folder)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            made = Path(work) / "shim.so"
            _compile_shim(made)
            made.replace(shim)
    return Kernel(PACKAGED, shim, modules[-1].name, virtual_time=False, modules=modules[-1])


def build(quiet: bool = False) -> Kernel:
    """Find the kernel, or build it into the cache. Raises KernelError."""
    with contextlib.suppress(KernelError):
        return find()
    present = source()
    if present is None:
        raise KernelError(
            f"no linux-source-*.tar.xz or .tar.bz2 in {SOURCES}: run ./setup.sh --virtual"
        )
    _require(*TOOLS)
    _make_folder(cache())
    archive, version = present
    with _lock(), tempfile.TemporaryDirectory(dir=cache(), prefix="building-") as work:
        with contextlib.suppress(KernelError):
            return find()  # another process has built it meanwhile
        made = Path(work) / "made"
        made.mkdir()
        _compile_shim(made / "shim.so")
        _compile_kernel(archive, Path(work), made / "linux", quiet)
        sums = "".join(f"{_sum(made / name)}  {name}\n" for name in ("linux", "shim.so"))
        (made / _SUMS).write_text(sums)
        final = cache() / _name(version)
        shutil.rmtree(final, ignore_errors=True)  # a broken one
        made.chmod(0o755)
        made.rename(final)
    return find()


def _tree(archive: Path) -> str:
    """The folder in an archive of the source, which is the package's name too."""
    return archive.name.partition(".tar.")[0]


def _name(version: str) -> str:
    return f"{recipe()}-{re.sub(r'[^0-9A-Za-z.+]', '_', version)}"


def _broken(folder: Path) -> str | None:
    """What is wrong with a kernel's folder; None: its files are those that were built."""
    try:
        lines = (folder / _SUMS).read_text().splitlines()
        for line in lines:
            expected, _, name = line.partition("  ")
            if _sum(folder / name) != expected:
                return f"{folder / name} is not what was built"
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return None if len(lines) == 2 else f"{folder / _SUMS} is not whole"


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _require(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        raise KernelError(f"missing to build it: {', '.join(missing)}: run ./setup.sh --virtual")


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KernelError(f"cannot make {path}: {error.strerror}") from None
    if not os.access(path, os.W_OK):
        raise KernelError(f"{path} is read-only, and the kernel is not in it yet")


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    """One builder at a time; the lock goes with the process."""
    with open(cache() / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile_shim(target: Path) -> None:
    _run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(target), str(SHIM)], "the shim")


def _compile_kernel(archive: Path, work: Path, target: Path, quiet: bool) -> None:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=quiet, transient=True) as progress:
        task = progress.add_task("unpacking the kernel", total=None)
        _run(["tar", "-C", str(work), "-xf", str(archive)], "unpacking")
        tree = work / _tree(archive)
        make = ["make", "-C", str(tree), "ARCH=um", f"O={work / 'objects'}"]
        _run([*make, f"KCONFIG_ALLCONFIG={CONFIG}", "allnoconfig"], "the configuration")
        _check_configuration(work / "objects" / ".config")
        progress.update(task, description="building the guest kernel", total=_OBJECTS)
        log = work / "log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                [*make, f"-j{len(os.sched_getaffinity(0))}", "linux"],
                env=os.environ | _PINNED,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            assert process.stdout is not None
            with process:
                for line in process.stdout:
                    if line.lstrip().startswith("CC"):
                        progress.advance(task)
        if process.returncode != 0:
            last = " ".join(log.read_text().split())[-500:]
            raise KernelError(f"the guest kernel cannot be built: {last}")
        _run(["strip", "-o", str(target), str(work / "objects" / "linux")], "strip")


def _check_configuration(path: Path) -> None:
    """allnoconfig drops silently what it does not know or what needs something else."""
    got = set(path.read_text().splitlines())
    wanted = re.findall(r"^CONFIG_\w+=y$", CONFIG.read_text(), re.MULTILINE)
    missing = [line for line in wanted if line not in got]
    if missing:
        raise KernelError(f"this kernel source does not take {', '.join(missing)}")


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(
        command,
        env=os.environ | _PINNED,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = " ".join(done.stderr.split())[-500:]
        raise KernelError(f"{what} failed: {last or f'exit status {done.returncode}'}")


def main(argv: list[str] | None = None) -> int:
    """Find or build the kernel, and say where it is."""
    parser = argparse.ArgumentParser(
        prog="python -m topologies.guest.kernel",
        description="Find the guest kernel in the user's cache, or build it (about 4 minutes).",
    )
    parser.add_argument("--find", action="store_true", help="do not build")
    options = parser.parse_args(argv)
    try:
        kernel = find() if options.find else build()
    except KernelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{kernel.program} (Linux {kernel.version})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
