#!/usr/bin/env bash
# Memory of a server while it writes replies with very many logprobs, in each form, and while clients
# do not read them.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

cp -r "$MODEL" "$WORK/model"
echo '{% for m in messages %}{{ m.content }}{% endfor %}' >"$WORK/model/chat_template.jinja"
MODEL=$WORK/model
EXPERTS=$(dirname "$CHECKPOINTS")/../tiny-qwen3-moe
serve_model --max-unread-bytes 40MiB --body-timeout 600000
timeout 280 "$PYTHON" -B "$(dirname "$0")/reply_memory.py" "$URL" "$SERVER_PID" unread || fail unread
N_CHECKS=$((N_CHECKS + 1))
stop_server
for form in completions chat generate skyrl sglang tokenize prompt; do
  if [[ $form == skyrl ]]; then start_server --model "$EXPERTS"; else serve_model; fi
  timeout 280 "$PYTHON" -B "$(dirname "$0")/reply_memory.py" "$URL" "$SERVER_PID" "$form" ||
    fail "$form"
  N_CHECKS=$((N_CHECKS + 1))
  stop_server
done
done_testing
