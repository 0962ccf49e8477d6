/* Routed experts cut for the ranks of a trainer: the layout, and the blocks that it makes. */
#include "handlers/batch/replay_layout.h"

#include "handlers/body.h"
#include "handlers/rows/rows.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *layout_field(char field[ERR_FIELD_MAX], const char *at, const char *member)
{
    (void)snprintf(field, ERR_FIELD_MAX, "%s/%s", at, member);
    return field;
}

static int parse_sizes(struct replay_layout *l, const json_t *object, const char *at,
                       uint32_t n_layers, struct err *e)
{
    char field[ERR_FIELD_MAX];

    if (body_u32(&l->n_stages, object, at, "pipeline_parallel_size", 1, n_layers, e) != 0)
        return -1;
    if (replay_n_blocks(l) > REPLAY_BLOCKS_MAX)
        return err_set(e, ERR_BAD_REQUEST, layout_field(field, at, "context_parallel_size"),
                       "%u pipeline stages and %u context ranks are %u blocks; at most %d are "
                       "allowed",
                       l->n_stages, l->n_contexts, replay_n_blocks(l), REPLAY_BLOCKS_MAX);
    return 0;
}

static uint32_t n_given(const struct replay_layout *l)
{
    return (l->n_first > 0) + (l->n_last > 0);
}

/* Layers that the other stages share, and how many those are. */
static uint32_t n_shared_layers(const struct replay_layout *l, uint32_t n_layers)
{
    return n_layers - l->n_first - l->n_last;
}

static uint32_t n_sharing_stages(const struct replay_layout *l)
{
    return l->n_stages - n_given(l);
}

/* Each of the other stages has to have the same number of layers, at least one; no layer may be
 * left if there is no such stage. */
static int check_even(const struct replay_layout *l, const char *at, uint32_t n_layers,
                      struct err *e)
{
    uint32_t n_rest, n_left = n_sharing_stages(l);
    char field[ERR_FIELD_MAX];

    (void)layout_field(field, at, "pipeline_parallel_size");
    if ((uint64_t)l->n_first + l->n_last > n_layers)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "the first stage has %u layers and the last one %u, but the model has %u",
                       l->n_first, l->n_last, n_layers);
    n_rest = n_shared_layers(l, n_layers);
    if (n_left == 0 ? n_rest == 0 : n_rest > 0 && n_rest % n_left == 0)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, field,
                   "of the model's %u layers the first stage's %u and the last one's %u leave %u "
                   "for %u stages; each of these must get the same number, at least 1: change "
                   "pipeline_parallel_size, num_layers_in_first_pipeline_stage or "
                   "num_layers_in_last_pipeline_stage",
                   n_layers, l->n_first, l->n_last, n_rest, n_left);
}

static int parse_stages(struct replay_layout *l, const json_t *object, const char *at,
                        uint32_t n_layers, struct err *e)
{
    static const char first[] = "num_layers_in_first_pipeline_stage",
                      last[] = "num_layers_in_last_pipeline_stage";
    char field[ERR_FIELD_MAX];

    if (body_u32(&l->n_first, object, at, first, 1, n_layers, e) != 0 ||
        body_u32(&l->n_last, object, at, last, 1, n_layers, e) != 0)
        return -1;
    if (l->n_stages == 1 && n_given(l) > 0)
        return err_set(e, ERR_BAD_REQUEST, layout_field(field, at, l->n_first > 0 ? first : last),
                       "one pipeline stage has all %u layers of the model: leave %s out, or set "
                       "pipeline_parallel_size to 2 or more",
                       n_layers, l->n_first > 0 ? first : last);
    return check_even(l, at, n_layers, e);
}

/* The layout's dense layers are the first ones, and no others. */
static int check_dense_layers(const json_t *object, const char *at,
                              const struct model_config *model, struct err *e)
{
    static const char member[] = "num_leading_dense_layers";
    char field[ERR_FIELD_MAX];
    uint32_t n_dense = 0;

    if (body_given(object, member) == NULL)
        return 0;
    if (body_u32(&n_dense, object, at, member, 0, model->n_layers, e) != 0)
        return -1;
    for (uint32_t i = 0; i < model->n_layers; i++)
        if (model_layer_is_sparse(model, i) != (i >= n_dense))
            return err_set(e, ERR_BAD_REQUEST, layout_field(field, at, member),
                           "%s is %u, but layer %u of the model (counted from 0) %s: send the "
                           "model's own number, or leave it out",
                           member, n_dense, i, i < n_dense ? "has experts" : "is dense");
    return 0;
}

static int set_multiple(struct replay_layout *l, const char *at, struct err *e)
{
    static const char member[] = "sequence_multiple";
    uint32_t n_chunks = l->n_contexts > 1 ? 2 * l->n_contexts : 1;
    char field[ERR_FIELD_MAX];

    if (l->sequence_multiple == 0)
        l->sequence_multiple = n_chunks;
    if (l->sequence_multiple % n_chunks != 0)
        return err_set(e, ERR_BAD_REQUEST, layout_field(field, at, member),
                       "%s is %u, expected a multiple of %u (2 * context_parallel_size): a padded "
                       "sequence is cut into so many chunks of one length",
                       member, l->sequence_multiple, n_chunks);
    return 0;
}

