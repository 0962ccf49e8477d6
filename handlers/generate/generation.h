/* One running generation: an HTTP request, its permit, and its sequences in the engine.
 *
 * Life cycle: init -> announce -> watch -> enter (queue for a permit) -> granted -> submit all
 * sequences -> the last one is done -> the permit is given back -> finish sends the reply -> freed.
 * The thread that carries out the current step owns one reference (the "flow" reference). Each path
 * ends in exactly one reply. A permit that was granted is given back only after the engine is done
 * with all sequences.
 *
 *   HTTP server thread   the client disconnected: leave the queue, or cancel all sequences
 *   engine thread        tokens, done: copy pointers, count, post a job; no formatting here
 *   pool thread          on_tokens, finish: one at a time for a generation, so events are in order
 *
 * The disconnect callback holds MTX_HTTP_REQUEST and cannot run after the request is answered, so
 * the generation outlives it. The pools and the engine outlive all generations. */
#ifndef BATON_HANDLERS_GENERATE_GENERATION_H
#define BATON_HANDLERS_GENERATE_GENERATION_H

#include "base/err.h"
#include "base/jobs/workers.h"
#include "base/mtx.h"
#include "control/admission.h"
#include "control/generations.h"
#include "engine/gen.h"
#include "handlers/app.h"
#include "handlers/generate/generate_params.h"
#include "http/http_request.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    GENERATION_SEQS_MAX = 1024,                 /* prompts times n in one request */
    GENERATION_PROMPT_TOKENS_MAX = 8 * 1048576, /* in all sequences of one request */
    GENERATION_LOGPROBS_MAX = 2 * 1048576,  /* logprob entries in all sequences of one request */
    GENERATION_PROMPT_LOGPROBS_MAX = 262144 /* logprob entries of prompts in one reply */
};

struct generation;
struct generation_seq;

/* Callbacks of the operation. They run without a lock, on the generation's pool unless noted. */
struct generation_ops {
    /* There are new tokens, or a sequence ended. NULL if the reply is made at the end only. */
    void (*on_tokens)(struct generation *g);
    bool ends_only; /* on_tokens runs when a sequence ends, not for each token */
    /* The engine refused a sequence: change e->field to name a member of this operation's request.
     * May be NULL. Runs on app->generate_executor. */
    void (*set_error_field)(const struct generation_seq *seq, struct err *e);
    /* All sequences ended and the permit was given back. Must answer the request. Called once,
     * last; not called if the request failed before it got a permit. */
    void (*finish)(struct generation *g);
    /* Calls generation_fini and frees the operation, whose first member is the generation. */
    void (*free)(struct generation *g);
};

struct generation_prompt {
    uint32_t *ids; /* owned */
    uint32_t n;
};

struct generation_seq {
    /* Guarded by the generation's lock. */
    uint64_t id; /* the engine's id; 0 before it is submitted and after it ended */
    const struct gen_token *tokens; /* [n_tokens]: entries never change or move */
    uint32_t n_tokens;
    const struct gen_span *spans; /* [n_spans]: only the `end` of the last one changes */
    uint32_t n_spans;
    uint32_t n_cached;      /* as in gen_output, from the first token on */
    struct gen_output *out; /* owned; set by done */
    bool ended;
    bool aborted; /* this sequence only: cancel it as soon as it is submitted */

    /* Immutable. */
    struct generation *g;
    uint32_t index, prompt, choice; /* index = prompt * n + choice */

    uint64_t submitted_us, ended_us;        /* set by the submitter; set by done, before `ended` */
    uint32_t n_sent;                        /* pool's job: tokens sent in a stream */
    bool first_event_sent, last_event_sent; /* pool's job only */
};

