/* Patches of vLLM's trainers: positions in any order, and values, of tensors that are named once.
 */
#include "base/utf8.h"
#include "weights/delta/delta.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALWAYS_INLINE __attribute__((always_inline)) static inline

enum { POSITION_NBYTES = 4 };
#define PATCH_NUMEL_MAX ((uint64_t)INT32_MAX + 1)

struct patching {
    const struct model_spec *m;
    const struct tensor_list *named;
    const uint64_t *counts;
    struct tensor_list_builder *parts, *result; /* owned */
    struct model_spec_match last;
};

__attribute__((format(printf, 5, 6))) static int refuse_patch(const struct tensor_spec *t,
                                                              const char *list, uint32_t i,
                                                              struct err *e, const char *fmt, ...)
{
    char field[ERR_FIELD_MAX], text[ERR_MSG_MAX];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    (void)snprintf(field, sizeof field, "/%s/%u", list, (unsigned)i);
    return err_set(e, strcmp(list, "dtypes") == 0 ? ERR_MISMATCH : ERR_BAD_REQUEST, field,
                   "patch of tensor '%.*s': %s", utf8_cut_name(t->name), t->name, text);
}

/* vLLM 0.28 names tensors of its runtime, and counts positions in those. */
static int refuse_runtime_name(const char *name, struct err *e)
{
    if (strstr(name, "qkv_proj") != NULL || strstr(name, "gate_up_proj") != NULL)
        err_append(e,
                   "; patches of vLLM 0.28, which fuses tensors, are not taken: use 0.29 or later");
    return -1;
}

/* @base  the tensor of the model spec whose bytes change */
static int check_patch(struct patching *p, uint32_t i, uint32_t *base, struct err *e)
{
    const struct tensor_spec *t = &p->named->tensors[i];
    const struct alias *alias;
    enum dtype kept;

    if (model_spec_match_next(p->m, &p->last, t, true, i, &p->last, e) != 0)
        return refuse_runtime_name(t->name, e);
    alias = p->last.alias;
    if (alias != NULL && alias->kind != ALIAS_TIED) {
        (void)refuse_patch(t, "names", i, e,
                           "the model keeps no such tensor of its own, but what it is made of");
        return refuse_runtime_name(t->name, e);
    }
    *base = alias != NULL ? alias->targets[0] : p->last.index;
    kept = p->m->tensor_list->tensors[*base].dtype;
    if (t->dtype != kept)
        return refuse_patch(t, "dtypes", i, e, "its values are %s, and the model keeps it as %s",
                            dtype_name(t->dtype), dtype_name(kept));
    if (t->numel > PATCH_NUMEL_MAX)
        return refuse_patch(t, "names", i, e, "positions of 32 bits do not reach its %llu elements",
                            (unsigned long long)t->numel);
    if (p->counts[i] > t->numel)
        return refuse_patch(t, "num_updates_list", i, e, "%llu updates of %llu elements",
                            (unsigned long long)p->counts[i], (unsigned long long)t->numel);
    return 0;
}

/* The name of a part is that of any delta. */
static int add_part(struct patching *p, const struct tensor_spec *t, const char *part,
                    enum dtype dtype, uint64_t count, struct err *e)
{
    char name[TENSOR_LIST_NAME_LEN_MAX + sizeof "#index"];

    (void)snprintf(name, sizeof name, "%s#%s", t->name, part);
    return tensor_list_builder_add(p->parts, name, dtype, &count, 1, UINT64_MAX, e);
}

static int add_patch(struct patching *p, uint32_t i, struct delta_tensor *out, struct err *e)
{
    const struct tensor_spec *t = &p->named->tensors[i];
    uint32_t unit = (uint32_t)dtype_nbytes(t->dtype), base = TENSOR_LIST_NO_TENSOR;
    uint64_t n = p->counts[i];

    if (check_patch(p, i, &base, e) != 0 ||
        tensor_list_builder_add(p->result, t->name, t->dtype, t->shape, t->ndim, UINT64_MAX, e) !=
            0 ||
        add_part(p, t, "index", DTYPE_I32, n, e) != 0 ||
        add_part(p, t, "value", t->dtype, n, e) != 0)
        return -1;
    *out = (struct delta_tensor){.kind = DELTA_INDEX,
                                 .base = base,
                                 .unit = unit,
                                 .position_nbytes = POSITION_NBYTES,
                                 .patch = true,
                                 .positions = {.i = 2 * i, .nbytes = n * POSITION_NBYTES},
                                 .values = {.i = 2 * i + 1, .nbytes = n * unit}};
    return 0;
}

