#!/bin/bash
# What a new user does first, in the order of the README, without the live model. Called as root in a
# fresh system, in a clone of the checkout; `tests/fresh/debian.sh trixie DIR tests/fresh/tour.sh`.
# The first step that fails ends it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PYTHON=.venv/bin/python

step() {
    printf '\n--- %s\n' "$*"
    local start=$SECONDS
    "$@"
    printf -- '--- %d s\n' $((SECONDS - start))
}

step ./setup.sh --virtual --no-model
step ./setup.sh --virtual --no-model # has nothing to do
step "$PYTHON" -m topologies.doctor
step "$PYTHON" scenarios/wifi_loss.py --quick
step "$PYTHON" scenarios/handover.py --quick
step "$PYTHON" scenarios/wifi_loss.py --quick --engine virtual
# Without --dev there is no tshark.
step "$PYTHON" -m pytest -q -m "not emulation and not guest and not netem and not tshark"
