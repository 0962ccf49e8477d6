#!/usr/bin/env bash
# Install what baton needs on Debian 12. Usage: deploy/setup.sh [build|package|test]   (default: build)
# package: what deploy/tarball.sh and cpack need too
# test: what deploy/test.sh needs, a browser, torch and promtool among it: 1.1 GB
# Only updates by checkpoint-engine need libzmq5, which the server then opens.
set -euo pipefail

build=(gcc cmake ninja-build pkg-config libc6-dev libmicrohttpd-dev libgnutls28-dev libjansson-dev
  libpcre2-dev libutf8proc-dev nettle-dev libxxhash-dev libzstd-dev libcurl4-gnutls-dev curl jq
  python3)
package=(patchelf dpkg-dev file)
test=(libcmocka-dev python3-yaml python3-numpy python3-aiohttp python3-zmq python3-torch libzmq5 openssl
  clang-format-14 clang-tidy-14 shellcheck procps python3-venv chromium prometheus zsh groff mandoc systemd)

packages=("${build[@]}")
case ${1:-build} in
  package) packages+=("${package[@]}") ;;
  test) packages+=("${package[@]}" "${test[@]}") ;;
esac

missing=()
for package in "${packages[@]}"; do
  dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep --quiet 'ok installed' ||
    missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  exit 0
fi

root=()
if ((EUID != 0)); then
  root=(sudo)
fi
echo "installing: ${missing[*]}"
"${root[@]}" apt-get update --quiet=2
"${root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install --yes --quiet=2 --no-install-recommends "${missing[@]}" >/dev/null
