/* weights/update: where bytes go: tied, fused, converted, and in place. */
#include "tests/unit/update_fixture.h"

/* other names, other dtypes */

static void test_tied_name_must_agree(void **state)
{
    const struct fx_tensor *tensors[FX_N + 1];
    struct bench b;

    (void)state;
    bench_open(&b);
    for (int before = 0; before < 2; before++) { /* the tied name first, then last */
        struct fx_source_cfg lie = FX_STEP(2);
        struct tensor_list *tensor_list;

        for (int i = 0; i < FX_N; i++)
            tensors[i + before] = &fx_model[i];
        tensors[before ? 0 : FX_N] = &fx_lm_head;
        tensor_list = fx_tensor_list(tensors, FX_N + 1);
        submit(&b, chunk_of(&b, "", tensor_list_ref(tensor_list), FX_STEP(1)));
        assert_int_equal(fx_await(&b.answer), ERR_NONE);
        assert_int_equal(b.answer.info.n_tensors_done, FX_N);
        lie.corrupt_at = before ? 0 : FX_N;
        submit(&b, chunk_of(&b, "", tensor_list, lie));
        assert_int_equal(fx_await(&b.answer), ERR_MISMATCH);
        assert_non_null(strstr(b.answer.e.msg, "lm_head.weight"));
        assert_non_null(strstr(b.answer.e.msg, "embed.weight"));
        fx_assert_step(b.store, 1);
    }
    bench_close(&b);
}

static void test_tied_name_in_another_chunk_must_agree(void **state)
{
    static const struct fx_tensor *const head[] = {&fx_lm_head};
    struct bench b;

    (void)state;
    bench_open(&b);
    for (unsigned head_step = 1; head_step <= 2; head_step++) {
        for (int first = 0; first < 2; first++) {
            struct update_info info = start(&b, (struct update_start){0});
            enum err_code got = ERR_NONE;

            if (!first)
                assert_int_equal(send_mask(&b, info.id, FX_ALL, 1), ERR_NONE);
            submit(&b, chunk_of(&b, info.id, fx_tensor_list(head, 1), FX_STEP(head_step)));
            got = fx_await(&b.answer);
            /* Against an earlier target the chunk fails, against a later one its chunk does. */
            assert_int_equal(got, !first && head_step == 2 ? ERR_MISMATCH : ERR_NONE);
            if (first)
                assert_int_equal(send_mask(&b, info.id, FX_ALL, 1),
                                 head_step == 2 ? ERR_MISMATCH : ERR_NONE);
            if (head_step == 1) {
                assert_int_equal(finish(&b, info.id, ""), ERR_NONE);
            } else {
                struct err e = {0};

                assert_int_equal(updates_abort(b.updates, info.id, "", &info, &e), 0);
            }
        }
    }
    fx_assert_step(b.store, 1);
    bench_close(&b);
}

/* An auto-commit session is committed when all is there; the name that comes last belongs to it. */
static void test_tied_name_after_an_auto_commit_must_agree(void **state)
{
    static const struct fx_tensor *const head[] = {&fx_lm_head};
    struct update_start auto_commit = {.auto_commit = true};
    struct update_info info, committed;
    struct slab_stats st;
    struct bench b;

    (void)state;
    bench_open(&b);
    for (unsigned step = 1; step <= 2; step++) {
        for (unsigned head_step = step + 1; head_step >= step; head_step--) {
            info = start(&b, auto_commit);
            assert_int_equal(send_mask(&b, info.id, FX_ALL, step), ERR_NONE);
            committed = b.answer.info;
            assert_int_equal(committed.phase, UPDATE_COMMITTED);
            info = start(&b, auto_commit);
            submit(&b, chunk_of(&b, info.id, fx_tensor_list(head, 1), FX_STEP(head_step)));
            assert_int_equal(fx_await(&b.answer), head_step == step ? ERR_NONE : ERR_MISMATCH);
            assert_int_equal(b.answer.info.phase,
                             head_step == step ? UPDATE_COMMITTED : UPDATE_ABORTED);
            if (head_step == step)
                assert_int_equal(b.answer.info.serial, committed.serial);
            updates_current(b.updates, &info);
            assert_int_equal(info.phase, UPDATE_NONE);
            fx_assert_step(b.store, step);
        }
    }
    slab_pool_stats(store_slabs(b.store, 0), &st);
    assert_int_equal(st.n_live, 1);
    bench_close(&b);
}

/* Where it comes first it waits for its target, also if it is what is served already. */
static void test_tied_name_before_an_auto_commit_waits(void **state)
{
    static const struct fx_tensor *const head[] = {&fx_lm_head};
    struct update_info info;
    struct bench b;

    (void)state;
    bench_open(&b);
    for (unsigned step = 1; step <= 3; step++) {
        unsigned head_step = step == 3 ? 2 : step; /* 3: the tied name is of the step before */

        info = start(&b, (struct update_start){.auto_commit = true});
        submit(&b, chunk_of(&b, info.id, fx_tensor_list(head, 1), FX_STEP(head_step)));
        assert_int_equal(fx_await(&b.answer), ERR_NONE);
        assert_int_equal(b.answer.info.phase, UPDATE_RECEIVING);
        assert_int_equal(send_mask(&b, info.id, FX_ALL, step), step == 3 ? ERR_MISMATCH : ERR_NONE);
        fx_assert_step(b.store, step == 3 ? 2 : step);
    }
    bench_close(&b);
}

