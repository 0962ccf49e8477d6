#!/usr/bin/env bash
# What a reader should not have to look for: functions over 70 lines, files over 800, lines over 100
# columns, banned functions outside tests/. In the Python client: lines over 120 columns, files over 800; types.py is made.
# Usage: tests/tools/check_style.sh [ROOT]
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/../..}"
mapfile -t files < <(find base driver memory text weights http transport engine control fleet handlers cli server tests -name '*.[ch]' | sort)
mapfile -t client < <(find client -name '*.py' ! -path client/baton/types.py | sort)
((${#files[@]} > 0 && ${#client[@]} > 0)) || exit 1
LC_ALL=C awk '
  # Of UTF-8: bytes but the second and later ones of a character.
  function columns(text) { gsub(/[\200-\277]/, "", text); return length(text) }
  FNR == 1 { if (NR > 1 && lines > 800) { print last ": " lines " lines"; bad = 1 } start = 0; is_c = FILENAME !~ /\.py$/ }
  { lines = FNR; last = FILENAME }
  length($0) > 100 && columns($0) > (is_c ? 100 : 120) { print FILENAME ":" FNR ": " columns($0) " columns"; bad = 1 }
  !is_c { next }
  /^[A-Za-z_].*[(]/ { name = $0; sub(/[(].*/, "", name) }
  /^{/ { start = FNR }
  /^}/ && start { if (FNR - start > 70) { print FILENAME ":" start ": " name ": " FNR - start " lines"; bad = 1 } start = 0 }
  FILENAME !~ /^tests/ && /(^|[^A-Za-z_])(strcpy|strcat|sprintf|vsprintf|gets|atoi|atol|strtok|system)[(]/ { print FILENAME ":" FNR ": banned: " $0; bad = 1 }
  END { if (lines > 800) { print last ": " lines " lines"; bad = 1 } exit bad }
' "${files[@]}" "${client[@]}"
echo "${#files[@]} files of C and ${#client[@]} of Python checked"
