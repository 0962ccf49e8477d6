/* weights/update: the ranks of a trainer in one session. What each brings is counted, tensors that
 * several bring are compared, and an incomplete update names the rank. */
#include "tests/unit/update_fixture.h"

enum { EMBED = 0x01, QKV = 0x0e, Q_ONLY = 0x02, NORM = 0x10, REST = 0x70 };

static struct update_chunk *of_rank(struct bench *b, const char *id, uint32_t rank,
                                    struct tensor_list *tensor_list, struct fx_source_cfg cfg)
{
    struct update_chunk *c = chunk_of(b, id, tensor_list, cfg);

    c->has_trainer_rank = true;
    c->trainer_rank = rank;
    return c;
}

static enum err_code send_rank(struct bench *b, const char *id, uint32_t rank, unsigned mask,
                               unsigned step)
{
    submit(b, of_rank(b, id, rank, fx_tensor_list_of(mask), FX_STEP(step)));
    return fx_await(&b->answer);
}

static struct tensor_list *qkv_list(void)
{
    const struct fx_tensor *const one[] = {&fx_qkv};

    return fx_tensor_list(one, 1);
}

static void assert_sender(const struct update_info *info, uint32_t i, uint32_t rank,
                          uint32_t n_tensors, enum err_code refused)
{
    assert_true(i < info->n_senders);
    assert_int_equal(info->senders[i].rank, rank);
    assert_int_equal(info->senders[i].n_tensors, n_tensors);
    assert_int_equal(info->senders[i].refused, refused);
    assert_null(info->senders[i].place);
}

static void test_what_each_rank_brought_is_counted(void **state)
{
    struct update_info info;
    struct bench b;

    (void)state;
    bench_open(&b);
    info = start(&b, (struct update_start){.trainer_ranks = 3});
    assert_int_equal(info.n_senders, 3);
    assert_int_equal(send_rank(&b, info.id, 2, EMBED, 1), ERR_NONE);
    assert_int_equal(send_rank(&b, info.id, 0, QKV, 1), ERR_NONE);
    assert_int_equal(send_rank(&b, info.id, 1, REST, 1), ERR_NONE);
    assert_sender(&b.answer.info, 0, 0, 3, ERR_NONE);
    assert_sender(&b.answer.info, 1, 1, 3, ERR_NONE);
    assert_sender(&b.answer.info, 2, 2, 1, ERR_NONE);
    assert_int_equal(b.answer.info.senders[2].nbytes, 256);
    assert_int_equal(finish(&b, info.id, "one"), ERR_NONE);
    assert_int_equal(b.answer.info.n_senders, 3);
    assert_served(&b, 1, "one", 1);
    bench_close(&b);
}

static void test_a_missing_rank_is_named(void **state)
{
    static const struct {
        uint32_t declared;
        unsigned mask; /* of rank 1; rank 0 sends EMBED and QKV */
        const char *said;
    } rows[] = {
        {3, REST, "trainer rank 2 has sent no tensors"},
        {4, REST, "trainer ranks 2, 3 have sent no tensors"},
        {2, REST & ~NORM, "1 of 7 tensors are missing, 'norm.weight' first"},
        {0, REST & ~NORM, "trainer rank 1 brought it in the last update"},
    };
    struct update_info info;
    struct bench b;

    (void)state;
    bench_open(&b);
    info = start(&b, (struct update_start){0});
    assert_int_equal(send_rank(&b, info.id, 0, EMBED | QKV, 1), ERR_NONE);
    assert_int_equal(send_rank(&b, info.id, 1, REST, 1), ERR_NONE);
    assert_int_equal(finish(&b, info.id, "one"), ERR_NONE);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        info = start(&b, (struct update_start){.trainer_ranks = rows[i].declared});
        assert_int_equal(send_rank(&b, info.id, 0, EMBED | QKV, 2), ERR_NONE);
        assert_int_equal(send_rank(&b, info.id, 1, rows[i].mask, 2), ERR_NONE);
        assert_int_equal(finish(&b, info.id, "two"), ERR_INCOMPLETE);
        if (strstr(b.answer.e.msg, rows[i].said) == NULL)
            fail_msg("'%s' is not in '%s'", rows[i].said, b.answer.e.msg);
        assert_served(&b, 1, "one", 1);
    }
    bench_close(&b);
}

