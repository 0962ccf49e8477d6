/* The experts that computed each position, in requests and replies: return_routed_experts.
 *
 * Row i of a reply is the routing of the token at position start + i of prompt and output together,
 * with which the token after it was made: weight_versions of that token are those of the row. The
 * last token of an output has no row. */
#ifndef BATON_HANDLERS_GENERATE_ROUTED_EXPERTS_H
#define BATON_HANDLERS_GENERATE_ROUTED_EXPERTS_H

#include "base/buf.h"
#include "handlers/batch/replay_layout.h"
#include "handlers/generate/generation.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Ids of experts in all sequences of one request, two bytes of memory each. */
enum { GENERATION_ROUTES_MAX = 256 * 1048576 };

/* [rows, layers, experts of a token], little-endian, base64. The native form has the sparse layers
 * only; the others have every layer of the model, dense ones with zeros, because their clients look
 * layers up by number. */
enum routed_form {
    ROUTED_NATIVE,   /* {data, shape, dtype, start, layers}; the smallest dtype for its ids */
    ROUTED_SKYRL,    /* {data, shape, dtype}; the same dtype */
    ROUTED_PRIME_RL, /* {data, shape, start, dtype}; uint8, or uint16 above 256 experts */
    ROUTED_NPY,      /* vLLM: a .npy file; the same dtype */
    ROUTED_INT32     /* SGLang: int32 without a shape */
};

/* routed_experts_ask - ask for routed experts, or not.
 * Errors: ERR_BAD_REQUEST at /return_routed_experts (the model has no experts). */
int routed_experts_ask(struct generation *g, bool asked, struct err *e);

/* routed_experts_check - check what the prompts decide, before anything is computed.
 * Errors: ERR_BAD_REQUEST at g->routes_start_at (not within a prompt), at /return_routed_experts
 * (more than GENERATION_ROUTES_MAX). */
int routed_experts_check(const struct generation *g, struct err *e);

/* routed_experts_parse_replay - read replay_layout, after the sampling members and the prompts.
 * @out     n_stages is 0 if there is none
 * @layout  NULL: none
 * Errors: ERR_BAD_REQUEST at /replay_layout (the request does not ask for routed experts) or at a
 *         member of it, ERR_TOO_LARGE at /replay_layout: those of replay_layout_parse and
 *         replay_layout_check_size. */
int routed_experts_parse_replay(struct replay_layout *out, const struct generation *g,
                                const json_t *layout, struct err *e);

/* routed_experts_put - append the value: null while `made` is NULL, and for a request that did not
 * ask.
 * @n_tokens  output tokens that the reply has: made's, or 0 */
void routed_experts_put(struct buf *out, const struct generation_seq *seq,
                        const struct gen_output *made, uint32_t n_tokens, enum routed_form form);

/* routed_experts_put_blocks - append the blocks of a layout (handlers/batch/replay_json.h). They
 * are of the whole sequence, also where routed_experts begins later. */
void routed_experts_put_blocks(struct buf *out, const struct generation_seq *seq,
                               const struct gen_output *made, const struct replay_layout *layout);

#endif
