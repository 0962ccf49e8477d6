/* What decides which tensors a model has: the ties of config.json; memory that runs out. */
#include "tests/unit/failing_alloc.h"
#include "weights/model/model_config.h"
#include "weights/model_spec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

/* Every allocation of model_spec_of_config fails in turn: the error is that memory ran out, and the
 * output is untouched. */
static void test_memory_runs_out(void **state)
{
    static const char *const models[] = {"/kjv-qwen3-1m", "/tiny-llama3", "/tiny-llama2-spm"};
    struct model_config c;
    struct err e = {0};
    char dir[512];

    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        bool failed = true;

        (void)snprintf(dir, sizeof dir, "%s%s", FIXTURES, models[i]);
        assert_int_equal(model_config_load(&c, dir, &e), 0);
        for (long n = 0; failed; n++) {
            struct model_spec *m = NULL;
            struct err why = {0};
            int rc;

            alloc_left = n;
            rc = model_spec_of_config(&m, &c, NULL, &why);
            failed = alloc_left < 0; /* and perhaps was survived */
            alloc_left = -1;
            assert_int_equal(rc == 0, m != NULL);
            if (rc != 0)
                assert_int_equal(why.code, ERR_NO_MEMORY);
            assert_true(failed || rc == 0);
            model_spec_free(m);
            assert_true(n < 100000);
        }
    }
}

/* A model within a model has the member in two places, and readers differ which of them counts. */
static void test_ties_if_nothing_denies_it(void **state)
{
    static const struct {
        const char *config;
        bool ties;
    } rows[] = {
        {"{}", false},
        {"{\"tie_word_embeddings\":true}", true},
        {"{\"text_config\":{\"tie_word_embeddings\":true}}", true},
        {"{\"tie_word_embeddings\":true,\"text_config\":{}}", true},
        {"{\"tie_word_embeddings\":false,\"text_config\":{\"tie_word_embeddings\":true}}", false},
        {"{\"tie_word_embeddings\":true,\"text_config\":{\"tie_word_embeddings\":false}}", false},
    };
    char dir[] = "/tmp/baton-test-ties-XXXXXX", path[64];

    (void)state;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        FILE *f = fopen(path, "w");
        struct err e = {0};
        bool ties = !rows[i].ties;

        assert_non_null(f);
        assert_true(fputs(rows[i].config, f) >= 0);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(model_config_ties(&ties, dir, &e), 0);
        assert_int_equal(ties, rows[i].ties);
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory_runs_out),
                                       cmocka_unit_test(test_ties_if_nothing_denies_it)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
