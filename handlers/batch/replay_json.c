/* The blocks of replay_layout as JSON. */
#include "handlers/batch/replay_json.h"

#include "handlers/json_put.h"

#include <stdlib.h>

static uint32_t id_nbytes(const uint16_t *ids, size_t n)
{
    uint16_t max = 0;

    for (size_t i = 0; i < n; i++)
        max = ids[i] > max ? ids[i] : max;
    return max <= UINT8_MAX ? 1 : max <= INT16_MAX ? 2 : 4;
}

/* @id_size  bytes of an id: 1, 2 or 4 */
static void put_data(struct buf *out, const uint16_t *ids, size_t n, uint32_t id_size)
{
    unsigned char *data = calloc(n + 1, id_size);

    if (data == NULL) {
        out->failed = true;
        return;
    }
    for (size_t i = 0; i < n; i++) {
        data[i * id_size] = (unsigned char)ids[i];
        if (id_size > 1)
            data[i * id_size + 1] = (unsigned char)(ids[i] >> 8);
    }
    json_put_base64(out, data, n * id_size);
    free(data);
}

static void put_layers(struct buf *out, const struct model_config *model,
                       const struct replay_block *b)
{
    uint32_t n_sparse = 0;

    json_put_open(out, '[');
    for (uint32_t i = 0; i < model->n_layers; i++) {
        if (!model_layer_is_sparse(model, i))
            continue;
        if (n_sparse >= b->first_layer && n_sparse < b->end_layer)
            json_put_int(out, i);
        n_sparse++;
    }
    json_put_close(out, ']');
}

static void put_block(struct buf *out, const struct model_config *model,
                      const struct replay_block *b, const struct replay_routes *routes)
{
    static const char *const dtypes[] = {[1] = "uint8", [2] = "int16", [4] = "int32"};
    uint32_t n_rows = replay_block_n_rows(b), n_layers = b->end_layer - b->first_layer;
    size_t n = (size_t)n_rows * n_layers * routes->n_per_token;
    uint16_t *ids = calloc(n + 1, sizeof *ids);
    uint32_t id_size;

    if (ids == NULL) {
        out->failed = true;
        return;
    }
    replay_cut(ids, b, routes);
    id_size = id_nbytes(ids, n);
    json_put_open(out, '{');
    json_put_name(out, "data");
    put_data(out, ids, n, id_size);
    free(ids);
    json_put_members(out, json_pack("{s:[I,I,I], s:s, s:I, s:I}", "shape", (json_int_t)n_rows,
                                    (json_int_t)n_layers, (json_int_t)routes->n_per_token, "dtype",
                                    dtypes[id_size], "pipeline_rank", (json_int_t)b->pipeline_rank,
                                    "context_rank", (json_int_t)b->context_rank));
    json_put_name(out, "layers");
    put_layers(out, model, b);
    json_put_close(out, '}');
}

void replay_blocks_put(struct buf *out, const struct replay_layout *l,
                       const struct model_config *model, const struct replay_routes *routes,
                       uint32_t n_positions)
{
    json_put_open(out, '[');
    for (uint32_t i = 0; i < replay_n_blocks(l); i++) {
        struct replay_block b;

        replay_block_at(&b, l, model, n_positions, i);
        put_block(out, model, &b, routes);
    }
    json_put_close(out, ']');
}
