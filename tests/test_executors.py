"""Executors: the same results in the same order wherever jobs run, and errors in one line."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Iterator

import pandas as pd
import pytest

from eloquent import Reason
from scenarios.executors import ExecutorError, check, results_in_order
from scenarios.paper import network
from scenarios.simulated import Job, Outcome, run_job

NEEDS_DASK = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None,
    reason="the package distributed is not installed: pip install 'distributed>=2025'",
)


def square_later(number: int) -> int:
    """Early jobs take longest, so their results come last."""
    time.sleep(0.01 * max(0, 6 - number))
    return number * number


def fail_at_two(number: int) -> int:
    if number == 2:
        raise ValueError("job two")
    return number


def die(number: int) -> int:
    os._exit(number + 1)


def jobs() -> list[Job]:
    words = tuple((0.1 + 0.045 * n, b"%d" % n) for n in range(40))
    return [
        Job(
            scenario="paper",
            scheme=scheme,
            run=run,
            seed=run,
            theta=0.2,
            network=network(loss=0.2),
            prompt=b"why?",
            tokens=words,
            reason=Reason.STOP,
            tables=run == 1,
            definitions=True,
        )
        for run in (1, 2)
        for scheme in ("eloquent", "retransmit")
    ]


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a Dask cluster on this machine, whose workers are threads."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=False,
        protocol="tcp",
        host="127.0.0.1",
        dashboard_address=None,
    ) as cluster:
        yield str(cluster.scheduler_address)


@pytest.fixture(
    params=["local", "local:1", "local:2", pytest.param("dask", marks=NEEDS_DASK)],
)
def executor(request: pytest.FixtureRequest) -> str:
    if request.param == "dask":
        return f"dask:{request.getfixturevalue('scheduler')}"
    return str(request.param)


def test_results_come_in_the_order_of_the_jobs(executor: str) -> None:
    found = list(results_in_order(executor, square_later, range(100)))
    assert found == [number * number for number in range(100)]


def test_no_jobs_give_no_results(executor: str) -> None:
    assert list(results_in_order(executor, square_later, [])) == []


def test_an_error_of_a_job_is_the_caller_s(executor: str) -> None:
    results = results_in_order(executor, fail_at_two, range(5))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="job two"):
        next(results)


def test_who_stops_listening_stops_the_jobs(executor: str) -> None:
    results = results_in_order(executor, square_later, range(10_000))
    assert next(results) == 0
    started = time.monotonic()
    results.close()  # type: ignore[attr-defined]
    assert time.monotonic() - started < 20


def same(one: Outcome, other: Outcome) -> None:
    assert one.row == other.row
    assert one.stalls == other.stalls
    assert (one.tokens is None) == (other.tokens is None)
    if one.tokens is not None and other.tokens is not None:
        pd.testing.assert_frame_equal(one.tokens, other.tokens)
    assert one.packets.keys() == other.packets.keys()
    for host, packets in one.packets.items():
        pd.testing.assert_frame_equal(packets, other.packets[host])


def test_simulated_runs_are_the_same_wherever_they_run(executor: str) -> None:
    here = [run_job(job) for job in jobs()]
    there = list(results_in_order(executor, run_job, jobs()))
    assert [outcome.row["scheme"] for outcome in there] == ["eloquent", "retransmit"] * 2
    assert [outcome.row["run"] for outcome in there] == [1, 1, 2, 2]
    for one, other in zip(here, there, strict=True):
        same(one, other)
    assert here[0].tokens is not None and here[2].tokens is None


@pytest.mark.parametrize("spec", ["local", "local:1", "local:64", "dask:tcp://10.0.0.1:8786"])
def test_good_names(spec: str) -> None:
    check(spec)


@pytest.mark.parametrize(
    "spec", ["", "slurm", "local:", "local:0", "local:-1", "local:x", "dask", "dask:", "Local"]
)
def test_an_unknown_executor_is_one_clear_line(spec: str) -> None:
    with pytest.raises(ExecutorError) as error:
        check(spec)
    assert str(error.value) == (
        f"executor {spec!r} is none of local, local:N (processes), dask:ADDRESS"
    )
    with pytest.raises(ExecutorError):
        next(results_in_order(spec, square_later, [1]))


@NEEDS_DASK
@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "ftp://127.0.0.1:1"])
def test_a_scheduler_that_does_not_answer_is_one_clear_line(address: str) -> None:
    started = time.monotonic()
    with pytest.raises(ExecutorError) as error:
        next(results_in_order(f"dask:{address}", square_later, [1]))
    message = str(error.value)
    assert message.startswith(f"no Dask scheduler answers at {address}: ")
    assert "\n" not in message
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("spec", ["local:1", "local:2"])
def test_a_process_that_dies_is_one_clear_line(spec: str) -> None:
    with pytest.raises(ExecutorError, match=r"process .* died") as error:
        list(results_in_order(spec, die, range(3)))
    assert "\n" not in str(error.value)


def test_without_dask_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dask.distributed", None)
    with pytest.raises(ExecutorError, match="pip install 'distributed>=2025'") as error:
        next(results_in_order("dask:127.0.0.1:8786", square_later, [1]))
    assert "\n" not in str(error.value)
