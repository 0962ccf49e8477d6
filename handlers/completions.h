/* One running completion: a generation with text on both sides. Shared by completions.c, which
 * reads the request, completions_reply.c, which writes the answer, and chat.c, whose prompt is made
 * of messages. */
#ifndef BATON_HANDLERS_COMPLETIONS_H
#define BATON_HANDLERS_COMPLETIONS_H

#include "handlers/completion_text.h"
#include "handlers/generation.h"
#include "handlers/generation_parse.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    COMPLETIONS_PROMPTS_MAX = GENERATION_SEQS_MAX,
    COMPLETIONS_PROMPT_NBYTES_MAX = 4 << 20, /* text of all prompts together */
    COMPLETIONS_MAX_TOKENS_DEFAULT = 16
};

struct completions_prompt {
    char *text; /* owned; NULL for token ids that are not echoed */
    size_t len;
    uint64_t n_chars;
};

struct chat_request;

struct completions_op {
    struct generation g;  /* first: generation_ops.free gets its address */
    char *request_id;     /* owned */
    struct ticket ticket; /* of app->prompts */
    int64_t created_s;
    struct generation_stream stream;
    struct chat_request *chat; /* owned; NULL: /v1/completions */
    bool prompt_told;          /* a chat's prompt ids were sent */
    bool is_text; /* prompts came as text */
    bool is_list; /* more than one could be given: pointers say which */
    bool echo, add_special, return_ids, as_ids;
    int32_t logprobs, prompt_logprobs;  /* asked for; -1 = none */
    struct completions_prompt *prompts; /* [g.n_prompts]; owned */
    struct completion_text *texts;      /* [g.n_seqs]; owned; of the pool's job */
};

static inline struct completions_op *completions_of(struct generation *g)
{
    return (struct completions_op *)(void *)g;
}

/* Some tokens of one sequence: those after what was told, and the end when out is there. */
struct completions_part {
    struct completions_op *op;
    struct generation_seq *seq;
    const struct gen_token *tokens;
    uint32_t first, end;
    const struct gen_output *out;
    struct buf text;
    json_t *logprobs; /* as the route tells them, or NULL when not asked for */
    bool failed;      /* no memory */
};

/* completions_new - an empty op; NULL with e set when there is no memory. Until completions_begin
 * the caller drops it with generation_unref, and the exchange stays the caller's. */
struct completions_op *completions_new(struct app *app, struct exchange *x, struct err *e);

/* completions_sampling - the sampling members of `body`, over the model's defaults. */
int completions_sampling(struct completions_op *op, const json_t *body, struct err *e);

/* completions_begin - make the prompts ready, queue, generate, answer; the op is the flow's. */
void completions_begin(struct completions_op *op);

/* Of completions_reply.c; as generation_ops says, on app->text. */
void completions_news(struct generation *g);
void completions_finish(struct generation *g);

#endif
