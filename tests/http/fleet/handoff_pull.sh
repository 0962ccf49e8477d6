#!/usr/bin/env bash
# Versions that a trainer publishes in a directory, in front of engines. Usage: as handoff.sh says.
HANDOFF_PY=handoff_pull.py
DELTAS=$(realpath "$2")/delta
export DELTAS
# shellcheck source=tests/http/fleet/handoff.sh
source "$(dirname "${BASH_SOURCE[0]}")/handoff.sh"
