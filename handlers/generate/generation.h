/* One running generate: a request's request, its permit, and its sequences in the engine.
 *
 * Life. The flow (whoever carries the request on) owns one reference. It goes: init -> watch ->
 * enter (queue for the permit) -> granted -> submit every sequence -> the last one is done -> the
 * permit goes back -> finish answers -> freed. Every path ends in one answer, and a permit that was
 * granted goes back only when the engine is done with every sequence.
 *
 *   HTTP server thread    gone: the peer left. Out of the queue, or every sequence is cancelled.
 *   engine thread   tokens, done: copy pointers, count, post. Nothing is formatted there.
 *   pool thread     news, finish: one at a time for a generation, so events keep their order.
 *
 * The peer's callback holds MTX_HTTP_REQUEST and cannot run once the request is answered, so that
 * the generation outlives it. The pools and the engine outlive every generation. */
#ifndef BATON_HANDLERS_GENERATE_GENERATION_H
#define BATON_HANDLERS_GENERATE_GENERATION_H

#include "base/err.h"
#include "base/mtx.h"
#include "base/workers.h"
#include "control/admission.h"
#include "control/generations.h"
#include "engine/engine.h"
#include "handlers/app.h"
#include "handlers/generate/generate_params.h"
#include "http/http_request.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    GENERATION_SEQS_MAX = 1024,                 /* prompts times n of one request */
    GENERATION_PROMPT_TOKENS_MAX = 8 * 1048576, /* over all sequences of one request */
    GENERATION_LOGPROBS_MAX = 2 * 1048576,      /* entries that they can come to, likewise */
    GENERATION_PROMPT_LOGPROBS_MAX = 262144     /* entries of prompts that an answer tells */
};

struct generation;
struct generation_seq;

/* What one operation does with it; no lock held, on the generation's pool but for blame. */
struct generation_ops {
    /* Tokens came, or a sequence ended. NULL when the answer is made at the end only. */
    void (*on_tokens)(struct generation *g);
    /* The engine refused a sequence: put its pointer in terms of this operation's members. May be
     * NULL. On app->generate_executor. */
    void (*set_error_field)(const struct generation_seq *seq, struct err *e);
    /* Every sequence ended and the permit is back. Must answer the request. Called once, last;
     * not called when the request failed before it got a permit. */
    void (*finish)(struct generation *g);
    /* Frees the operation, whose first member is the generation, after generation_fini. */
    void (*free)(struct generation *g);
};

struct generation_prompt {
    uint32_t *ids; /* owned */
    uint32_t n;
};

struct generation_seq {
    /* Guarded by the generation's lock. */
    uint64_t id; /* of the engine; 0 while it has none, and when it ended */
    const struct gen_token
        *tokens; /* [n_tokens]: entries never change or move once they are there */
    uint32_t n_tokens;
    struct gen_output *out; /* owned; set by done */
    bool ended;
    bool aborted; /* alone: what is submitted is cancelled at once */

    /* Immutable. */
    struct generation *g;
    uint32_t index, prompt, choice; /* index = prompt * n + choice */

    uint64_t submitted_us, ended_us; /* of the submitter; of done, before `ended` */
    uint32_t n_sent;                 /* of the pool's job: tokens told in a stream */
    bool first_event_sent,
        last_event_sent; /* of the pool's job: first event sent; last event sent */
};

struct generation {
    struct mtx lock; /* rank MTX_GENERATION; guards down to the blank line */
    uint32_t n_refs;
    uint32_t n_pending; /* sequences submitted and not ended, plus one until all are submitted */
    bool client_disconnected;    /* the peer left */
    bool stopped;                /* cancelled or failed: submit no more */
    bool aborted;                /* what is submitted is cancelled at once */
    bool entered;                /* the ticket has been through admission_enter */
    bool ended;                  /* n_open reached 0 and the permit is back */
    bool server_stopping;        /* the server stops: wait for no client */
    bool awaits_client;          /* nothing is told until the client has taken more, or has gone */
    bool job_posted, job_rerun;  /* the work job is posted or runs; it has to look once more */
    struct err err;              /* first failure */
    struct generation_seq *seqs; /* [n_seqs]; owned; set once, by generation_expand */
    uint32_t n_seqs;

    struct generations_entry entry; /* of app->generate->generations */

    /* Immutable once entered. */
    struct app *app;
    const char *request_id;                       /* borrowed from the operation; NULL: none */
    const char *logprobs_at, *prompt_logprobs_at; /* pointers of those members in the request */
    bool events_repeat; /* an event of a stream tells all tokens of its sequence so far */
    uint32_t prompt_logprobs_times; /* how often the answer tells those of a prompt */
    uint32_t prompt_logprobs_from;  /* first token of a prompt whose logprobs it tells */
    const char *id_prefix;          /* what vLLM's ids of such requests begin with; NULL: nothing */
    char *const *seq_ids;           /* [n_seqs], borrowed from it; NULL: sequences have no names */
    char *lora;             /* owned; the adapter that `model` named; NULL: the base model */
    struct http_request *x; /* the flow's reference; given up by the answer */
    const struct generation_ops *ops;
    struct workers *pool; /* where news and finish run */
    struct generate_params params;
    enum gen_on_update on_update;
    struct generation_prompt *prompts; /* [n_prompts]; owned */
    uint32_t n_prompts;

