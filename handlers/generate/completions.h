/* One running completion: a generation with text on both sides. Shared by completions.c, which
 * reads the request, completions_reply.c, which writes the answer, chat.c, whose prompt is made of
 * messages, and sglang_generate.c, whose requests and answers are another server's. */
#ifndef BATON_HANDLERS_GENERATE_COMPLETIONS_H
#define BATON_HANDLERS_GENERATE_COMPLETIONS_H

#include "handlers/generate/completion_text.h"
#include "handlers/generate/generation.h"
#include "handlers/generate/generation_parse.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    COMPLETIONS_PROMPTS_MAX = GENERATION_SEQS_MAX,
    COMPLETIONS_PROMPT_NBYTES_MAX = 4 << 20, /* text of all prompts together */
    COMPLETIONS_MAX_TOKENS_DEFAULT = 16
};

/* What SGLang's servers take on these routes beside what vLLM's do; refused unless neutral. */
#define COMPLETIONS_SGLANG_NEUTRAL(X)                                                              \
    X("lora_path", NEUTRAL_EMPTY, 0)                                                               \
    X("json_schema", NEUTRAL_EMPTY, 0)                                                             \
    X("regex", NEUTRAL_EMPTY, 0)                                                                   \
    X("ebnf", NEUTRAL_EMPTY, 0)                                                                    \
    X("structural_tag", NEUTRAL_EMPTY, 0)                                                          \
    X("stop_regex", NEUTRAL_EMPTY, 0)                                                              \
    X("no_stop_trim", NEUTRAL_FALSE, 0)                                                            \
    X("custom_logit_processor", NEUTRAL_EMPTY, 0)                                                  \
    X("return_hidden_states", NEUTRAL_FALSE, 0)
#define COMPLETIONS_RULE(member, kind, number) {member, kind, number},

struct completions_prompt {
    char *text; /* owned; NULL for token ids that are not echoed */
    size_t len;
    uint64_t n_chars;
};

struct chat_request;

struct completions_op {
    struct generation g;  /* first: generation_ops.free gets its address */
    char *request_id;     /* owned */
    struct ticket ticket; /* of app->generate->prompt_admission */
    int64_t created_s;
    struct generation_stream stream;
    const struct generation_ops *stream_ops; /* those of one that streams */
    const char *prompts_at, *sampling_at;    /* pointers of those members in the request */
    struct chat_request *chat;               /* owned; NULL: no chat */
    json_t *role;                            /* owned; whose a chat's answer is; NULL: assistant */
    bool prompt_sent;                        /* a chat's first event has gone */
    bool is_text;                            /* prompts came as text */
    bool is_list;                            /* more than one could be given: pointers say which */
    bool echo, add_special, return_ids, as_ids;
    bool no_output; /* 0 tokens are asked for: the one that is made is not told */
    int32_t logprobs, prompt_logprobs;  /* asked for; -1 = none */
    struct completions_prompt *prompts; /* [g.n_prompts]; owned */
    struct completion_text *texts;      /* [g.n_seqs]; owned; of the pool's job */
};

static inline struct completions_op *completions_of(struct generation *g)
{
    return (struct completions_op *)(void *)g;
}

/* The lists of `logprobs`. A chat has one, of objects. */
enum completions_logprobs {
    COMPLETIONS_TOKENS,
    COMPLETIONS_CONTENT = COMPLETIONS_TOKENS,
    COMPLETIONS_TOKEN_LOGPROBS,
    COMPLETIONS_TOP_LOGPROBS,
    COMPLETIONS_TEXT_OFFSET,
    COMPLETIONS_LOGPROBS_N
};

/* Some tokens of one sequence: those after what was told, and the end when out is there. */
struct completions_part {
    struct completions_op *op;
    struct generation_seq *seq;
    const struct gen_token *tokens;
    uint32_t first, end;
    const struct gen_output *out;
    struct buf text;
    struct buf logprobs[COMPLETIONS_LOGPROBS_N]; /* JSON: what the lists of `logprobs` hold */
    bool failed;                                 /* no memory */
};

/* completions_new - an empty op; NULL with e set when there is no memory. Until completions_begin
 * the caller drops it with generation_unref, and the request stays the caller's. */
struct completions_op *completions_new(struct app *app, struct http_request *x, struct err *e);

/* completions_init, completions_fini - the same for one that is a part of something larger, whose
 * operations are its own.
 * @op  zeroed */
void completions_init(struct completions_op *op, struct app *app, struct http_request *x);
void completions_fini(struct completions_op *op);

/* completions_parse_prompts - text, token ids, or an array of either; sets is_text and is_list.
 * @prompt  NULL: missing
 * Errors: ERR_BAD_REQUEST at or below prompts_at, ERR_TOO_LARGE, ERR_NO_MEMORY. */
int completions_parse_prompts(struct completions_op *op, const json_t *prompt, struct err *e);

/* completions_parse_sampling - the sampling members of `body`, over the model's defaults. */
int completions_parse_sampling(struct completions_op *op, const json_t *body, struct err *e);

/* completions_set_error_field - of generation_ops; in terms of prompts_at and sampling_at. */
void completions_set_error_field(const struct generation_seq *seq, struct err *e);

/* completions_begin - make the prompts ready, queue, generate, answer; the op is the flow's. */
void completions_begin(struct completions_op *op);

/* Of completions_reply.c, on app->text_executor. */

/* completions_part_next - what there is to tell of a sequence since the last time. Returns false
 * when nothing is; else the caller tells *p, then calls completions_part_sent. An error is told
 * elsewhere. */
bool completions_part_next(struct completions_part *p, struct completions_op *op,
                           struct generation_seq *seq);
void completions_part_sent(struct completions_part *p);

/* completions_put_token_ids - the member token_ids: of the part, or null. */
void completions_put_token_ids(struct buf *out, const struct completions_part *p);

/* completions_versions_json - generation_versions_json, of what is told. */
json_t *completions_versions_json(const struct completions_op *op, const struct gen_output *out);

/* As generation_ops says. */
void completions_on_tokens(struct generation *g);
void completions_finish(struct generation *g);

#endif