static void test_equal_tensors_of_several_ranks_are_one(void **state)
{
    struct update_info info;
    struct bench b;

    (void)state;
    bench_open(&b);
    info = start(&b, (struct update_start){.convert = true});
    assert_int_equal(send_rank(&b, info.id, 0, EMBED | QKV, 1), ERR_NONE);
    submit(&b, of_rank(&b, info.id, 1, qkv_list(), FX_STEP(1))); /* in one piece, all repeated */
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    assert_int_equal(send_rank(&b, info.id, 2, QKV | REST, 1), ERR_NONE);
    assert_sender(&b.answer.info, 1, 1, 1, ERR_NONE);
    assert_sender(&b.answer.info, 2, 2, 6, ERR_NONE);
    assert_int_equal(b.answer.info.n_tensors_done, FX_N);
    assert_int_equal(finish(&b, info.id, "one"), ERR_NONE);
    assert_served(&b, 1, "one", 1);
    bench_close(&b);
}

static void test_other_bytes_are_refused_by_name(void **state)
{
    struct update_info info;
    struct bench b;

    (void)state;
    bench_open(&b);
    info = start(&b, (struct update_start){0});
    assert_int_equal(send_rank(&b, info.id, 0, EMBED | QKV, 1), ERR_NONE);
    submit(&b, of_rank(&b, info.id, 1, fx_tensor_list_of(QKV | REST),
                       (struct fx_source_cfg){.step = 1, .fail_at = -1, .corrupt_at = 2}));
    assert_int_equal(fx_await(&b.answer), ERR_MISMATCH);
    assert_string_equal(b.answer.e.field, "/names/2");
    assert_non_null(strstr(b.answer.e.msg, "'layers.0.v' has other bytes than trainer rank 0"));
    assert_sender(&b.answer.info, 1, 1, 0, ERR_MISMATCH);
    assert_int_equal(send_rank(&b, info.id, 1, QKV | REST, 1), ERR_NONE);
    assert_sender(&b.answer.info, 1, 1, 6, ERR_NONE);
    assert_int_equal(finish(&b, info.id, "one"), ERR_NONE);
    assert_served(&b, 1, "one", 1);
    bench_close(&b);
}

static void test_one_tensor_in_two_forms_is_refused(void **state)
{
    struct update_info info;
    struct bench b;
    struct err e;

    (void)state;
    bench_open(&b);
    info = start(&b, (struct update_start){0});
    assert_int_equal(send_rank(&b, info.id, 0, Q_ONLY, 1), ERR_NONE);
    e = refused(&b, of_rank(&b, info.id, 1, qkv_list(), FX_STEP(1))); /* only a part of it came */
    assert_int_equal(e.code, ERR_PRECONDITION);
    assert_non_null(strstr(e.msg, "'layers.0.q' has already arrived"));
    e = refused(&b, of_rank(&b, info.id, 0, qkv_list(), FX_STEP(1))); /* from the same rank */
    assert_int_equal(e.code, ERR_PRECONDITION);
    assert_int_equal(send_rank(&b, info.id, 1, QKV, 1), ERR_NONE);
    e = refused(&b, of_rank(&b, info.id, 1, fx_tensor_list_of(QKV), FX_STEP(1)));
    assert_int_equal(e.code, ERR_PRECONDITION);
    bench_close(&b);
}

/* Rank 1's request is taken while rank 0's is still being received, and then that fails. */
static void test_a_repeated_tensor_whose_first_sender_fails(void **state)
{
    struct fx_pause_controller gate;
    struct fx_source_cfg cfg = {.step = 1, .fail_at = 2, .corrupt_at = -1};
    struct fx_answer first;
    struct update_info info;
    struct update_chunk *c;
    struct bench b;

    (void)state;
    fx_pause_controller_init(&gate);
    fx_answer_init(&first);
    cfg.pause_controller = &gate;
    bench_open(&b);
    info = start(&b, (struct update_start){.trainer_ranks = 2});
    c = of_rank(&b, info.id, 0, fx_tensor_list_of(EMBED | QKV), cfg);
    c->done_arg = &first;
    submit(&b, c);
    fx_pause_controller_await(&gate);
    submit(&b, of_rank(&b, info.id, 1, fx_tensor_list_of(QKV | REST), FX_STEP(1)));
    fx_pause_controller_open(&gate);
    assert_int_equal(fx_await(&first), ERR_UNREADABLE);
    assert_int_equal(fx_await(&b.answer), ERR_CONFLICT);
    assert_non_null(strstr(b.answer.e.msg, "trainer rank 0, whose request failed"));
    assert_int_equal(send_rank(&b, info.id, 1, QKV | REST, 1), ERR_NONE);
    assert_int_equal(send_rank(&b, info.id, 0, EMBED | QKV, 1), ERR_NONE);
    assert_int_equal(finish(&b, info.id, "one"), ERR_NONE);
    assert_served(&b, 1, "one", 1);
    bench_close(&b);
    fx_answer_fini(&first);
    fx_pause_controller_fini(&gate);
}