struct generation {
    struct mtx lock; /* rank MTX_GENERATION; guards down to the blank line */
    uint32_t n_refs;
    uint32_t n_pending; /* sequences submitted and not ended, plus 1 until all are submitted */
    bool client_disconnected;
    bool stopped;                /* cancelled or failed: submit no more sequences */
    bool aborted;                /* cancel each sequence as soon as it is submitted */
    bool prepared;               /* prompts are final: generation_enter was called */
    bool entered;                /* admission_enter has returned for the ticket */
    bool ended;                  /* n_pending reached 0 and the permit was given back */
    bool server_stopping;        /* do not wait for slow clients any more */
    bool awaits_client;          /* send nothing until the client has read more or disconnected */
    bool job_posted, job_rerun;  /* the work job is queued or runs; it has to run once more */
    struct err err;              /* first failure */
    struct generation_seq *seqs; /* [n_seqs]; owned; set once, by generation_expand */
    uint32_t n_seqs;

    struct generations_entry entry; /* in app->generate->generations */

    /* Immutable once entered. */
    struct app *app;
    uint64_t began_us;                            /* the request arrived */
    const char *request_id;                       /* borrowed from the operation; NULL: none */
    const char *logprobs_at, *prompt_logprobs_at; /* JSON pointers of those members */
    const char *routes_start_at;                  /* the same of params.routes_start */
    bool keeps_failures; /* a sequence that fails is part of the reply; the others go on */
    bool events_repeat;  /* each event of a stream has all tokens of its sequence so far */
    uint32_t prompt_logprobs_times; /* how many times the reply contains those of a prompt */
    uint32_t prompt_logprobs_from;  /* first token of a prompt whose logprobs are in the reply */
    const char *id_prefix;          /* prefix of vLLM's ids of such requests; NULL: none */
    char *const *seq_ids; /* [n_seqs], borrowed from the operation; NULL: sequences have no ids */
    unsigned char salt[GEN_SALT_LEN]; /* as gen_params: of cache_salt, or zeros */
    char *lora;             /* owned; the adapter that `model` named; NULL: the base model */
    struct http_request *x; /* the flow's reference; the reply gives it up */
    const struct generation_ops *ops;
    struct workers *pool; /* on_tokens and finish run here */
    struct generate_params params;
    enum gen_on_update on_update;
    struct generation_prompt *prompts; /* [n_prompts]; owned */
    uint32_t n_prompts;

    /* Set by the submitter before the first sequence; then immutable. */
    uint64_t lora_revision;  /* used by all sequences; 0 until it is known */
    struct adapter_use *use; /* owned by the submitter while it submits */

    struct ticket ticket; /* in app->generate->admission */
    struct job step;      /* the flow's next step: prepare, start, fail */
    struct job work;      /* on_tokens and finish */

    bool stream_open, stream_broken; /* pool's job only */
    bool stream_behind;              /* pool's job only: on_tokens stopped, the client was slow */
    bool stream_lagged;              /* pool's job only: it stopped the last time */
    uint64_t n_unread; /* bytes of its outputs that unread_take has counted; set once, by the thread
                          that ends it or, of a stream, by the pool's job */
};

/* generation_init - initialise an empty generation with one reference, the flow's. on_update is the
 * server's default.
 * @x  generation_watch takes over this reference; until then the caller owns it */
void generation_init(struct generation *g, struct app *app, struct http_request *x,
                     const struct generation_ops *ops, struct workers *pool);
void generation_fini(struct generation *g); /* for ops->free */

/* generation_unref - drop a reference; the last one frees. Accepts NULL. */
void generation_unref(struct generation *g);

/* generation_check_app - check that there is an engine and that `model` is served.
 * Errors: ERR_NO_ENGINE without an engine; those of generation_check_model. */
int generation_check_app(const struct app *app, const char *model, struct err *e);

/* generation_check_model - look up a model name.
 * @model  NULL: the base model
 * Returns: 0 for the base model, 1 for an adapter that is loaded now, -1 with ERR_NOT_FOUND at
 * /model for any other name: a request for an adapter never gets the base model. */
int generation_check_model(const struct app *app, const char *model, struct err *e);