static void test_tied_name_that_failed_leaves_nothing_behind(void **state)
{
    static const struct fx_tensor *const head[] = {&fx_lm_head};
    struct bench b;
    struct slab_stats st;
    struct update_info info;

    (void)state;
    bench_open(&b);
    info = start(&b, (struct update_start){0});
    assert_int_equal(send_mask(&b, info.id, FX_ALL, 1), ERR_NONE);
    submit(&b, chunk_of(&b, info.id, fx_tensor_list(head, 1), FX_STEP(2)));
    assert_int_equal(fx_await(&b.answer), ERR_MISMATCH);
    submit(&b, chunk_of(&b, info.id, fx_tensor_list(head, 1), FX_STEP(1)));
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    slab_pool_stats(store_slabs(b.store, 0), &st);
    assert_int_equal(st.n_live, 1); /* the bucket: what was compared is gone */
    assert_int_equal(finish(&b, info.id, ""), ERR_NONE);
    fx_assert_step(b.store, 1);
    bench_close(&b);
}

static void test_tied_name_alone_brings_its_target(void **state)
{
    const struct fx_tensor *tensors[FX_N];
    struct bench b;
    struct update_info info;

    (void)state;
    bench_open(&b);
    assert_int_equal(push(&b, 1, ""), ERR_NONE);
    for (int i = 1; i < FX_N; i++)
        tensors[i] = &fx_model[i];
    tensors[0] = &fx_lm_head;
    info = start(&b, (struct update_start){0});
    submit(&b, chunk_of(&b, info.id, fx_tensor_list(tensors, FX_N), FX_STEP(2)));
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    assert_int_equal(b.answer.info.n_missing, 0);
    assert_int_equal(finish(&b, info.id, ""), ERR_NONE);
    assert_int_equal(b.answer.info.n_tensors_done, FX_N);
    fx_assert_step(b.store, 2);
    bench_close(&b);
}

static void test_fused_and_ignored_names_are_taken_apart(void **state)
{
    static const struct fx_tensor *const tensors[] = {&fx_old_scale, &fx_model[6], &fx_qkv,
                                                      &fx_model[0],  &fx_model[5], &fx_model[4]};
    struct bench b;
    struct update_info info;

    (void)state;
    bench_open(&b);
    assert_int_equal(push(&b, 1, ""), ERR_NONE);
    info = start(&b, (struct update_start){0});
    submit(&b, chunk_of(&b, info.id, fx_tensor_list(tensors, 6), FX_STEP(2)));
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    assert_int_equal(finish(&b, info.id, ""), ERR_NONE);
    fx_assert_step(b.store, 2);
    bench_close(&b);
}

static void test_convert_turns_what_is_sent_into_the_models_dtypes(void **state)
{
    struct fx_tensor wide[FX_N + 1];
    const struct fx_tensor *tensors[FX_N + 1];
    struct bench b;
    struct update_start req = {.convert = true};
    struct update_info info;
    struct tensor_list *tensor_list;
    struct update_chunk *c;
    uint64_t nbytes;

    for (int i = 0; i < FX_N; i++)
        wide[i] = fx_model[i];
    wide[FX_N] = fx_lm_head;
    wide[1] = fx_qkv;
    wide[2] = fx_lm_head;
    wide[3] = fx_old_scale;
    for (int i = 0; i < FX_N; i++) {
        tensors[i] = &wide[i];
        if (wide[i].dtype == DTYPE_BF16)
            wide[i].dtype = DTYPE_F32;
    }
    tensor_list = fx_tensor_list(tensors, FX_N);
    (void)state;
    bench_open(&b);
    assert_int_equal(push(&b, 1, ""), ERR_NONE);
    assert_int_equal(refused(&b, chunk_of(&b, "", tensor_list_ref(tensor_list), FX_STEP(2))).code,
                     ERR_MISMATCH);
    info = start(&b, req);
    c = chunk_of(&b, info.id, tensor_list, FX_STEP(2));
    nbytes = tensor_list->nbytes;
    give_checksums(c, 2); /* of the bytes as sent */
    submit(&b, c);
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    assert_int_equal(b.answer.info.nbytes_done, nbytes);
    assert_int_equal(b.answer.info.nbytes_total, nbytes);
    assert_int_equal(finish(&b, info.id, ""), ERR_NONE);
    fx_assert_step(b.store, 2);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tied_name_must_agree),
        cmocka_unit_test(test_tied_name_in_another_chunk_must_agree),
        cmocka_unit_test(test_tied_name_after_an_auto_commit_must_agree),
        cmocka_unit_test(test_tied_name_before_an_auto_commit_waits),
        cmocka_unit_test(test_tied_name_that_failed_leaves_nothing_behind),
        cmocka_unit_test(test_tied_name_alone_brings_its_target),
        cmocka_unit_test(test_fused_and_ignored_names_are_taken_apart),
        cmocka_unit_test(test_convert_turns_what_is_sent_into_the_models_dtypes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
