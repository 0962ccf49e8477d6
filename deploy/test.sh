#!/usr/bin/env bash
# Install, build and run every test except those labelled soak or gpu, on a new Debian 12 machine.
# Usage: deploy/test.sh [all|preset...]   (default: release, the build that ships)
# all: release, then control (without the engine), asan (AddressSanitizer with UBSan), tsan (ThreadSanitizer). Each runs
# the tests that can find something there: see tests/CMakeLists.txt.
# A test that did not run is named at the end. With CI set it is a failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

presets=("$@")
if ((${#presets[@]} == 0)); then
  presets=(release)
elif [[ ${presets[*]} == all ]]; then
  presets=(release control asan tsan)
fi
for preset in "${presets[@]}"; do
  [[ $preset =~ ^(dev|release|control|asan|tsan)$ ]] || {
    echo "test.sh: '$preset' is neither 'all' nor one of dev, release, control, asan, tsan" >&2
    exit 2
  }
done
deploy/setup.sh test

# run_tests PRESET: failed tests run once more, one at a time, since a busy machine can be too slow
# for a test. A finding of a sanitizer fails at once.
run_tests() {
  # three tests for each core: a test spends most of its time in waits for deadlines or processes
  ctest --preset "$1" --parallel $((3 * $(nproc))) --no-tests=error --output-junit junit.xml && return
  if grep -qE '(Address|Leak|Thread)Sanitizer:|runtime error:' "build/$1/Testing/Temporary/LastTest.log"; then
    return 1
  fi
  echo "== $1: the failed tests run once more, one at a time"
  ctest --preset "$1" --rerun-failed
}

# not_run PRESET: the tests that were skipped, or in which a case was.
not_run() {
  python3 - "$1" "build/$1/junit.xml" <<'PYTHON'
import sys, xml.etree.ElementTree
for case in xml.etree.ElementTree.parse(sys.argv[2]).iter("testcase"):
    if case.get("status") in ("notrun", "disabled"):
        print(f"{sys.argv[1]}: {case.get('name')}")
    elif "[  SKIPPED ]" in (case.findtext("system-out") or ""):
        print(f"{sys.argv[1]}: a case of {case.get('name')}")
PYTHON
}

failed=() skipped=()
for preset in "${presets[@]}"; do
  echo "== $preset"
  cmake --preset "$preset" -DBATON_TESTS=ON >/dev/null
  cmake --build --preset "$preset" -- -k 0 | tail -n 3
  run_tests "$preset" || failed+=("$preset")
  mapfile -t -O ${#skipped[@]} skipped < <(not_run "$preset")
done
# n_tests PRESET
n_tests() { ctest --preset "$1" -N | sed -n 's/^Total Tests: //p'; }
if [[ " ${presets[*]} " == *" release control "* ]]; then
  echo "tests that run with the engine only: $(($(n_tests release) - $(n_tests control))) of $(n_tests release)"
fi
if [[ " ${presets[*]} " == *" asan "*" tsan "* ]]; then
  echo "tests that run without ThreadSanitizer only: $(($(n_tests asan) - $(n_tests tsan))) of $(n_tests asan)"
fi
echo "checks that did not run: ${#skipped[@]}"
if ((${#skipped[@]} > 0)); then
  printf '  %s\n' "${skipped[@]}"
  [[ -z ${CI:-} ]] || failed+=("checks that did not run")
fi
if ((${#failed[@]} > 0)); then
  echo "failed: ${failed[*]}"
  exit 1
fi
