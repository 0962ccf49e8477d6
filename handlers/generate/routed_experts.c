/* Routes from the engine's ids of 16 bits to the form of each reply. */
#include "handlers/generate/routed_experts.h"

#include "handlers/batch/replay_json.h"
#include "handlers/body.h"
#include "handlers/json_put.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ASKED_AT "/return_routed_experts"

/* How an id is stored. */
enum id_type { ID_UINT8, ID_INT16, ID_UINT16, ID_INT32 };
static const struct {
    const char *name, *numpy;
    uint32_t nbytes;
} id_types[] = {[ID_UINT8] = {"uint8", "|u1", 1},
                [ID_INT16] = {"int16", "<i2", 2},
                [ID_UINT16] = {"uint16", "<u2", 2},
                [ID_INT32] = {"int32", "<i4", 4}};

/* What a reply has of an output: rows [first, end), of the sparse layers or of all. */
struct table {
    const struct engine_info *info;
    const struct gen_output *made;
    uint32_t first, end, n_layers;
    enum id_type type;
};

int routed_experts_ask(struct generation *g, bool asked, struct err *e)
{
    g->params.gen.routes = asked;
    if (!asked || g->app->generate->info.n_route_layers > 0)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, ASKED_AT,
                   "'%.160s' has no experts: there is no routing to return; do not ask for "
                   "routed experts, or serve a model with experts",
                   g->app->generate->model_name);
}

int routed_experts_check(const struct generation *g, struct err *e)
{
    const struct engine_info *info = &g->app->generate->info;
    uint32_t max = g->params.gen.max_tokens, start = g->params.routes_start;
    uint64_t n_rows = 0, n_ids;

    for (uint32_t i = 0; i < g->n_prompts; i++) {
        uint32_t n = g->prompts[i].n, rest = g->app->generate->max_model_len - n;

        if (start > n)
            return err_set(e, ERR_BAD_REQUEST, g->routes_start_at,
                           "routed experts from position %u on, but the prompt has %u tokens; "
                           "expected 0 to %u",
                           start, n, n);
        n_rows += (uint64_t)g->params.n * (n + (max < rest ? max : rest) - 1);
    }
    n_ids = n_rows * info->n_route_layers * info->n_routes_per_token;
    if (!g->params.gen.routes || n_ids <= GENERATION_ROUTES_MAX)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, ASKED_AT,
                   "up to %llu positions with %u routed experts each are %llu ids; a request may "
                   "have %d: request fewer tokens or fewer sequences",
                   (unsigned long long)n_rows, info->n_route_layers * info->n_routes_per_token,
                   (unsigned long long)n_ids, GENERATION_ROUTES_MAX);
}

int routed_experts_parse_replay(struct replay_layout *out, const struct generation *g,
                                const json_t *layout, struct err *e)
{
    static const char at[] = "/replay_layout";
    const struct model_config *model = g->app->generate->model;
    uint32_t max = g->params.gen.max_tokens, n_longest = 0;

    *out = (struct replay_layout){0};
    if (layout == NULL)
        return 0;
    if (!g->params.gen.routes)
        return err_set(e, ERR_BAD_REQUEST, at,
                       "replay_layout cuts routed experts, which were not requested: send "
                       "\"return_routed_experts\": true");
    for (uint32_t i = 0; i < g->n_prompts; i++) {
        uint32_t n = g->prompts[i].n, rest = g->app->generate->max_model_len - n;

        n += max < rest ? max : rest;
        n_longest = n > n_longest ? n : n_longest;
    }
    if (replay_layout_parse(out, layout, at, model, e) != 0)
        return -1;
    return replay_layout_check_size(out, model, (uint64_t)g->n_prompts * g->params.n, n_longest, at,
                                    e);
}

static size_t row_width(const struct gen_output *made)
{
    return (size_t)made->n_route_layers * made->n_routes_per_token;
}

static uint32_t largest_id(const struct table *t)
{
    const uint16_t *ids = t->made->routes;
    uint32_t max = 0;

    for (size_t i = t->first * row_width(t->made); i < t->end * row_width(t->made); i++)
        max = ids[i] > max ? ids[i] : max;
    return max;
}

/* SkyRL's client refuses any but the smallest dtype that holds the ids of this reply; prime-rl's
 * trainer refuses samples of one model with different dtypes. */
static enum id_type type_for(const struct table *t, enum routed_form form)
{
    uint32_t max = largest_id(t);

    if (form == ROUTED_INT32)
        return ID_INT32;
    if (form == ROUTED_NPY || form == ROUTED_PRIME_RL)
        return t->info->n_experts <= UINT8_MAX + 1 ? ID_UINT8 : ID_UINT16;
    return max <= UINT8_MAX ? ID_UINT8 : max <= INT16_MAX ? ID_INT16 : ID_INT32;
}

static struct table table_of(const struct generation_seq *seq, const struct gen_output *made,
                             uint32_t n_tokens, enum routed_form form)
{
    const struct generation *g = seq->g;
    struct table t = {.info = &g->app->generate->info, .made = made, .end = made->n_routed};

    if (made->n_tokens > 0)
        t.end = g->prompts[seq->prompt].n + n_tokens - 1;
    t.first = g->params.routes_start < t.end ? g->params.routes_start : t.end;
    t.n_layers = form == ROUTED_NATIVE ? made->n_route_layers : t.info->n_layers;
    t.type = type_for(&t, form);
    return t;
}

