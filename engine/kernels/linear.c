/* Linear layers over the compute pool. */
#include "engine/kernels/linear.h"

#include <stddef.h>

enum {
    LINEAR_WORK_MIN = 65536,   /* multiply-adds that are worth a thread */
    LINEAR_PART_WORK = 262144, /* of a part, when there are several for each thread */
    LINEAR_PARTS_MAX = 16,     /* of one region for each thread, to even out */
    BIAS_BLOCK = 64
};

struct linear linear_of(const struct tensor_spec *weight, const void *data, const float *x,
                        uint32_t n_rows, float *y)
{
    uint32_t n = (uint32_t)weight->shape[0], k = (uint32_t)weight->shape[1];

    return (struct linear){.n = n,
                           .product = {.x = x,
                                       .ldx = k,
                                       .w = data,
                                       .dtype = weight->dtype,
                                       .y = y,
                                       .ldy = n,
                                       .m = n_rows,
                                       .k = k}};
}

static void add_bias(const struct linear *l, uint32_t first, uint32_t last)
{
    size_t nbytes = dtype_nbytes(l->bias_dtype);
    float b[BIAS_BLOCK];

    for (size_t at = first; at < last; at += BIAS_BLOCK) {
        size_t n = last - at < BIAS_BLOCK ? last - at : BIAS_BLOCK;

        kernels_widen(b, (const char *)l->bias + at * nbytes, l->bias_dtype, n);
        for (size_t r = 0; r < l->product.m; r++) {
            float *y = l->product.y + r * l->product.ldy + at;

            for (size_t i = 0; i < n; i++)
                y[i] += b[i];
        }
    }
}

/* One region of the pool: the outputs of all layers are numbered through. */
struct linears {
    const struct kernels *kernels;
    const struct linear *list;
    uint32_t n;
};

static void linears_part(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    const struct linears *ls = arg;
    uint32_t base = 0;

    (void)thread;
    for (uint32_t i = 0; i < ls->n && base < last; base += ls->list[i++].n) {
        const struct linear *l = &ls->list[i];
        uint32_t from = first > base ? first - base : 0;
        uint32_t to = last - base < l->n ? last - base : l->n;

        if (from >= to)
            continue;
        kernels_matmul(ls->kernels, &l->product, from, to);
        if (l->bias != NULL)
            add_bias(l, from, to);
    }
}

/* Parts of one size, equally many for each thread. Few parts, because each begins slowly: none of
 * its weights are in a cache. Several, so that the others can do the work of a late thread. */
static uint32_t linears_grain(uint32_t n_outputs, uint64_t work, uint32_t n_threads)
{
    uint64_t n_parts = work / LINEAR_WORK_MIN, grain;

    if (n_parts > n_threads) {
        n_parts = work / LINEAR_PART_WORK / n_threads;
        n_parts = n_parts < 1 ? 1 : n_parts > LINEAR_PARTS_MAX ? LINEAR_PARTS_MAX : n_parts;
        n_parts *= n_threads;
    }
    grain = n_parts < 1 ? n_outputs : (n_outputs + n_parts - 1) / n_parts;
    return (uint32_t)((grain + KERNELS_GRAIN - 1) / KERNELS_GRAIN * KERNELS_GRAIN);
}

void linears_run(struct compute *c, const struct kernels *k, const struct linear *list, uint32_t n)
{
    struct linears ls = {.kernels = k, .list = list, .n = n};
    uint64_t work = 0;
    uint32_t total = 0;

    for (uint32_t i = 0; i < n; i++) {
        total += list[i].n;
        work += (uint64_t)list[i].n * list[i].product.m * list[i].product.k;
    }
    if (total > 0)
        compute_run(c, total, linears_grain(total, work, compute_n_threads(c)), linears_part, &ls);
}
