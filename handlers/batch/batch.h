/* Rollouts as tensors: finished sequences become one safetensors body that a trainer maps.
 *
 * A batch has N rows, one for each sequence, and W columns, one for each position. In both layouts
 * the responses lie in the last `response_width` columns:
 *
 *   left_padded   [pad pad prompt|response pad]   all prompts end at the same column, all responses
 *                 [prompt  prompt|response    ]   begin there; each part has its own width
 *   tight         [pad pad prompt response]       prompt and response together, right-aligned;
 *                 [prompt  prompt response]       W is the longest sum of both
 *
 * Each width is the smallest multiple of `sequence_multiple` that has room, except for the
 * response_width of `tight`: the longest response.
 *
 * | tensor           | dtype | shape        | value; value at padding | | input_ids        | I32 |
 * [N, W]       | token ids; pad_token_id                               | | position_ids     | I32
 * | [N, W]       | 0, 1, ... from the first token of the prompt; 0       | | logprobs         | F32
 * | [N, W]       | of the response's tokens, as JSON replies have them;  | |                  | |
 * | 0 elsewhere, also in the prompt                       | | versions         | I32   | [N, W] |
 * index in "versions" of the metadata for tokens of the | |                  |       | | response;
 * -1 elsewhere                                | | prompt_offsets, prompt_lengths, response_offsets,
 * response_lengths                             | |                  | I32   | [N]          | first
 * column, and number of columns                   | | groups           | I32   | [N]          | the
 * prompt of the request, or the trajectory          | | samples          | I32   | [N]          |
 * 0..n-1 in the group                                   | | steps            | I32   | [N] | if
 * there are steps: as requested                      | | route_lengths    | I32   | [N]          |
 * if there are routes: rows from prompt_offsets on that | |                  |       | | have been
 * routed                                      | | routed_experts   | U8, I16 or I32 | [N, W,
 * layers, top_k] | if there are routes: ids of experts,| |                  |       | | best first;
 * 0, 1, ... top_k - 1 where nothing has     | |                  |       |              | been
 * routed: ids that differ, as a router's do        | | attention_mask   | BOOL  | [N, W]       |
 * true for tokens; false                                | | loss_mask        | BOOL  | [N, W] |
 * true for tokens of the response, unless the sequence  | |                  |       | | failed;
 * false elsewhere                               | | finish_reasons   | U8    | [N]          | index
 * in "finish_reasons" of the metadata             | | is_last_step     | BOOL  | [N]          | if
 * there are steps: the last one of its trajectory    |
 *
 * `__metadata__` has "format": "pt", and in "baton.rollouts" the text of a JSON object: what the
 * caller gives, and the members that batch_build adds. docs/rollouts.md lists them.
 *
 * Nothing here knows of requests in flight, of engines or of upstreams. Threads: any. Blocks: no.
 */
#ifndef BATON_HANDLERS_BATCH_BATCH_H
#define BATON_HANDLERS_BATCH_BATCH_H

#include "base/err.h"
#include "engine/gen.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum batch_layout { BATCH_LEFT_PADDED, BATCH_TIGHT };

enum {
    BATCH_FORMAT = 1, /* "format" of the metadata: raised when a reader must change */
    BATCH_SEQUENCE_MULTIPLE_MAX = 65536,
    BATCH_NBYTES_MAX = 1 << 30,   /* tensors of one batch */
    BATCH_TRAJECTORY_ID_MAX = 256 /* bytes */
};

/* A JSON number must be finite, and some clients refuse anything below this. */
#define BATCH_LOGPROB_MIN (-9999.0F)

/* batch_logprob - a logprob as every reply has it: at least BATCH_LOGPROB_MIN, also if not finite.
 */
float batch_logprob(float logprob);

/* Which step of which trajectory a prompt is. */
struct batch_step {
    uint32_t trajectory; /* index: 0, 1, ... in the order of the request */
    uint32_t step;
    char id[BATCH_TRAJECTORY_ID_MAX + 1]; /* of the trajectory */
};

/* How a batch is laid out: members of a request. */
struct batch_options {
    int layout;                 /* enum batch_layout */
    uint32_t sequence_multiple; /* >= 1 */
    uint32_t pad_token_id;
    struct batch_step
        *steps; /* owned; [n_prompts] of the request; NULL: the prompts are not steps */
    uint32_t n_prompts;
};

/* batch_options_parse - read the members of `body`; those that are missing get their defaults:
 * left_padded, 1, 0, no steps.
 * @n_prompts   of the request; `steps` has one entry for each
 * @vocab_size  pad_token_id must be below it
 * Steps of one trajectory must be adjacent and ascend by 1: a trainer maps rows to trajectories by
 * their order, and would silently take one for another.
 * Errors: ERR_BAD_REQUEST at the member, or at /steps/<i>; ERR_NO_MEMORY. The caller calls
 *         batch_options_fini also after an error. */
int batch_options_parse(struct batch_options *out, const json_t *body, uint32_t n_prompts,
                        uint32_t vocab_size, struct err *e);
void batch_options_fini(struct batch_options *o); /* accepts a zeroed one */

/* A group of rows: those of one prompt, or of one trajectory: its prompts [first, end). In a batch
 * the groups follow each other, in a group the samples, in a sample the prompts: the steps. */
struct batch_group {
    uint32_t first, end;
};

/* batch_group_of - the group that prompt `i` is in. */
struct batch_group batch_group_of(const struct batch_options *o, uint32_t i);

/* Routed experts: ids below n_experts. */
struct batch_routes {
    uint32_t n_experts, n_layers, top_k; /* n_experts 0: the batch has no routes */
};

/* One sequence. Pointers are borrowed. */
struct batch_row {
    uint32_t prompt, sample;    /* index in the request; 0..n-1 */
    const uint32_t *prompt_ids; /* [n_prompt] */
    uint32_t n_prompt;
    const struct gen_output *out; /* ended: tokens, spans, finish, error, routes */
};

/* The shape of a batch, collected row by row. A zeroed one has no rows. */
struct batch_shape {
    uint64_t n_rows, prompt_max, response_max, sum_max;
};
void batch_shape_add(struct batch_shape *s, uint64_t n_prompt, uint64_t n_response);

/* batch_nbytes - bytes of the tensors of such a batch; UINT64_MAX if they are even more. */
uint64_t batch_nbytes(const struct batch_shape *s, const struct batch_options *o,
                      const struct batch_routes *routes);

struct batch {
    const struct batch_options *options;
    const struct batch_row *rows; /* [n_rows], in the order of the batch */
    uint32_t n_rows;              /* >= 1 */
    struct batch_routes routes;
    json_t *metadata; /* an object: further members of "baton.rollouts"; stolen by batch_build,
                         also if it fails. NULL: there was no memory to make it */
};

/* batch_build - make the body.
 * @out  on success malloc'ed, the caller's; *nbytes long
 * Errors: ERR_TOO_LARGE (more than BATCH_NBYTES_MAX), ERR_NO_MEMORY; *out is then untouched. */
int batch_build(char **out, size_t *nbytes, const struct batch *b, struct err *e);

/* batch_build_end - the same without tensors, for the end of a stream of batches.
 * @metadata  all members of "baton.rollouts"; stolen; NULL: as above
 * Errors: ERR_NO_MEMORY. */
int batch_build_end(char **out, size_t *nbytes, json_t *metadata, struct err *e);

#endif
