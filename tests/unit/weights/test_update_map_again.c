/* weights/update*: what comes after an update or a chunk that came to nothing, and what is sent a
 * second time. Memory is as tight as it may be: two versions fit, and not a slab more. */
#include "tests/unit/weights/map_fixture.h"

static struct mfx_lib lib;

static const struct fx_tensor *const model[FX_N] = {&fx_model[0], &fx_model[1], &fx_model[2],
                                                    &fx_model[3], &fx_model[4], &fx_model[5],
                                                    &fx_model[6]};

enum { LEFT_NBYTES = 1 << 20, ROUNDS = 64 }; /* less than a slab; more than any slack */

/* All that a store of one GPU would not need: it has the memory of two versions from here on. */
struct full {
    struct slab_memory memory;
    uint64_t at, nbytes;
};

static void full_take(struct full *full, struct gpus *g, const struct fx_tensor *const *all,
                      uint32_t n)
{
    uint64_t total;
    struct err e = {0};

    for (int i = 0; i < 2; i++)
        assert_int_equal(mfx_send(g, mfx_chunk(g, "", fx_tensor_list(all, n), MFX_STEP(1))),
                         ERR_NONE);
    full->memory = device_memory(g->devices[0]);
    assert_int_equal(device_room(g->devices[0], &full->nbytes, &total, &e), 0);
    full->nbytes -= LEFT_NBYTES;
    assert_int_equal(full->memory.take(full->memory.arg, full->nbytes, &full->at, &e), 0);
    memset(g->watch.log, 0, sizeof g->watch.log);
}

static void full_give(struct full *full)
{
    full->memory.give(full->memory.arg, full->at, full->nbytes);
}

static struct update_chunk *whole_chunk(struct gpus *g, const char *id, unsigned step,
                                        struct fx_answer *answer)
{
    struct update_chunk *c = mfx_chunk(g, id, fx_tensor_list_of(FX_ALL), MFX_STEP(step));

    c->done_arg = answer;
    return c;
}

/* The worker cannot give its memory back before the GPU lets go; who aborted it need not wait. */
static void test_start_right_after_an_abort(void **state)
{
    struct fx_answer aborted;
    struct update_info info;
    struct update_chunk *c;
    struct full full;
    struct gpus g;

    (void)state;
    fx_answer_init(&aborted);
    gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 1});
    full_take(&full, &g, model, FX_N);
    info = start(&g.b, (struct update_start){0});
    c = whole_chunk(&g, info.id, 2, &aborted);
    gpus_hold(&g, true);
    submit(&g.b, c);
    mfx_await_log(&g.watch, "M0");
    mfx_abort(&g, info.id);
    info = start(&g.b, (struct update_start){0});
    gpus_hold(&g, false);
    assert_int_equal(fx_await(&aborted), ERR_ENDED);
    assert_int_equal(mfx_send(&g, whole_chunk(&g, info.id, 3, &g.b.answer)), ERR_NONE);
    assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
    mfx_assert_step(&g, 3);
    full_give(&full);
    gpus_close(&g);
    fx_answer_fini(&aborted);
}

/* The second takes the memory of the version that the first replaces. */
static void test_whole_updates_queue_up(void **state)
{
    struct update_chunk *chunks[2];
    struct fx_answer answers[2];
    struct full full;
    struct gpus g;

    (void)state;
    gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 1});
    full_take(&full, &g, model, FX_N);
    for (unsigned i = 0; i < 2; i++) {
        fx_answer_init(&answers[i]);
        chunks[i] = whole_chunk(&g, "", 2 + i, &answers[i]);
    }
    gpus_hold(&g, true);
    for (unsigned i = 0; i < 2; i++) {
        submit(&g.b, chunks[i]);
        mfx_await_log(&g.watch, "M0");
    }
    gpus_hold(&g, false);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(fx_await(&answers[i]), ERR_NONE);
        fx_answer_fini(&answers[i]);
    }
    mfx_assert_step(&g, 3);
    full_give(&full);
    gpus_close(&g);
}

