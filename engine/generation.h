/* The storage behind a struct gen_output: for engines, which make it, fill it and give it to
 * `done`.
 *
 * Everything that a generation can need is allocated when it is submitted, so that its tokens never
 * move and the step loop does not allocate. Large blocks cost only address space until they are
 * written. There are as many spans as tokens, because the number of versions that a sequence will
 * read is not known in advance. */
#ifndef BATON_ENGINE_GENERATION_H
#define BATON_ENGINE_GENERATION_H

#include "base/err.h"
#include "engine/gen.h"

#include <stdbool.h>
#include <stdint.h>

struct gen_record_cfg {
    uint32_t n_tokens_max; /* output tokens, >= 1 */
    uint32_t n_prompt;
    int32_t logprobs;                            /* as gen_params */
    int32_t prompt_logprobs;                     /* as gen_params; -1: no prompt entries */
    uint32_t n_route_layers, n_routes_per_token; /* 0: no routes */
};

struct gen_record {
    struct gen_output out; /* first: gen_output_free finds the record through it */

    struct gen_token *tokens;    /* owned; [n_tokens_max] */
    struct gen_top *tops;        /* owned; [n_tokens_max, logprobs], NULL when none */
    struct gen_token *prompt;    /* owned; [n_prompt], NULL when none */
    struct gen_top *prompt_tops; /* owned; [n_prompt, prompt_logprobs], NULL when none */
    struct gen_span *spans;      /* owned; [n_tokens_max]; each counts its name */
    uint16_t *routes; /* owned; [n_prompt + n_tokens_max - 1, n_route_layers, n_routes_per_token],
                         NULL when none */
    struct gen_record_cfg cfg;
    char stop_text[GEN_STOP_LEN_MAX + 1];
    bool *taken; /* of gen_record_tell, while `done` may take it; else NULL. Not a flag in here,
                    because a `done` that takes the record may free it at once. */
};

/* gen_record_new - an output without tokens, GEN_RUNNING. Errors: ERR_NO_MEMORY. */
int gen_record_new(struct gen_record **out, const struct gen_record_cfg *cfg, struct err *e);
void gen_record_free(struct gen_record *r); /* accepts NULL */

/* gen_record_tell - call `done`, exactly once. Returns true when `done` took the record. The new
 * owner may free it at once, on any thread: nothing of it is touched after the call. */
bool gen_record_tell(struct gen_record *r, const struct gen_sink *sink, void *sink_arg);

/* gen_record_top - where the k best of output token `i`, or of prompt token `i`, are written;
 * [logprobs] or [prompt_logprobs] entries, NULL when there are none. */
struct gen_top *gen_record_top(struct gen_record *r, uint32_t i);
struct gen_top *gen_record_prompt_top(struct gen_record *r, uint32_t i);

/* gen_record_routes - where the step that computes position `pos` writes its experts: as
 * model_row.routes. NULL when there are no routes, and for a position that keeps its row. Positions
 * come in ascending order, from 0 again where they are computed again. */
uint16_t *gen_record_routes(struct gen_record *r, uint32_t pos);

/* gen_record_append - append a token made by version `serial`: the last span grows, or a new one
 * begins, also when only the name is new: weights can be renamed. No allocation.
 * @name  borrowed; a new span takes a reference
 * Asserts that n_tokens_max is not passed. */
void gen_record_append(struct gen_record *r, const struct gen_token *t, uint64_t serial,
                       struct version_label *name);

#endif
