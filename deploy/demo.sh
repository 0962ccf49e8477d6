#!/usr/bin/env bash
# See it happen: serve a model at step 0, push step 100 and step 1500 of its training while it
# generates, and watch the text change at an exact, reported point. Installs and builds what is
# missing, ends by itself, leaves nothing running, fails if anything it prints is not so.
# Usage: deploy/demo.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

deploy/setup.sh build
echo "building: about a minute"
cmake --preset release -DBATON_TESTS=OFF -B build/demo >/dev/null
cmake --build build/demo | tail -n 1
exec python3 deploy/demo.py build/demo/baton tests/fixtures/kjv-qwen3-1m
