/* Steps of a sequence without a model: the test makes the logits. */
#ifndef BATON_TESTS_TAKE_LOGITS_H
#define BATON_TESTS_TAKE_LOGITS_H

#include "engine/sampler/token_selector.h"
#include "engine/scheduler/sequence.h"

#include <assert.h>

struct taker {
    struct compute *compute;
    struct token_selector *selector;
};

static inline int taker_init(struct taker *t, uint32_t vocab_size, struct err *e)
{
    *t = (struct taker){0};
    if (compute_new(&t->compute, 1, e) == 0 &&
        token_selector_new(&t->selector, t->compute, vocab_size, 1, e) == 0)
        return 0;
    compute_free(t->compute);
    return -1;
}

static inline void taker_fini(struct taker *t)
{
    token_selector_free(t->selector);
    compute_free(t->compute);
}

static inline void take_logits(struct taker *t, struct seq *q, uint32_t pos, const float *logits,
                               const struct seq_step *step)
{
    struct choice c;

    seq_ask(q, pos, &c);
    c.logits = logits;
    token_selector_run(t->selector, &c, 1);
    seq_take(q, pos, &c, step);
}

/* A row of the test's own, with logprobs of logits / temperature; its parts stay until the next one
 * is measured. Returns: are the logits finite? */
static inline bool measure_row(struct sampler_row *out, const float *logits, uint32_t n,
                               float temperature)
{
    static struct sampler_part parts[16];

    assert(sampler_n_parts(n) <= 16);
    sampler_row_init(out, kernels_current(), logits, n, parts);
    sampler_row_want_logprobs(out, temperature);
    sampler_row_measure(out, 0, sampler_n_parts(n));
    return sampler_row_join(out);
}

#endif
