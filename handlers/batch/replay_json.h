/* The blocks of replay_layout as JSON. */
#ifndef BATON_HANDLERS_BATCH_REPLAY_JSON_H
#define BATON_HANDLERS_BATCH_REPLAY_JSON_H

#include "base/buf.h"
#include "handlers/batch/replay_layout.h"

/* replay_blocks_put - append an array of the blocks of a sequence, in the order of replay_block_at:
 * {data, shape, dtype, pipeline_rank, context_rank, layers}. `data` is base64 of ids,
 * little-endian, C order, `shape` [rows, layers, experts of a token], `dtype` the smallest of
 * uint8, int16 and int32 that holds the block's ids, `layers` the numbers of the model's layers. A
 * lack of memory sets out->failed.
 * @n_positions  tokens of the sequence: prompt and output */
void replay_blocks_put(struct buf *out, const struct replay_layout *l,
                       const struct model_config *model, const struct replay_routes *routes,
                       uint32_t n_positions);

#endif
