/* One running request to SGLang's /generate: a completion with SGLang's request members, reply and
 * events. Shared by sglang_generate.c (parses the request) and sglang_generate_reply.c (writes the
 * reply). */
#ifndef BATON_HANDLERS_GENERATE_SGLANG_GENERATE_H
#define BATON_HANDLERS_GENERATE_SGLANG_GENERATE_H

#include "base/buf.h"
#include "handlers/generate/completions.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* All that was sent of a sequence so far: each event repeats it. */
struct sglang_sent {
    struct buf text;
    struct buf ids, logprobs, tops; /* JSON: the entries of those lists */
    uint32_t n_tokens;
};
void sglang_sent_fini(struct sglang_sent *sent); /* keeps n_tokens; accepts a zeroed one */

struct sglang_op {
    struct completions_op c; /* first: generation_ops.free gets its address */
    bool is_array;           /* the reply is an array */
    bool with_logprobs, with_text;
    int64_t logprob_start; /* first token of the prompt whose logprob is sent; -1: none */
    uint32_t n_top;
    uint32_t n_seqs;
    char **rids;              /* [n_seqs]; array and strings are owned */
    struct sglang_sent *sent; /* [n_seqs]; owned; used by the pool's job only */
};

static inline struct sglang_op *sglang_of(struct generation *g)
{
    return (struct sglang_op *)(void *)g;
}

/* sglang_generate_reply.c: members of generation_ops; run on app->text_executor. */
void sglang_generate_on_tokens(struct generation *g);
void sglang_generate_finish(struct generation *g);

#endif
