/* Ranks and lists compare logprobs, which are rounded, so that several logits share one. A logprob
 * never falls when its logit rises, so the least logit of those that share one is found once, and
 * then only floats are counted. Rejected: a logprob for each token of the vocabulary. */
#include "engine/sampler/sampler_row.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

static const float TEMPERATURE_LEAST = 0.01F;

double sampler_scale(float temperature)
{
    return 1 / (double)fmaxf(temperature, TEMPERATURE_LEAST);
}

uint32_t sampler_n_parts(uint32_t n)
{
    return (n - 1) / SAMPLER_PART + 1;
}

uint32_t sampler_n_blocks(const struct sampler_row *row)
{
    return (row->n - 1) / KERNELS_BLOCK + 1;
}

float sampler_block_max(const struct sampler_row *row, uint32_t block)
{
    const uint32_t each = SAMPLER_PART / KERNELS_BLOCK;

    return row->parts[block / each].maxima[block % each];
}

void sampler_row_init(struct sampler_row *out, const struct kernels *k, const float *logits,
                      uint32_t n, struct sampler_part *parts)
{
    assert(n >= 1);
    *out = (struct sampler_row){.logits = logits, .n = n, .kernels = k, .parts = parts, .scale = 1};
}

void sampler_row_want_logprobs(struct sampler_row *row, float temperature)
{
    row->with_logprobs = true;
    row->scale = temperature > 0 ? sampler_scale(temperature) : 1;
}

static uint32_t part_n(const struct sampler_row *row, uint32_t part)
{
    uint32_t left = row->n - part * SAMPLER_PART;

    return left < SAMPLER_PART ? left : SAMPLER_PART;
}

void sampler_row_measure(struct sampler_row *row, uint32_t first, uint32_t last)
{
    for (uint32_t i = first; i < last; i++) {
        const float *logits = row->logits + (size_t)i * SAMPLER_PART;
        uint32_t n = part_n(row, i);
        struct sampler_part *p = &row->parts[i];

        p->finite = row->kernels->maxima(p->maxima, logits, n);
        p->max = p->maxima[0];
        for (uint32_t b = 1; b * KERNELS_BLOCK < n; b++)
            p->max = p->maxima[b] > p->max ? p->maxima[b] : p->max;
        if (row->with_logprobs && p->finite)
            p->sum = row->kernels->exp_sum(logits, (double)p->max, row->scale, n);
    }
}

bool sampler_row_join(struct sampler_row *row)
{
    uint32_t n = sampler_n_parts(row->n);
    double sum = 0;
    bool finite = true;

    row->max = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        finite = finite && row->parts[i].finite;
        row->max = fmax(row->max, (double)row->parts[i].max);
    }
    if (!finite || !row->with_logprobs)
        return finite;
    for (uint32_t i = 0; i < n; i++)
        sum += row->parts[i].sum * exp(((double)row->parts[i].max - row->max) * row->scale);
    row->log_sum = log(sum);
    return true;
}

static float logprob_of(const struct sampler_row *row, float logit)
{
    double lp = ((double)logit - row->max) * row->scale - row->log_sum;

    return lp < (double)SAMPLER_LOGPROB_MIN ? SAMPLER_LOGPROB_MIN : (float)lp;
}

float sampler_logprob(const struct sampler_row *row, uint32_t id)
{
    assert(row->with_logprobs);
    return logprob_of(row, row->logits[id]);
}

/* Finite floats in order, as integers in order; 0 and -0 apart. */
static int64_t order_of(float f)
{
    int32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return bits >= 0 ? bits : -(int64_t)(bits & INT32_MAX) - 1;
}

static float float_of(int64_t order)
{
    int32_t bits = (int32_t)(order >= 0 ? order : -order - 1);
    float f;

    memcpy(&f, &bits, sizeof f);
    return order >= 0 ? f : -f;
}

