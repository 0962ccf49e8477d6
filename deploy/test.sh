#!/usr/bin/env bash
# Install, build and run every test but those labelled soak or gpu, on a fresh Debian 12 machine:
# as released, then under AddressSanitizer with UBSan, then under ThreadSanitizer.
# Usage: deploy/test.sh [preset...]   (default: release asan tsan)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

deploy/setup.sh test
presets=("$@")
if ((${#presets[@]} == 0)); then
  presets=(release asan tsan)
fi

failed=()
for preset in "${presets[@]}"; do
  echo "== $preset"
  cmake --preset "$preset" -DBATON_TESTS=ON >/dev/null
  cmake --build --preset "$preset" -- -k 0 | tail -n 3
  ctest --preset "$preset" --parallel 2 --no-tests=error || failed+=("$preset")
done
if ((${#failed[@]} > 0)); then
  echo "failed: ${failed[*]}"
  exit 1
fi
