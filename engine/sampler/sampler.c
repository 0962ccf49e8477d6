/* Sampling without sorting the vocabulary, nor more than a pass or two over it.
 *
 * Rules on single tokens work on a copy of the row. top_k, top_p and min_p need the largest logits
 * in order, but rarely many of them: a bound below which no token can stay leaves few, and a heap
 * gives those up one by one. The draw is the exponential race (kernels.h), which is the Gumbel
 * argmax without a second logarithm. Rejected: inverting the cumulative sum by one random number,
 * because then the draw depends on the order of summation. */
#include "engine/sampler/sampler.h"

#include "engine/kernels/uniform.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DOUBTFUL_MAX = 8 };

struct cand {
    float logit;
    uint32_t id;
};

struct sampler {
    uint32_t vocab_size;
    float *logits;              /* owned; [vocab_size]: a row after the rules on single tokens */
    struct sampler_part *parts; /* owned; of that row */
    struct cand *cands;         /* owned; [vocab_size] */
};

/* Candidates of one draw: a part of the scratch. After top_k they are sorted, the best last. */
struct field {
    struct cand *c;
    uint32_t n;
    double max; /* largest logit of the row that is not masked */
    double scale;
};

int sampler_new(struct sampler **out, uint32_t vocab_size, struct err *e)
{
    struct sampler *s = calloc(1, sizeof *s);

    if (s != NULL) {
        s->vocab_size = vocab_size;
        s->logits = malloc((size_t)vocab_size * sizeof *s->logits);
        s->parts = malloc((size_t)sampler_n_parts(vocab_size) * sizeof *s->parts);
        s->cands = malloc((size_t)vocab_size * sizeof *s->cands);
    }
    if (s == NULL || s->logits == NULL || s->parts == NULL || s->cands == NULL) {
        sampler_free(s);
        return err_set(e, ERR_NO_MEMORY, "", "no memory to sample from %u tokens", vocab_size);
    }
    *out = s;
    return 0;
}

void sampler_free(struct sampler *s)
{
    if (s == NULL)
        return;
    free(s->cands);
    free(s->parts);
    free(s->logits);
    free(s);
}

static double cand_weight(const struct field *f, const struct cand *c)
{
    return exp(((double)c->logit - f->max) * f->scale);
}

static bool cand_better(const struct cand *x, const struct cand *y)
{
    return x->logit > y->logit || (!(x->logit < y->logit) && x->id < y->id);
}

static void cand_swap(struct cand *x, struct cand *y)
{
    struct cand z = *x;

    *x = *y;
    *y = z;
}

static void sampler_sift_down(struct cand *c, uint32_t n, uint32_t i)
{
    struct cand moved = c[i];

    for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && cand_better(&c[child + 1], &c[child]))
            child++;
        if (!cand_better(&c[child], &moved))
            break;
        c[i] = c[child];
    }
    c[i] = moved;
}

static void field_heapify(struct field *f)
{
    for (uint32_t i = f->n / 2; i-- > 0;)
        sampler_sift_down(f->c, f->n, i);
}

/* Moves the best of the heap's first n entries behind them. */
static void field_pop(struct field *f, uint32_t n)
{
    struct cand best = f->c[0];

    f->c[0] = f->c[n - 1];
    sampler_sift_down(f->c, n - 1, 0);
    f->c[n - 1] = best;
}

/* Keeps the last n of the field. */
static void keep_last(struct field *f, uint32_t n)
{
    f->c += f->n - n;
    f->n = n;
}

static void keep_min_p(struct field *f, double min_p)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->n; i++)
        if (cand_weight(f, &f->c[i]) >= min_p)
            f->c[n++] = f->c[i];
    f->n = n;
}

/* Ties with the k-th survive. Leaves the field sorted. */
static void keep_top_k(struct field *f, uint32_t k)
{
    uint32_t n_heap = f->n;

    field_heapify(f);
    while (n_heap > 0 && (f->n - n_heap < k || f->c[0].logit >= f->c[n_heap].logit))
        field_pop(f, n_heap--);
    keep_last(f, f->n - n_heap);
}

static double total_of(const struct field *f, uint32_t first, uint32_t last)
{
    double total = 0;

    for (uint32_t i = first; i < last; i++)
        total += cand_weight(f, &f->c[i]);
    return total;
}

/* Does top_p keep a token, when all better ones have the mass `above`? */
static bool top_p_stays(double above, double total, double p)
{
    return total - above > (1 - p) * total;
}

