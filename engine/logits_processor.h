/* The rules of a request for single tokens: allowed ids, biases, and token sequences that must not
 * be completed. Made once for a request, then immutable and shared by its sequences: a list of
 * allowed ids can be as long as the vocabulary, and a request can have many sequences. */
#ifndef BATON_ENGINE_LOGITS_PROCESSOR_H
#define BATON_ENGINE_LOGITS_PROCESSOR_H

#include "base/err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    LOGITS_PROCESSOR_BIASES_MAX = 1024,
    LOGITS_PROCESSOR_BAD_WORDS_MAX = 256,  /* token sequences; a word has one or two */
    LOGITS_PROCESSOR_BAD_TOKENS_MAX = 4096 /* of all of them together */
};

/* A bias is cut to the range from -LOGITS_PROCESSOR_BIAS_LIMIT to this. */
#define LOGITS_PROCESSOR_BIAS_LIMIT 100.0F

struct logits_processor_bias {
    uint32_t id;
    float bias; /* finite, within the limit */
};

struct logits_processor {
    atomic_uint n_refs; /* relaxed to raise, acquire and release to drop */

    /* Immutable once shared. */
    uint32_t *allowed; /* owned; [n_allowed] ascending, each once; NULL: every token is allowed */
    uint32_t n_allowed;
    uint32_t n_biases;
    uint32_t n_bad_words;
    struct logits_processor_bias biases[LOGITS_PROCESSOR_BIASES_MAX]; /* each id once */
    uint32_t bad_ids[LOGITS_PROCESSOR_BAD_TOKENS_MAX]; /* the sequences, one after another */
    uint32_t bad_ends[LOGITS_PROCESSOR_BAD_WORDS_MAX]; /* where each ends in bad_ids */
};

/* logits_processor_new - without rules, with one reference. Errors: ERR_NO_MEMORY. */
int logits_processor_new(struct logits_processor **out, struct err *e);
struct logits_processor *
logits_processor_ref(struct logits_processor *s); /* accepts NULL; any thread */
void logits_processor_unref(
    struct logits_processor *s); /* accepts NULL; any thread; the last one frees */

/* logits_processor_allow - allow only these ids.
 * @ids  [n], n >= 1, malloc'ed; moved in, sorted, repeated ones dropped. Once. */
void logits_processor_allow(struct logits_processor *s, uint32_t *ids, uint32_t n);

/* logits_processor_add_bias - add `bias` to the logit of `id`, which has none yet.
 * @bias  not NaN; cut to the limit
 * Returns: false when there are LOGITS_PROCESSOR_BIASES_MAX already. */
bool logits_processor_add_bias(struct logits_processor *s, uint32_t id, double bias);

/* logits_processor_forbid - forbid a token sequence: its last token is never chosen directly after
 * the others.
 * @ids  [n], n >= 1; borrowed
 * Returns: false, with nothing added, when one of the limits would be passed. */
bool logits_processor_forbid(struct logits_processor *s, const uint32_t *ids, uint32_t n);

/* logits_processor_bad_word - the i-th forbidden sequence and its length. */
const uint32_t *logits_processor_bad_word(const struct logits_processor *s, uint32_t i,
                                          uint32_t *n);

/* logits_processor_check - every id must be below vocab_size.
 * Errors: ERR_BAD_REQUEST at "<prefix>/allowed_token_ids", "/logit_bias" or "/bad_words". */
int logits_processor_check(const struct logits_processor *s, uint32_t vocab_size,
                           const char *prefix, struct err *e);

#endif
