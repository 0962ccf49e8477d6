/* Lays sequences out as tensors. */
#include "handlers/batch/batch.h"

#include "handlers/batch/batch_priv.h"
#include "weights/safetensors_write.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION_NONE = -1 };

float batch_logprob(float logprob)
{
    return isfinite(logprob) && logprob > BATCH_LOGPROB_MIN ? logprob : BATCH_LOGPROB_MIN;
}

void batch_shape_add(struct batch_shape *s, uint64_t n_prompt, uint64_t n_response)
{
    s->n_rows++;
    s->prompt_max = n_prompt > s->prompt_max ? n_prompt : s->prompt_max;
    s->response_max = n_response > s->response_max ? n_response : s->response_max;
    s->sum_max = n_prompt + n_response > s->sum_max ? n_prompt + n_response : s->sum_max;
}

static uint64_t round_up(uint64_t n, uint64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

static struct batch_widths batch_widths_of(const struct batch_shape *s,
                                           const struct batch_options *o)
{
    struct batch_widths w = {.response = s->response_max};

    if (o->layout == BATCH_TIGHT) {
        w.total = round_up(s->sum_max, o->sequence_multiple);
        return w;
    }
    w.response = round_up(s->response_max, o->sequence_multiple);
    w.total = round_up(s->prompt_max, o->sequence_multiple) + w.response;
    return w;
}

static enum dtype routes_dtype(uint32_t n_experts)
{
    return n_experts <= UINT8_MAX + 1    ? DTYPE_U8
           : n_experts <= INT16_MAX + 1U ? DTYPE_I16
                                         : DTYPE_I32;
}

/* Shapes of the tensors, by the letters of BATCH_TENSORS. */
enum shape { SHAPE_N, SHAPE_NW, SHAPE_NWLK };
/* The batches that have a tensor. */
enum when { WHEN_ALWAYS, WHEN_STEPS, WHEN_ROUTES };

/* In the order of their bytes: the widest elements first, so that all are aligned. The dtype of
 * routed_experts depends on the model: it has a place of its own behind those of 4 bytes. */
#define BATCH_TENSORS(X)                                                                           \
    X(INPUT_IDS, "input_ids", DTYPE_I32, SHAPE_NW, WHEN_ALWAYS)                                    \
    X(POSITION_IDS, "position_ids", DTYPE_I32, SHAPE_NW, WHEN_ALWAYS)                              \
    X(LOGPROBS, "logprobs", DTYPE_F32, SHAPE_NW, WHEN_ALWAYS)                                      \
    X(VERSIONS, "versions", DTYPE_I32, SHAPE_NW, WHEN_ALWAYS)                                      \
    X(PROMPT_OFFSETS, "prompt_offsets", DTYPE_I32, SHAPE_N, WHEN_ALWAYS)                           \
    X(PROMPT_LENGTHS, "prompt_lengths", DTYPE_I32, SHAPE_N, WHEN_ALWAYS)                           \
    X(RESPONSE_OFFSETS, "response_offsets", DTYPE_I32, SHAPE_N, WHEN_ALWAYS)                       \
    X(RESPONSE_LENGTHS, "response_lengths", DTYPE_I32, SHAPE_N, WHEN_ALWAYS)                       \
    X(GROUPS, "groups", DTYPE_I32, SHAPE_N, WHEN_ALWAYS)                                           \
    X(SAMPLES, "samples", DTYPE_I32, SHAPE_N, WHEN_ALWAYS)                                         \
    X(STEPS, "steps", DTYPE_I32, SHAPE_N, WHEN_STEPS)                                              \
    X(ROUTE_LENGTHS, "route_lengths", DTYPE_I32, SHAPE_N, WHEN_ROUTES)                             \
    X(ROUTED_EXPERTS, "routed_experts", DTYPE_NONE, SHAPE_NWLK, WHEN_ROUTES)                       \
    X(ATTENTION_MASK, "attention_mask", DTYPE_BOOL, SHAPE_NW, WHEN_ALWAYS)                         \
    X(LOSS_MASK, "loss_mask", DTYPE_BOOL, SHAPE_NW, WHEN_ALWAYS)                                   \
    X(FINISH_REASONS, "finish_reasons", DTYPE_U8, SHAPE_N, WHEN_ALWAYS)                            \
    X(IS_LAST_STEP, "is_last_step", DTYPE_BOOL, SHAPE_N, WHEN_STEPS)

enum tensor {
#define X(constant, name, dtype, shape, when) constant,
    BATCH_TENSORS(X)
#undef X
        TENSOR_COUNT
};

static const struct tensor_row {
    const char *name;
    enum dtype dtype;
    enum shape shape;
    enum when when;
} tensor_rows[TENSOR_COUNT] = {
#define X(constant, name, dtype, shape, when) {name, dtype, shape, when},
    BATCH_TENSORS(X)
#undef X
};

static bool has_tensor(const struct tensor_row *t, const struct batch_options *o,
                       const struct batch_routes *routes)
{
    return t->when == WHEN_ALWAYS || (t->when == WHEN_STEPS && o->steps != NULL) ||
           (t->when == WHEN_ROUTES && routes->n_experts > 0);
}

static enum dtype dtype_of(const struct tensor_row *t, const struct batch_routes *routes)
{
    return t->dtype != DTYPE_NONE ? t->dtype : routes_dtype(routes->n_experts);
}

/* Bytes of one tensor, or UINT64_MAX. */
static uint64_t tensor_nbytes(const struct tensor_row *t, uint64_t n_rows, uint64_t width,
                              const struct batch_routes *routes)
{
    uint64_t n = n_rows * dtype_nbytes(dtype_of(t, routes));

    if ((t->shape >= SHAPE_NW && __builtin_mul_overflow(n, width, &n)) ||
        (t->shape == SHAPE_NWLK &&
         __builtin_mul_overflow(n, (uint64_t)routes->n_layers * routes->top_k, &n)))
        return UINT64_MAX;
    return n;
}

uint64_t batch_nbytes(const struct batch_shape *s, const struct batch_options *o,
                      const struct batch_routes *routes)
{
    uint64_t width = batch_widths_of(s, o).total, sum = 0;

    for (size_t i = 0; i < TENSOR_COUNT; i++)
        if (has_tensor(&tensor_rows[i], o, routes) &&
            __builtin_add_overflow(sum, tensor_nbytes(&tensor_rows[i], s->n_rows, width, routes),
                                   &sum))
            return UINT64_MAX;
    return sum;
}

/* A batch that is being built. */
struct building {
    const struct batch *b;
    struct batch_widths w;
    struct tensor_spec specs[TENSOR_COUNT]; /* [n_specs]: those that the batch has */
    uint32_t n_specs;
    uint64_t nbytes;        /* of all tensors */
    char *at[TENSOR_COUNT]; /* where each tensor begins; NULL: the batch has none */
    uint64_t offset[TENSOR_COUNT];
    struct batch_versions versions;
};

static void place_tensors(struct building *s)
{
    const struct batch_routes *r = &s->b->routes;
    uint64_t n = s->b->n_rows, nbytes;

    for (size_t i = 0; i < TENSOR_COUNT; i++) {
        const struct tensor_row *t = &tensor_rows[i];

        s->offset[i] = UINT64_MAX;
        if (!has_tensor(t, s->b->options, r))
            continue;
        nbytes = tensor_nbytes(t, n, s->w.total, r);
        s->specs[s->n_specs++] = (struct tensor_spec){
            .name = t->name,
            .dtype = dtype_of(t, r),
            .ndim = t->shape == SHAPE_N    ? 1
                    : t->shape == SHAPE_NW ? 2
                                           : 4,
            .shape = {n, s->w.total, r->n_layers, r->top_k},
            .nbytes = nbytes,
            .offset = s->nbytes};
        s->offset[i] = s->nbytes;
        s->nbytes += nbytes;
    }
}

static void put_i32(struct building *s, enum tensor t, uint64_t i, uint64_t v)
{
    ((int32_t *)(void *)s->at[t])[i] = (int32_t)v;
}

/* Fills a row of each [N, W] tensor with padding. */
static void pad_row(struct building *s, uint64_t row)
{
    uint64_t w = s->w.total, first = row * w;

    for (uint64_t i = first; i < first + w; i++) {
        put_i32(s, INPUT_IDS, i, s->b->options->pad_token_id);
        ((int32_t *)(void *)s->at[VERSIONS])[i] = VERSION_NONE;
    }
    memset(s->at[POSITION_IDS] + 4 * first, 0, 4 * w);
    memset(s->at[LOGPROBS] + 4 * first, 0, 4 * w);
    memset(s->at[ATTENTION_MASK] + first, 0, w);
    memset(s->at[LOSS_MASK] + first, 0, w);
}

static void put_prompt(struct building *s, const struct batch_row *r, uint64_t first)
{
    memcpy(s->at[INPUT_IDS] + 4 * first, r->prompt_ids, 4 * (size_t)r->n_prompt);
    memset(s->at[ATTENTION_MASK] + first, true, r->n_prompt);
    for (uint64_t i = 0; i < r->n_prompt; i++)
        put_i32(s, POSITION_IDS, first + i, i);
}

static void put_response(struct building *s, const struct batch_row *r, uint64_t first)
{
    const struct gen_output *out = r->out;
    float *logprobs = (float *)(void *)s->at[LOGPROBS];

    for (uint64_t i = 0; i < out->n_tokens; i++) {
        put_i32(s, INPUT_IDS, first + i, out->tokens[i].id);
        put_i32(s, POSITION_IDS, first + i, r->n_prompt + i);
        logprobs[first + i] = batch_logprob(out->tokens[i].logprob);
    }
    memset(s->at[ATTENTION_MASK] + first, true, out->n_tokens);
    memset(s->at[LOSS_MASK] + first, out->finish != GEN_ERROR, out->n_tokens);
}

static void put_versions(struct building *s, const struct batch_row *r, uint64_t first)
{
    for (uint32_t k = 0; k < r->out->n_spans; k++) {
        const struct gen_span *span = &r->out->spans[k];
        uint32_t index = batch_versions_index(&s->versions, span);

        for (uint64_t i = span->start; i < span->end; i++)
            put_i32(s, VERSIONS, first + i, index);
    }
}

static void put_id(char *at, enum dtype dtype, uint64_t i, uint32_t id)
{
    if (dtype == DTYPE_U8)
        ((uint8_t *)at)[i] = (uint8_t)id;
    else if (dtype == DTYPE_I16)
        ((int16_t *)(void *)at)[i] = (int16_t)id;
    else
        ((int32_t *)(void *)at)[i] = (int32_t)id;
}

/* @first  column of the first token of the prompt */
static void put_routes(struct building *s, const struct batch_row *r, uint64_t row, uint64_t first)
{
    const struct batch_routes *shape = &s->b->routes;
    enum dtype dtype = routes_dtype(shape->n_experts);
    uint64_t n_each = (uint64_t)shape->n_layers * shape->top_k, w = s->w.total;
    uint64_t base = row * w * n_each, end = first + r->out->n_routed;

    assert(r->out->routes != NULL || r->out->n_routed == 0);
    for (uint64_t i = 0; i < w; i++)
        for (uint64_t k = 0; k < n_each; k++)
            put_id(s->at[ROUTED_EXPERTS], dtype, base + i * n_each + k,
                   i >= first && i < end ? r->out->routes[(i - first) * n_each + k]
                                         : (uint32_t)(k % shape->top_k));
    put_i32(s, ROUTE_LENGTHS, row, r->out->n_routed);
}

/* The columns of a row in its tensors of the shape [N]. */
static void put_place(struct building *s, const struct batch_row *r, uint64_t row, uint64_t prompt,
                      uint64_t response)
{
    const struct batch_options *o = s->b->options;

    put_i32(s, PROMPT_OFFSETS, row, prompt);
    put_i32(s, PROMPT_LENGTHS, row, r->n_prompt);
    put_i32(s, RESPONSE_OFFSETS, row, response);
    put_i32(s, RESPONSE_LENGTHS, row, r->out->n_tokens);
    put_i32(s, GROUPS, row, o->steps != NULL ? o->steps[r->prompt].trajectory : r->prompt);
    put_i32(s, SAMPLES, row, r->sample);
    s->at[FINISH_REASONS][row] = (char)r->out->finish;
    if (o->steps == NULL)
        return;
    put_i32(s, STEPS, row, o->steps[r->prompt].step);
    s->at[IS_LAST_STEP][row] = r->prompt + 1 == batch_group_of(o, r->prompt).end;
}

static void put_row(struct building *s, uint64_t row)
{
    const struct batch_row *r = &s->b->rows[row];
    uint64_t w = s->w.total, response = w - s->w.response;

    assert(r->out->finish != GEN_RUNNING);
    if (s->b->options->layout == BATCH_TIGHT)
        response = w - r->out->n_tokens;
    pad_row(s, row);
    put_place(s, r, row, response - r->n_prompt, response);
    put_prompt(s, r, row * w + response - r->n_prompt);
    put_response(s, r, row * w + response);
    if (s->b->routes.n_experts > 0)
        put_routes(s, r, row, response - r->n_prompt);
    put_versions(s, r, row * w + response);
}

/* Places the tensors behind the head, and fills them. */
static void fill(struct building *s, char *tensors)
{
    for (size_t i = 0; i < TENSOR_COUNT; i++)
        s->at[i] = s->offset[i] != UINT64_MAX ? tensors + s->offset[i] : NULL;
    for (uint64_t row = 0; row < s->b->n_rows; row++)
        put_row(s, row);
}

static int build_batch(struct building *s, char **out, size_t *nbytes, struct err *e)
{
    char *head, *whole;
    size_t n_head;

    if (safetensors_head_make(&head, &n_head, s->specs, s->n_specs,
                              batch_metadata(s->b, &s->w, &s->versions), e) != 0)
        return -1;
    whole = realloc(head, n_head + s->nbytes);
    if (whole == NULL) {
        free(head);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a batch of %llu bytes",
                       (unsigned long long)(n_head + s->nbytes));
    }
    fill(s, whole + n_head);
    *out = whole;
    *nbytes = n_head + s->nbytes;
    return 0;
}

