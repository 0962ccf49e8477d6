/* Three regions: the rows are measured, part by part; draws in which every token takes part run,
 * part by part; then each row is finished by one thread. So all threads share a single
 * row, and several rows are distributed among them. */
#include "engine/sampler/token_selector.h"

#include <assert.h>
#include <stdlib.h>

enum { TOKEN_SELECTOR_PARTS_EACH = 4 }; /* of a region for each thread, to even out */

struct token_selector {
    struct compute *compute; /* borrowed */
    const struct kernels *kernels;
    uint32_t vocab_size, n_parts, n_max;
    struct sampler_part *parts; /* owned; [n_max][n_parts] */
    struct sampler_row *rows;   /* owned; [n_max] */
    uint32_t *open;             /* owned; [n_max]: rows whose draw is shared */
    struct sampler **samplers;  /* owned; of each thread */

    struct choice *choices; /* of the call that runs */
    uint32_t n, n_open;
};

static int token_selector_alloc(struct token_selector *ch, struct err *e)
{
    uint32_t n_threads = compute_n_threads(ch->compute);

    ch->parts = calloc((size_t)ch->n_max * ch->n_parts, sizeof *ch->parts);
    ch->rows = calloc(ch->n_max, sizeof *ch->rows);
    ch->open = calloc(ch->n_max, sizeof *ch->open);
    ch->samplers = calloc(n_threads, sizeof(struct sampler *));
    if (ch->parts == NULL || ch->rows == NULL || ch->open == NULL || ch->samplers == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to measure %u rows of logits", ch->n_max);
    for (uint32_t i = 0; i < n_threads; i++)
        if (sampler_new(&ch->samplers[i], ch->vocab_size, e) != 0)
            return -1;
    return 0;
}

int token_selector_new(struct token_selector **out, struct compute *c, uint32_t vocab_size,
                       uint32_t n_max, struct err *e)
{
    struct token_selector *ch = calloc(1, sizeof *ch);

    if (ch == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to choose tokens");
    ch->compute = c;
    ch->kernels = kernels_current();
    ch->vocab_size = vocab_size;
    ch->n_parts = sampler_n_parts(vocab_size);
    ch->n_max = n_max;
    if (token_selector_alloc(ch, e) != 0) {
        token_selector_free(ch);
        return -1;
    }
    *out = ch;
    return 0;
}

void token_selector_free(struct token_selector *ch)
{
    if (ch == NULL)
        return;
    for (uint32_t i = 0; ch->samplers != NULL && i < compute_n_threads(ch->compute); i++)
        sampler_free(ch->samplers[i]);
    free(ch->samplers);
    free(ch->open);
    free(ch->rows);
    free(ch->parts);
    free(ch);
}

static void begin_rows(struct token_selector *ch)
{
    for (uint32_t i = 0; i < ch->n; i++) {
        const struct choice *c = &ch->choices[i];

        sampler_row_init(&ch->rows[i], ch->kernels, c->logits, ch->vocab_size,
                         ch->parts + (size_t)i * ch->n_parts);
        if (c->logprobs >= 0)
            sampler_row_want_logprobs(&ch->rows[i], c->logprobs_mode == GEN_LOGPROBS_RAW
                                                        ? 1
                                                        : c->draw.params->temperature);
    }
}

/* Item i is row i / n_parts, part i % n_parts. */
static void measure_items(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    struct token_selector *ch = arg;

    (void)thread;
    for (uint32_t i = first; i < last; i++)
        sampler_row_measure(&ch->rows[i / ch->n_parts], i % ch->n_parts, i % ch->n_parts + 1);
}

/* Item i is open row i / n_parts, part i % n_parts. */
static void race_items(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    struct token_selector *ch = arg;

    (void)thread;
    for (uint32_t i = first; i < last; i++) {
        uint32_t row = ch->open[i / ch->n_parts];

        sampler_race(&ch->rows[row], &ch->choices[row].draw, i % ch->n_parts, i % ch->n_parts + 1);
    }
}

static void join_rows(struct token_selector *ch)
{
    ch->n_open = 0;
    for (uint32_t i = 0; i < ch->n; i++) {
        struct choice *c = &ch->choices[i];

        c->finite = sampler_row_join(&ch->rows[i]);
        if (c->finite && !c->given && sampler_is_open(&c->draw))
            ch->open[ch->n_open++] = i;
    }
}

static void choice_describe(struct choice *c, const struct sampler_row *row, struct sampler *s)
{
    struct sampler_row processed;

    c->token = (struct gen_token){.id = c->id};
    if (!row->with_logprobs)
        return;
    if (c->logprobs_mode == GEN_LOGPROBS_PROCESSED)
        row = sampler_process(s, &processed, row, &c->draw);
    c->token.logprob = sampler_logprob(row, c->id);
    c->token.rank = sampler_rank(row, c->id);
    c->token.top = c->top;
    if (c->top != NULL)
        c->token.n_top = sampler_top(row, (uint32_t)c->logprobs, c->top);
}

static void finish_rows(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    struct token_selector *ch = arg;

    for (uint32_t i = first; i < last; i++) {
        const struct sampler_row *row = &ch->rows[i];
        struct choice *c = &ch->choices[i];

        if (!c->finite)
            continue;
        c->chosen = true;
        if (!c->given && sampler_is_open(&c->draw))
            c->id = sampler_winner(row);
        else if (!c->given)
            c->chosen = sampler_pick(ch->samplers[thread], row, &c->draw, &c->id);
        if (c->chosen)
            choice_describe(c, row, ch->samplers[thread]);
    }
}

static void run_parts(struct token_selector *ch, uint32_t n_rows, compute_fn *fn)
{
    uint32_t n = n_rows * ch->n_parts;
    uint32_t grain = n / (compute_n_threads(ch->compute) * TOKEN_SELECTOR_PARTS_EACH);

    compute_run(ch->compute, n, grain > 0 ? grain : 1, fn, ch);
}

void token_selector_run(struct token_selector *ch, struct choice *choices, uint32_t n)
{
    assert(n <= ch->n_max);
    ch->choices = choices;
    ch->n = n;
    begin_rows(ch);
    run_parts(ch, n, measure_items);
    join_rows(ch);
    run_parts(ch, ch->n_open, race_items);
    compute_run(ch->compute, n, 1, finish_rows, ch);
}
