/* One tokenizer for several threads. */
#include "tests/unit/text/tokenizer_fixture.h"
#include "text/tokenizer_priv.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { N_THREADS = 4, N_ROUNDS = 50 };

static const char sample[] =
    "In the beginning <|im_end|> cafe\xcc\x81 \xe4\xbd\xa0\xe5\xa5\xbd 123";

static void *encode_often(void *arg)
{
    const struct tokenizer *t = arg;
    size_t n_wrong = 0;

    for (int i = 0; i < N_ROUNDS; i++) {
        static const char decoded[] =
            "In the beginning <|im_end|> caf\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd 123";
        struct buf out = {0};
        uint32_t *ids = NULL;
        size_t n = 0;
        struct err e = {0};

        if (tokenizer_encode(t, sample, strlen(sample), true, &ids, &n, &e) != 0 ||
            tokenizer_decode(t, ids, n, false, &out, &e) != 0 || strcmp(out.data, decoded) != 0)
            n_wrong++;
        buf_fini(&out);
        free(ids);
    }
    return n_wrong == 0 ? arg : NULL;
}

static void test_threads_share_one_tokenizer(void **state)
{
    struct tokenizer *t = NULL;
    pthread_t threads[N_THREADS];
    struct err e = {0};

    (void)state;
    assert_int_equal(tokenizer_load(&t, FIXTURE_DIR, &e), 0);
    for (size_t i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, t), 0);
    for (size_t i = 0; i < N_THREADS; i++) {
        void *result;

        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_ptr_equal(result, t);
    }
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_share_one_tokenizer),
    };

    return cmocka_run_group_tests_name("tokenizer_threads", tests, NULL, NULL);
}
