/* KV cache from one bounded pool: chunks of KV_CHUNK positions, float32,
 * [chunk][layer]: first K of all heads, [kv head][position][head_dim], then V of all heads,
 * [kv head][position][v_head_dim]. Engine thread only. */
#ifndef BATON_ENGINE_MODEL_KV_H
#define BATON_ENGINE_MODEL_KV_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { KV_CHUNK = 64 };

struct model_config;
struct kv_pool;

/* kv_pool_new - a pool of about nbytes_max bytes, at least one chunk; pages are allocated at first
 * use. */
int kv_pool_new(struct kv_pool **out, const struct model_config *cfg, uint64_t nbytes_max,
                struct err *e);
void kv_pool_free(struct kv_pool *p);
uint64_t kv_pool_tokens_max(const struct kv_pool *p);
uint64_t kv_pool_tokens_used(const struct kv_pool *p); /* reserved, in whole chunks */

/* kv_pool_release - give the pages back to the system; every chunk has been given back. Nothing can
 * be taken until kv_pool_restore. Returns: how many bytes were resident and are not any more. */
uint64_t kv_pool_release(struct kv_pool *p);
void kv_pool_restore(struct kv_pool *p);

/* The KV of one sequence: all its chunks are reserved when it is admitted. */
struct kv_seq {
    struct kv_pool *pool; /* borrowed */
    uint32_t *chunks;     /* owned; [n_wanted] */
    uint32_t n_wanted;
    uint32_t n_chunks; /* that it has: 0 or n_wanted */
};

/* kv_prepare - the list for chunks of n_tokens positions; none is taken. Threads: any. Returns
 * false without memory. */
bool kv_prepare(struct kv_seq *out, uint32_t n_tokens);

/* kv_take - all chunks of a prepared one. Returns false (and takes none) when they are not free
 * now. No allocation. */
bool kv_take(struct kv_seq *s, struct kv_pool *p);
void kv_give_back(struct kv_seq *s); /* its chunks, if it has any; it stays prepared */

void kv_release(struct kv_seq *s); /* gives back and frees the list; accepts a zeroed one */

/* kv_k, kv_v - the head_dim floats of K, and the v_head_dim of V, of one position; those of the
 * chunk's next positions follow. K is stored after rotation. */
float *kv_k(const struct kv_seq *s, uint32_t layer, uint32_t kv_head, uint32_t pos);
float *kv_v(const struct kv_seq *s, uint32_t layer, uint32_t kv_head, uint32_t pos);

#endif
