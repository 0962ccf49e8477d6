/* Text of a stream: what is told in parts is what is told at once, cut at the stop string. */
#include "handlers/generate/completion_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct tokenizer *tok;

static int setup(void **state)
{
    struct err e = {0};

    (void)state;
    return tokenizer_load(&tok, FIXTURES "/kjv-qwen3-1m", &e);
}

static int teardown(void **state)
{
    (void)state;
    tokenizer_free(tok);
    return 0;
}

struct run {
    const char *text;
    const char *stops[4]; /* NULL-terminated */
    uint32_t min_tokens;  /* matches before this many tokens do not stop */
    size_t n_drop;        /* tokens left out at the end, so that a character is incomplete */
    bool include_stop;
};

/* What an engine would say of the ids: how many it made, and what stopped it. */
struct ending {
    size_t n;
    const char *stop;
    uint32_t cut;
    struct buf text; /* all of it */
};

static void find_ending(struct ending *out, const struct run *r, const uint32_t *ids, size_t n)
{
    struct detok d;

    *out = (struct ending){.n = n};
    detok_init(&d, tok, true);
    for (size_t i = 0; i < n && out->stop == NULL; i++) {
        size_t before = out->text.len;

        detok_push(&d, ids[i], &out->text);
        for (size_t k = 0; r->stops[k] != NULL && out->stop == NULL; k++) {
            size_t len = strlen(r->stops[k]), from = before >= len ? before - len + 1 : 0;
            const char *at = out->text.len > from ? strstr(out->text.data + from, r->stops[k])
                                                  : NULL;

            if (at == NULL || i < r->min_tokens)
                continue;
            out->stop = r->stops[k];
            out->cut = (uint32_t)(out->text.len - (size_t)(at - out->text.data));
            out->n = i + 1;
        }
    }
    if (out->stop == NULL)
        detok_end(&d, &out->text);
}

static void feed(struct completion_text *c, const uint32_t *ids, size_t n, size_t batch,
                 const struct ending *end, struct buf *told)
{
    for (size_t i = 0; i < n;) {
        completion_text_more(c);
        for (size_t k = 0; k < batch && i < n; k++)
            completion_text_push(c, ids[i++]);
        completion_text_take(c, completion_text_ready(c), told);
    }
    completion_text_more(c);
    completion_text_end(c, end->stop, end->cut);
    completion_text_take(c, c->pending.len, told);
}

static void check(const struct run *r, size_t batch)
{
    struct gen_params stops = {0};
    struct buf told = {0};
    struct completion_text c;
    struct ending end;
    uint32_t *ids = NULL;
    struct err e = {0};
    size_t n = 0, want;

    for (; r->stops[stops.n_stops] != NULL; stops.n_stops++)
        stops.stops[stops.n_stops] = strdup(r->stops[stops.n_stops]);
    assert_int_equal(tokenizer_encode(tok, r->text, strlen(r->text), false, &ids, &n, &e), 0);
    assert_true(n > r->n_drop);
    find_ending(&end, r, ids, n - r->n_drop);
    want = end.stop == NULL ? end.text.len
                            : end.text.len - end.cut + (r->include_stop ? strlen(end.stop) : 0);
    completion_text_init(&c, tok, true, &stops, r->include_stop, 0);
    feed(&c, ids, end.n, batch, &end, &told);
    if (told.len != want || (want > 0 && memcmp(told.data, end.text.data, want) != 0))
        fail_msg("\"%s\" in batches of %zu: told \"%.*s\"", r->text, batch, (int)told.len,
                 told.data != NULL ? told.data : "");
    completion_text_fini(&c);
    buf_fini(&told);
    buf_fini(&end.text);
    free(ids);
    while (stops.n_stops > 0)
        free(stops.stops[--stops.n_stops]);
}

