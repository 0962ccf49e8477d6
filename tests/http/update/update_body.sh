#!/usr/bin/env bash
# A whole update as the request body; README's example.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
serve_model
serves step-00000 step-0

file=$CHECKPOINTS/step-00100.safetensors
expect 200 POST '/v1/update_weights?weight_version=step-100' \
  --header 'Content-Type: application/vnd.safetensors' --data-binary @"$file"
same .phase committed
same .weight_version step-100
same .serial 2
same .n_tensors_done 46
same .nbytes_done 1837824
serves step-00100 step-100

# Chunked, without a length.
expect 200 POST '/v1/update_weights?weight_version=step-1500' --header 'Expect:' \
  --header 'Content-Type: application/vnd.safetensors' --header 'Transfer-Encoding: chunked' \
  --data-binary @"$CHECKPOINTS/step-01500.safetensors"
serves step-01500 step-1500

# One request id and one label at every step are no repetition: new weights are taken each time.
for step in step-00100 step-01500; do
  expect 200 POST '/v1/update_weights?weight_version=latest' --header 'X-Request-Id: trainer-1' \
    --header 'Content-Type: application/vnd.safetensors' --data-binary @"$CHECKPOINTS/$step.safetensors"
  serves "$step" latest
done

# What is served is what was sent, to the byte.
expect 200 GET /v1/weights/model.norm.weight
[[ $(header X-Baton-Dtype) == BF16 && $(header X-Baton-Shape) == 128 ]] || fail "dtype or shape header"
cmp "$WORK/body" <(tail --bytes=256 "$CHECKPOINTS/step-01500.safetensors") || fail "other bytes are served"

# A body that ends early, is too long, or is no safetensors: a 4xx, and nothing changes.
head --bytes=100000 "$file" >"$WORK/short"
expect 400 POST /v1/update_weights --header 'Content-Type: application/vnd.safetensors' --data-binary @"$WORK/short"
cat "$file" <(printf x) >"$WORK/long"
expect 400 POST /v1/update_weights --header 'Content-Type: application/vnd.safetensors' --data-binary @"$WORK/long"
expect 422 POST /v1/update_weights --header 'Expect:' --header 'Content-Type: application/vnd.safetensors' \
  --header 'Transfer-Encoding: chunked' --data-binary @"$WORK/short"
same .error.code source_unreadable
head --bytes=4000 /dev/zero >"$WORK/zero"
expect 400 POST /v1/update_weights --header 'Content-Type: application/vnd.safetensors' --data-binary @"$WORK/zero"
expect 400 POST '/v1/update_weights?weihgt_version=x' --header 'Content-Type: application/vnd.safetensors' \
  --data-binary @"$file"
has weight_version
# A label that JSON could not carry back would make every list of the weights fail.
expect 400 POST '/v1/update_weights?weight_version=step-%ff' \
  --header 'Content-Type: application/vnd.safetensors' --data-binary @"$file"
same .error.param /weight_version
serves step-01500 latest
expect 200 GET /v1/status
same .weights.serial 5
same .update null
done_testing
