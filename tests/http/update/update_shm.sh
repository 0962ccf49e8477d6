#!/usr/bin/env bash
# Whole updates from POSIX shared memory: a packed bucket, and one range for each tensor.
# shellcheck source=tests/http/lib/lib.sh
source "$(dirname "$0")/../lib/lib.sh"
serve_model

file=$CHECKPOINTS/step-00100.safetensors
to_shm "$file"
columns "$file" >"$WORK/columns"
request() { jq --compact-output "$@" "$WORK/columns"; }

post 200 /v1/update_weights "$(request --arg shm "$SHM" --argjson n "$SHM_NBYTES" \
  '. + {weight_version: "step-100", shm: {name: $shm, offset: 0, nbytes: $n}}')"
same .phase committed
serves step-00100 step-100

to_shm "$CHECKPOINTS/step-01500.safetensors"
ranges='. as $c | [foreach ([range(.names | length)] | .[]) as $i ({o: 0, n: 0}; {o: (.o + .n), n: ($c.sizes[$i] * 2)}; {name: $shm, offset: .o, nbytes: .n})] as $r | $c + {shm: $r, packed: false, weight_version: "step-1500"}'
post 200 /v1/update_weights "$(request --arg shm "$SHM" "$ranges")"
serves step-01500 step-1500

# Every way to be wrong names its culprit and changes nothing.
refuse() { # STATUS CODE PARAM JQ_FILTER
  post "$1" /v1/update_weights "$(request --arg shm "$SHM" --argjson n "$SHM_NBYTES" \
    ". + {shm: {name: \$shm, nbytes: \$n}} | $4")"
  same .error.code "$2"
  same '.error.param // ""' "$3"
}
refuse 400 bad_request /shm/nbytes '.shm.nbytes -= 2'
refuse 404 not_found /shm/name '.shm.name = "/baton-no-such-object"'
refuse 422 source_unreadable /shm/nbytes '.shm.offset = 4096'
refuse 400 bad_request /shm/name '.shm.name = "/../etc/passwd"'
refuse 400 bad_request /packed '.packed = false'
refuse 400 bad_request /sizes/3 '.sizes[3] += 1'
refuse 400 bad_request /dtypes/0 '.dtypes[0] = "bf17"'
refuse 400 bad_request /dtypes '.dtypes |= .[1:]'
refuse 422 manifest_mismatch /shapes/0 '.shapes[0] = [512, 256]'
refuse 422 manifest_mismatch /names/0 '.names[0] = "model.embed_token.weight"'
has "model.embed_tokens.weight"
refuse 400 bad_request /names/1 '.names[1] = .names[0]'
refuse 400 bad_request /nmaes '. + {nmaes: []}'
has "names"
refuse 400 bad_request /names '.names = [] | .dtypes = [] | .shapes = [] | .sizes = []'
refuse 422 checksum_mismatch "/checksums/2" '.checksums = [null, null, ("f" * 32)] + [range(43) | null]'
refuse 422 incomplete_update /names '.names |= .[1:] | .dtypes |= .[1:] | .shapes |= .[1:] | .sizes |= .[1:] | .shm.offset = 262144 | .shm.nbytes -= 262144'
same '.error.details.missing[0]' model.embed_tokens.weight
same .error.details.n_missing 1
serves step-01500 step-1500
done_testing
