"""``--quick`` fills in what nobody has said, and overrides nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from apps.sources import SourceError
from scenarios.command import Plan, UsageError, plan_of
from scenarios.wifi_loss import SCENARIO


def _plan(*words: str) -> Plan:
    return plan_of(SCENARIO, ["--quick", *words])


def test_alone_it_is_one_run_from_the_shipped_trace() -> None:
    plan = _plan()
    assert (plan.source, plan.runs, plan.tokens) == ("trace", 1, SCENARIO.tokens)
    assert plan_of(SCENARIO, ["--source", "trace"]).runs == SCENARIO.runs == 6


def test_what_is_said_counts() -> None:
    plan = _plan("--source", "timing:steady", "--runs", "3", "--tokens", "9", "--prompts", "code")
    assert (plan.source, plan.runs, plan.tokens) == ("timing:steady", 3, 9)
    assert plan.prompts.name == "code"


@pytest.mark.parametrize("source", ["radio", "trace:/no/such/file", "timing:fast"])
def test_a_wrong_source_is_refused(source: str) -> None:
    with pytest.raises((UsageError, SourceError), match=r"--source: .*(radio|/no/such/file|fast)"):
        _plan("--source", source)


def test_a_model_is_asked_and_a_wrong_one_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    plan = _plan("--model", str(tmp_path))
    assert (plan.source, plan.model, plan.runs) == ("model", str(tmp_path), 1)
    with pytest.raises((UsageError, SourceError), match="no model at /no/such/model"):
        _plan("--model", "/no/such/model")
    with pytest.raises((UsageError, SourceError), match="does not use a model"):
        _plan("--source", "trace", "--model", str(tmp_path))
