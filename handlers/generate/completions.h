/* One running completion: a generation whose prompt and output are text. Shared by completions.c
 * (parses the request), completions_reply.c (writes the reply), chat.c (renders the prompt from
 * messages) and sglang_generate.c (SGLang's form of requests and replies). */
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

struct completions_prompt {
    char *text; /* owned; NULL for token ids that are not echoed, and once it is not needed */
    size_t len;
    uint64_t n_chars;
};

struct chat_request;

struct completions_op {
    struct generation g;  /* first: generation_ops.free gets its address */
    char *request_id;     /* owned */
    struct ticket ticket; /* in app->generate->prompt_admission */
    int64_t created_s;
    struct generation_stream stream;
    const struct generation_ops *stream_ops; /* used instead if the request streams */
    const char *prompts_at, *sampling_at;    /* JSON pointers of those members in the request */
    struct chat_request *chat;               /* owned; NULL: not a chat */
    json_t *role;                            /* owned; role of a chat's reply; NULL: assistant */
    bool prompt_sent;                        /* the first event of a chat has been sent */
    bool is_text;                            /* the prompts are text, not token ids */
    bool is_list;                            /* an array of prompts: pointers have an index */
    bool echo, add_special, return_ids, return_text /* of a chat's prompt */, as_ids;
    bool no_output; /* 0 tokens requested: the one token that the engine makes is not sent */
    int32_t logprobs, prompt_logprobs;  /* as requested; -1 = none */
    struct completions_prompt *prompts; /* [g.n_prompts]; owned */
    struct completion_text *texts;      /* [g.n_seqs]; owned; used by the pool's job only */
};

static inline struct completions_op *completions_of(struct generation *g)
{
    return (struct completions_op *)(void *)g;
}

/* The short lists of the member logprobs; the long one, top_logprobs, is written straight into the
 * reply, as is the only one of a chat. */
enum completions_logprobs {
    COMPLETIONS_TOKENS,
    COMPLETIONS_TOKEN_LOGPROBS,
    COMPLETIONS_TEXT_OFFSET,
    COMPLETIONS_LOGPROBS_N
};

/* The tokens of one sequence that have not been sent yet; `out` is set if the sequence has ended.
 */
struct completions_part {
    struct completions_op *op;
    struct generation_seq *seq;
    const struct gen_token *tokens;
    uint32_t first, end;
    const struct gen_output *out;
    const struct gen_output *echoed; /* its prompt and the logprobs of that come first; or NULL */
    struct buf text;
    struct buf logprobs[COMPLETIONS_LOGPROBS_N]; /* JSON: the entries of each list */
    bool failed;                                 /* out of memory */
};

/* completions_new - create an empty op; NULL with e set if there is no memory.
 * Until completions_begin the caller owns it (generation_unref frees it), and owns the request. */
struct completions_op *completions_new(struct app *app, struct http_request *x, struct err *e);

/* completions_init, completions_fini - the same for an op that is embedded in a larger structure,
 * which has generation_ops of its own.
 * @op  zeroed */
void completions_init(struct completions_op *op, struct app *app, struct http_request *x);
void completions_fini(struct completions_op *op);

/* completions_parse_prompts - parse text, token ids, or an array of either; set is_text and
 * is_list.
 * Errors: ERR_BAD_REQUEST at or below prompts_at, ERR_TOO_LARGE, ERR_NO_MEMORY. */
int completions_parse_prompts(struct completions_op *op, const json_t *prompt, struct err *e);

/* completions_parse_sampling - parse the sampling members of `body`; the model's defaults are used
 * for those which are missing. */
int completions_parse_sampling(struct completions_op *op, const json_t *body, struct err *e);

/* completions_set_error_field - as in generation_ops; uses prompts_at and sampling_at. */
void completions_set_error_field(const struct generation_seq *seq, struct err *e);

/* completions_begin - tokenize the prompts, queue, generate, reply. Takes ownership of the op. */
void completions_begin(struct completions_op *op);

/* completions_handle - make an op of the request's body by `parse`, and begin it.
 * Errors: those of body_parse and of `parse`; ERR_NO_MEMORY. */
int completions_handle(struct app *app, struct http_request *x,
                       int (*parse)(struct completions_op *, const json_t *, struct err *),
                       struct err *e);

/* completions_reply.c; all run on app->text_executor. */

/* completions_part_next - get the tokens of a sequence that have not been sent yet.
 * Returns false if there are none, or the sequence failed (errors are sent elsewhere). Otherwise
 * the caller writes *p, then calls completions_part_sent. */
bool completions_part_next(struct completions_part *p, struct completions_op *op,
                           struct generation_seq *seq);
void completions_part_sent(struct completions_part *p);

/* completions_put_token_ids - append the member token_ids: those of the part, or null. */
void completions_put_token_ids(struct buf *out, const struct completions_part *p);

/* completions_put_routed - append the member routed_experts: null until the sequence has ended. */
void completions_put_routed(struct buf *out, const struct completions_part *p);

/* completions_versions_json - generation_versions_json for the tokens that are sent. */
json_t *completions_versions_json(const struct completions_op *op, const struct gen_output *out);

/* Members of generation_ops. */
void completions_on_tokens(struct generation *g);
void completions_finish(struct generation *g);

#endif
