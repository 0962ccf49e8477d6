#!/usr/bin/env bash
# What people type wrong, and what they are told: mistakes.py has a row for each mistake.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
here=$(dirname "$0")
mistakes() {
  timeout 250 "$PYTHON" "$here/mistakes.py" "$@" >"$WORK/body" || fail "see above"
  has "mistakes"
}
mistakes command "$BATON" "$MODEL" "$WORK"
serve_model --allow-path "$CHECKPOINTS"
mistakes request "$URL" "$WORK"
done_testing
