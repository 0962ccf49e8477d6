/* The KV of a sequence in one call. */
#ifndef BATON_TESTS_KV_TAKEN_H
#define BATON_TESTS_KV_TAKEN_H

#include "engine/model/kv.h"

/* kv_taken - prepare and take. Returns false, with *out as it was, when the chunks are not free. */
static inline bool kv_taken_with(struct kv_seq *out, struct kv_pool *p, uint32_t n_tokens,
                                 const struct kv_prefix *prefix)
{
    struct kv_seq s;

    if (!kv_prepare(&s, n_tokens))
        return false;
    if (!kv_take(&s, p, prefix)) {
        kv_release(&s);
        return false;
    }
    *out = s;
    return true;
}

static inline bool kv_taken(struct kv_seq *out, struct kv_pool *p, uint32_t n_tokens)
{
    return kv_taken_with(out, p, n_tokens, NULL);
}

#endif