    /* Of the submitter, before the first sequence; immutable then. */
    uint64_t lora_revision;  /* that all sequences use; 0 while none is known */
    struct adapter_use *use; /* owned by the submitter while it submits */

    struct ticket ticket; /* of app->generate->admission */
    struct job step;      /* of the flow: prepare, start, forget */
    struct job work;      /* news and finish */

    bool stream_open, stream_broken; /* of the pool's job */
    bool stream_lagged;              /* of it: its client was behind when the last one looked */
};

/* generation_init - an empty generation with one reference, the flow's; on_update is the server's.
 * @x     the flow's reference moves in with generation_watch; until then it is the caller's */
void generation_init(struct generation *g, struct app *app, struct http_request *x,
                     const struct generation_ops *ops, struct workers *pool);
void generation_fini(struct generation *g); /* for ops->free */

/* generation_unref - drop a reference; the last one frees. Accepts NULL. */
void generation_unref(struct generation *g);

/* generation_check_app - ERR_NO_ENGINE without an engine; what generation_check_model says of
 * `model`. */
int generation_check_app(const struct app *app, const char *model, struct err *e);

/* generation_check_model - @model  NULL: the base model
 * Returns: 0 it is the base model, 1 an adapter that is loaded now; -1 with ERR_NOT_FOUND at
 * /model: who names an adapter never gets the base model. */
int generation_check_model(const struct app *app, const char *model, struct err *e);

/* generation_check_prompt - does a prompt of n tokens fit the context, with room for one more?
 * Clients know the words "maximum context length" of vLLM, and then shorten the prompt.
 * Errors: ERR_BAD_REQUEST at `at`. */
int generation_check_prompt(const struct app *app, size_t n, const char *at, struct err *e);

/* generation_check_output - could n output tokens fit the context, without any prompt? vLLM refuses
 * more on its OpenAI routes, and clips the rest. Errors: ERR_BAD_REQUEST at `at`. */
int generation_check_output(const struct app *app, uint32_t n, const char *at, struct err *e);

/* generation_count_seqs - prompts times n.
 * @at  pointer of the prompts, for errors
 * Errors: ERR_BAD_REQUEST (more than GENERATION_SEQS_MAX). */
int generation_count_seqs(const struct generation *g, const char *at, uint32_t *out, struct err *e);

/* generation_expand - make the sequences, n for each prompt.
 * @at  as above
 * Errors: as above; ERR_BAD_REQUEST at logprobs_at or prompt_logprobs_at (more with each token than
 *         --max-logprobs, or more in all than GENERATION_LOGPROBS_MAX or, of the prompts,
 *         GENERATION_PROMPT_LOGPROBS_MAX); ERR_TOO_LARGE (the prompts of all sequences pass
 *         GENERATION_PROMPT_TOKENS_MAX), ERR_NO_MEMORY. */
int generation_expand(struct generation *g, const char *at, struct err *e);

/* generation_watch - from now on the peer's leaving ends it, and the request is the flow's. */
void generation_watch(struct generation *g);

/* generation_enter - take a permit or queue for it; the flow's reference moves on. A refusal is
 * answered here. The caller must not touch g afterwards. Threads: a pool's. */
void generation_enter(struct generation *g);

/* generation_fail - answer with e and give up the flow's reference; before generation_enter only.
 */
void generation_fail(struct generation *g, const struct err *e);

/* generation_cancel - end every sequence soon, and submit no more. Any thread. */
void generation_cancel(struct generation *g);

/* generation_abort - end every sequence soon, with the tokens that it has; one that queues ends
 * without any. Returns false when it has ended or was aborted before. Any thread; the caller sees
 * to it that it is not freed. */
bool generation_abort(struct generation *g);

/* generation_abort_seq - the same for one sequence; while its request queues, it queues on. */
bool generation_abort_seq(struct generation *g, uint32_t i);

/* generation_abort_named - abort_named of struct generations_ops. */
uint32_t generation_abort_named(void *arg, const char *const *ids, size_t n_ids);

/* generation_model - what the reply calls the model: the name that the request used. */
const char *generation_model(const struct generation *g);

/* generation_failed - in news or finish: why there is no whole answer (ERR_GONE when the peer
 * left, else the first failure). What is in `why` already stays. Returns false when all is well. */
bool generation_failed(struct generation *g, struct err *why);

/* generation_snapshot - a consistent view of a sequence: out is NULL until it ended. */
void generation_snapshot(const struct generation_seq *seq, const struct gen_token **tokens,
                         uint32_t *n, struct gen_output **out);

#endif
