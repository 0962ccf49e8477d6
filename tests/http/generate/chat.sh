#!/usr/bin/env bash
# /v1/chat/completions: through a model's own template, without one, with one that is not supported.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"

FIXTURE=$MODEL
MODEL=$WORK/model
mkdir "$MODEL"
cp --recursive "$FIXTURE"/. "$MODEL"
serve_model
CHAT='"messages": [{"role": "user", "content": "In the beginning"}]'
post 400 /v1/chat/completions "{$CHAT}"
same .error.param messages
same '.error.message | startswith("the model has no chat template")' true
stop_server

cat >"$MODEL/tokenizer_config.json" <<'JSON'
{"bos_token": null, "model_max_length": 1000000000000000019884624838656, "chat_template": "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('Only user and assistant, not ' + m.role) }}{% endif %}{{ m['content'] }}{% endfor %}"}
JSON
serve_model
serves step-00000 step-0
# What this template makes is the message itself, so that the answer is the completion's.
post 200 /v1/completions '{"prompt": "In the beginning", "max_tokens": 8, "temperature": 0}'
text=$(jq --raw-output '.choices[0].text' "$WORK/body")
post 200 /v1/chat/completions "{$CHAT, \"max_tokens\": 8, \"temperature\": 0, \"logprobs\": true, \"top_logprobs\": 2, \"return_token_ids\": true}"
same .object chat.completion
same '.choices[0].message.role' assistant
same '.choices[0].message.content' "$text"
same '.prompt_token_ids | tojson' '[40,77,258,803,264,77,290]'
same '.choices[0].token_ids | length' 8
same '.choices[0].logprobs.content | length' 8
same '[.choices[0].weight_versions[] | .version, .start, .end] | tojson' '["step-0",0,8]'
same '.choices[0].logprobs.content[0].top_logprobs | length' 2
same .usage.total_tokens 15
post 200 /v1/chat/completions "{$CHAT, \"max_completion_tokens\": 8, \"temperature\": 0, \"n\": 2, \"stream\": true, \"stream_options\": {\"include_usage\": true}}"
sed --quiet 's/^data: {/{/p' "$WORK/body" >"$WORK/events"
jq --slurp --raw-output '[.[].choices[]? | select(.index == 1) | .delta.content] | add' "$WORK/events" >"$WORK/text"
[[ $(cat "$WORK/text") == "$text" ]] || fail "streamed: $(cat "$WORK/text")"
[[ $(jq --slurp '.[-1].usage.completion_tokens' "$WORK/events") == 16 ]] || fail "usage"
[[ $(jq --slurp '[.[] | has("prompt_text")] | .[0] and (.[1:] | any | not)' "$WORK/events") == true ]] || fail "prompt_text"
[[ $(tail --lines=2 "$WORK/body" | head --lines=1) == 'data: [DONE]' ]] || fail "no [DONE]"
post 200 /v1/chat/completions '{"messages": [{"role": "user", "content": "In the"}], "max_tokens": 1, "add_generation_prompt": false}'
same '.choices[0].message | [.role, .refusal, .reasoning, (.tool_calls | length)] | tojson' '["user",null,null,0]'
# Members that clients index, though there is nothing to tell.
nulls() {
  local members
  members=$(jq --raw-output "[$1 | to_entries[] | select(.value == null) | .key]" "$WORK/body")
  for name in $2; do
    [[ $members == *"\"$name\""* ]] || fail "$1 has no null $name: $members"
  done
}
post 200 /v1/chat/completions "{$CHAT, \"max_tokens\": 1, \"return_prompt_text\": true}"
same .prompt_text 'In the beginning'
post 400 /v1/chat/completions "{$CHAT, \"ec_transfer_params\": {\"a\": 1}}"
same .error.param ec_transfer_params
post 200 /v1/chat/completions "{$CHAT, \"max_tokens\": 1, \"add_generation_prompt\": false}"
nulls . 'prompt_logprobs prompt_text prompt_token_ids kv_transfer_params ec_transfer_params metrics'
nulls '.choices[0]' 'routed_experts'
nulls '.choices[0].message' 'refusal annotations audio function_call reasoning'
post 200 /tokenize "{$CHAT}"
same '.tokens | tojson' '[40,77,258,803,264,77,290]'
# What a chat renders to, sent as it is, makes the same tokens.
CHAT_MORE="\"temperature\": 0.7, \"seed\": 4, \"max_tokens\": 12, \"logprobs\": true, \"return_token_ids\": true"
post 200 /v1/chat/completions "{$CHAT, $CHAT_MORE}"
ids=$(jq --compact-output '.choices[0].token_ids' "$WORK/body")
post 200 /v1/chat/completions/render "{$CHAT, $CHAT_MORE, \"request_id\": \"r1\", \"cache_salt\": \"s\"}"
same '.token_ids | tojson' '[40,77,258,803,264,77,290]'
same '[.request_id, .model, .features, .stream, .cache_salt] | tojson' '["r1","model",null,false,"s"]'
same '.sampling_params | [.max_tokens, .logprobs, .seed] | tojson' '[12,0,4]'
post 200 /inference/v1/generate "$(cat "$WORK/body")"
same '.choices[0].token_ids | tojson' "$ids"
same .request_id r1
# The prompt ends where the final message does, also where its text stands elsewhere.
post 200 /tokenize '{"messages": [{"role": "user", "content": "the e"}, {"role": "assistant", "content": " th"}], "continue_final_message": true}'
ids=$(jq --compact-output .tokens "$WORK/body")
post 200 /detokenize "{\"tokens\": $ids}"
same .prompt 'the e th'
post 200 /tokenize '{"messages": [{"role": "user", "content": "the"}, {"role": "assistant", "content": ""}], "continue_final_message": true}'
post 400 /v1/chat/completions '{"messages": [{"role": "system", "content": "x"}]}'
same .error.message 'Only user and assistant, not system'
post 400 /v1/chat/completions '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}'
same .error.param messages.0.content.0.type
stop_server

printf '{{ messages | shuffle }}\n' >"$MODEL/chat_template.jinja"
serve_model
post 400 /v1/chat/completions "{$CHAT}"
same '.error.message | contains("line 1: filter '"'shuffle'"' is not supported")' true
grep --quiet chat_template.refused "$WORK/log" || fail "the log does not say so"
done_testing
