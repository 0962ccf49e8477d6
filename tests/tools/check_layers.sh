#!/usr/bin/env bash
# The layers of the tree, checked: which room may include which, and who may see which library.
# Usage: tests/tools/check_layers.sh [ROOT]
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/../..}"
wrong=0

complain() {
  echo "$1"
  wrong=1
}

# Rooms that each room may include, itself included. server/main.c, serve*.c and check.c know all.
declare -A may=(
  [base]="base"
  [driver]="base driver"
  [weights]="base driver weights"
  [transport]="base driver weights transport"
  [engine]="base driver weights engine"
  [server]="base server"
  [handlers]="base driver weights transport engine server handlers"
)
# Header -> the only places that may include it.
declare -A only=(
  [microhttpd.h]="server/front"
  [gnutls/gnutls.h]="server/front"
  [jansson.h]="base/json_parse handlers/ weights/ transport/ engine/ server/config server/main.c"
  [curl/curl.h]="engine/upstream/ client/"
  [cuda.h]="driver/"
  [nccl.h]="driver/"
  [dlfcn.h]="driver/ server/front_library.c"
)

n=0
while IFS= read -r file; do
  n=$((n + 1))
  room=${file%%/*}
  while IFS= read -r included; do
    target=${included%%/*}
    if [[ -n ${may[$target]:-} && ! $file =~ ^server/(main|serve|serve_fleet|serve_listen|check)\.[ch]$ &&
      " ${may[$room]} " != *" $target "* ]]; then
      complain "$file: $room/ may not include $included"
    fi
    if [[ -n ${only[$included]:-} ]]; then
      allowed=0
      for place in ${only[$included]}; do
        [[ $file == "$place"* ]] && allowed=1
      done
      ((allowed)) || complain "$file: $included belongs to ${only[$included]}"
    fi
  done < <(sed --quiet --regexp-extended 's/^#include [<"]([^>"]+)[>"].*/\1/p' "$file")
done < <(find base driver weights transport engine server handlers -name '*.[ch]' | sort)
((n > 0)) || complain "no files were found"
echo "$n files checked"
exit "$wrong"
