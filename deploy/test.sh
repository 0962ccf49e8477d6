#!/usr/bin/env bash
# Install, build and run every test but those labelled soak or gpu, on a fresh Debian 12 machine.
# Usage: deploy/test.sh [all|preset...]   (default: release, what ships)
# all: release, then asan (AddressSanitizer with UBSan), then tsan (ThreadSanitizer)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

presets=("$@")
if ((${#presets[@]} == 0)); then
  presets=(release)
elif [[ ${presets[*]} == all ]]; then
  presets=(release asan tsan)
fi
for preset in "${presets[@]}"; do
  [[ $preset =~ ^(dev|release|asan|tsan)$ ]] || {
    echo "test.sh: '$preset' is neither 'all' nor one of dev, release, asan, tsan" >&2
    exit 2
  }
done
deploy/setup.sh test

# run_tests PRESET: what fails runs once more, alone, since a machine at work for others can be too
# slow for a test. What a sanitizer has found is found.
run_tests() {
  # twice as many as there are cores: half of a test's time it waits for a deadline, or for a process
  ctest --preset "$1" --parallel $((2 * $(nproc))) --no-tests=error && return
  if grep -qE '(Address|Leak|Thread)Sanitizer:|runtime error:' "build/$1/Testing/Temporary/LastTest.log"; then
    return 1
  fi
  echo "== $1: the failed tests once more, alone"
  ctest --preset "$1" --rerun-failed
}

failed=()
for preset in "${presets[@]}"; do
  echo "== $preset"
  cmake --preset "$preset" -DBATON_TESTS=ON >/dev/null
  cmake --build --preset "$preset" -- -k 0 | tail -n 3
  run_tests "$preset" || failed+=("$preset")
done
if ((${#failed[@]} > 0)); then
  echo "failed: ${failed[*]}"
  exit 1
fi