/* Orders [first, last) around one of them, the better ones before it. Returns: where it is. */
static uint32_t partition(struct cand *c, uint32_t first, uint32_t last)
{
    uint32_t middle = first + (last - first) / 2, at = first;
    struct cand pivot;

    if (cand_better(&c[middle], &c[first]) != cand_better(&c[middle], &c[last - 1]))
        cand_swap(&c[middle], &c[last - 1]);
    else if (cand_better(&c[first], &c[middle]) != cand_better(&c[first], &c[last - 1]))
        cand_swap(&c[first], &c[last - 1]);
    pivot = c[last - 1]; /* the middle one of three */
    for (uint32_t i = first; i < last - 1; i++)
        if (cand_better(&c[i], &pivot))
            cand_swap(&c[i], &c[at++]);
    cand_swap(&c[at], &c[last - 1]);
    return at;
}

/* A token goes when it and all that are worse have a mass of at most 1 - p; the best stays. Halves
 * the doubtful ones until they are few; only those are sorted.
 * @total  the mass of the field and of what was left out of it as certain to go */
static void keep_top_p(struct field *f, double p, double total)
{
    uint32_t n = 0, end = f->n, n_heap;
    struct field rest;
    double above = 0;

    while (end - n > DOUBTFUL_MAX) {
        uint32_t at = partition(f->c, n, end);
        double mass = total_of(f, n, at);

        if (top_p_stays(above + mass, total, p)) {
            above += mass + cand_weight(f, &f->c[at]);
            n = at + 1;
        } else {
            end = at > 0 ? at : 1;
        }
    }
    rest = (struct field){.c = f->c + n, .n = end - n};
    field_heapify(&rest);
    n_heap = rest.n;
    while (n_heap > 0 && (n + rest.n - n_heap == 0 || top_p_stays(above, total, p))) {
        field_pop(&rest, n_heap);
        above += cand_weight(f, &rest.c[--n_heap]);
    }
    memmove(rest.c, rest.c + n_heap, (rest.n - n_heap) * sizeof *rest.c);
    f->n = n + rest.n - n_heap;
}

/* The same of a field that is sorted. */
static void keep_top_p_sorted(struct field *f, double p)
{
    double total = total_of(f, 0, f->n), above = 0;
    uint32_t n = f->n;

    while (n > 0 && (n == f->n || top_p_stays(above, total, p)))
        above += cand_weight(f, &f->c[--n]);
    keep_last(f, f->n - n);
}

#define RACE_SLACK (1 + 0x1p-30) /* more than what rounding does to -log(u) >= 1 - u */

static uint32_t race_of_field(const struct field *f, uint64_t key)
{
    uint32_t winner = f->c[f->n - 1].id;
    double first = INFINITY;

    for (uint32_t i = f->n; i-- > 0;) { /* the best first, where they are sorted */
        double w = cand_weight(f, &f->c[i]), u = uniform_of(key, f->c[i].id), arrival;

        if (1 - u > w * (first * RACE_SLACK))
            continue;
        arrival = -log(u) / w;
        if (arrival < first || (!(arrival > first) && f->c[i].id < winner)) {
            first = arrival;
            winner = f->c[i].id;
        }
    }
    return winner;
}

/* Copies the row; masked tokens get minus infinity, which no later rule changes. */
static void logits_mask(struct sampler *s, const struct sampler_row *row,
                        const struct sampler_draw *d)
{
    const struct logits_processor *logits_processor = d->params->logits_processor;
    bool some = logits_processor != NULL && logits_processor->allowed != NULL;

    if (!some)
        memcpy(s->logits, row->logits, row->n * sizeof *s->logits);
    for (uint32_t i = 0; some && i < row->n; i++)
        s->logits[i] = -INFINITY;
    for (uint32_t i = 0; some && i < logits_processor->n_allowed; i++)
        s->logits[logits_processor->allowed[i]] = row->logits[logits_processor->allowed[i]];
    for (uint32_t i = 0; i < d->n_masked; i++)
        s->logits[d->masked[i]] = -INFINITY;
}

static void logits_bias(struct sampler *s, const struct logits_processor *logits_processor)
{
    for (uint32_t i = 0; i < logits_processor->n_biases; i++)
        s->logits[logits_processor->biases[i].id] += logits_processor->biases[i].bias;
}

/* A penalty can be very large or very small: a logit that leaves the range of floats is clamped.
 * Otherwise it would look masked, or its weight would overflow that of all other tokens. */
