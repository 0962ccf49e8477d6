/* Sampling without sorting the vocabulary.
 *
 * The rules on single tokens work in place, on the copy of the row that the draw needs anyway: a
 * step costs the vocabulary once, and what the request lists.
 *
 * top_k and top_p need the largest logits in order, but rarely many of them: a heap gives them up
 * one by one. The draw is the exponential race: token i arrives at -log(u_i) / w_i, w_i its weight,
 * and the first one wins, which is the Gumbel argmax without a second logarithm. -log(u) >= 1 - u
 * spares the first one too for tokens that cannot win. Rejected: inverting the cumulative sum by
 * one random number, because then the draw depends on the order of summation. */
#include "engine/embedded/sampler.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

static const float TEMPERATURE_LEAST = 0.01F;

struct cand {
    float logit;
    uint32_t id;
};

struct sampler {
    struct cand *cands; /* owned; [vocab_size] */
    uint32_t vocab_size;
};

/* Candidates of one draw: a part of the scratch. Once they came off the heap they are sorted, the
 * best last. */
struct field {
    struct cand *c;
    uint32_t n;
    double max; /* largest logit among them */
    double temperature;
};

static double log_sum(const struct sampler_row *row)
{
    double sum = 0;

    for (uint32_t i = 0; i < row->n; i++)
        sum += exp(((double)row->logits[i] - row->max) * row->scale);
    return log(sum);
}

bool sampler_row_init(struct sampler_row *out, const float *logits, uint32_t n)
{
    float max = -INFINITY;

    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(logits[i]))
            return false;
        max = logits[i] > max ? logits[i] : max;
    }
    *out = (struct sampler_row){.logits = logits, .n = n, .max = (double)max, .scale = 1};
    out->log_sum = log_sum(out);
    return true;
}

void sampler_row_temper(struct sampler_row *row, float temperature)
{
    if (!(temperature > 0))
        temperature = 1;
    row->scale = 1 / (double)fmaxf(temperature, TEMPERATURE_LEAST);
    row->log_sum = log_sum(row);
}

float sampler_logprob(const struct sampler_row *row, uint32_t id)
{
    double lp = ((double)row->logits[id] - row->max) * row->scale - row->log_sum;

    return lp < (double)SAMPLER_LOGPROB_MIN ? SAMPLER_LOGPROB_MIN : (float)lp;
}

uint32_t sampler_rank(const struct sampler_row *row, uint32_t id)
{
    float lp = sampler_logprob(row, id);
    uint32_t rank = 0;

    for (uint32_t i = 0; i < row->n; i++)
        rank += sampler_logprob(row, i) >= lp;
    return rank;
}

uint32_t sampler_top(const struct sampler_row *row, uint32_t k, struct gen_top *out)
{
    uint32_t n = 0, at;

    k = k < row->n ? k : row->n;
    if (k == 0)
        return 0;
    for (uint32_t id = 0; id < row->n; id++) {
        if (n == k && row->logits[id] <= row->logits[out[n - 1].id])
            continue;
        n += n < k;
        for (at = n - 1; at > 0 && row->logits[out[at - 1].id] < row->logits[id]; at--)
            out[at].id = out[at - 1].id;
        out[at].id = id;
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

int sampler_new(struct sampler **out, uint32_t vocab_size, struct err *e)
{
    struct sampler *s = calloc(1, sizeof *s);

    if (s != NULL)
        s->cands = malloc((size_t)vocab_size * sizeof *s->cands);
    if (s == NULL || s->cands == NULL) {
        sampler_free(s);
        return err_set(e, ERR_NO_MEMORY, "", "no memory to sample from %u tokens", vocab_size);
    }
    s->vocab_size = vocab_size;
    *out = s;
    return 0;
}

void sampler_free(struct sampler *s)
{
    if (s == NULL)
        return;
    free(s->cands);
    free(s);
}

/* SplitMix64's output function. */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

#define GOLDEN 0x9e3779b97f4a7c15U /* SplitMix64's increment */

/* In (0, 1), both ends excluded: 52 bits and a half fit a double exactly. */
static double uniform(uint64_t key, uint32_t id)
{
    return ((double)(mix(key + GOLDEN * ((uint64_t)id + 1)) >> 12) + 0.5) * 0x1p-52;
}

static double weight(const struct field *f, const struct cand *c)
{
    return exp(((double)c->logit - f->max) / f->temperature);
}

static bool better(const struct cand *x, const struct cand *y)
{
    return x->logit > y->logit || (!(x->logit < y->logit) && x->id < y->id);
}

static void sift_down(struct cand *c, uint32_t n, uint32_t i)
{
    struct cand moved = c[i];

    for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && better(&c[child + 1], &c[child]))
            child++;
        if (!better(&c[child], &moved))
            break;
        c[i] = c[child];
    }
    c[i] = moved;
}

static void heapify(struct field *f)
{
    for (uint32_t i = f->n / 2; i-- > 0;)
        sift_down(f->c, f->n, i);
}

/* Moves the best of the heap's first n entries behind them. */
static void pop(struct field *f, uint32_t n)
{
    struct cand best = f->c[0];

    f->c[0] = f->c[n - 1];
    sift_down(f->c, n - 1, 0);
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
        if (weight(f, &f->c[i]) >= min_p)
            f->c[n++] = f->c[i];
    f->n = n;
}

