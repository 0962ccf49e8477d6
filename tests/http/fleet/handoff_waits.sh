#!/usr/bin/env bash
# What waits for a hand-off, and what it waits for. Usage: as handoff.sh says.
HANDOFF_PY=handoff_waits.py
# shellcheck source=tests/http/fleet/handoff.sh
source "$(dirname "${BASH_SOURCE[0]}")/handoff.sh"
