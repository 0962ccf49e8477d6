#!/usr/bin/env bash
# start, buckets, finish; abort, renew, lease; repeated chunks; plans; partial.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
serve_model

file=$CHECKPOINTS/step-00100.safetensors
to_shm "$file"
columns "$file" >"$WORK/columns"

# One bucket of tensors [from, to): its columns and its range of the object.
bucket() { # FROM TO EXTRA_JSON
  jq --compact-output --argjson a "$1" --argjson b "$2" --argjson extra "$3" --arg shm "$SHM" '
    (.sizes[:$a] | add // 0) as $before | (.sizes[$a:$b] | add) as $n |
    {names: .names[$a:$b], dtypes: .dtypes[$a:$b], shapes: .shapes[$a:$b], sizes: .sizes[$a:$b],
     packed: true, shm: {name: $shm, offset: ($before * 2), nbytes: ($n * 2)}} + $extra' "$WORK/columns"
}
start() { post 200 /v1/update_weights/start "$1" && ID=$(jq --raw-output .update_id "$WORK/body"); }
for_id() { jq --null-input --compact-output --arg id "$ID" "{update_id: \$id} + $1"; }

start '{"weight_version": "step-100", "lease_s": 60}'
same .phase open
same .staging_nbytes 1837824
same '.plan_digest | length' 64
post 409 /v1/update_weights/start '{}'
has "$ID"
same .error.code conflict
same .error.retryable true
post 200 /v1/update_weights "$(bucket 0 20 "$(for_id '{chunk_id: "a"}')")"
same .phase receiving
same .n_tensors_done 20
post 200 /v1/update_weights "$(bucket 0 20 "$(for_id '{chunk_id: "a"}')")"
same .n_tensors_done 20
# What no repetition changes is not retryable: these tensors are there, and this chunk was another.
post 409 /v1/update_weights "$(bucket 0 2 "$(for_id '{chunk_id: "b"}')")"
same .error.param /names/0
same .error.code precondition_failed
same .error.retryable false
post 409 /v1/update_weights "$(bucket 20 22 "$(for_id '{chunk_id: "a"}')")"
same .error.param /chunk_id
same .error.code precondition_failed
same .error.retryable false
serves step-00000 step-0
expect 200 GET /v1/status
same .update.update_id "$ID"
expect 200 GET "/v1/update_weights/$ID"
same .n_missing 26
post 200 /v1/update_weights "$(bucket 20 46 "$(for_id '{}')")"
post 200 /v1/update_weights/renew "$(for_id '{lease_s: 100}')"
same '.lease_left_s > 90' true
post 200 /v1/update_weights/finish "$(for_id '{}')"
same .phase committed
same .serial 2
post 200 /v1/update_weights/finish "$(for_id '{}')"
same .serial 2
serves step-00100 step-100

# A finish that does not cover everything: 422, what is missing, and the old version serves.
start '{}'
post 200 /v1/update_weights "$(bucket 3 46 "$(for_id '{}')")"
post 422 /v1/update_weights/finish "$(for_id '{}')"
same .error.code incomplete_update
same .error.details.n_missing 3
same '.error.details.missing[0]' model.embed_tokens.weight
post 409 /v1/update_weights "$(bucket 0 3 "$(for_id '{}')")"
same .error.code update_closed
same .error.retryable false
has "is aborted"
has "start another"
serves step-00100 step-100

# A wrong checksum at finish.
start '{"partial": true}'
post 200 /v1/update_weights "$(bucket 45 46 "$(for_id '{}')")"
post 422 /v1/update_weights/finish "$(for_id '{checksums: {"model.norm.weight": ("0" * 32)}}')"
same .error.code checksum_mismatch
has model.norm.weight

# A checksum that is none: the name is a member, and is spelled as pointers spell it.
start '{"partial": true}'
post 400 /v1/update_weights/finish "$(for_id '{checksums: {"a/b~c": "0"}}')"
same .error.param /checksums/a~1b~0c
post 400 /v1/update_weights/finish "$(for_id '{checksums: {("x" * 1000): "0"}}')"
same .error.param /checksums
post 200 /v1/update_weights/abort "$(for_id '{}')"

# Abort and DELETE; repeating is harmless.
start '{}'
post 200 /v1/update_weights/abort "$(for_id '{reason: "test"}')"
same .phase aborted
post 200 /v1/update_weights/abort "$(for_id '{}')"
# A reason that is cut inside a character is still told.
start '{}'
post 200 /v1/update_weights/abort "$(for_id '{reason: ("x" + "é" * 150)}')"
same '.error.message | startswith("aborted on request: xé")' true
expect 200 GET "/v1/update_weights/$ID"
start '{}'
expect 200 DELETE "/v1/update_weights/$ID"
same .phase aborted
expect 404 GET /v1/update_weights/upd-unknown

# A lost lease ends the session by itself.
start '{"lease_s": 1}'
for _ in $(seq 600); do
  expect 200 GET "/v1/update_weights/$ID"
  [[ $(jq --raw-output .phase "$WORK/body") == aborted ]] && break
  sleep 0.1
done
same .phase aborted
same .error.code timeout
serves step-00100 step-100

# Partial: what is not sent is shared with the version before.
post 200 /v1/update_weights "$(bucket 45 46 '{"partial": true, "weight_version": "norm"}')"
expect 200 GET /v1/weights
same '[.tensors[] | select(.serial == 3) | .name] | join(",")' model.norm.weight
same '.tensors[-1].version' norm
same '.tensors[0].version' step-100

# A plan said once.
post 200 /v1/weights/plans "$(jq --compact-output 'del(.sizes)' "$WORK/columns")"
same .covers_manifest true
PLAN=$(jq --raw-output .plan_id "$WORK/body")
to_shm "$CHECKPOINTS/step-01500.safetensors"
post 200 /v1/update_weights "$(jq --null-input --arg p "$PLAN" --arg s "$SHM" --argjson n "$SHM_NBYTES" \
  '{plan_id: $p, weight_version: "step-1500", shm: {name: $s, nbytes: $n}}')"
serves step-01500 step-1500
post 404 /v1/update_weights '{"plan_id": "nope", "shm": {"name": "/x", "nbytes": 1}}'
same .error.param /plan_id

# A list that does not fit the model gets none.
post 422 /v1/weights/plans '{"names": ["nope"], "dtypes": ["U8"], "shapes": [[1]]}'
same .error.param /names/0
PLAN=$(printf 'nope\tU8\t1\n' | sha256sum)
post 404 /v1/update_weights "{\"plan_id\": \"${PLAN%% *}\", \"shm\": {\"name\": \"/x\", \"nbytes\": 1}}"
same .error.param /plan_id

to_shm "$CHECKPOINTS/step-00000.safetensors"
# Verified, and served only when it is finished.
start '{"weight_version": "proven"}'
post 200 /v1/update_weights "$(bucket 0 46 "$(for_id '{}')")"
post 200 /v1/update_weights/verify "$(for_id '{}')"
same .phase verified
post 409 /v1/update_weights "$(bucket 0 1 "$(for_id '{}')")"
has verified
post 200 /v1/update_weights/finish "$(for_id '{}')"
same .phase committed
serves step-00000 proven

done_testing
