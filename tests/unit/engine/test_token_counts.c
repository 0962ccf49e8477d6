/* Counts of tokens against a plain array. */
#include "engine/sampler/token_counts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { IDS = 5000 };

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return *state >> 33;
}

static void check(const struct token_counts *s, const uint32_t *n_out, const uint32_t *n_all)
{
    uint32_t n_distinct = 0;

    for (uint32_t id = 0; id < IDS; id++)
        n_distinct += n_all[id] > 0;
    assert_int_equal(s->n, n_distinct);
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t id = s->tokens[i].id;

        assert_true(id < IDS && n_all[id] > 0);
        assert_int_equal(s->tokens[i].n_out, n_out[id]);
    }
}

static void test_seen_counts_what_a_plain_array_counts(void **state)
{
    static uint32_t n_out[IDS], n_all[IDS];
    uint64_t random = 3;

    (void)state;
    for (uint32_t n_max = 1; n_max <= IDS; n_max = n_max * 3 + 1) {
        struct token_counts s;
        struct err e = {0};

        memset(n_out, 0, sizeof n_out);
        memset(n_all, 0, sizeof n_all);
        assert_int_equal(token_counts_init(&s, n_max, &e), 0);
        for (uint32_t i = 0; i < 4 * n_max; i++) {
            uint32_t id = (uint32_t)(next_random(&random) % n_max);

            n_all[id]++;
            if (next_random(&random) % 2 == 0) {
                token_counts_add_prompt(&s, id);
                continue;
            }
            token_counts_add_output(&s, id);
            n_out[id]++;
        }
        check(&s, n_out, n_all);
        token_counts_fini(&s);
        assert_null(s.tokens);
    }
}

static void test_seen_takes_as_many_as_it_was_made_for(void **state)
{
    struct err e = {0};
    struct token_counts s;

    (void)state;
    for (uint32_t n = 1; n < 70; n++) {
        assert_int_equal(token_counts_init(&s, n, &e), 0);
        for (uint32_t i = 0; i < n; i++)
            token_counts_add_output(&s, UINT32_MAX - i * 64);
        assert_int_equal(s.n, n);
        for (uint32_t i = 0; i < n; i++)
            token_counts_add_output(&s, UINT32_MAX - i * 64);
        assert_int_equal(s.n, n);
        assert_int_equal(s.tokens[n - 1].n_out, 2);
        token_counts_fini(&s);
    }
    token_counts_fini(&s); /* a zeroed one */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seen_counts_what_a_plain_array_counts),
        cmocka_unit_test(test_seen_takes_as_many_as_it_was_made_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
