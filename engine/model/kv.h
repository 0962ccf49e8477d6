/* KV cache from one bounded pool: chunks of KV_CHUNK positions, float32,
 * [chunk][layer]: first K of all heads, [kv head][position][head_dim], then V of all heads,
 * [kv head][position][v_head_dim]. Engine thread only.
 *
 * The KV of a position is a function of the tokens up to it and of a key: sequences that have both
 * in common share whole chunks, and copy what they need of one more. Nobody writes where another
 * reads: positions are written once, in order, and a chunk is shared only when it is full. What
 * nobody uses any more is kept for later sequences until its room is needed, the longest unused
 * first. */
#ifndef BATON_ENGINE_MODEL_KV_H
#define BATON_ENGINE_MODEL_KV_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { KV_CHUNK = 64, KV_SCOPE_LEN = 32 };

struct model_config;
struct kv_pool;

/* kv_pool_new - a pool of about nbytes_max bytes, at least one chunk; pages are allocated at first
 * use. */
int kv_pool_new(struct kv_pool **out, const struct model_config *cfg, uint64_t nbytes_max,
                struct err *e);
void kv_pool_free(struct kv_pool *p);
uint64_t kv_pool_tokens_max(const struct kv_pool *p);
uint64_t kv_pool_tokens_used(const struct kv_pool *p); /* reserved, in whole chunks */
uint64_t kv_pool_tokens_kept(const struct kv_pool *p); /* not used, but kept; whole chunks too */

/* kv_pool_serve - only KV of this version is kept from now on when nobody uses it. Before the first
 * call nothing is kept. */
void kv_pool_serve(struct kv_pool *p, uint64_t serial);

/* kv_pool_forget - no later kv_take finds anything that is in the pool now, used or not. */
void kv_pool_forget(struct kv_pool *p);

/* kv_pool_release - forget, and give the pages back to the system; every chunk has been given back.
 * Nothing can be taken until kv_pool_restore. Returns: how many bytes were resident and are not any
 * more. */
uint64_t kv_pool_release(struct kv_pool *p);
void kv_pool_restore(struct kv_pool *p);

/* What KV depends on besides tokens. Two keys are equal only if all of it is equal. */
struct kv_key {
    uint64_t serial;                   /* of the weights */
    unsigned char scope[KV_SCOPE_LEN]; /* a digest of the rest: adapter, revision, salt */
};

bool kv_keys_equal(const struct kv_key *a, const struct kv_key *b);

/* What may be found in the pool instead of computed. */
struct kv_prefix {
    struct kv_key key;
    const uint32_t *tokens; /* borrowed */
    uint32_t n_tokens;      /* fewer than the sequence has positions; 0: it finds nothing */
};

/* The KV of one sequence: all its chunks are reserved when it is admitted. */
struct kv_seq {
    struct kv_pool *pool; /* borrowed */
    uint32_t *chunks;     /* owned; [n_wanted] */
    uint32_t n_wanted;
    uint32_t n_chunks; /* that it has: 0 or n_wanted */
    uint32_t n_found;  /* first positions that kv_take found */
    uint32_t n_told;   /* first positions that others can find */
    uint64_t epoch;    /* of the pool, when it was taken; 0: others find nothing of it */
    struct kv_key key;
};

/* kv_prepare - the list for chunks of n_tokens positions; none is taken. Threads: any. Returns
 * false without memory. */
bool kv_prepare(struct kv_seq *out, uint32_t n_tokens);

/* kv_find - how many of the prefix's positions kv_take would find now. */
uint32_t kv_find(const struct kv_pool *p, const struct kv_prefix *prefix);

/* kv_take - all chunks of a prepared one; the KV of its first n_found positions is in them.
 * @prefix  NULL: it shares nothing with others
 * Returns false (and takes none) when there is no room now. No allocation. */
bool kv_take(struct kv_seq *s, struct kv_pool *p, const struct kv_prefix *prefix);

/* kv_tell - the step that is being made writes the KV of `token` at `pos`, by the key: others may
 * find it after that step. Without effect unless all positions before were found or told. */
void kv_tell(struct kv_seq *s, uint32_t pos, uint32_t token);

void kv_give_back(struct kv_seq *s); /* its chunks, if it has any; it stays prepared */

void kv_release(struct kv_seq *s); /* gives back and frees the list; accepts a zeroed one */

/* kv_k, kv_v - the head_dim floats of K, and the v_head_dim of V, of one position; those of the
 * chunk's next positions follow. K is stored after rotation. */
float *kv_k(const struct kv_seq *s, uint32_t layer, uint32_t kv_head, uint32_t pos);
float *kv_v(const struct kv_seq *s, uint32_t layer, uint32_t kv_head, uint32_t pos);

#endif