int replay_layout_parse(struct replay_layout *out, const json_t *object, const char *at,
                        const struct model_config *model, struct err *e)
{
    *out = (struct replay_layout){0};
    if (member_read_only(out, replay_layout_rows, object, at, e) != 0 ||
        parse_sizes(out, object, at, model->n_layers, e) != 0 ||
        parse_stages(out, object, at, model->n_layers, e) != 0 ||
        check_dense_layers(object, at, model, e) != 0)
        return -1;
    return set_multiple(out, at, e);
}

int replay_layout_check_size(const struct replay_layout *l, const struct model_config *model,
                             uint64_t n_seqs, uint32_t n_positions, const char *at, struct err *e)
{
    uint64_t n_ids = (uint64_t)model->experts.n_sparse_layers * model->experts.n_per_token;
    uint32_t n_padded = replay_padded_length(l, n_positions);

    assert(n_seqs > 0 && n_ids > 0);
    if (n_padded <= REPLAY_IDS_MAX / n_ids / n_seqs)
        return 0;
    return err_set(e, ERR_TOO_LARGE, at,
                   "%" PRIu64 " sequences padded to up to %u positions of %" PRIu64 " expert ids "
                   "each; the blocks of a request may have %d ids: request fewer sequences or "
                   "tokens, or a smaller sequence_multiple",
                   n_seqs, n_padded, n_ids, REPLAY_IDS_MAX);
}

uint32_t replay_padded_length(const struct replay_layout *l, uint32_t n_positions)
{
    uint64_t n = ((uint64_t)n_positions + l->sequence_multiple - 1) / l->sequence_multiple *
                 l->sequence_multiple;

    assert(n <= UINT32_MAX);
    return (uint32_t)n;
}

uint32_t replay_n_blocks(const struct replay_layout *l)
{
    return l->n_stages * l->n_contexts;
}

/* The model's first layer of a stage; that of the stage after the last one is where the model ends.
 */
static uint32_t stage_begin(const struct replay_layout *l, uint32_t n_layers, uint32_t stage)
{
    uint32_t n_before = stage - (stage > 0 && l->n_first > 0), n_left = n_sharing_stages(l);

    if (stage == 0)
        return 0;
    if (stage == l->n_stages)
        return n_layers;
    return l->n_first + (n_left > 0 ? n_before * (n_shared_layers(l, n_layers) / n_left) : 0);
}

static uint32_t n_sparse_before(const struct model_config *model, uint32_t layer)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < layer; i++)
        n += model_layer_is_sparse(model, i);
    return n;
}

/* Chunk i of 2 * n_contexts. Without context parallelism both are one rank's: their length may
 * differ. */
static struct replay_chunk chunk_at(const struct replay_layout *l, uint32_t n_padded, uint32_t i)
{
    uint64_t n = 2 * (uint64_t)l->n_contexts;

    return (struct replay_chunk){.begin = (uint32_t)(n_padded * (uint64_t)i / n),
                                 .end = (uint32_t)(n_padded * ((uint64_t)i + 1) / n)};
}

void replay_block_at(struct replay_block *out, const struct replay_layout *l,
                     const struct model_config *model, uint32_t n_positions, uint32_t i)
{
    uint32_t stage = i / l->n_contexts, rank = i % l->n_contexts;
    uint32_t n_padded = replay_padded_length(l, n_positions);

    assert(i < replay_n_blocks(l));
    *out = (struct replay_block){
        .pipeline_rank = stage,
        .context_rank = rank,
        .first_layer = n_sparse_before(model, stage_begin(l, model->n_layers, stage)),
        .end_layer = n_sparse_before(model, stage_begin(l, model->n_layers, stage + 1)),
        .chunks = {chunk_at(l, n_padded, rank),
                   chunk_at(l, n_padded, 2 * l->n_contexts - 1 - rank)},
    };
}

uint32_t replay_block_n_rows(const struct replay_block *b)
{
    return b->chunks[0].end - b->chunks[0].begin + b->chunks[1].end - b->chunks[1].begin;
}

/* One row of a block: of a position with routing a copy, of another one different experts. */
static void cut_row(uint16_t *out, const struct replay_block *b, const struct replay_routes *routes,
                    uint32_t position)
{
    size_t k = routes->n_per_token, n = (b->end_layer - b->first_layer) * k;

    if (position < routes->n_rows && n > 0) {
        memcpy(out, routes->ids + ((size_t)position * routes->n_layers + b->first_layer) * k,
               n * sizeof *out);
        return;
    }
    for (size_t i = 0; i < n; i++)
        out[i] = (uint16_t)(i % k);
}

void replay_cut(uint16_t *out, const struct replay_block *b, const struct replay_routes *routes)
{
    size_t n = (size_t)(b->end_layer - b->first_layer) * routes->n_per_token;

    for (size_t c = 0; c < 2; c++)
        for (uint32_t i = b->chunks[c].begin; i < b->chunks[c].end; i++, out += n)
            cut_row(out, b, routes, i);
}