static void test_a_tensor_without_a_rank_is_never_repeated(void **state)
{
    struct update_info info;
    struct bench b;
    struct err e;

    (void)state;
    bench_open(&b);
    info = start(&b, (struct update_start){0});
    assert_int_equal(send_mask(&b, info.id, QKV, 1), ERR_NONE);
    e = refused(&b, of_rank(&b, info.id, 1, fx_tensor_list_of(QKV), FX_STEP(1)));
    assert_int_equal(e.code, ERR_PRECONDITION);
    assert_int_equal(send_rank(&b, info.id, 1, EMBED, 1), ERR_NONE);
    e = refused(&b, chunk_of(&b, info.id, fx_tensor_list_of(EMBED), FX_STEP(1)));
    assert_int_equal(e.code, ERR_PRECONDITION);
    bench_close(&b);
}

static void test_each_rank_numbers_its_chunks(void **state)
{
    struct update_info info;
    struct bench b;

    (void)state;
    bench_open(&b);
    info = start(&b, (struct update_start){0});
    for (uint32_t i = 0; i < 4; i++) {
        struct update_chunk *c = of_rank(
            &b, info.id, i % 2, fx_tensor_list_of(i % 2 == 0 ? EMBED | QKV : REST), FX_STEP(1));

        (void)snprintf(c->chunk_id, sizeof c->chunk_id, "0");
        submit(&b, c);
        assert_int_equal(fx_await(&b.answer), ERR_NONE);
    }
    assert_sender(&b.answer.info, 0, 0, 4, ERR_NONE); /* a repeated chunk is counted once */
    assert_sender(&b.answer.info, 1, 1, 3, ERR_NONE);
    assert_int_equal(finish(&b, info.id, "one"), ERR_NONE);
    assert_served(&b, 1, "one", 1);
    bench_close(&b);
}

static struct update_chunk *of_version(struct bench *b, const char *id, uint32_t rank,
                                       unsigned mask, unsigned step, const char *label)
{
    struct update_chunk *c = of_rank(b, id, rank, fx_tensor_list_of(mask), FX_STEP(step));

    (void)snprintf(c->label, sizeof c->label, "%s", label);
    return c;
}

/* A rank that is a step ahead must not make a version of two steps. */
static void test_ranks_of_two_versions_are_refused(void **state)
{
    static const char *const started[] = {"one", ""};
    struct update_info info;
    struct bench b;
    struct err e;

    (void)state;
    bench_open(&b);
    for (uint32_t i = 0; i < 2; i++) {
        struct update_start req = {.trainer_ranks = 2};

        (void)snprintf(req.label, sizeof req.label, "%s", started[i]);
        info = start(&b, req);
        submit(&b, of_version(&b, info.id, 0, EMBED | QKV, 1, "one"));
        assert_int_equal(fx_await(&b.answer), ERR_NONE);
        e = refused(&b, of_version(&b, info.id, 1, REST, 2, "two"));
        assert_int_equal(e.code, ERR_PRECONDITION);
        assert_string_equal(e.field, "/weight_version");
        assert_non_null(strstr(e.msg, "'one'"));
        assert_non_null(strstr(e.msg, "'two'"));
        submit(&b, of_version(&b, info.id, 1, REST, 1, "one"));
        assert_int_equal(fx_await(&b.answer), ERR_NONE);
        assert_int_equal(finish(&b, info.id, ""), ERR_NONE);
        assert_served(&b, 1, "one", i + 1);
    }
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_each_rank_brought_is_counted),
        cmocka_unit_test(test_a_missing_rank_is_named),
        cmocka_unit_test(test_equal_tensors_of_several_ranks_are_one),
        cmocka_unit_test(test_other_bytes_are_refused_by_name),
        cmocka_unit_test(test_one_tensor_in_two_forms_is_refused),
        cmocka_unit_test(test_a_repeated_tensor_whose_first_sender_fails),
        cmocka_unit_test(test_a_tensor_without_a_rank_is_never_repeated),
        cmocka_unit_test(test_each_rank_numbers_its_chunks),
        cmocka_unit_test(test_ranks_of_two_versions_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
