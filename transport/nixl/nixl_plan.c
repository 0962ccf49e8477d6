/* The tiling is checked by volumes: boxes that lie inside of a tensor and do not overlap tile it
 * if they have as many elements as it has. */
#include "transport/nixl/nixl_plan.h"

#include "base/utf8.h"
#include "driver/nixl.h"
#include "memory/dtype.h"
#include "weights/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HOLE_STEPS_MAX = 1 << 16, /* rows that the search for a hole skips; then none is named */
    INDEX_TEXT_MAX = TENSOR_LIST_NDIM_MAX * 22
};

struct nixl_plan {
    struct tensor_list *list; /* counted */
    struct nixl_shard *shards;
    uint32_t n, cap;
    bool *in_rows; /* [n_tensors]: a shard of it has more than one row */
};

static int plan_no_memory(struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "", "no memory for the shards of an update");
}

int nixl_plan_new(struct nixl_plan **out, struct tensor_list *list, struct err *e)
{
    struct nixl_plan *plan = calloc(1, sizeof *plan);

    if (plan == NULL)
        return plan_no_memory(e);
    plan->in_rows = calloc(list->n_tensors, sizeof *plan->in_rows);
    if (plan->in_rows == NULL) {
        free(plan);
        return plan_no_memory(e);
    }
    plan->list = tensor_list_ref(list);
    *out = plan;
    return 0;
}

void nixl_plan_free(struct nixl_plan *plan)
{
    if (plan == NULL)
        return;
    tensor_list_unref(plan->list);
    free(plan->shards);
    free(plan->in_rows);
    free(plan);
}

static const struct tensor_spec *tensor_of(const struct nixl_plan *plan, const struct nixl_shard *s)
{
    return &plan->list->tensors[s->tensor];
}

/* The size of the tensor in a dimension of the box. */
static uint64_t extent(const struct tensor_spec *t, const struct nixl_box *box, uint32_t d)
{
    return box->ndim == t->ndim ? t->shape[d] : t->numel;
}

static uint64_t box_numel(const struct nixl_box *box)
{
    uint64_t n = 1;

    for (uint32_t d = 0; d < box->ndim; d++)
        n *= box->size[d];
    return n;
}

static uint64_t shard_nbytes(const struct nixl_plan *plan, const struct nixl_shard *s)
{
    return box_numel(&s->box) * dtype_nbytes(tensor_of(plan, s)->dtype);
}

/* Elements of the box that are adjacent in the tensor too: a row, or more where it has whole rows.
 * @inner  the dimensions from this one on are in it */
static uint64_t run_numel(const struct tensor_spec *t, const struct nixl_box *box, uint32_t *inner)
{
    uint32_t d = box->ndim - 1;
    uint64_t n = box->size[d];

    for (; d > 0 && box->size[d] == extent(t, box, d); d--)
        n *= box->size[d - 1];
    *inner = d;
    return n;
}

static int check_box(const struct tensor_spec *t, const struct nixl_shard *s, const char *field,
                     struct err *e)
{
    for (uint32_t d = 0; d < s->box.ndim; d++) {
        uint64_t whole = extent(t, &s->box, d);

        if (s->box.size[d] == 0 || s->box.size[d] > whole ||
            s->box.start[d] > whole - s->box.size[d])
            return err_set(e, ERR_MISMATCH, field,
                           "tensor '%.*s': shard %u has %llu elements from %llu on in dimension "
                           "%u, which has %llu",
                           utf8_cut_name(t->name), t->name, (unsigned)s->index,
                           (unsigned long long)s->box.size[d], (unsigned long long)s->box.start[d],
                           (unsigned)d, (unsigned long long)whole);
    }
    return 0;
}

static int plan_reserve(struct nixl_plan *plan, const char *field, struct err *e)
{
    uint32_t cap = plan->cap > 0 ? 2 * plan->cap : 64;
    struct nixl_shard *shards;

    if (plan->n < plan->cap)
        return 0;
    if (plan->n >= NIXL_SHARDS_MAX)
        return err_set(e, ERR_TOO_LARGE, field, "a request may have %d shards",
                       (int)NIXL_SHARDS_MAX);
    shards = realloc(plan->shards, cap * sizeof *shards);
    if (shards == NULL)
        return plan_no_memory(e);
    plan->shards = shards;
    plan->cap = cap;
    return 0;
}

int nixl_plan_add(struct nixl_plan *plan, const struct nixl_shard *shard, const char *field,
                  struct err *e)
{
    const struct tensor_spec *t = tensor_of(plan, shard);
    uint32_t inner;