/* Ties with the k-th survive. Leaves the field sorted. */
static void keep_top_k(struct field *f, uint32_t k)
{
    uint32_t n_heap = f->n;

    heapify(f);
    while (n_heap > 0 && (f->n - n_heap < k || f->c[0].logit >= f->c[n_heap].logit))
        pop(f, n_heap--);
    keep_last(f, f->n - n_heap);
}

/* A token goes when it and all that are worse have a mass of at most 1 - p; the best stays. */
static void keep_top_p(struct field *f, double p, bool sorted)
{
    uint32_t n_heap = f->n;
    double total = 0, above = 0;

    for (uint32_t i = 0; i < f->n; i++)
        total += weight(f, &f->c[i]);
    if (!sorted)
        heapify(f);
    while (n_heap > 0 && (n_heap == f->n || total - above > (1 - p) * total)) {
        if (!sorted)
            pop(f, n_heap);
        above += weight(f, &f->c[--n_heap]);
    }
    keep_last(f, f->n - n_heap);
}

static uint32_t race(const struct field *f, uint64_t key)
{
    uint32_t winner = f->c[f->n - 1].id;
    double first = INFINITY;

    for (uint32_t i = f->n; i-- > 0;) { /* the best first, where they are sorted */
        double w = weight(f, &f->c[i]), u = uniform(key, f->c[i].id), arrival;

        if (1 - u > first * w)
            continue;
        arrival = -log(u) / w;
        if (arrival < first || (!(arrival > first) && f->c[i].id < winner)) {
            first = arrival;
            winner = f->c[i].id;
        }
    }
    return winner;
}

/* Every token in its place, masked ones at minus infinity, which nothing below moves. */
static void mask(struct sampler *s, const struct sampler_row *row, const struct sampler_draw *d)
{
    const struct steering *steering = d->params->steering;
    bool some = steering != NULL && steering->allowed != NULL;

    for (uint32_t i = 0; i < row->n; i++)
        s->cands[i] = (struct cand){some ? -INFINITY : row->logits[i], i};
    for (uint32_t i = 0; some && i < steering->n_allowed; i++)
        s->cands[steering->allowed[i]].logit = row->logits[steering->allowed[i]];
    for (uint32_t i = 0; i < d->n_masked; i++)
        s->cands[d->masked[i]].logit = -INFINITY;
}

static void favour(struct sampler *s, const struct steering *steering)
{
    for (uint32_t i = 0; i < steering->n_biases; i++)
        s->cands[steering->biases[i].id].logit += steering->biases[i].bias;
}

/* A penalty can be huge or next to nothing: a logit that leaves the range of floats stays at its
 * end, or it would look masked, or make every other token impossible to weigh. */
static float penalised(float logit, const struct gen_params *p, uint32_t n_out)
{
    logit = logit > 0 ? logit / p->repetition_penalty : logit * p->repetition_penalty;
    logit = fminf(fmaxf(logit, -FLT_MAX), FLT_MAX);
    if (n_out == 0)
        return logit;
    logit -= p->frequency_penalty * (float)n_out;
    return fminf(fmaxf(logit - p->presence_penalty, -FLT_MAX), FLT_MAX);
}

static void penalise(struct sampler *s, const struct gen_params *p, const struct seen *seen)
{
    for (uint32_t i = 0; i < seen->n; i++) {
        struct cand *c = &s->cands[seen->tokens[i].id];

        if (!isinf(c->logit))
            c->logit = penalised(c->logit, p, seen->tokens[i].n_out);
    }
}

/* All tokens that are not masked. */
static void field_init(struct field *f, struct sampler *s, const struct sampler_row *row,
                       const struct sampler_draw *d)
{
    uint32_t n = 0, best = 0;

    mask(s, row, d);
    if (d->params->steering != NULL)
        favour(s, d->params->steering);
    if (d->seen != NULL)
        penalise(s, d->params, d->seen);
    for (uint32_t i = 0; i < row->n; i++) {
        if (isinf(s->cands[i].logit))
            continue;
        s->cands[n] = s->cands[i];
        if (better(&s->cands[n], &s->cands[best]))
            best = n;
        n++;
    }
    *f = (struct field){.c = s->cands, .n = n, .temperature = 1};
    f->max = n > 0 ? (double)s->cands[best].logit : 0;
}

static uint32_t argmax(const struct field *f)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < f->n; i++)
        if (better(&f->c[i], &f->c[best]))
            best = i;
    return f->c[best].id;
}

bool sampler_pick(struct sampler *s, const struct sampler_row *row, const struct sampler_draw *d,
                  uint32_t *id)
{
    const struct gen_params *p = d->params;
    struct field f;
    bool sorted = false;

    assert(row->n == s->vocab_size);
    field_init(&f, s, row, d);
    if (f.n == 0)
        return false;
    if (!(p->temperature > 0)) {
        *id = argmax(&f);
        return true;
    }
    f.temperature = (double)fmaxf(p->temperature, TEMPERATURE_LEAST);
    if (p->min_p > 0)
        keep_min_p(&f, (double)p->min_p);
    if (p->top_k > 0 && (uint32_t)p->top_k < f.n) {
        keep_top_k(&f, (uint32_t)p->top_k);
        sorted = true;
    }
    if (p->top_p < 1)
        keep_top_p(&f, (double)p->top_p, sorted);
    *id = race(&f, mix(mix(p->seed + GOLDEN) + GOLDEN * (d->index + 1)));
    return true;
}
