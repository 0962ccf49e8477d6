/* Any JSON as sampling members, then a sequence that is sampled by what came out. A refusal names a
 * member; an acceptance respects the limits, and no token comes that it forbids. */
#include "handlers/generate/generate_params.h"
#include "tests/unit/take_logits.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                  \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

enum { VOCAB = 1024, N_STEPS = 6 };

static struct version_label label_v = {.refs = 1, .text = "v"};

static const struct tokenizer *tokenizer_of_the_tests(void)
{
    static struct tokenizer *t;
    struct err e = {0};

    if (t == NULL)
        CHECK(tokenizer_load(&t, FIXTURES "/kjv-qwen3-1m", &e) == 0);
    return t;
}

static void check_refusal(const struct err *e)
{
    CHECK(e->code == ERR_BAD_REQUEST || e->code == ERR_TOO_LARGE);
    CHECK(e->field[0] == '/' && e->msg[0] != '\0');
}

static void check_accepted(const struct generate_params *p)
{
    const struct logits_processor *s = p->gen.logits_processor;
    struct err e = {0};

    CHECK(gen_params_check(&p->gen, "", &e) == 0);
    CHECK(p->n >= 1 && p->n <= GENERATE_N_MAX);
    CHECK(s == NULL || logits_processor_check(s, VOCAB, "", &e) == 0);
    CHECK(s == NULL || s->n_biases <= LOGITS_PROCESSOR_BIASES_MAX);
    for (uint32_t i = 0; s != NULL && i < s->n_biases; i++)
        CHECK(fabsf(s->biases[i].bias) <= LOGITS_PROCESSOR_BIAS_LIMIT);
}

static bool allows(const struct logits_processor *s, uint32_t id)
{
    for (uint32_t i = 0; i < s->n_allowed; i++)
        if (s->allowed[i] == id)
            return true;
    return s->allowed == NULL;
}

static void check_token(const struct seq *q, uint32_t id)
{
    const struct logits_processor *s = q->req.params.logits_processor;
    uint32_t n;

    CHECK(id < VOCAB);
    CHECK(s == NULL || allows(s, id));
    for (uint32_t i = 0; s != NULL && i < s->n_bad_words; i++)
        CHECK(*logits_processor_bad_word(s, i, &n) != id || n > 1);
}

static void sample(struct seq *q)
{
    struct seq_step step = {.serial = 1, .name = &label_v};
    static float logits[VOCAB];
    static struct taker taker;
    struct err e = {0};

    if (taker.selector == NULL)
        CHECK(taker_init(&taker, VOCAB, &e) == 0);
    for (uint32_t i = 0; i < N_STEPS && q->rec->out.finish == GEN_RUNNING; i++) {
        uint32_t n = q->rec->out.n_tokens;

        for (uint32_t k = 0; k < VOCAB; k++)
            logits[k] = (float)((k * 37 + i * 11) % 101) / 5.0F - 10.0F;
        take_logits(&taker, q, q->req.n_prompt - 1 + n, logits, &step);
        CHECK(q->rec->out.n_tokens == n + (q->rec->out.finish != GEN_ERROR));
        if (q->rec->out.n_tokens > n)
            check_token(q, q->rec->tokens[n].id);
    }
}

static void run(const struct generate_params *p)
{
    struct seq_rules rules = {.vocab_size = VOCAB,
                              .max_model_len = 256,
                              .kv_tokens_max = 256,
                              .n_eos = 1,
                              .eos = {1},
                              .tokenizer = tokenizer_of_the_tests()};
    struct gen_request r = {.n_prompt = 2};
    struct seq *q = NULL;
    struct err e = {0};

    CHECK(generate_params_for(&r.params, p, p->n - 1, 254, &e) == 0);
    r.prompt = calloc(2, sizeof *r.prompt);
    CHECK(r.prompt != NULL);
    if (seq_new(&q, &rules, &r, &e) != 0)
        check_refusal(&e);
    else
        sample(q);
    gen_request_fini(&r);
    seq_free(q);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    json_t *o = json_loadb((const char *)data, len, JSON_REJECT_DUPLICATES, NULL);
    struct generate_params p;
    struct err e = {0};

    if (!json_is_object(o)) {
        json_decref(o);
        return 0;
    }
    generate_params_init(&p);
    if (generate_params_parse(&p, o, "/at", VOCAB, tokenizer_of_the_tests(), &e) != 0) {
        check_refusal(&e);
        CHECK(strncmp(e.field, "/at/", 4) == 0);
    } else {
        check_accepted(&p);
        run(&p);
    }
    generate_params_fini(&p);
    json_decref(o);
    return 0;
}