/* Two chunks, of which the second is begun before the first has ended. @plans moved in */
static void send_two(struct gpus *g, const char *id, struct tensor_list *const *tensor_lists,
                     const bool *gone)
{
    struct fx_answer answers[2];
    struct fx_pause_controller pause_controller;

    fx_pause_controller_init(&pause_controller);
    for (int i = 0; i < 2; i++) {
        struct mfx_cfg cfg = MFX_STEP(2);
        struct update_chunk *c;

        fx_answer_init(&answers[i]);
        cfg.fail_release = gone[i];
        cfg.pause_controller = i == 0 ? &pause_controller : NULL;
        c = mfx_chunk(g, id, tensor_lists[i], cfg);
        c->done_arg = &answers[i];
        submit(&g->b, c);
    }
    fx_pause_controller_open(&pause_controller);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fx_await(&answers[i]), gone[i] ? ERR_GONE : ERR_NONE);
        fx_answer_fini(&answers[i]);
    }
    fx_pause_controller_fini(&pause_controller);
}

static void test_failed_chunks_find_their_room_again(void **state)
{
    struct update_info info;
    struct full full;
    struct gpus g;

    (void)state;
    gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 1});
    full_take(&full, &g, model, FX_N);
    assert_true(store_whole_nbytes(g.b.store, 0) < (uint64_t)ROUNDS * STAGING_ALIGN);
    info = start(&g.b, (struct update_start){0});
    for (unsigned i = 0; i <= ROUNDS; i++) {
        const bool gone[2] = {i < ROUNDS, i < ROUNDS};

        send_two(&g, info.id,
                 (struct tensor_list *[]){fx_tensor_list_of(FX_ALL & ~1U), fx_tensor_list_of(1)},
                 gone);
    }
    assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
    mfx_assert_step(&g, 2);
    full_give(&full);
    gpus_close(&g);
}

/* What lies behind the one that failed stays; what is sent again is larger than all slack. */
static void test_room_before_another_is_used_again(void **state)
{
    enum { N = 40 };
    const bool gone[2] = {true, false};
    struct fx_tensor made[N];
    const struct fx_tensor *all[N];
    char names[N][16];
    struct gpus_cfg world = {.n_devices = 1};
    struct update_info info;
    struct full full;
    struct gpus g;
    struct err e = {0};

    (void)state;
    for (unsigned i = 0; i < N; i++) {
        (void)snprintf(names[i], sizeof names[i], "made.%u", i);
        made[i] = (struct fx_tensor){names[i], DTYPE_U8, 1, {FX_NBYTES_MAX}};
        all[i] = &made[i];
    }
    assert_int_equal(model_spec_new(&world.model_spec, fx_tensor_list(all, N), NULL, 0, &e), 0);
    gpus_open(&g, &lib, world);
    full_take(&full, &g, all, N);
    info = start(&g.b, (struct update_start){0});
    send_two(&g, info.id,
             (struct tensor_list *[]){fx_tensor_list(all, N - 1), fx_tensor_list(&all[N - 1], 1)},
             gone);
    for (uint32_t at = 0; at < N - 1; at += 13) /* in other pieces, even */
        assert_int_equal(
            mfx_send(&g, mfx_chunk(&g, info.id, fx_tensor_list(&all[at], 13), MFX_STEP(2))),
            ERR_NONE);
    assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
    mfx_assert_step(&g, 2);
    full_give(&full);
    gpus_close(&g);
}

/* The environment makes this call fail (open_lib): it is how a context that is gone shows. */
static void test_gpu_that_was_lost_is_not_committed(void **state)
{
    struct update_info info;
    struct gpus g;

    (void)state;
    gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 2});
    assert_int_equal(mfx_push(&g, 1), ERR_NONE);
    for (unsigned nth = 1; nth <= g.n_devices; nth++) {
        info = start(&g.b, (struct update_start){0});
        assert_int_equal(mfx_send(&g, whole_chunk(&g, info.id, 2, &g.b.answer)), ERR_NONE);
        lib.fail_nth(nth);
        assert_int_equal(finish(&g.b, info.id, ""), ERR_CUDA);
        lib.fail_nth(0);
        assert_int_equal(g.b.answer.info.phase, UPDATE_ABORTED);
        mfx_assert_step(&g, 1);
    }
    gpus_close(&g);
}

