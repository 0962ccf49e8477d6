/* Lists that were checked once, in the form that the sampler walks. Rejected: a bitmap of the
 * vocabulary for the allowed ids, because the sampler has to touch each allowed one anyway. */
#include "engine/logits_processor.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int logits_processor_new(struct logits_processor **out, struct err *e)
{
    struct logits_processor *s = calloc(1, sizeof *s);

    if (s == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the lists of tokens of a request");
    atomic_init(&s->n_refs, 1);
    *out = s;
    return 0;
}

struct logits_processor *logits_processor_ref(struct logits_processor *s)
{
    if (s != NULL)
        (void)atomic_fetch_add_explicit(&s->n_refs, 1, memory_order_relaxed);
    return s;
}

void logits_processor_unref(struct logits_processor *s)
{
    if (s == NULL || atomic_fetch_sub_explicit(&s->n_refs, 1, memory_order_acq_rel) != 1)
        return;
    free(s->allowed);
    free(s);
}

static int by_id(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

void logits_processor_allow(struct logits_processor *s, uint32_t *ids, uint32_t n)
{
    uint32_t n_kept = 1;

    assert(s->allowed == NULL && n >= 1);
    qsort(ids, n, sizeof *ids, by_id);
    for (uint32_t i = 1; i < n; i++)
        if (ids[i] != ids[n_kept - 1])
            ids[n_kept++] = ids[i];
    s->allowed = ids;
    s->n_allowed = n_kept;
}

bool logits_processor_add_bias(struct logits_processor *s, uint32_t id, double bias)
{
    const double limit = (double)LOGITS_PROCESSOR_BIAS_LIMIT;

    assert(!isnan(bias));
    if (s->n_biases == LOGITS_PROCESSOR_BIASES_MAX)
        return false;
    bias = fmin(fmax(bias, -limit), limit);
    s->biases[s->n_biases++] = (struct logits_processor_bias){id, (float)bias};
    return true;
}

bool logits_processor_forbid(struct logits_processor *s, const uint32_t *ids, uint32_t n)
{
    uint32_t used = s->n_bad_words > 0 ? s->bad_ends[s->n_bad_words - 1] : 0;

    assert(n >= 1);
    if (s->n_bad_words == LOGITS_PROCESSOR_BAD_WORDS_MAX ||
        n > LOGITS_PROCESSOR_BAD_TOKENS_MAX - used)
        return false;
    memcpy(s->bad_ids + used, ids, n * sizeof *ids);
    s->bad_ends[s->n_bad_words++] = used + n;
    return true;
}

const uint32_t *logits_processor_bad_word(const struct logits_processor *s, uint32_t i, uint32_t *n)
{
    uint32_t start = i > 0 ? s->bad_ends[i - 1] : 0;

    assert(i < s->n_bad_words);
    *n = s->bad_ends[i] - start;
    return s->bad_ids + start;
}

static int token_id_refuse(const char *prefix, const char *member, uint32_t id, uint32_t vocab_size,
                           struct err *e)
{
    char field[ERR_FIELD_MAX];

    (void)snprintf(field, sizeof field, "%s/%s", prefix, member);
    return err_set(e, ERR_BAD_REQUEST, field,
                   "%s: token id %u is not in the vocabulary of %u tokens", member, id, vocab_size);
}

int logits_processor_check(const struct logits_processor *s, uint32_t vocab_size,
                           const char *prefix, struct err *e)
{
    uint32_t n_bad_ids = s->n_bad_words > 0 ? s->bad_ends[s->n_bad_words - 1] : 0;

    if (s->allowed != NULL && s->allowed[s->n_allowed - 1] >= vocab_size)
        return token_id_refuse(prefix, "allowed_token_ids", s->allowed[s->n_allowed - 1],
                               vocab_size, e);
    for (uint32_t i = 0; i < s->n_biases; i++)
        if (s->biases[i].id >= vocab_size)
            return token_id_refuse(prefix, "logit_bias", s->biases[i].id, vocab_size, e);
    for (uint32_t i = 0; i < n_bad_ids; i++)
        if (s->bad_ids[i] >= vocab_size)
            return token_id_refuse(prefix, "bad_words", s->bad_ids[i], vocab_size, e);
    return 0;
}
