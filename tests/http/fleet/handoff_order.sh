#!/usr/bin/env bash
# What engines are asked while they stand still, and in which order. Usage: as handoff.sh says.
HANDOFF_PY=handoff_order.py
# shellcheck source=tests/http/fleet/handoff.sh
source "$(dirname "${BASH_SOURCE[0]}")/handoff.sh"
