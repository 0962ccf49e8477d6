#!/usr/bin/env bash
# Common mistakes and their error messages: mistakes.py has a row for each.
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
