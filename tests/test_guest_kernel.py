"""Finding and building the guest kernel: the cache, and what is said when there is none."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from topologies.guest import kernel


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "eloquent-testbed" / "guest-kernel"
    folder.mkdir(parents=True)
    return folder


def put(cache, version: str = "6.12.1"):
    folder = cache / f"{kernel.recipe()}-{version}"
    folder.mkdir()
    sums = []
    for name in ("linux", "shim.so"):
        (folder / name).write_text(name)
        sums.append(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n")
    (folder / "SHA256SUMS").write_text("".join(sums))
    return folder


def test_no_kernel_names_the_remedy(cache):
    with pytest.raises(
        kernel.KernelError, match=r"no guest kernel in .*: run ./setup.sh --virtual"
    ):
        kernel.find()


def test_what_was_built_is_found(cache):
    folder = put(cache)
    found = kernel.find()
    assert (found.program, found.shim) == (folder / "linux", folder / "shim.so")
    assert (found.version, found.virtual_time) == ("6.12.1", True)


def test_the_installed_source_is_preferred(cache, monkeypatch):
    wanted, _ = put(cache, "6.12.5"), put(cache, "6.12.9")
    monkeypatch.setattr(kernel, "source", lambda: (None, "6.12.5"))
    assert kernel.find().program.parent == wanted


@pytest.mark.parametrize("name", ["linux", "shim.so"])
def test_a_changed_file_is_never_run(cache, name):
    folder = put(cache)
    (folder / name).write_text("something else")
    with pytest.raises(kernel.KernelError, match=rf"{name} is not what was built"):
        kernel.find()


def test_a_folder_cut_off_is_never_run(cache):
    (put(cache) / "SHA256SUMS").write_text("")
    with pytest.raises(kernel.KernelError, match="is not whole"):
        kernel.find()


def test_another_recipe_is_another_kernel(cache, tmp_path, monkeypatch):
    put(cache)
    changed = tmp_path / "kernel.config"
    changed.write_text(kernel.CONFIG.read_text() + "CONFIG_MORE=y\n")
    monkeypatch.setattr(kernel, "CONFIG", changed)
    with pytest.raises(kernel.KernelError, match="no guest kernel"):
        kernel.find()


def test_without_a_source_nothing_is_built(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(kernel, "SOURCES", tmp_path)
    with pytest.raises(kernel.KernelError, match="no linux-source-"):
        kernel.build(quiet=True)


def test_without_tools_nothing_is_built(cache, monkeypatch):
    monkeypatch.setattr(kernel, "source", lambda: (None, "1"))
    monkeypatch.setattr(kernel, "TOOLS", ("no-such-tool",))
    with pytest.raises(kernel.KernelError, match="missing to build it: no-such-tool"):
        kernel.build(quiet=True)


@pytest.mark.parametrize(
    ("present", "newest"),
    [
        (("6.1.tar.xz", "6.12.tar.xz", "6.9.tar.xz"), "6.12.tar.xz"),
        (("6.8.0.tar.bz2",), "6.8.0.tar.bz2"),  # Ubuntu's
        (("6.12.tar.xz", "6.12.tar.xz.sig", "6.14.tar.gz"), "6.12.tar.xz"),
    ],
)
def test_the_newest_source_by_number_and_not_by_letter(tmp_path, monkeypatch, present, newest):
    monkeypatch.setattr(kernel, "SOURCES", tmp_path)
    for name in present:
        (tmp_path / f"linux-source-{name}").touch()
    found = kernel.source()
    assert found is not None
    assert found[0].name == f"linux-source-{newest}"


def test_the_command_says_where_it_is(cache):
    folder = put(cache)
    command = [sys.executable, "-m", "topologies.guest.kernel", "--find"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert done.stdout == f"{folder}/linux (Linux 6.12.1)\n"
    (folder / "linux").unlink()
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: no guest kernel in")