static size_t table_nbytes(const struct table *t)
{
    return (size_t)(t->end - t->first) * t->n_layers * t->made->n_routes_per_token *
           id_types[t->type].nbytes;
}

static void write_ids(unsigned char *to, const uint16_t *ids, uint32_t n, uint32_t nbytes)
{
    for (uint32_t i = 0; i < n; i++) {
        to[(size_t)i * nbytes] = (unsigned char)ids[i];
        if (nbytes > 1)
            to[(size_t)i * nbytes + 1] = (unsigned char)(ids[i] >> 8);
    }
}

/* @out  [table_nbytes], zeroed */
static void write_table(unsigned char *out, const struct table *t)
{
    const struct gen_output *made = t->made;
    uint32_t n = made->n_routes_per_token, nbytes = id_types[t->type].nbytes;
    bool all = t->n_layers == t->info->n_layers;

    for (uint32_t row = t->first; row < t->end; row++) {
        const uint16_t *ids = made->routes + row * row_width(made);

        for (uint32_t l = 0; l < made->n_route_layers; l++)
            write_ids(out + (size_t)(all ? t->info->route_layers[l] : l) * n * nbytes, ids + l * n,
                      n, nbytes);
        out += (size_t)t->n_layers * n * nbytes;
    }
}

/* The head of a .npy file, version 1.0; its length is a multiple of 64. Returns the length. */
enum { NPY_ALIGN = 64, NPY_MAGIC_NBYTES = 10, NPY_HEAD_MAX = 256 };
static size_t npy_head(unsigned char head[NPY_HEAD_MAX], const struct table *t)
{
    char *text = (char *)head + NPY_MAGIC_NBYTES;
    size_t len, total;

    (void)snprintf(text, NPY_HEAD_MAX - NPY_MAGIC_NBYTES,
                   "{'descr': '%s', 'fortran_order': False, 'shape': (%u, %u, %u), }",
                   id_types[t->type].numpy, t->end - t->first, t->n_layers,
                   t->made->n_routes_per_token);
    len = NPY_MAGIC_NBYTES + strlen(text);
    total = (len / NPY_ALIGN + 1) * NPY_ALIGN;
    memset(head + len, ' ', total - len);
    head[total - 1] = '\n';
    memcpy(head, "\x93NUMPY\x01\x00", 8);
    head[8] = (unsigned char)(total - NPY_MAGIC_NBYTES);
    head[9] = (unsigned char)((total - NPY_MAGIC_NBYTES) >> 8);
    return total;
}

static void put_routed_data(struct buf *out, const struct table *t, enum routed_form form)
{
    unsigned char head[NPY_HEAD_MAX];
    size_t n_head = form == ROUTED_NPY ? npy_head(head, t) : 0;
    unsigned char *data = calloc(1, n_head + table_nbytes(t) + 1);

    if (data == NULL) {
        out->failed = true;
        return;
    }
    memcpy(data, head, n_head);
    write_table(data + n_head, t);
    json_put_base64(out, data, n_head + table_nbytes(t));
    free(data);
}

static void put_routed_layers(struct buf *out, const struct table *t)
{
    json_put_name(out, "layers");
    json_put_open(out, '[');
    for (uint32_t l = 0; l < t->made->n_route_layers; l++)
        json_put_int(out, t->info->route_layers[l]);
    json_put_close(out, ']');
}

void routed_experts_put(struct buf *out, const struct generation_seq *seq,
                        const struct gen_output *made, uint32_t n_tokens, enum routed_form form)
{
    struct table t;

    if (made == NULL || made->n_route_layers == 0) {
        json_put_null(out);
        return;
    }
    t = table_of(seq, made, n_tokens, form);
    if (form == ROUTED_NPY || form == ROUTED_INT32) {
        put_routed_data(out, &t, form);
        return;
    }
    json_put_open(out, '{');
    json_put_name(out, "data"); /* first: clients of SkyRL and prime-rl look for it there */
    put_routed_data(out, &t, form);
    json_put_members(out,
                     json_pack("{s:[i,i,i], s:s}", "shape", (int)(t.end - t.first), (int)t.n_layers,
                               (int)made->n_routes_per_token, "dtype", id_types[t.type].name));
    if (form != ROUTED_SKYRL) {
        json_put_name(out, "start");
        json_put_int(out, t.first);
    }
    if (form == ROUTED_NATIVE)
        put_routed_layers(out, &t);
    json_put_close(out, '}');
}

void routed_experts_put_blocks(struct buf *out, const struct generation_seq *seq,
                               const struct gen_output *made, const struct replay_layout *layout)
{
    const struct generation *g = seq->g;
    const struct engine_info *info = &g->app->generate->info;
    struct replay_routes routes = {.ids = made->routes,
                                   .n_rows = made->routes != NULL ? made->n_routed : 0,
                                   .n_layers = info->n_route_layers,
                                   .n_per_token = info->n_routes_per_token};

    replay_blocks_put(out, layout, g->app->generate->model, &routes,
                      g->prompts[seq->prompt].n + made->n_tokens);
}
