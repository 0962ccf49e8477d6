#!/usr/bin/env bash
# What a reader should not have to look for: functions over 70 lines, files over 800, lines over 100
# columns, banned functions outside tests/. Usage: tests/tools/check_style.sh [ROOT]
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/../..}"
mapfile -t files < <(find base driver memory text weights http transport engine control fleet handlers server tests -name '*.[ch]' | sort)
((${#files[@]} > 0)) || exit 1
awk '
  FNR == 1 { if (NR > 1 && lines > 800) { print last ": " lines " lines"; bad = 1 } start = 0 }
  { lines = FNR; last = FILENAME }
  length($0) > 100 { print FILENAME ":" FNR ": " length($0) " columns"; bad = 1 }
  /^[A-Za-z_].*[(]/ { name = $0; sub(/[(].*/, "", name) }
  /^{/ { start = FNR }
  /^}/ && start { if (FNR - start > 70) { print FILENAME ":" start ": " name ": " FNR - start " lines"; bad = 1 } start = 0 }
  FILENAME !~ /^tests/ && /(^|[^A-Za-z_])(strcpy|strcat|sprintf|vsprintf|gets|atoi|atol|strtok|system)[(]/ { print FILENAME ":" FNR ": banned: " $0; bad = 1 }
  END { if (lines > 800) { print last ": " lines " lines"; bad = 1 } exit bad }
' "${files[@]}"
echo "${#files[@]} files checked"
