#!/usr/bin/env bash
# The README's server command and its curl examples, exactly as written, one after the other.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
cd "$CHECKPOINTS"
README=$(dirname "$CLIENT")/../README.md
serve=$(grep --max-count=1 '/build/release/baton serve --model \.\. ' "$README") || fail "the server's line was not found"
read -ra options <<<"${serve#*baton serve }"
start_server "${options[@]}"
BUCKET=baton-test-$$-readme
SHM_FILES+=("/dev/shm/$BUCKET")
sed --quiet '/^## Use it with curl/,/^## Use it with your/p' "$README" |
  sed --quiet '/^```sh$/,/^```$/p' | sed "/^\`\`\`/d; s#http://127.0.0.1:8700#$URL#; s#my-bucket#$BUCKET#g" >"$WORK/examples"
grep --quiet update_weights/finish "$WORK/examples" || fail "the examples were not found"
timeout 60 bash -euo pipefail "$WORK/examples" >"$WORK/body" 2>"$WORK/words" ||
  fail "an example failed: $(tail --bytes=600 "$WORK/body" "$WORK/words")"
(($(grep --only-matching '"phase":"committed"' "$WORK/body" | wc --lines) == 3)) || fail "three of them commit"
has '"token_ids":['
has '"object":"text_completion"'
has '"adapter":{"name":"policy","revision":1}'
expect 200 GET /v1/weights
same .weight_version norm-only
expect 200 GET /v1/models
same '.data[0].root' "$(realpath ..)"
expect 200 GET /model_info
same .model_path "$(realpath ..)"
done_testing