int batch_build(char **out, size_t *nbytes, const struct batch *b, struct err *e)
{
    struct building s = {.b = b};
    struct batch_shape shape = {0};
    uint64_t n;
    int rc;

    assert(b->n_rows > 0);
    for (uint32_t i = 0; i < b->n_rows; i++)
        batch_shape_add(&shape, b->rows[i].n_prompt, b->rows[i].out->n_tokens);
    n = batch_nbytes(&shape, b->options, &b->routes);
    if (n > BATCH_NBYTES_MAX) {
        json_decref(b->metadata);
        return err_set(e, ERR_TOO_LARGE, "",
                       "the tensors of this batch have %llu bytes; at most %d are allowed",
                       (unsigned long long)n, BATCH_NBYTES_MAX);
    }
    s.w = batch_widths_of(&shape, b->options);
    place_tensors(&s);
    if (batch_versions_collect(&s.versions, b) != 0) {
        json_decref(b->metadata);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the versions of a batch");
    }
    rc = build_batch(&s, out, nbytes, e);
    batch_versions_fini(&s.versions);
    return rc;
}

int batch_build_end(char **out, size_t *nbytes, json_t *metadata, struct err *e)
{
    return safetensors_head_make(out, nbytes, NULL, 0, batch_metadata_text(metadata), e);
}
