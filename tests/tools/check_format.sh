#!/usr/bin/env bash
# clang-format, by .clang-format, over the product and the tests. Usage: tests/tools/check_format.sh CLANG_FORMAT ROOT
set -euo pipefail
cd "$2"
mapfile -t files < <(find base driver memory text weights http transport engine control fleet handlers cli server tests \
  -name '*.[ch]' -o -name '*.cu' | sort)
((${#files[@]} > 0)) || exit 1
"$1" --dry-run -Werror --ferror-limit=20 "${files[@]}"
echo "${#files[@]} files checked"
