/* Checksums of a tensor's bytes as the checkers of vLLM and SGLang make them. Pure computation.
 *
 * Source: vLLM 0.33, model_executor/model_loader/weight_checksum.py; SGLang 0.5.23,
 * srt/utils/weight_checker.py, kernels/ops/memory/gpu_tensor_hash.py. */
#ifndef BATON_FLEET_PROOF_TENSOR_DIGEST_H
#define BATON_FLEET_PROOF_TENSOR_DIGEST_H

#include <nettle/sha2.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum tensor_digest_kind {
    TENSOR_DIGEST_WORDS,  /* SGLang on a GPU: a mix of each word of 32 bits and its place */
    TENSOR_DIGEST_SHA256, /* vLLM; SGLang on a CPU shows its first 64 bits */
    TENSOR_DIGESTS
};
enum { TENSOR_DIGEST_TEXT_MAX = 64, TENSOR_DIGEST_TILE = 32768 };

struct tensor_digest {
    enum tensor_digest_kind kind;
    struct sha256_ctx sha;
    uint64_t nbytes, at, words;
};

/* tensor_digest_begin - of a tensor of `nbytes` bytes.
 * tensor_digest_add - its next bytes: a multiple of TENSOR_DIGEST_TILE, unless they are the last.
 * tensor_digest_end - the checksum in lower-case hex digits, when all were added. */
void tensor_digest_begin(struct tensor_digest *d, enum tensor_digest_kind kind, uint64_t nbytes);
void tensor_digest_add(struct tensor_digest *d, const void *bytes, size_t n);
void tensor_digest_end(struct tensor_digest *d, char out[TENSOR_DIGEST_TEXT_MAX + 1]);

/* tensor_digest_matches - is `sum`, of an engine, this checksum?
 * tensor_digest_fits - can a checksum of this kind look like `sum`? */
bool tensor_digest_matches(enum tensor_digest_kind kind, const char *own, const char *sum);
bool tensor_digest_fits(enum tensor_digest_kind kind, const char *sum);

#endif