/* The least logit whose logprob is not below that of `logit`. */
static float least_equal(const struct sampler_row *row, float logit)
{
    int64_t below = order_of(-FLT_MAX) - 1, enough = order_of(logit);
    float lp = logprob_of(row, logit);

    while (enough - below > 1) {
        int64_t middle = below + (enough - below) / 2;

        if (logprob_of(row, float_of(middle)) >= lp)
            enough = middle;
        else
            below = middle;
    }
    return float_of(enough);
}

uint32_t sampler_rank(const struct sampler_row *row, uint32_t id)
{
    float least = least_equal(row, row->logits[id]);
    uint32_t n = sampler_n_blocks(row), rank = 0;

    assert(row->with_logprobs);
    for (uint32_t b = 0; b < n; b++) {
        uint32_t first = b * KERNELS_BLOCK, left = row->n - first;

        if (sampler_block_max(row, b) >= least)
            rank += row->kernels->count_from(row->logits + first, least,
                                             left < KERNELS_BLOCK ? left : KERNELS_BLOCK);
    }
    return rank;
}

/* Of equal ones the lower id is the better. */
static bool logit_worse(const float *logits, uint32_t x, uint32_t y)
{
    return logits[x] < logits[y] || (!(logits[x] > logits[y]) && x > y);
}

/* Inserts `id` at `at` into a heap of the best tokens so far, whose first entry is the worst of
 * them; worse entries move up. */
static void sift_up(const float *logits, struct gen_top *heap, uint32_t at, uint32_t id)
{
    for (; at > 0 && logit_worse(logits, id, heap[(at - 1) / 2].id); at = (at - 1) / 2)
        heap[at].id = heap[(at - 1) / 2].id;
    heap[at].id = id;
}

/* The same in place of the first of n. */
static void sampler_row_sift_down(const float *logits, struct gen_top *heap, uint32_t n,
                                  uint32_t id)
{
    uint32_t at = 0;

    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && logit_worse(logits, heap[child + 1].id, heap[child].id))
            child++;
        if (!logit_worse(logits, heap[child].id, id))
            break;
        heap[at].id = heap[child].id;
    }
    heap[at].id = id;
}

/* Returns: how many of the k best there are, in a heap. */
static uint32_t gather_top(const struct sampler_row *row, uint32_t k, struct gen_top *heap)
{
    uint32_t n = 0, n_blocks = sampler_n_blocks(row);

    for (uint32_t b = 0; b < n_blocks; b++) {
        uint32_t first = b * KERNELS_BLOCK;

        if (n == k && sampler_block_max(row, b) <= row->logits[heap[0].id])
            continue;
        for (uint32_t id = first; id < row->n && id - first < KERNELS_BLOCK; id++) {
            if (n < k)
                sift_up(row->logits, heap, n++, id);
            else if (row->logits[id] > row->logits[heap[0].id])
                sampler_row_sift_down(row->logits, heap, n, id);
        }
    }
    return n;
}

uint32_t sampler_top(const struct sampler_row *row, uint32_t k, struct gen_top *out)
{
    uint32_t n;

    k = k < row->n ? k : row->n;
    if (k == 0)
        return 0;
    n = gather_top(row, k, out);
    for (uint32_t left = n; left > 1; left--) { /* the worst of what is left goes behind it */
        uint32_t worst = out[0].id;

        sampler_row_sift_down(row->logits, out, left - 1, out[left - 1].id);
        out[left - 1].id = worst;
    }
    /* Equal ones share the rank of the last of them; only the last group can go on beyond the list.
     */
    for (uint32_t i = n; i-- > 0;) {
        out[i].logprob = sampler_logprob(row, out[i].id);
        if (i == n - 1)
            out[i].rank = sampler_rank(row, out[i].id);
        else
            out[i].rank = out[i].logprob > out[i + 1].logprob ? i + 1 : out[i + 1].rank;
    }
    return n;
}

uint32_t sampler_best(const struct sampler_row *row)
{
    float max = (float)row->max;
    uint32_t b = 0, id;

    while (sampler_block_max(row, b) < max)
        b++;
    for (id = b * KERNELS_BLOCK; row->logits[id] < max; id++)
        ;
    return id;
}
