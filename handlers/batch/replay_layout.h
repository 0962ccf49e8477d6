/* replay_layout: routed experts cut for the ranks of a trainer that replays them.
 *
 * A trainer that splits its model over pipeline stages and its sequences over context-parallel
 * ranks needs on each rank only the experts of the layers and of the positions that the rank
 * computes. A request may describe the split; each choice of the reply then has one block for each
 * pair of pipeline rank and context rank. client/baton/replay.py makes the same blocks from any
 * reply.
 *
 * Layers. A stage owns consecutive layers of the model, dense ones included, of which a block has
 * the sparse ones. The first and the last stage have the number of layers that the layout gives
 * them; the other stages share what is left, each the same number and at least one. So does
 * Megatron-LM (megatron/core/transformer/transformer_config.py; get_transformer_layer_offset() in
 * transformer_layer.py there); SkyRL takes its stages from there
 * (skyrl/backends/skyrl_train/utils/replay_utils.py), as verl does
 * (verl/utils/megatron/router_replay_utils.py) and slime (slime/backends/megatron_utils/actor.py,
 * fill_routing_replay()). Megatron's account_for_embedding_in_pipeline_split (or _loss_) is a first
 * (last) stage of one layer less. Interleaved (virtual) stages have no form here.
 *
 * Positions. The sequence (prompt and output) is padded at its end to the next multiple of
 * sequence_multiple and cut into 2 * context_parallel_size chunks of one length, of which context
 * rank r has the chunks r and 2 * context_parallel_size - 1 - r, in this order: the causal mask
 * makes later chunks more work. So does Megatron-LM (get_batch_on_this_cp_rank() in
 * megatron/core/utils.py), also for packed sequences, each padded by itself, as SkyRL
 * (skyrl/backends/skyrl_train/distributed/megatron/token_metadata.py) and verl pack them.
 *
 * Rows without routing are those of the last token, which is never computed, of the padding, and of
 * what an abort left of a prompt. They name the experts 0, 1, ..., k - 1: Megatron's dispatcher
 * without dropped tokens needs k different experts in each row. SkyRL pads the same way
 * (make_replay_padding_indices()). No loss may depend on these rows. */
#ifndef BATON_HANDLERS_BATCH_REPLAY_LAYOUT_H
#define BATON_HANDLERS_BATCH_REPLAY_LAYOUT_H

#include "base/err.h"
#include "weights/model/model_config.h"

#include <jansson.h>
#include <stdint.h>

enum {
    REPLAY_CONTEXT_MAX = 256,      /* context_parallel_size */
    REPLAY_BLOCKS_MAX = 4096,      /* pairs of pipeline rank and context rank */
    REPLAY_MULTIPLE_MAX = 1 << 20, /* sequence_multiple: the length of a padded sequence */
    REPLAY_IDS_MAX = 1 << 28       /* ids in the blocks of all sequences of a request */
};

struct replay_layout {
    uint32_t n_stages, n_contexts;
    uint32_t n_first, n_last; /* layers of the first and the last stage; 0: not given */
    uint32_t sequence_multiple;
};

/* The part of one rank. */
struct replay_block {
    uint32_t pipeline_rank, context_rank;
    uint32_t first_layer, end_layer; /* counted over the sparse layers of the model */
    struct replay_chunk {
        uint32_t begin, end; /* positions of the padded sequence */
    } chunks[2];
};

/* Routes as struct gen_output has them. */
struct replay_routes {
    const uint16_t *ids; /* borrowed; [n_rows, n_layers, n_per_token] */
    uint32_t n_rows, n_layers, n_per_token;
};

/* replay_layout_parse - read a layout and compare it with the model.
 * @at     JSON pointer of `object`
 * @model  its dense layers may be anywhere; num_leading_dense_layers, if given, must be all of them
 * Errors: ERR_BAD_REQUEST at a member: it is unknown, absent, of another type or out of range, the
 *         layers cannot be shared evenly, the chunks would differ in length, or the model has other
 *         dense layers. *out is then undefined. */
int replay_layout_parse(struct replay_layout *out, const json_t *object, const char *at,
                        const struct model_config *model, struct err *e);

/* replay_layout_check_size - do the blocks of a request stay within REPLAY_IDS_MAX?
 * @n_seqs       sequences of the request
 * @n_positions  of the longest one
 * Errors: ERR_TOO_LARGE at `at`. */
int replay_layout_check_size(const struct replay_layout *l, const struct model_config *model,
                             uint64_t n_seqs, uint32_t n_positions, const char *at, struct err *e);

/* replay_padded_length - positions of a padded sequence. */
uint32_t replay_padded_length(const struct replay_layout *l, uint32_t n_positions);

/* replay_n_blocks, replay_block_at - all blocks of a sequence: those of pipeline rank 0 first, in
 * the order of their context ranks.
 * @n_positions  tokens of the sequence: prompt and output */
uint32_t replay_n_blocks(const struct replay_layout *l);
void replay_block_at(struct replay_block *out, const struct replay_layout *l,
                     const struct model_config *model, uint32_t n_positions, uint32_t i);

uint32_t replay_block_n_rows(const struct replay_block *b);

/* replay_cut - copy the rows and layers of a block.
 * @out  [replay_block_n_rows(b), end_layer - first_layer, n_per_token] */
void replay_cut(uint16_t *out, const struct replay_block *b, const struct replay_routes *routes);

#endif
