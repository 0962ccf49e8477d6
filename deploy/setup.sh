#!/usr/bin/env bash
# Install what baton needs on Debian 12. Usage: deploy/setup.sh [build|package|test|browser]   (default: build)
# package: what deploy/tarball.sh and cpack need too
# Only updates by checkpoint-engine need libzmq5, which the server then opens.
# browser: the packages of test, and the browser of the tests http_browser and http_page, 110 MB, which
# are skipped without it
set -euo pipefail

build=(gcc cmake ninja-build pkg-config libc6-dev libmicrohttpd-dev libgnutls28-dev libjansson-dev
  libpcre2-dev libutf8proc-dev nettle-dev libcurl4-gnutls-dev curl jq python3)
package=(patchelf dpkg-dev file)
test=(libcmocka-dev python3-yaml python3-numpy python3-aiohttp python3-zmq libzmq5 openssl shellcheck procps
  python3-venv)

packages=("${build[@]}")
if [[ ${1:-build} == package ]]; then
  packages+=("${package[@]}")
elif [[ ${1:-build} != build ]]; then
  packages+=("${test[@]}")
fi
if [[ ${1:-build} == browser ]]; then
  packages+=(chromium)
fi

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