/* generation_check_prompt - check that a prompt of n tokens leaves at least 1 token of the context
 * for output. The message has vLLM's words "maximum context length": clients look for them, and
 * then shorten the prompt. Errors: ERR_BAD_REQUEST at `at`. */
int generation_check_prompt(const struct app *app, size_t n, const char *at, struct err *e);

/* generation_check_output - check that n output tokens are not more than the whole context. As vLLM
 * on its OpenAI routes; what exceeds the context together with the prompt is cut, not refused.
 * Errors: ERR_BAD_REQUEST at `at`. */
int generation_check_output(const struct app *app, uint32_t n, const char *at, struct err *e);

/* generation_count_seqs - compute prompts times n.
 * @at  JSON pointer of the prompts, for errors
 * Errors: ERR_BAD_REQUEST (more than GENERATION_SEQS_MAX). */
int generation_count_seqs(const struct generation *g, const char *at, uint32_t *out, struct err *e);

/* generation_make_seqs - create the sequences, n for each prompt, of which only the number is
 * known. Errors: as above; ERR_NO_MEMORY. */
int generation_make_seqs(struct generation *g, const char *at, struct err *e);

/* generation_expand - the prompts are known: check the limits, and create the sequences unless that
 * is done.
 * @at  as above
 * Errors: as above; ERR_BAD_REQUEST at logprobs_at or prompt_logprobs_at (more than --max-logprobs
 * for each token, or more in total than GENERATION_LOGPROBS_MAX or, for prompts,
 *         GENERATION_PROMPT_LOGPROBS_MAX); those of routed_experts_check; ERR_TOO_LARGE (the
 * prompts of all sequences exceed GENERATION_PROMPT_TOKENS_MAX); ERR_NO_MEMORY. */
int generation_expand(struct generation *g, const char *at, struct err *e);

/* generation_announce - from now on it is in app->generate->generations: it can be aborted, and a
 * pause that comes later is not acknowledged before it has ended. Its ids, the number of its
 * prompts and its sequences are known and change no more. Threads: the handler's. */
void generation_announce(struct generation *g);

/* generation_watch - from now on a disconnect of the client ends the generation. Takes over the
 * reference to the request. */
void generation_watch(struct generation *g);

/* generation_enter - take a permit or queue for one; if it was aborted, end without. Takes over the
 * flow's reference: the caller must not touch g afterwards. A refusal is answered here. Threads: a
 * pool's. */
void generation_enter(struct generation *g);

/* generation_fail - answer with e and drop the flow's reference. Before generation_enter only. */
void generation_fail(struct generation *g, const struct err *e);

/* generation_cancel - cancel all sequences and submit no more. Any thread. Does not block. */
void generation_cancel(struct generation *g);

/* generation_abort - end all sequences soon, with the tokens that they have; a queued generation
 * ends without tokens. Returns false if it has ended or was aborted before. Any thread; the caller
 * guarantees that it is not freed meanwhile. */
bool generation_abort(struct generation *g);

/* generation_abort_seq - the same for one sequence. If the request is queued, it stays queued. */
bool generation_abort_seq(struct generation *g, uint32_t i);

/* generation_abort_named - the abort_named of struct generations_ops. */
uint32_t generation_abort_named(void *arg, const char *const *ids, size_t n_ids);

/* generation_list - the `list` of struct generations_ops. */
size_t generation_list(void *arg, struct generations_row *rows, size_t cap);

/* generation_model - the model name for the reply: the one that the request used. */
const char *generation_model(const struct generation *g);

/* generation_failed - check in on_tokens or finish whether the reply can be complete.
 * @why  set to ERR_GONE if the client disconnected, else to the first failure; unchanged if it
 *       already holds an error
 * Returns false if nothing failed. */
bool generation_failed(struct generation *g, struct err *why);

/* generation_snapshot - get a consistent view of a sequence; *out is NULL until it ended. */
void generation_snapshot(const struct generation_seq *seq, const struct gen_token **tokens,
                         uint32_t *n, struct gen_output **out);

#endif
