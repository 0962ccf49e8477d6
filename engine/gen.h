/* What an engine is asked for, and what it yields. control/engine.h: how it is steered.
 *
 * A generation is submitted once and ends once: `done` is called exactly once after every
 * successful submit, also after a cancel or a failure. Callbacks run on the engine's thread
 * between steps, with no lock held, and must not block. */
#ifndef BATON_ENGINE_GEN_H
#define BATON_ENGINE_GEN_H

#include "base/err.h"
#include "control/engine.h"
#include "engine/logits_processor.h"
#include "weights/store/store.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GEN_STOPS_MAX = 16, /* stop strings, and stop token ids: 64 */
    GEN_STOP_IDS_MAX = 64,
    GEN_STOP_LEN_MAX = 256,    /* bytes of one stop string */
    GEN_ADAPTER_LEN_MAX = 256, /* bytes of an adapter's name */
    GEN_SALT_LEN = 32          /* a digest of what the client gave */
};

/* How to sample. Ranges are checked by gen_params_check. */
struct gen_params {
    uint32_t max_tokens;      /* >= 1; GEN_MAX_TOKENS_REST = what the context (or the whole KV
                                 cache, if that is smaller) leaves */
    uint32_t min_tokens;      /* until then eos, stop_ids and stops do not end it; the ids are
                                 masked, eos also with ignore_eos; a stop string has to be
                                 complete with a later token. All as in vLLM */
    float temperature;        /* 0 = greedy */
    float top_p;              /* (0, 1] */
    int32_t top_k;            /* 0 or -1 = off */
    float min_p;              /* [0, 1] */
    float repetition_penalty; /* > 0; of tokens in prompt or output; 1 = off */
    float frequency_penalty;  /* [-2, 2]; for each time in the output; 0 = off */
    float presence_penalty;   /* [-2, 2]; of tokens in the output; 0 = off */
    uint64_t seed;            /* always set: the caller draws one when the client gave none */
    int32_t logprobs;        /* -1 = none; k = the sampled token and the k best (0: sampled only) */
    int32_t prompt_logprobs; /* -1 = none; as logprobs */
    enum gen_logprobs_mode logprobs_mode;
    bool ignore_eos;
    bool routes;                      /* the output has the experts of each position */
    bool skip_prefix;                 /* its prompt is computed, even if its KV is there */
    unsigned char salt[GEN_SALT_LEN]; /* KV is shared among requests of one salt only */
    bool stops_see_special; /* stop strings are searched in text that shows special tokens */
    uint32_t n_stop_ids;
    uint32_t stop_ids[GEN_STOP_IDS_MAX];
    uint32_t n_stops;
    char *stops[GEN_STOPS_MAX]; /* owned by the request; UTF-8 */
    struct logits_processor
        *logits_processor; /* shared, counted; NULL: no rules for single tokens */
};
#define GEN_MAX_TOKENS_REST UINT32_MAX

/* gen_params_init - vLLM's defaults: temperature 1, top_p 1, top_k off, min_p 0, no penalties, no
 * logprobs. */
void gen_params_init(struct gen_params *p);

/* gen_params_check - ranges. Errors: ERR_BAD_REQUEST at "<prefix>/<member>" with found, allowed. */
int gen_params_check(const struct gen_params *p, const char *prefix, struct err *e);

struct gen_top {
    uint32_t id;
    float logprob;
    uint32_t rank; /* how many tokens have a logprob >= this one's */
};

struct gen_token {
    uint32_t id;
    float logprob; /* by logprobs_mode; without logprobs 0, and so is rank */
    uint32_t rank;
    uint32_t n_top;
    const struct gen_top *top; /* [n_top], best first; of the output */
    const char *version;       /* label of the span that it is in; NULL for a token of a prompt */
};

/* Half-open range of output tokens made by one version of the weights. */
struct gen_span {
    uint32_t start, end;
    uint64_t serial;
    struct version_label *name; /* counted by the output */
    const char *label;          /* the text of `name` */
};

struct gen_output {
    uint32_t n_tokens;
    const struct gen_token *tokens; /* [n_tokens]; addresses stay while it grows */
    uint32_t n_spans;
    const struct gen_span *spans;
    uint32_t n_cached; /* first tokens of the prompt whose KV was there already */
    uint32_t n_prompt;
    const struct gen_token *prompt; /* [n_prompt] when prompt_logprobs >= 0 (entry 0 has no
                                       logprob), else NULL */
    /* With gen_params.routes, else NULL: [n_routed, n_route_layers, n_routes_per_token], the ids of
     * the experts that computed a position in each sparse layer, best first. Row i is of the token
     * at position i of prompt and output together, and made the token at i + 1: the last token has
     * none. Positions computed again after a token was made keep the row that the token was made
     * with; a prompt that is computed again before its first token gets new rows. */
    const uint16_t *routes;
    uint32_t n_routed; /* n_prompt + n_tokens - 1; without tokens, what was computed of a prompt */
    uint32_t n_route_layers, n_routes_per_token;
    enum gen_finish finish;
    int64_t stop_id;         /* the stop_ids entry that ended it, or -1 */
    const char *stop_text;   /* the stop string that ended it, or NULL */
    uint32_t stop_text_cut;  /* bytes of text, at the end, that belong to the stop string
                                and what follows it in the last token; special tokens
                                have no text */
    uint64_t longest_gap_us; /* between two of its tokens */
    uint64_t first_token_us; /* from submit */
    struct err error;        /* GEN_ERROR: why */
    char adapter[GEN_ADAPTER_LEN_MAX + 1]; /* what every token was made with; "": the base model */
    uint64_t adapter_revision;             /* of it */
};

struct gen_sink {
    /* New tokens [first, out->n_tokens); with the last ones out->finish is set. May be NULL. */
    void (*tokens)(void *arg, const struct gen_output *out, uint32_t first);
    /* The end. `out` is valid until this returns, unless gen_output_take is called. */
    void (*done)(void *arg, struct gen_output *out);
};

struct adapter_use;

struct gen_request {
    uint32_t *prompt;             /* owned; token ids */
    uint32_t n_prompt;            /* >= 1 */
    enum gen_on_update on_update; /* what a commit does to it */
    struct gen_params params;    /* owns its stop strings and a reference of its logits_processor */
    struct adapter_use *adapter; /* one reference, dropped when all of it ended; NULL: none */
    const struct gen_sink *sink;
    void *sink_arg;
};
void gen_request_fini(struct gen_request *r); /* frees what it owns; accepts a zeroed one */

/* gen_output_take - inside done(): keep the output beyond it. gen_output_free when finished. */
struct gen_output *gen_output_take(struct gen_output *out);
void gen_output_free(struct gen_output *out); /* accepts NULL; any thread */

#endif