static void test_tied_name_that_comes_again_is_kept_once(void **state)
{
    static const struct fx_tensor *const head[] = {&fx_lm_head};

    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct slab_stats once, now;
        struct update_info info;
        struct mfx_cfg lie = MFX_STEP(1);
        struct gpus g;

        gpus_open(&g, &lib, mfx_worlds[w]);
        info = start(&g.b, (struct update_start){0});
        for (unsigned i = 0; i < 10; i++) {
            assert_int_equal(
                mfx_send(&g, mfx_chunk(&g, info.id, fx_tensor_list(head, 1), MFX_STEP(1))),
                ERR_NONE);
            slab_pool_stats(g.b.store->scratch, &now);
            if (i == 0)
                once = now;
            assert_int_equal(now.n_live, once.n_live);
        }
        lie.corrupt_at = 0;
        assert_int_equal(mfx_send(&g, mfx_chunk(&g, info.id, fx_tensor_list(head, 1), lie)),
                         ERR_MISMATCH);
        assert_int_equal(mfx_send(&g, whole_chunk(&g, info.id, 1, &g.b.answer)), ERR_NONE);
        assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
        mfx_assert_step(&g, 1);
        gpus_close(&g);
    }
}

/* Rank 0 gets the first tensor, rank 1 the second. @turn 1: with each other's checksum */
static struct update_chunk *summed_pair(struct gpus *g, const char *id, unsigned turn)
{
    struct tensor_list *tensor_lists[MFX_RANKS_MAX] = {fx_tensor_list_of(1), fx_tensor_list_of(2)};
    struct update_chunk *c = mfx_ranked(g, id, tensor_lists, MFX_STEP(1));

    (void)snprintf(c->chunk_id, sizeof c->chunk_id, "pair");
    for (unsigned r = 0; r < 2; r++)
        c->ranks[r].checksums = mfx_sums(tensor_lists[(r + turn) % 2], 1);
    return c;
}

static void test_checksums_of_other_ranks_are_no_repeat(void **state)
{
    struct update_info info;
    struct err e;
    struct gpus g;

    (void)state;
    gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 2});
    info = start(&g.b, (struct update_start){.sharded = true});
    assert_int_equal(mfx_send(&g, summed_pair(&g, info.id, 0)), ERR_NONE);
    assert_int_equal(mfx_send(&g, summed_pair(&g, info.id, 0)), ERR_NONE); /* the same again */
    e = refused(&g.b, summed_pair(&g, info.id, 1));
    assert_int_equal(e.code, ERR_PRECONDITION);
    assert_string_equal(e.field, "/chunk_id");
    mfx_abort(&g, info.id);
    gpus_close(&g);
}

static int open_lib(void **state)
{
    (void)state;
    assert_int_equal(setenv("FAKECUDA_FAIL_CALL", "cuStreamQuery", 1), 0);
    assert_int_equal(setenv("FAKECUDA_FAIL_RESULT", "700", 1), 0); /* an illegal address */
    mfx_lib_open(&lib, FAKECUDA);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_start_right_after_an_abort),
        cmocka_unit_test(test_whole_updates_queue_up),
        cmocka_unit_test(test_failed_chunks_find_their_room_again),
        cmocka_unit_test(test_room_before_another_is_used_again),
        cmocka_unit_test(test_gpu_that_was_lost_is_not_committed),
        cmocka_unit_test(test_tied_name_that_comes_again_is_kept_once),
        cmocka_unit_test(test_checksums_of_other_ranks_are_no_repeat),
    };

    return cmocka_run_group_tests(tests, open_lib, NULL);
}