static float logit_penalised(float logit, const struct gen_params *p, uint32_t n_out)
{
    logit = logit > 0 ? logit / p->repetition_penalty : logit * p->repetition_penalty;
    logit = fminf(fmaxf(logit, -FLT_MAX), FLT_MAX);
    if (n_out == 0)
        return logit;
    logit -= p->frequency_penalty * (float)n_out;
    return fminf(fmaxf(logit - p->presence_penalty, -FLT_MAX), FLT_MAX);
}

static void logits_penalise(struct sampler *s, const struct gen_params *p,
                            const struct token_counts *counts)
{
    for (uint32_t i = 0; i < counts->n; i++) {
        float *logit = &s->logits[counts->tokens[i].id];

        if (!isinf(*logit))
            *logit = logit_penalised(*logit, p, counts->tokens[i].n_out);
    }
}

static bool has_rules_on_tokens(const struct sampler_draw *d)
{
    const struct logits_processor *s = d->params->logits_processor;

    return d->counts != NULL || d->n_masked > 0 ||
           (s != NULL && (s->allowed != NULL || s->n_biases > 0));
}

/* The row after the rules on single tokens. */
static void apply_rules(struct sampler *s, struct sampler_row *out, const struct sampler_row *row,
                        const struct sampler_draw *d)
{
    logits_mask(s, row, d);
    if (d->params->logits_processor != NULL)
        logits_bias(s, d->params->logits_processor);
    if (d->counts != NULL)
        logits_penalise(s, d->params, d->counts);
    sampler_row_init(out, row->kernels, s->logits, row->n, s->parts);
    sampler_row_measure(out, 0, sampler_n_parts(out->n));
    (void)sampler_row_join(out);
}

/* At most the least logit of those whose weight is at least w: rounding cannot lift it above. */
static float bound_of(const struct sampler_row *row, double scale, double w)
{
    double below = log(w) / scale, slack = 1e-6 * (fabs(row->max) + fabs(below) + 1 / scale);

    return (float)fmax(row->max + below - slack, -(double)FLT_MAX);
}

/* The k-th largest of the blocks' maxima is at most the k-th largest logit. */
static float bound_of_top_k(struct sampler *s, const struct sampler_row *row, uint32_t k)
{
    struct field blocks = {.c = s->cands, .n = sampler_n_blocks(row)};

    if (k > blocks.n)
        return -FLT_MAX;
    for (uint32_t b = 0; b < blocks.n; b++)
        blocks.c[b] = (struct cand){sampler_block_max(row, b), b};
    field_heapify(&blocks);
    for (uint32_t i = 0; i + 1 < k; i++)
        field_pop(&blocks, blocks.n - i);
    return fmaxf(blocks.c[0].logit, -FLT_MAX);
}

/* The mass of the row, in parts of their own order. */
static double total_of_row(const struct sampler_row *row, double scale)
{
    double total = 0;

    for (uint32_t first = 0; first < row->n; first += SAMPLER_PART)
        total += row->kernels->exp_sum(row->logits + first, row->max, scale,
                                       row->n - first < SAMPLER_PART ? row->n - first
                                                                     : SAMPLER_PART);
    return total;
}

/* The tokens from `least` on. */
static void field_gather(struct field *f, struct sampler *s, const struct sampler_row *row,
                         float least)
{
    uint32_t n_blocks = sampler_n_blocks(row);

    *f = (struct field){.c = s->cands, .max = row->max, .scale = f->scale};
    for (uint32_t b = 0; b < n_blocks; b++) {
        uint32_t first = b * KERNELS_BLOCK;

        if (sampler_block_max(row, b) < least)
            continue;
        for (uint32_t id = first; id < row->n && id - first < KERNELS_BLOCK; id++)
            if (row->logits[id] >= least)
                f->c[f->n++] = (struct cand){row->logits[id], id};
    }
}

/* Leaves the candidates that min_p, top_k and top_p keep. */
static void field_filter(struct field *f, struct sampler *s, const struct sampler_row *row,
                         const struct gen_params *p)
{
    bool by_k = p->top_k > 0 && (uint32_t)p->top_k < row->n, by_p = p->top_p < 1;
    float least = -FLT_MAX;
    double total = 0;

    if (p->min_p > 0)
        least = bound_of(row, f->scale, (double)p->min_p);
    if (by_k)
        least = fmaxf(least, bound_of_top_k(s, row, (uint32_t)p->top_k));
    if (by_p && !by_k && !(p->min_p > 0)) { /* n tokens below have less than 1 - p of the mass */
        total = total_of_row(row, f->scale);
        least = bound_of(row, f->scale, (1 - (double)p->top_p) * total / row->n);
    }
    field_gather(f, s, row, least);
    if (p->min_p > 0)
        keep_min_p(f, (double)p->min_p);
    if (by_k)
        keep_top_k(f, (uint32_t)p->top_k);
    if (by_p && by_k)
        keep_top_p_sorted(f, (double)p->top_p);
    else if (by_p)
        keep_top_p(f, (double)p->top_p, total > 0 ? total : total_of(f, 0, f->n));
}

