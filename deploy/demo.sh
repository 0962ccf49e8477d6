#!/usr/bin/env bash
# A demonstration: serve a model at step 0 of its training, push steps 100 and 1500 while it
# generates, and show that the text changes at an exact, reported token. Installs missing packages,
# builds baton, and leaves no process running. Checks every printed line; fails at the first wrong one.
# Usage: deploy/demo.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

deploy/setup.sh build
echo "building: about a minute"
cmake --preset release -DBATON_TESTS=OFF -B build/demo >/dev/null
cmake --build build/demo | tail -n 1
exec python3 deploy/demo.py build/demo/baton tests/fixtures/kjv-qwen3-1m
