#!/usr/bin/env bash
# Make a directory that runs on another machine: the program, and beside it the libraries that it
# needs, except those of glibc, which must be at least as new there as here.
# Usage: deploy/bundle.sh BUILD_DIR DEST [PROGRAM...]   (default program: BUILD_DIR/baton)
set -euo pipefail
build=$1 dest=$2
shift 2
programs=("$@")
if ((${#programs[@]} == 0)); then
  programs=("$build/baton")
fi

# What every machine with this glibc has.
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
# The programs look for libraries beside themselves, and so must the libraries.
for file in "$dest"/*; do
  patchelf --set-rpath "\$ORIGIN" "$file"
done