    if (check_box(t, shard, field, e) != 0 || plan_reserve(plan, field, e) != 0)
        return -1;
    if (shard->addr == 0 || shard->addr > UINT64_MAX - shard_nbytes(plan, shard))
        return err_set(e, ERR_BAD_REQUEST, field,
                       "tensor '%.*s': shard %u: %llu bytes at address %llu are no range of memory",
                       utf8_cut_name(t->name), t->name, (unsigned)shard->index,
                       (unsigned long long)shard_nbytes(plan, shard),
                       (unsigned long long)shard->addr);
    if (run_numel(t, &shard->box, &inner) < box_numel(&shard->box))
        plan->in_rows[shard->tensor] = true;
    plan->shards[plan->n++] = *shard;
    return 0;
}

static int compare_shards(const void *a, const void *b)
{
    const struct nixl_shard *x = a, *y = b;

    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    for (uint32_t d = 0; d < x->box.ndim && d < y->box.ndim; d++)
        if (x->box.start[d] != y->box.start[d])
            return x->box.start[d] < y->box.start[d] ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

static bool overlap(const struct nixl_box *a, const struct nixl_box *b)
{
    for (uint32_t d = 0; d < a->ndim; d++)
        if (a->start[d] >= b->start[d] + b->size[d] || b->start[d] >= a->start[d] + a->size[d])
            return false;
    return true;
}

static bool box_has(const struct nixl_box *box, const uint64_t *at)
{
    for (uint32_t d = 0; d < box->ndim; d++)
        if (at[d] < box->start[d] || at[d] >= box->start[d] + box->size[d])
            return false;
    return true;
}

/* The first element that is in none of the shards: "[0, 128]"; "" if there are too many rows. */
static void find_hole(char out[INDEX_TEXT_MAX], const struct tensor_spec *t,
                      const struct nixl_shard *s, uint32_t n)
{
    uint64_t at[TENSOR_LIST_NDIM_MAX] = {0};
    uint32_t ndim = n > 0 ? s[0].box.ndim : 1, d = 0;
    size_t len = 0;

    for (uint32_t step = 0, i = 0; i < n; step++) {
        for (i = 0; i < n && !box_has(&s[i].box, at); i++)
            continue;
        out[0] = '\0';
        if (i == n)
            break;
        if (step == HOLE_STEPS_MAX)
            return;
        d = ndim - 1;
        at[d] = s[i].box.start[d] + s[i].box.size[d];
        for (; d > 0 && at[d] == extent(t, &s[i].box, d); d--) {
            at[d] = 0;
            at[d - 1]++;
        }
    }
    for (d = 0; d < ndim; d++)
        len += (size_t)snprintf(out + len, INDEX_TEXT_MAX - len, "%s%llu", d > 0 ? ", " : "[",
                                (unsigned long long)at[d]);
    (void)snprintf(out + len, INDEX_TEXT_MAX - len, "]");
}

/* The shards [n] of tensor i. */
static int check_tiling(const struct nixl_plan *plan, uint32_t i, const struct nixl_shard *s,
                        uint32_t n, struct err *e)
{
    const struct tensor_spec *t = &plan->list->tensors[i];
    char field[ERR_FIELD_MAX], hole[INDEX_TEXT_MAX];
    uint64_t numel = 0;

    (void)snprintf(field, sizeof field, "/shards/%u", (unsigned)i);
    if (n > NIXL_TENSOR_SHARDS_MAX)
        return err_set(e, ERR_TOO_LARGE, field, "tensor '%.*s' has %u shards, %d are allowed",
                       utf8_cut_name(t->name), t->name, (unsigned)n, (int)NIXL_TENSOR_SHARDS_MAX);
    for (uint32_t a = 0; a < n; a++) {
        const struct nixl_box *box = &s[a].box;

        numel += box_numel(box);
        for (uint32_t b = a + 1; b < n && s[b].box.start[0] < box->start[0] + box->size[0]; b++)
            if (overlap(box, &s[b].box))
                return err_set(
                    e, ERR_MISMATCH, field, "tensor '%.*s': its shards %u and %u overlap",
                    utf8_cut_name(t->name), t->name, (unsigned)s[a].index, (unsigned)s[b].index);
    }
    if (numel == t->numel)
        return 0;
    find_hole(hole, t, s, n);
    return err_set(
        e, ERR_MISMATCH, field, "tensor '%.*s': its shards have %llu of %llu elements%s%s",
        utf8_cut_name(t->name), t->name, (unsigned long long)numel, (unsigned long long)t->numel,
        hole[0] != '\0' ? "; the first missing is " : "", hole);
}

int nixl_plan_finish(struct nixl_plan *plan, struct err *e)
{
    uint32_t first = 0;
    uint64_t at = 0;

    if (plan->n > 0)
        qsort(plan->shards, plan->n, sizeof plan->shards[0], compare_shards);
    for (uint32_t i = 0; i < plan->list->n_tensors; i++) {
        uint32_t end = first;

        for (; end < plan->n && plan->shards[end].tensor == i; end++) {
            plan->shards[end].at = at;
            at += shard_nbytes(plan, &plan->shards[end]);
        }
        if (check_tiling(plan, i, plan->shards + first, end - first, e) != 0)
            return -1;
        first = end;
    }
    return 0;
}

uint64_t nixl_plan_nbytes(const struct nixl_plan *plan)
{
    return plan->list->nbytes;
}

/* The shard that has byte `at` of the stream. */
static uint32_t shard_at(const struct nixl_plan *plan, uint64_t at)
{
    uint32_t first = 0, end = plan->n;

    while (first + 1 < end) {
        uint32_t middle = first + (end - first) / 2;

        if (plan->shards[middle].at <= at)
            first = middle;
        else
            end = middle;
    }
    return first;
}

int nixl_plan_slices(const struct nixl_plan *plan, uint64_t from, uint64_t to,
                     struct nixl_slice **out, uint32_t *n, struct err *e)
{
    uint32_t first = shard_at(plan, from), last = shard_at(plan, to - 1);
    struct nixl_slice *slices = malloc((last - first + 1) * sizeof *slices);

    if (slices == NULL)
        return plan_no_memory(e);
    *n = 0;
    for (uint32_t i = first; i <= last; i++) {
        const struct nixl_shard *s = &plan->shards[i];
        uint64_t begin = s->at > from ? s->at : from, end = s->at + shard_nbytes(plan, s);
        slices[(*n)++] = (struct nixl_slice){.addr = s->addr + (begin - s->at),
                                             .nbytes = (end < to ? end : to) - begin,
                                             .device = s->device,
                                             .at = begin - from,
                                             .agent = s->agent,
                                             .mem = s->vram ? NIXL_VRAM : NIXL_DRAM,
                                             .tensor = s->tensor};
    }
    *out = slices;
    return 0;
}

/* The byte of the tensor at which run `run` of a box begins. */
static uint64_t run_at(const struct tensor_spec *t, const struct nixl_box *box, uint32_t inner,
                       uint64_t run)
{
    uint64_t at = 0, stride = 1;

    for (uint32_t d = box->ndim; d-- > 0;) {
        uint64_t i = box->start[d];

        if (d < inner) {
            i += run % box->size[d];
            run /= box->size[d];
        }
        at += i * stride;
        stride *= extent(t, box, d);
    }
    return at * dtype_nbytes(t->dtype);
}

/* Bytes [from, to) of a shard. @dst  of its tensor's first byte */
static void copy_shard(const struct nixl_plan *plan, const struct nixl_shard *s, uint64_t from,
                       uint64_t to, const uint8_t *src, uint8_t *dst, const struct progress *p)
{
    const struct tensor_spec *t = tensor_of(plan, s);
    uint32_t inner;
    uint64_t run_nbytes = run_numel(t, &s->box, &inner) * dtype_nbytes(t->dtype);

    while (from < to) {
        uint64_t run = from / run_nbytes, in_run = from % run_nbytes;
        uint64_t n = run_nbytes - in_run < to - from ? run_nbytes - in_run : to - from;
        uint8_t *at = dst + run_at(t, &s->box, inner, run) + in_run;

        if (!plan->in_rows[s->tensor] && n > SOURCE_REPORT_NBYTES)
            n = SOURCE_REPORT_NBYTES;
        memcpy(at, src, n);
        if (!plan->in_rows[s->tensor])
            progress_came(p, at, n);
        src += n;
        from += n;
    }
}

void nixl_plan_copy(const struct nixl_plan *plan, uint64_t from, uint64_t to, const uint8_t *src,
                    uint8_t *dst, uint64_t begin, struct progress *p)
{
    for (uint32_t i = shard_at(plan, from); from < to; i++) {
        const struct nixl_shard *s = &plan->shards[i];
        const struct tensor_spec *t = tensor_of(plan, s);
        uint64_t end = s->at + shard_nbytes(plan, s) < to ? s->at + shard_nbytes(plan, s) : to;
        uint8_t *tensor = dst + (t->offset - begin);

        atomic_store_explicit(&p->tensor, s->tensor, memory_order_relaxed);
        copy_shard(plan, s, from - s->at, end - s->at, src, tensor, p);
        if (plan->in_rows[s->tensor] && end == t->offset + t->nbytes)
            progress_came(p, tensor, t->nbytes);
        (void)atomic_fetch_add_explicit(&p->nbytes_done, end - from, memory_order_relaxed);
        src += end - from;
        from = end;
    }
}
