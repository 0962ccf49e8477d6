/* One generation inside the embedded engine: its tokens so far, how many of them were fed to the
 * model, and when it has to stop. Threads: the engine's only, except where noted. */
#ifndef BATON_ENGINE_SCHEDULER_SEQUENCE_H
#define BATON_ENGINE_SCHEDULER_SEQUENCE_H

#include "base/buf.h"
#include "base/err.h"
#include "engine/generation.h"
#include "engine/model/kv.h"
#include "engine/sampler/token_counts.h"
#include "engine/sampler/token_selector.h"
#include "text/tokenizer.h"
#include "weights/model/model_config.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A sequence with `recompute` whose KV was discarded this often since its last token pins the
 * version that it reads next until it has a token: otherwise rapid commits could delay it for ever.
 */
enum { SEQ_REBUILDS_MAX = 2 };

/* What every sequence of an engine is checked against. Immutable. */
struct seq_rules {
    uint32_t vocab_size, max_model_len;
    uint64_t kv_tokens_max;                      /* of the whole pool */
    uint32_t n_route_layers, n_routes_per_token; /* as engine_info */
    uint32_t n_eos;
    uint32_t eos[MODEL_EOS_MAX];
    const struct tokenizer *tokenizer; /* borrowed; NULL: stop strings are refused */
    size_t token_text_max;             /* bytes of the longest token's text */
};

struct seq {
    struct seq *next_live; /* of the engine's table; guarded by its lock */
    uint64_t id;           /* immutable once submitted */
    atomic_bool cancelled; /* set by any thread, relaxed: the step loop looks every turn */

    /* Immutable after seq_new. */
    const struct seq_rules *rules; /* borrowed */
    struct gen_request req;        /* owned */
    uint32_t n_out_max;            /* output tokens at most: max_tokens and the context */
    uint32_t n_kv;                 /* positions that it can need; the last token is never fed */
    uint32_t n_early;              /* ids that min_tokens forbids, first in `masked` */
    size_t stop_len_max;           /* of the longest stop string; 0 without one */
    unsigned char kv_scope[KV_SCOPE_LEN]; /* of the keys of its KV */
    uint64_t submit_us;

    /* Engine thread. */
    struct seq *next;       /* of the inbox (guarded by the engine's lock), the waiting list, or
                               the free_queue's */
    struct gen_record *rec; /* owned; NULL once `done` has it */
    struct kv_seq kv;       /* prepared by seq_new */
    uint32_t n_fed;         /* tokens whose KV is there */
    uint32_t n_step;        /* of them, by the step that is being made */
    uint32_t n_lost;        /* tokens whose KV was written once and discarded */
    uint32_t n_rebuilds;    /* how often, since the last output token */
    uint64_t kv_serial; /* of the version that its KV begins with, which with recompute all of it
                           is of */
    const struct version *version; /* pinned; NULL: it reads what is served. Set from its first row
                                      on with `finish`, and see SEQ_REBUILDS_MAX */
    uint32_t n_reported;           /* output tokens that were passed to the sink */
    uint64_t last_token_us;
    struct detok detok;         /* with stop strings only, as is tail */
    uint32_t n_peeked;          /* bytes that detok holds, searched with the last token */
    struct buf tail;            /* text in which a stop string may still begin */
    struct token_counts counts; /* with penalties only, else zeroed */
    uint32_t *masked; /* owned; [n_early, then one for each bad word], those of this token last */
};

/* seq_new - check a request and allocate all that it can need.
 * @r  moved in on success only
 * Threads: any. Errors: as engine_ops.submit, without those that depend on state. */
int seq_new(struct seq **out, const struct seq_rules *rules, struct gen_request *r, struct err *e);

/* seq_give_back - undo seq_new: the request is the caller's again, the sequence is freed. */
void seq_give_back(struct seq *q, struct gen_request *r);

/* seq_free - @q  holds neither chunks of KV nor a version any more. Accepts NULL. */
void seq_free(struct seq *q);

/* seq_n_known - tokens of prompt and output together. */
uint32_t seq_n_known(const struct seq *q);

/* seq_forget_kv - give the KV back; all tokens are fed again before the next one is made. */
void seq_forget_kv(struct seq *q);

/* seq_may_share - may its prompt's KV be another sequence's? Not when rows of the prompt report
 * something besides KV. */
bool seq_may_share(const struct seq *q);

/* seq_token - token `pos` of prompt and output together. */
uint32_t seq_token(const struct seq *q, uint32_t pos);

/* seq_wants_logits - is the row of `pos` needed for more than its KV? The last token's is, and with
 * prompt logprobs those of the prompt, until there is output. */
bool seq_wants_logits(const struct seq *q, uint32_t pos);

/* Which weights a step reads, and when. */
struct seq_step {
    uint64_t serial;
    struct version_label *name; /* borrowed */
    uint64_t now_us;
};

/* seq_ask - what to make of the logits of position `pos`: a prompt logprob, or the next token (the
 * last row of a prompt makes only a token).
 * @out  without its logits; borrows from the sequence, until seq_take */
void seq_ask(struct seq *q, uint32_t pos, struct choice *out);

/* seq_take - use what token_selector_run made of it. Sets out.finish when the sequence is at its
 * end; one that has ended stays as it is. No allocation. */
void seq_take(struct seq *q, uint32_t pos, const struct choice *c, const struct seq_step *step);

/* seq_blames - do the results of this sequence depend on these weights alone? False with an
 * adapter, and false where the step read KV that older weights made. */
bool seq_blames(const struct seq *q, uint64_t serial);

#endif
