/* What a request says of single tokens: which may come, which are favoured, which sequences of
 * them must not be completed. Made once for a request, then immutable and shared by its sequences:
 * a list of allowed ids can be as long as the vocabulary, and a request can have many sequences. */
#ifndef BATON_ENGINE_STEERING_H
#define BATON_ENGINE_STEERING_H

#include "base/err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    STEERING_BIASES_MAX = 1024,
    STEERING_BAD_WORDS_MAX = 256,  /* token sequences; a word has one or two */
    STEERING_BAD_TOKENS_MAX = 4096 /* of all of them together */
};

/* A larger bias counts as this, a smaller one as its negative. */
#define STEERING_BIAS_LIMIT 100.0F

struct steering_bias {
    uint32_t id;
    float bias; /* finite, within the limit */
};

struct steering {
    atomic_uint n_refs; /* relaxed to raise, acquire and release to drop */

    /* Immutable once shared. */
    uint32_t *allowed; /* owned; [n_allowed] ascending, each once; NULL: every token may come */
    uint32_t n_allowed;
    uint32_t n_biases;
    uint32_t n_bad_words;
    struct steering_bias biases[STEERING_BIASES_MAX]; /* each id once */
    uint32_t bad_ids[STEERING_BAD_TOKENS_MAX];        /* the sequences, one after another */
    uint32_t bad_ends[STEERING_BAD_WORDS_MAX];        /* where each ends in bad_ids */
};

/* steering_new - one that says nothing, with one reference. Errors: ERR_NO_MEMORY. */
int steering_new(struct steering **out, struct err *e);
struct steering *steering_ref(struct steering *s); /* accepts NULL; any thread */
void steering_unref(struct steering *s); /* accepts NULL; any thread; the last one frees */

/* steering_allow - only these may come.
 * @ids  [n], n >= 1, malloc'ed; moved in, sorted, repeated ones dropped. Once. */
void steering_allow(struct steering *s, uint32_t *ids, uint32_t n);

/* steering_favour - add `bias` to the logit of `id`, which has none yet.
 * @bias  not NaN; cut to the limit
 * Returns: false when there are STEERING_BIASES_MAX already. */
bool steering_favour(struct steering *s, uint32_t id, double bias);

/* steering_forbid - the sequence must not be completed: its last token cannot come after the
 * others.
 * @ids  [n], n >= 1; borrowed
 * Returns: false, with nothing added, when one of the limits would be passed. */
bool steering_forbid(struct steering *s, const uint32_t *ids, uint32_t n);

/* steering_bad_word - the i-th forbidden sequence and its length. */
const uint32_t *steering_bad_word(const struct steering *s, uint32_t i, uint32_t *n);

/* steering_allows - may `id` come, by the list of allowed ones? */
bool steering_allows(const struct steering *s, uint32_t id);

/* steering_check - every id must be below vocab_size.
 * Errors: ERR_BAD_REQUEST at "<prefix>/allowed_token_ids", "/logit_bias" or "/bad_words". */
int steering_check(const struct steering *s, uint32_t vocab_size, const char *prefix,
                   struct err *e);

#endif
