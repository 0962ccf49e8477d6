/* Every allocation of model_spec_of_config fails in turn: it says that memory ran out, and leaves
 * the output alone: whoever asked frees what is there. */
#include "engine/model/model_config.h"
#include "tests/unit/failing_alloc.h"
#include "weights/model_spec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory_runs_out)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
