/* One running request of SGLang's /generate: a completion whose members, answer and events are that
 * server's. Shared by sglang_generate.c, which reads the request, and sglang_generate_reply.c,
 * which writes the answer. */
#ifndef BATON_HANDLERS_GENERATE_SGLANG_GENERATE_H
#define BATON_HANDLERS_GENERATE_SGLANG_GENERATE_H

#include "base/buf.h"
#include "handlers/generate/completions.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { SGLANG_MAX_NEW_TOKENS_DEFAULT = 128 };

/* What an event repeats of a sequence: all that was told before it. */
struct sglang_sent {
    struct buf text;
    struct buf ids, logprobs, tops; /* JSON: what those lists hold */
    uint32_t n_tokens;
};
void sglang_sent_fini(struct sglang_sent *sent); /* but n_tokens; accepts a zeroed one */

struct sglang_op {
    struct completions_op c; /* first: generation_ops.free gets its address */
    bool is_array;           /* the answer is an array */
    bool with_logprobs, with_text;
    int64_t logprob_start; /* first token of the prompt whose logprob is told; -1: none */
    uint32_t n_top;
    uint32_t n_seqs;
    char **rids;              /* [n_seqs]; owned, and each of them */
    struct sglang_sent *sent; /* [n_seqs]; owned; of the pool's job */
};

static inline struct sglang_op *sglang_of(struct generation *g)
{
    return (struct sglang_op *)(void *)g;
}

/* Of sglang_generate_reply.c; as generation_ops says, on app->text_executor. */
void sglang_generate_on_tokens(struct generation *g);
void sglang_generate_finish(struct generation *g);

#endif
