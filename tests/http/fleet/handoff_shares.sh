#!/usr/bin/env bash
# A server whose GPUs share each version (--placement sharded), in front of the engines of its host.
# Usage: as handoff_hosts.sh says.
HANDOFF_PY=handoff_shares.py
# shellcheck source=tests/http/fleet/handoff_hosts.sh
source "$(dirname "${BASH_SOURCE[0]}")/handoff_hosts.sh"