static void test_parts_are_the_whole(void **state)
{
    static const struct run runs[] = {
        {.text = "In the beginning God created the heaven and the earth."},
        {.text = "In the beginning God created the heaven", .stops = {"God"}},
        {.text = "In the beginning God created the heaven", .stops = {"God"}, .include_stop = true},
        {.text = "In the beginning God created the heaven", .stops = {"God c", "nothing"}},
        {.text = "and God, and Go, and Gods", .stops = {"Gods"}},
        {.text = "aaaaaaab", .stops = {"aaab"}},
        {.text = "aaaaaaab", .stops = {"aaab", "ab", "b"}},
        {.text = "the end of the beginning of the end", .stops = {"the"}, .min_tokens = 3},
        {.text = "the the the the the the", .stops = {"the"}, .min_tokens = 4},
        {.text = "one\n\ntwo", .stops = {"\n\n"}, .include_stop = true},
        {.text = "na\xc3\xafve \xe2\x80\x94 \xe6\xbc\xa2\xe5\xad\x97 \xf0\x9f\x99\x82 end"},
        {.text = "\xe6\xbc\xa2\xe5\xad\x97\xe6\xbc\xa2", .stops = {"\xe5\xad\x97"}},
        {.text = "smile \xf0\x9f\x99\x82", .n_drop = 1},
        {.text = "smile \xf0\x9f\x99\x82", .n_drop = 2, .stops = {"never"}},
        {.text = "ends in the beginning of a st", .stops = {"stop"}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        for (size_t batch = 1; batch <= 6; batch++)
            check(&runs[i], batch);
    }
}

/* Texts over a tiny alphabet, where beginnings of stop strings are everywhere. */
static void test_parts_are_the_whole_at_random(void **state)
{
    uint32_t seed = 12345;

    (void)state;
    for (int round = 0; round < 400; round++) {
        char text[48] = {0}, stop[2][6] = {{0}, {0}};
        struct run r = {.text = text, .stops = {stop[0], stop[1]}};

        for (size_t i = 0; i < sizeof text - 1; i++) {
            seed = seed * 1664525U + 1013904223U;
            text[i] = "abX"[(seed >> 24) % 3];
        }
        for (int s = 0; s < 2; s++) {
            seed = seed * 1664525U + 1013904223U;
            for (size_t i = 0; i < 1 + (seed >> 8) % 5; i++)
                stop[s][i] = "abX"[(seed >> (16 + 2 * i)) % 3];
        }
        r.min_tokens = (uint32_t)round % 7;
        r.include_stop = round % 2 == 1;
        check(&r, 1 + (size_t)round % 4);
    }
}

static void test_ready_holds_back_only_what_may_stop(void **state)
{
    struct gen_params stops = {.n_stops = 1};
    struct completion_text c;
    char stop[] = "STOP";

    (void)state;
    stops.stops[0] = stop;
    completion_text_init(&c, tok, true, &stops, false, 0);
    buf_puts(&c.pending, "go on ST");
    assert_int_equal(completion_text_ready(&c), 6);
    buf_puts(&c.pending, "A");
    assert_int_equal(completion_text_ready(&c), 9);
    completion_text_more(&c);
    buf_puts(&c.pending, " STOP it");
    assert_int_equal(completion_text_ready(&c), 10);
    completion_text_more(&c); /* the engine went on: that was no stop */
    buf_puts(&c.pending, " S");
    assert_int_equal(completion_text_ready(&c), c.pending.len - 1);
    completion_text_fini(&c);
}

static void test_end_finds_the_stop_when_the_texts_differ(void **state)
{
    struct gen_params stops = {0};
    struct completion_text c;

    (void)state;
    completion_text_init(&c, tok, true, &stops, false, 0);
    buf_puts(&c.pending, "a STOP b STOPc");
    completion_text_end(&c, "STOP", 40); /* counts special tokens that are not shown here */
    assert_int_equal(c.pending.len, 9);
    completion_text_fini(&c);
    completion_text_init(&c, tok, true, &stops, true, 0);
    buf_puts(&c.pending, "a STOP b STOPc");
    completion_text_end(&c, "STOP", 5);
    assert_int_equal(c.pending.len, 13);
    completion_text_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_are_the_whole),
        cmocka_unit_test(test_parts_are_the_whole_at_random),
        cmocka_unit_test(test_ready_holds_back_only_what_may_stop),
        cmocka_unit_test(test_end_finds_the_stop_when_the_texts_differ),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
