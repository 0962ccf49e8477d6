#!/usr/bin/env bash
# Install, build and run every test except those labelled soak or gpu, on a new Debian 12 machine.
# Usage: deploy/test.sh [all|preset...]   (default: release, the build that ships)
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

# run_tests PRESET: failed tests run once more, one at a time, since a busy machine can be too slow
# for a test. A finding of a sanitizer fails at once.
run_tests() {
  # two tests for each core: a test spends half of its time in waits for deadlines or processes
  ctest --preset "$1" --parallel $((2 * $(nproc))) --no-tests=error && return
  if grep -qE '(Address|Leak|Thread)Sanitizer:|runtime error:' "build/$1/Testing/Temporary/LastTest.log"; then
    return 1
  fi
  echo "== $1: the failed tests run once more, one at a time"
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
