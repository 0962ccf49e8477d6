/* replay_layout of a request, as JSON; its first byte is the length of a sequence. A refusal names
 * a member; the blocks of what is accepted have every position of every sparse layer once. */
#include "tests/fuzz/fuzz.h"

#include "handlers/batch/replay_layout.h"

#include <jansson.h>

enum { N_LAYERS = 12, SPARSE = 0xffe /* bit i: layer i; the first is dense */, N_SPARSE = 11 };

static const char at[] = "/replay_layout";
static const enum err_code codes[] = {ERR_BAD_REQUEST, ERR_TOO_LARGE, ERR_NONE};
static const struct model_config model = {
    .n_layers = N_LAYERS,
    .experts = {.n = 8, .n_per_token = 2, .n_sparse_layers = N_SPARSE, .sparse_layers = {SPARSE}}};

static void check_blocks(const struct replay_layout *l, uint32_t n_positions)
{
    uint64_t n = 0;

    CHECK(replay_n_blocks(l) <= REPLAY_BLOCKS_MAX);
    for (uint32_t i = 0; i < replay_n_blocks(l); i++) {
        struct replay_block b;

        replay_block_at(&b, l, &model, n_positions, i);
        CHECK(b.pipeline_rank < l->n_stages && b.context_rank < l->n_contexts);
        CHECK(b.first_layer <= b.end_layer && b.end_layer <= N_SPARSE);
        n += (uint64_t)replay_block_n_rows(&b) * (b.end_layer - b.first_layer);
    }
    CHECK(replay_padded_length(l, n_positions) >= n_positions);
    CHECK(n == (uint64_t)replay_padded_length(l, n_positions) * N_SPARSE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct replay_layout l;
    struct err e = {0};
    json_t *object = len > 0 ? json_loadb((const char *)data + 1, len - 1, 0, NULL) : NULL;

    if (!json_is_object(object)) {
        json_decref(object);
        return 0;
    }
    if (replay_layout_parse(&l, object, at, &model, &e) != 0 ||
        replay_layout_check_size(&l, &model, 1, data[0], at, &e) != 0)
        check_refusal(&e, codes, at);
    else
        check_blocks(&l, data[0]);
    json_decref(object);
    return 0;
}
