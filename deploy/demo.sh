#!/usr/bin/env bash
# A demonstration to watch in a terminal: checkpoints arrive while eight generations run, bad pushes are
# refused, an adapter comes and goes, and a fleet loses an engine. Installs missing packages, builds
# baton, and leaves no process running. Every claim is checked; the first false one is exit status 1.
# Usage: deploy/demo.sh [--dwell SECONDS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

deploy/setup.sh build
echo "building: about a minute"
cmake --preset release -DBATON_TESTS=OFF -B build/demo >/dev/null
cmake --build build/demo --target baton | tail -n 1
exec python3 -B deploy/demo "$@" build/demo/baton tests/fixtures/kjv-qwen3-1m
