#!/usr/bin/env bash
# clang-tidy over all of the product, by .clang-tidy. Usage: tests/tools/check_tidy.sh CLANG_TIDY ROOT BUILD [JOBS]
set -euo pipefail
tidy=$1 root=$2 build=$3 jobs=${4:-2}
cd "$root"
mapfile -t files < <(jq --raw-output --arg root "$root/" '.[].file | select(startswith($root)) | ltrimstr($root)
  | select(test("^(base|driver|memory|text|weights|http|transport|engine|control|fleet|handlers|cli|server)/.*\\.c$"))' \
  "$build/compile_commands.json" | sort --unique)
((${#files[@]} > 0)) || exit 1
files+=(server/no_engine.c) # of a build without the engine
# Warnings of the compiler are the compiler's, which is gcc.
printf '%s\n' "${files[@]}" | xargs --max-procs="$jobs" --max-args=8 "$tidy" -p "$build" --quiet --extra-arg=-w 2>&1 |
  { grep --invert-match --extended-regexp '^[0-9]+ warnings? generated\.$' || true; }
echo "${#files[@]} files checked"
