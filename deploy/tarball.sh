#!/usr/bin/env bash
# Make OUT_DIR/baton-VERSION-linux-x86_64.tar.gz (baton-control-VERSION-… of a build without the engine), and its .sha256: an installation with the libraries that
# the program needs, which runs where it is unpacked, on every Linux whose glibc is new enough.
# Usage: deploy/tarball.sh BUILD_DIR OUT_DIR
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
build=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
glibc_max=${GLIBC_MAX:-2.35} # of Ubuntu 22.04; Debian 12 has 2.36, Ubuntu 24.04 has 2.39

read -r name version package _ <<<"$("$build/baton" --version)"
if [[ $package == "(baton-control:" ]]; then
  name=baton-control
fi
name=$name-$version-linux-$(uname --machine)
work=$(mktemp --directory)
trap 'rm --recursive --force "$work"' EXIT

# The unit in it is for an installation in /usr/local.
DESTDIR=$work/installed cmake --install "$build" --prefix /usr/local >/dev/null
mv "$work/installed/usr/local" "$work/$name"
tree=$work/$name
"$here/bundle.sh" "$build" "$tree/lib/baton"
mv "$tree/lib/baton/baton" "$tree/bin/baton"
strip "$tree/bin/baton"
patchelf --set-rpath "\$ORIGIN/../lib/baton" "$tree/bin/baton"

# The licences of the libraries. Packages may name a library by /lib, which is /usr/lib now.
mapfile -t paths < <(ldd "$build/baton" | awk '$3 ~ "^/" { print $3 }' | xargs realpath)
mkdir "$tree/share/doc/baton/licenses"
{ dpkg-query --search "${paths[@]}" "${paths[@]#/usr}" 2>/dev/null || true; } | sed 's/[:,].*//' |
  sort --unique | while read -r package; do
    cp "/usr/share/doc/$package/copyright" "$tree/share/doc/baton/licenses/$package"
  done
cp /usr/share/common-licenses/{GPL-2,GPL-3,LGPL-2.1,LGPL-3} "$tree/share/doc/baton/licenses"

# What each file needs of glibc: symbols up to a version, and since 2.36 marks such as GLIBC_ABI_DT_RELR.
for file in "$tree/bin/baton" "$tree"/lib/baton/*; do
  needed=$(objdump --private-headers "$file" | grep --only-matching --extended-regexp '\bGLIBC_[A-Z0-9_.]+' |
    sed 's/^GLIBC_//' | sort --unique)
  newest=$(printf '%s\n' "$needed" "$glibc_max" | grep '^[0-9]' | sort --version-sort | tail --lines=1)
  if [[ $newest != "$glibc_max" || $needed == *[A-Z]* ]]; then
    echo "tarball.sh: ${file##*/} needs glibc $(xargs <<<"$needed"), and $glibc_max is allowed: build it on an older system" >&2
    exit 1
  fi
  echo "$needed"
done | sort --version-sort | tail --lines=1 | sed "s/^/$name: needs glibc /; s/$/, $glibc_max is allowed/"

tar --create --gzip --file "$out/$name.tar.gz" --sort=name --owner=0 --group=0 --numeric-owner \
  --directory "$work" "$name"
cd "$out"
sha256sum "$name.tar.gz" | tee "$name.tar.gz.sha256"
