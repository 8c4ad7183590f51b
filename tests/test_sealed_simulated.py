"""Sealing changes no datagram's moment and no stall: simulated, in the scenario wifi_loss."""

from __future__ import annotations

import pytest

from analysis.stalls import metrics
from scenarios.simulator import Answer, simulate
from scenarios.wifi_loss import network

ANSWER = [(0.045 * (n + 1), b" token"[: 3 + n % 4]) for n in range(200)]


def stall_ratio(answer: Answer) -> float:
    return metrics(answer.rendered_at)["stall_ratio"]


@pytest.mark.parametrize("scheme", ["eloquent", "eloquent-deadline", "duplicate"])
def test_as_plain_but_larger(scheme: str) -> None:
    plain, sealed, padded = (
        simulate(scheme, ANSWER, network(), 7, pad=pad) for pad in (None, 0, 64)
    )
    assert 0 < stall_ratio(plain) < 0.5
    for other in (sealed, padded):
        assert other.rendered_at == plain.rendered_at
        assert other.datagrams == plain.datagrams
    assert sealed.wire_bytes == plain.wire_bytes + 18 * plain.datagrams
    assert sealed.wire_bytes < padded.wire_bytes < sealed.wire_bytes + 64 * plain.datagrams