static bool has_filters(const struct gen_params *p, uint32_t n)
{
    return p->min_p > 0 || p->top_p < 1 || (p->top_k > 0 && (uint32_t)p->top_k < n);
}

static uint64_t sampler_key_of(const struct sampler_draw *d)
{
    return uniform_key(d->params->seed, d->index);
}

bool sampler_is_open(const struct sampler_draw *d)
{
    return d->params->temperature > 0 && !has_rules_on_tokens(d) &&
           !has_filters(d->params, UINT32_MAX);
}

void sampler_race(const struct sampler_row *row, const struct sampler_draw *d, uint32_t first,
                  uint32_t last)
{
    for (uint32_t i = first; i < last; i++) {
        uint32_t id = i * SAMPLER_PART, left = row->n - id;
        struct race *r = &row->parts[i].race;

        *r = (struct race){.key = sampler_key_of(d),
                           .max = row->max,
                           .scale = sampler_scale(d->params->temperature),
                           .arrival = INFINITY};
        row->kernels->race(r, row->logits + id, id, left < SAMPLER_PART ? left : SAMPLER_PART);
    }
}

uint32_t sampler_winner(const struct sampler_row *row)
{
    uint32_t n = sampler_n_parts(row->n);
    const struct race *first = &row->parts[0].race;

    for (uint32_t i = 1; i < n; i++)
        if (row->parts[i].race.arrival < first->arrival)
            first = &row->parts[i].race;
    return first->winner;
}

bool sampler_pick(struct sampler *s, const struct sampler_row *row, const struct sampler_draw *d,
                  uint32_t *id)
{
    const struct gen_params *p = d->params;
    struct sampler_row ruled;
    struct field f = {.scale = sampler_scale(p->temperature)};

    assert(row->n == s->vocab_size);
    if (has_rules_on_tokens(d)) {
        apply_rules(s, &ruled, row, d);
        row = &ruled;
    }
    if (isinf(row->max))
        return false;
    if (!(p->temperature > 0)) {
        *id = sampler_best(row);
    } else if (has_filters(p, row->n)) {
        field_filter(&f, s, row, p);
        *id = race_of_field(&f, sampler_key_of(d));
    } else {
        sampler_race(row, d, 0, sampler_n_parts(row->n));
        *id = sampler_winner(row);
    }
    return true;
}

/* Only those of the field stay. */
static void sampler_keep_only(struct sampler *s, const struct field *f)
{
    for (uint32_t i = 0; i < s->vocab_size; i++)
        s->logits[i] = -FLT_MAX;
    for (uint32_t i = 0; i < f->n; i++)
        s->logits[f->c[i].id] = f->c[i].logit;
}

/* Tokens that are excluded get the least of all logits: a row has finite logits only. */
static void logits_unmask(struct sampler *s)
{
    for (uint32_t i = 0; i < s->vocab_size; i++)
        s->logits[i] = fmaxf(s->logits[i], -FLT_MAX);
}

const struct sampler_row *sampler_process(struct sampler *s, struct sampler_row *out,
                                          const struct sampler_row *row,
                                          const struct sampler_draw *d)
{
    const struct gen_params *p = d->params;
    bool filters = p->temperature > 0 && has_filters(p, row->n), rules = has_rules_on_tokens(d);
    struct field f = {.scale = sampler_scale(p->temperature)};
    struct sampler_row ruled;

    if (!rules && !filters)
        return row;
    if (rules) {
        apply_rules(s, &ruled, row, d);
        row = &ruled;
    }
    if (filters) {
        field_filter(&f, s, row, p);
        sampler_keep_only(s, &f);
    } else {
        logits_unmask(s);
    }
    sampler_row_init(out, row->kernels, s->logits, s->vocab_size, s->parts);
    sampler_row_want_logprobs(out, p->temperature);
    sampler_row_measure(out, 0, sampler_n_parts(out->n));
    (void)sampler_row_join(out);
    return out;
}