static int finish_lists(struct patching *p, struct delta *d, struct tensor_list **parts,
                        struct err *e)
{
    int rc = tensor_list_builder_finish(p->result, &d->result, e);

    p->result = NULL;
    if (rc == 0) {
        rc = tensor_list_builder_finish(p->parts, parts, e);
        p->parts = NULL;
    }
    return rc;
}

int delta_of_patches(struct delta **out, struct tensor_list **parts, const struct model_spec *m,
                     const struct tensor_list *named, const uint64_t *counts, struct err *e)
{
    struct patching p = {
        .m = m, .named = named, .counts = counts, .last = {.index = TENSOR_LIST_NO_TENSOR}};
    struct delta *d = calloc(1, sizeof *d);
    int rc = -1;

    if (d != NULL)
        d->tensors = calloc(named->n_tensors, sizeof *d->tensors);
    if (d == NULL || d->tensors == NULL)
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for patches of %u tensors",
                      (unsigned)named->n_tensors);
    else if (tensor_list_builder_new(&p.parts, e) == 0)
        rc = tensor_list_builder_new(&p.result, e);
    for (uint32_t i = 0; i < named->n_tensors && rc == 0; i++)
        rc = add_patch(&p, i, &d->tensors[i], e);
    if (rc == 0)
        rc = finish_lists(&p, d, parts, e);
    tensor_list_builder_free(p.parts);
    tensor_list_builder_free(p.result);
    if (rc != 0)
        delta_free(d);
    else
        *out = d;
    return rc;
}

static uint32_t position_at(const char *positions, uint64_t i)
{
    uint32_t position;

    memcpy(&position, positions + i * POSITION_NBYTES, sizeof position);
    return position;
}

ALWAYS_INLINE void swap_units(char *a, char *b, uint32_t unit)
{
    uint64_t x = 0, y = 0;

    memcpy(&x, a, unit);
    memcpy(&y, b, unit);
    memcpy(a, &y, unit);
    memcpy(b, &x, unit);
}

/* Those without the bit go to the front. Returns how many. Each is swapped, whether it has to be or
 * not: a branch that nobody can predict would take longer. */
ALWAYS_INLINE uint64_t split_units(char *positions, char *values, uint64_t n, uint32_t bit,
                                   uint32_t unit)
{
    uint64_t first = 0;

    for (uint64_t i = 0; i < n; i++) {
        uint64_t in_front = (position_at(positions, i) & bit) == 0;

        swap_units(positions + first * POSITION_NBYTES, positions + i * POSITION_NBYTES,
                   POSITION_NBYTES);
        swap_units(values + first * unit, values + i * unit, unit);
        first += in_front;
    }
    return first;
}

static uint64_t split(char *positions, char *values, uint64_t n, uint32_t bit, uint32_t unit)
{
    switch (unit) {
    case 1:
        return split_units(positions, values, n, bit, 1);
    case 2:
        return split_units(positions, values, n, bit, 2);
    case 4:
        return split_units(positions, values, n, bit, 4);
    default:
        assert(unit == 8);
        return split_units(positions, values, n, bit, 8);
    }
}

/* Each half is then split by the next bit: no deeper than there are bits, whatever the order was.
 */
static void sort_by_bit(char *positions, char *values, uint64_t n, uint32_t bit, uint32_t unit)
{
    while (n > 1 && bit != 0) {
        uint64_t first = split(positions, values, n, bit, unit);

        bit >>= 1;
        sort_by_bit(positions, values, first, bit, unit);
        positions += first * POSITION_NBYTES;
        values += first * unit;
        n -= first;
    }
}

void delta_sort(void *positions, void *values, uint64_t n, uint32_t unit)
{
    uint32_t bit = UINT32_C(1) << 31, all = 0;
    uint64_t i = 1;

    while (i < n && position_at(positions, i - 1) < position_at(positions, i))
        i++;
    if (i >= n)
        return;
    for (i = 0; i < n; i++)
        all |= position_at(positions, i);
    while (bit > 1 && (all & bit) == 0)
        bit >>= 1;
    sort_by_bit(positions, values, n, bit, unit);
}
