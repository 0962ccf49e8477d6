/* weights/update: whole updates and sessions; every failure leaves what was served. */
#include "tests/unit/update_fixture.h"

/* whole updates */

static void test_submit_whole_commits_before_done(void **state)
{
    struct bench b;
    struct updates_stats stats;
    atomic_uint n_filled = 0, n_closed = 0;
    struct fx_source_cfg cfg = FX_STEP(1);

    (void)state;
    bench_open(&b);
    cfg.n_filled = &n_filled;
    cfg.n_closed = &n_closed;
    submit(&b, chunk_of(&b, "", fx_tensor_list_of(FX_ALL), cfg));
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    /* One call for what lies aligned as it comes; another where a tensor would not. */
    assert_int_equal(atomic_load(&n_filled), 2);
    assert_int_equal(atomic_load(&n_closed), 1); /* before the answer */
    assert_int_equal(b.answer.info.phase, UPDATE_COMMITTED);
    assert_int_equal(b.answer.info.serial, 1);
    assert_string_equal(b.answer.info.label, "serial-1");
    assert_int_equal(b.answer.info.nbytes_done, b.answer.info.nbytes_total);
    assert_int_equal(b.answer.info.n_tensors_done, FX_N);
    assert_int_equal(b.answer.info.n_missing, 0);
    assert_served(&b, 1, "serial-1", 1);
    assert_int_equal(push(&b, 2, "step-2"), ERR_NONE);
    assert_int_equal(push(&b, 3, ""), ERR_NONE);
    assert_served(&b, 3, "serial-3", 3);
    assert_idle(&b);
    updates_stats(b.updates, &stats);
    assert_int_equal(stats.n_started, 3);
    assert_int_equal(stats.n_committed, 3);
    assert_int_equal(stats.n_aborted, 0);
    assert_int_equal(stats.nbytes_received, 3 * store_model_spec(b.store)->tensor_list->nbytes);
    bench_close(&b);
}

/* Fails half-way through the 1st, 2nd, ... tensor in turn, in every way. */
static void test_submit_whole_failure_leaves_what_was_served(void **state)
{
    struct bench b;
    struct slab_stats before, after;

    (void)state;
    bench_open(&b);
    assert_int_equal(push(&b, 1, "one"), ERR_NONE);
    slab_pool_stats(store_slabs(b.store, 0), &before);
    for (int k = 0; k < FX_N; k++) {
        struct fx_source_cfg cfg = FX_STEP(2);
        char id[UPDATE_ID_MAX + 1];
        struct err e = {0};

        cfg.fail_at = k;
        submit(&b, chunk_of(&b, "", fx_tensor_list_of(FX_ALL), cfg));
        assert_int_equal(fx_await(&b.answer), ERR_UNREADABLE);
        assert_int_equal(b.answer.info.phase, UPDATE_ABORTED);
        assert_int_equal(b.answer.info.error.code, ERR_UNREADABLE);
        assert_served(&b, 1, "one", 1);
        memcpy(id, b.answer.info.id, sizeof id);
        assert_int_equal(updates_get(b.updates, id, &b.answer.info, &e), 0);
        assert_int_equal(b.answer.info.phase, UPDATE_ABORTED);
    }
    assert_int_equal(push(&b, 3, "three"), ERR_NONE); /* and every memory is back by then */
    slab_pool_stats(store_slabs(b.store, 0), &after);
    assert_int_equal(after.nbytes_live, before.nbytes_live);
    assert_served(&b, 3, "three", 2);
    bench_close(&b);
}

static void test_submit_whole_believes_no_source(void **state)
{
    struct bench b;
    struct fx_source_cfg lies[3] = {FX_STEP(2), FX_STEP(2), FX_STEP(2)};
    const enum err_code codes[3] = {ERR_UNREADABLE, ERR_UNREADABLE, ERR_CHECKSUM};

    (void)state;
    lies[0].short_by_one = true;
    lies[1].trailing = true;
    lies[2].corrupt_at = 4;
    bench_open(&b);
    assert_int_equal(push(&b, 1, "one"), ERR_NONE);
    for (int i = 0; i < 3; i++) {
        struct update_chunk *c = chunk_of(&b, "", fx_tensor_list_of(FX_ALL), lies[i]);

        give_checksums(c, 2);
        submit(&b, c);
        assert_int_equal(fx_await(&b.answer), codes[i]);
        assert_served(&b, 1, "one", 1);
    }
    assert_string_equal(b.answer.e.field, "/checksums/4");
    assert_non_null(strstr(b.answer.e.msg, "norm.weight"));
    {
        struct update_chunk *c = chunk_of(&b, "", fx_tensor_list_of(FX_ALL), FX_STEP(2));

        give_checksums(c, 2);
        submit(&b, c);
        assert_int_equal(fx_await(&b.answer), ERR_NONE);
        assert_int_equal(b.answer.info.n_checksums, b.answer.info.n_tensors_done);
    }
    assert_served(&b, 2, "serial-2", 2);
    bench_close(&b);
}

static void test_submit_refuses_what_is_not_the_model(void **state)
{
    static const struct fx_tensor unknown = {"layers.9.q", DTYPE_BF16, 2, {8, 8}};
    static const struct fx_tensor shape = {"layers.0.q", DTYPE_BF16, 2, {8, 9}};
    static const struct fx_tensor dtype = {"layers.0.q", DTYPE_F32, 2, {8, 8}};
    static const struct {
        const struct fx_tensor *tensors[2];
        uint32_t n;
        const char *field;
        enum err_code code;
    } rows[] = {
        {{&fx_model[0], &unknown}, 2, "/names/1", ERR_MISMATCH},
        {{&fx_model[0], &shape}, 2, "/shapes/1", ERR_MISMATCH},
        {{&fx_model[0], &dtype}, 2, "/dtypes/1", ERR_MISMATCH},
        {{&fx_model[0], &fx_model[1]}, 2, "/names", ERR_INCOMPLETE},
        {{&fx_qkv, &fx_model[2]}, 2, "/names/1", ERR_BAD_REQUEST},
    };
    struct bench b;

    (void)state;
    bench_open(&b);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct err e = refused(
            &b, chunk_of(&b, "", fx_tensor_list(rows[i].tensors, rows[i].n), FX_STEP(1)));

        assert_int_equal(e.code, rows[i].code);
        assert_string_equal(e.field, rows[i].field);
    }
    assert_idle(&b);
    assert_int_equal(refused(&b, chunk_of(&b, "upd-none", fx_tensor_list_of(1), FX_STEP(1))).code,
                     ERR_NOT_FOUND);
    bench_close(&b);
}

static void test_submit_whole_updates_queue_up(void **state)
{
    struct bench b;
    struct fx_pause_controller pause_controller;
    struct fx_source_cfg held = FX_STEP(1);
    struct update_start req = {.lease_s = LEASE_S};
    struct update_info info;
    struct err e = {0};

    (void)state;
    fx_pause_controller_init(&pause_controller);
    held.pause_controller = &pause_controller;
    held.pause_controller_at = 3;
    bench_open(&b);
    submit(&b, named_chunk(&b, "", FX_ALL, held));
    fx_pause_controller_await(&pause_controller);
    submit(&b, named_chunk(&b, "", FX_ALL, FX_STEP(2))); /* without a label, not the same again */
    submit(&b, named_chunk(&b, "", FX_ALL, FX_STEP(3)));
    updates_current(b.updates, &info);
    assert_int_equal(info.phase, UPDATE_RECEIVING);
    assert_string_equal(info.tensor, "layers.0.v");
    assert_int_equal(info.nbytes_done, 256 + 128 + 64); /* while it runs */
    assert_int_equal(info.nbytes_total, store_model_spec(b.store)->tensor_list->nbytes);
    assert_int_equal(info.n_tensors_done, 3);
    assert_true(info.lease_left_us > 0);
    assert_int_equal(updates_start(b.updates, &req, &info, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    fx_pause_controller_open(&pause_controller);
    for (int i = 0; i < 3; i++)
        assert_int_equal(fx_await(&b.answer), ERR_NONE);
    assert_served(&b, 3, "serial-3", 3);
    bench_close(&b);
    fx_pause_controller_fini(&pause_controller);
}

/* What a failed update held is given back before the next one, already queued, needs it. */
static void test_submit_whole_update_follows_a_failed_one(void **state)
{
    struct bench b;
    struct fx_pause_controller pause_controller;
    struct fx_answer second;
    struct fx_source_cfg failing = FX_STEP(1);
    struct update_chunk *c;

    (void)state;
    fx_pause_controller_init(&pause_controller);
    fx_answer_init(&second);
    failing.pause_controller = &pause_controller;
    failing.pause_controller_at = 3;
    failing.fail_at = 3;
    bench_open(&b);
    submit(&b, named_chunk(&b, "", FX_ALL, failing));
    fx_pause_controller_await(&pause_controller);
    c = named_chunk(&b, "", FX_ALL, FX_STEP(2));
    c->done_arg = &second;
    submit(&b, c);
    fx_pause_controller_open(&pause_controller);
    assert_int_equal(fx_await(&b.answer), ERR_UNREADABLE);
    assert_int_equal(fx_await(&second), ERR_NONE);
    assert_served(&b, 2, "serial-1", 1);
    bench_close(&b);
    fx_answer_fini(&second);
    fx_pause_controller_fini(&pause_controller);
}

/* The reply to a chunk, which the worker makes, waits. */
static void done_late(void *arg, const struct update_info *info, const struct err *why)
{
    struct progress p = {.deadline_us = CLOCK_NEVER};
    struct err ignored = {0};

    (void)info;
    (void)why;
    (void)fx_wait_pause_controller(arg, &p, &ignored);
}

/* A start may take the place of an update that got nothing, but not of one whose chunk waits. */
static void test_abort_unused_counts_what_is_queued(void **state)
{
    struct actor one = {.peer = "10.0.0.1:1"}, other = {.peer = "10.0.0.2:1"};
    struct fx_pause_controller pause_controller;
    struct update_info info;
    struct update_chunk *c;
    struct err e = {0};
    struct bench b;

    (void)state;
    fx_pause_controller_init(&pause_controller);
    bench_open(&b);
    info = start(&b, (struct update_start){.actor = one});
    assert_false(updates_abort_unused(b.updates, &one, "again")); /* its client names it */
    c = named_chunk(&b, info.id, FX_ALL, FX_STEP(1));
    c->done = done_late;
    c->done_arg = &pause_controller;
    submit(&b, c);
    fx_pause_controller_await(&pause_controller);
    assert_int_equal(updates_abort(b.updates, info.id, "", &info, &e), 0);
    info = start(&b, (struct update_start){.anonymous = true, .actor = one});
    assert_false(updates_abort_unused(b.updates, &other, "again"));
    assert_true(updates_abort_unused(b.updates, &one, "again"));
    assert_false(updates_abort_unused(b.updates, &one, "again"));
    info = start(&b, (struct update_start){.anonymous = true, .actor = one});
    submit(&b, named_chunk(&b, info.id, FX_ALL, FX_STEP(2)));
    updates_current(b.updates, &info);
    assert_int_equal(info.phase, UPDATE_OPEN);
    assert_false(updates_abort_unused(b.updates, &one, "again"));
    fx_pause_controller_open(&pause_controller);
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    assert_int_equal(finish(&b, info.id, "two"), ERR_NONE);
    assert_served(&b, 2, "two", 1);
    bench_close(&b);
    fx_pause_controller_fini(&pause_controller);
}

/* One that is no trainer's gives way, whatever it does, to a session and to an update of one
 * request; not to another of its kind that begins while a trainer's is open. */
static void test_start_ends_an_update_that_yields(void **state)
{
    static const struct update_start seed = {.yields = true};
    struct update_info info, trainers;
    struct fx_pause_controller pause_controller;
    struct update_start again = seed;
    struct update_chunk *c;
    struct err e = {0};
    struct bench b;

    (void)state;
    fx_pause_controller_init(&pause_controller);
    bench_open(&b);
    info = start(&b, seed);
    c = named_chunk(&b, info.id, FX_ALL, FX_STEP(1));
    c->done = done_late;
    c->done_arg = &pause_controller;
    submit(&b, c);
    fx_pause_controller_await(&pause_controller); /* the worker is busy with it */
    trainers = start(&b, (struct update_start){0});
    assert_int_equal(updates_get(b.updates, info.id, &info, &e), 0);
    assert_int_equal(info.phase, UPDATE_ABORTED);
    assert_int_equal(info.error.code, ERR_CONFLICT);
    again.lease_s = 60;
    assert_int_equal(updates_start(b.updates, &again, &info, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    err_clear(&e);
    submit(&b, named_chunk(&b, trainers.id, FX_ALL, FX_STEP(2)));
    fx_pause_controller_open(&pause_controller);
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    assert_int_equal(finish(&b, trainers.id, "two"), ERR_NONE);
    assert_served(&b, 2, "two", 1);

    info = start(&b, seed);
    assert_int_equal(push(&b, 3, "three"), ERR_NONE);
    assert_served(&b, 3, "three", 2);
    assert_int_equal(updates_get(b.updates, info.id, &info, &e), 0);
    assert_int_equal(info.phase, UPDATE_ABORTED);
    bench_close(&b);
    fx_pause_controller_fini(&pause_controller);
}

static bool left(void *arg)
{
    (void)arg;
    return true;
}

/* Its sender may reuse the memory that was being read: every byte came, and none is believed. */
static void test_submit_whole_of_a_client_that_left_is_not_taken(void **state)
{
    struct bench b;
    struct update_chunk *c;

    (void)state;
    bench_open(&b);
    assert_int_equal(push(&b, 1, "one"), ERR_NONE);
    c = named_chunk(&b, "", FX_ALL, FX_STEP(2));
    c->gone = left;
    submit(&b, c);
    assert_int_equal(fx_await(&b.answer), ERR_GONE);
    assert_int_equal(b.answer.info.phase, UPDATE_ABORTED);
    assert_served(&b, 1, "one", 1);
    bench_close(&b);
}

static void test_submit_whole_repeated_is_known_by_its_label(void **state)
{
    struct bench b;
    atomic_uint n_filled = 0;
    struct fx_source_cfg cfg = FX_STEP(1);
    const char *const labels[] = {"one", "one", "two", ""};
    const unsigned serials[] = {1, 1, 2, 3};

    (void)state;
    cfg.n_filled = &n_filled;
    bench_open(&b);
    for (int i = 0; i < 4; i++) {
        struct update_chunk *c = chunk_of(&b, "", fx_tensor_list_of(FX_ALL), cfg);

        (void)snprintf(c->chunk_id, sizeof c->chunk_id, "request-1");
        (void)snprintf(c->label, sizeof c->label, "%s", labels[i]);
        submit(&b, c);
        assert_int_equal(fx_await(&b.answer), ERR_NONE);
        assert_int_equal(b.answer.info.phase, UPDATE_COMMITTED);
        assert_int_equal(b.answer.info.serial, serials[i]);
    }
    assert_int_equal(atomic_load(&n_filled), 3 * 2);
    bench_close(&b);
}

/* partial */

static void test_submit_partial_keeps_the_rest(void **state)
{
    struct bench b;
    const struct version *v = NULL;
    struct update_chunk *c;
    struct err e;

    (void)state;
    bench_open(&b);
    c = chunk_of(&b, "", fx_tensor_list_of(2), FX_STEP(1));
    c->partial = true;
    e = refused(&b, c);
    assert_int_equal(e.code, ERR_UNSYNCED);
    assert_int_equal(push(&b, 1, "one"), ERR_NONE);
    c = chunk_of(&b, "", fx_tensor_list_of(2), FX_STEP(2));
    c->partial = true;
    submit(&b, c);
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    assert_true(b.answer.info.partial);
    assert_int_equal(b.answer.info.n_tensors_total, 1);
    err_clear(&e);
    assert_int_equal(store_pin(b.store, &v, &e), 0);
    for (uint32_t i = 0; i < FX_N; i++)
        assert_true(fx_is_step(v, i, i == 1 ? 2 : 1));
    assert_int_equal(v->serial, 2);
    assert_int_equal(v->views[0].serial, 1);
    store_unpin(b.store, v);
    bench_close(&b);
}

static void test_submit_partial_of_ignored_tensors_only_is_incomplete(void **state)
{
    static const struct fx_tensor *const ignored[] = {&fx_old_scale};
    struct bench b;
    struct update_chunk *c;

    (void)state;
    bench_open(&b);
    assert_int_equal(push(&b, 1, "one"), ERR_NONE);
    c = chunk_of(&b, "", fx_tensor_list(ignored, 1), FX_STEP(2));
    c->partial = true;
    submit(&b, c);
    assert_int_equal(fx_await(&b.answer), ERR_INCOMPLETE);
    assert_served(&b, 1, "one", 1);
    bench_close(&b);
}

/* sessions */

static void test_session_receives_in_any_order_and_commits(void **state)
{
    struct bench b;
    struct update_start req = {.label = "two"};
    struct update_info info;
    struct err e = {0};

    (void)state;
    bench_open(&b);
    assert_int_equal(push(&b, 1, "one"), ERR_NONE);
    info = start(&b, req);
    assert_int_equal(info.nbytes_staging, store_model_spec(b.store)->tensor_list->nbytes);
    assert_int_equal(info.n_missing, FX_N);
    assert_int_equal(send_mask(&b, info.id, 0x70, 2), ERR_NONE);
    assert_int_equal(b.answer.info.phase, UPDATE_RECEIVING);
    assert_int_equal(b.answer.info.n_missing, 4);
    assert_string_equal(b.answer.info.missing[0], "embed.weight");
    assert_int_equal(b.answer.info.n_tensors_done, 3);
    assert_served(&b, 1, "one", 1);
    assert_int_equal(refused(&b, chunk_of(&b, info.id, fx_tensor_list_of(0x30), FX_STEP(2))).code,
                     ERR_PRECONDITION); /* arrived already */
    assert_int_equal(refused(&b, chunk_of(&b, "", fx_tensor_list_of(FX_ALL), FX_STEP(2))).code,
                     ERR_CONFLICT); /* a session is open */
    assert_int_equal(updates_start(b.updates, &(struct update_start){.lease_s = 1}, &info, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_non_null(strstr(e.msg, info.id));
    assert_int_equal(send_mask(&b, info.id, 0x0f, 2), ERR_NONE);
    assert_int_equal(finish(&b, info.id, ""), ERR_NONE);
    assert_int_equal(b.answer.info.phase, UPDATE_COMMITTED);
    assert_served(&b, 2, "two", 2);
    assert_int_equal(finish(&b, info.id, "other"), ERR_NONE); /* the first answer again */
    assert_int_equal(b.answer.info.serial, 2);
    assert_served(&b, 2, "two", 2);
    err_clear(&e);
    assert_int_equal(updates_abort(b.updates, info.id, "", &info, &e), -1);
    assert_int_equal(e.code, ERR_ENDED);
    assert_int_equal(refused(&b, chunk_of(&b, info.id, fx_tensor_list_of(1), FX_STEP(2))).code,
                     ERR_ENDED);
    bench_close(&b);
}

static void test_session_label_of_finish_wins(void **state)
{
    struct bench b;
    struct update_start req = {.label = "of-start"};
    struct update_chunk *c;
    struct update_info info;

    (void)state;
    bench_open(&b);
    info = start(&b, req);
    c = chunk_of(&b, info.id, fx_tensor_list_of(FX_ALL), FX_STEP(1));
    (void)snprintf(c->label, sizeof c->label, "of-chunk");
    submit(&b, c);
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    assert_string_equal(b.answer.info.label, "of-chunk");
    assert_int_equal(finish(&b, info.id, "of-finish"), ERR_NONE);
    assert_served(&b, 1, "of-finish", 1);
    bench_close(&b);
}

static void test_session_finish_lists_what_is_missing(void **state)
{
    struct bench b;
    struct update_info info;
    struct slab_stats st;

    (void)state;
    bench_open(&b);
    info = start(&b, (struct update_start){0});
    assert_int_equal(finish(&b, info.id, ""), ERR_INCOMPLETE); /* nothing at all */
    assert_int_equal(b.answer.info.n_missing, FX_N);
    info = start(&b, (struct update_start){0});
    assert_int_equal(send_mask(&b, info.id, FX_ALL & ~0x24U, 1), ERR_NONE);
    assert_int_equal(finish(&b, info.id, ""), ERR_INCOMPLETE);
    assert_int_equal(b.answer.info.phase, UPDATE_ABORTED);
    assert_int_equal(b.answer.info.n_missing, 2);
    assert_string_equal(b.answer.info.missing[0], "layers.0.k");
    assert_string_equal(b.answer.info.missing[1], "bias");
    assert_int_equal(push(&b, 1, ""), ERR_NONE);
    slab_pool_stats(store_slabs(b.store, 0), &st);
    assert_int_equal(st.n_live, 1); /* the bucket and the misaligned tensors of what is served */
    bench_close(&b);
}

static void test_session_takes_a_failed_chunk_again(void **state)
{
    struct bench b;
    struct fx_source_cfg broken = FX_STEP(2);
    struct update_chunk *c;
    struct update_info info;

    (void)state;
    bench_open(&b);
    assert_int_equal(push(&b, 1, "one"), ERR_NONE);
    info = start(&b, (struct update_start){0});
    assert_int_equal(send_mask(&b, info.id, 0x07, 2), ERR_NONE);
    for (int k = 0; k < 4; k++) {
        broken.fail_at = k;
        c = chunk_of(&b, info.id, fx_tensor_list_of(0x78), broken);
        (void)snprintf(c->chunk_id, sizeof c->chunk_id, "rest");
        submit(&b, c);
        assert_int_equal(fx_await(&b.answer), ERR_UNREADABLE);
        assert_int_equal(b.answer.info.phase, UPDATE_RECEIVING);
        assert_int_equal(b.answer.info.n_missing, 4);
        assert_int_equal(b.answer.info.nbytes_done, 256 + 128 + 64);
        assert_served(&b, 1, "one", 1);
    }
    c = chunk_of(&b, info.id, fx_tensor_list_of(0x78), FX_STEP(2));
    (void)snprintf(c->chunk_id, sizeof c->chunk_id, "rest");
    submit(&b, c);
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    assert_int_equal(finish(&b, info.id, "two"), ERR_NONE);
    assert_served(&b, 2, "two", 2);
    bench_close(&b);
}

static void test_session_answers_a_repeated_chunk(void **state)
{
    struct bench b;
    struct fx_pause_controller pause_controller;
    atomic_uint n_filled = 0, n_closed = 0;
    struct fx_source_cfg cfg = FX_STEP(1);
    struct update_chunk *c;
    struct update_info info;
    struct err e;

    (void)state;
    fx_pause_controller_init(&pause_controller);
    cfg.pause_controller = &pause_controller;
    cfg.n_filled = &n_filled;
    cfg.n_closed = &n_closed;
    bench_open(&b);
    info = start(&b, (struct update_start){0});
    submit(&b, named_chunk(&b, info.id, 0x07, cfg));
    fx_pause_controller_await(&pause_controller);
    e = refused(&b, named_chunk(&b, info.id, 0x07, cfg));
    assert_int_equal(e.code, ERR_CONFLICT); /* under way */
    assert_string_equal(e.field, "/chunk_id");
    assert_non_null(strstr(e.msg, "still"));
    fx_pause_controller_open(&pause_controller);
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    submit(&b, named_chunk(&b, info.id, 0x07, cfg));
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    assert_int_equal(b.answer.info.n_tensors_done, 3);
    assert_int_equal(atomic_load(&n_filled), 1);
    assert_int_equal(atomic_load(&n_closed), 3);
    e = refused(&b, named_chunk(&b, info.id, 0x78, FX_STEP(1)));
    assert_int_equal(e.code, ERR_PRECONDITION);
    assert_non_null(strstr(e.msg, "another tensor list"));
    c = named_chunk(&b, info.id, 0x07, FX_STEP(1));
    give_checksums(c, 1);
    e = refused(&b, c);
    assert_int_equal(e.code, ERR_PRECONDITION); /* says other things of its bytes than the first */
    assert_string_equal(e.field, "/chunk_id");
    assert_int_equal(send_mask(&b, info.id, 0x78, 1), ERR_NONE);
    assert_int_equal(finish(&b, info.id, ""), ERR_NONE);
    submit(&b, named_chunk(&b, info.id, 0x07, cfg)); /* even now */
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    assert_int_equal(b.answer.info.phase, UPDATE_COMMITTED);
    bench_close(&b);
    fx_pause_controller_fini(&pause_controller);
}

static void test_session_finish_checks_checksums(void **state)
{
    struct bench b;
    unsigned char bytes[FX_NBYTES_MAX];
    struct update_checksum sums[4];
    struct update_checksum wrong = {.name = "layers.0.nope"};
    struct update_info info;
    struct err e = {0};
    static const char *const names[] = {"norm.weight", "lm_head.weight", "layers.0.qkv",
                                        "old.scale"};

    (void)state;
    for (int i = 0; i < 4; i++)
        sums[i] = (struct update_checksum){names[i],
                                           checksum_of(bytes, fx_bytes(names[i], 1, bytes))};
    bench_open(&b);
    for (int bad = 0; bad < 3; bad++) {
        struct update_checksum some[4];

        memcpy(some, sums, sizeof some);
        some[bad].sum.b++;
        info = start(&b, (struct update_start){0});
        assert_int_equal(send_mask(&b, info.id, FX_ALL, 1), ERR_NONE);
        assert_int_equal(updates_finish(b.updates, info.id, "", some, 4, fx_done, &b.answer, &e),
                         0);
        assert_int_equal(fx_await(&b.answer), ERR_CHECKSUM);
        assert_non_null(strstr(b.answer.e.field, names[bad]));
        assert_int_equal(b.answer.info.phase, UPDATE_ABORTED);
    }
    info = start(&b, (struct update_start){0});
    assert_int_equal(send_mask(&b, info.id, FX_ALL, 1), ERR_NONE);
    assert_int_equal(updates_finish(b.updates, info.id, "", &wrong, 1, fx_done, &b.answer, &e), -1);
    assert_int_equal(e.code, ERR_MISMATCH);
    err_clear(&e);
    assert_int_equal(updates_finish(b.updates, info.id, "", sums, 4, fx_done, &b.answer, &e), 0);
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    assert_int_equal(b.answer.info.n_checksums, 3); /* one of the names is not served */
    assert_served(&b, 1, "serial-1", 1);
    bench_close(&b);
}

static void test_session_refuses_finish_while_chunks_are_under_way(void **state)
{
    struct bench b;
    struct fx_pause_controller pause_controller;
    struct fx_source_cfg cfg = FX_STEP(1);
    struct update_info info;
    struct err e = {0};

    (void)state;
    fx_pause_controller_init(&pause_controller);
    cfg.pause_controller = &pause_controller;
    bench_open(&b);
    info = start(&b, (struct update_start){0});
    submit(&b, chunk_of(&b, info.id, fx_tensor_list_of(FX_ALL), cfg));
    fx_pause_controller_await(&pause_controller);
    assert_int_equal(updates_finish(b.updates, info.id, "", NULL, 0, fx_done, &b.answer, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    err_clear(&e);
    assert_int_equal(updates_finish(b.updates, "upd-x", "", NULL, 0, fx_done, &b.answer, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    fx_pause_controller_open(&pause_controller);
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    assert_int_equal(finish(&b, info.id, ""), ERR_NONE);
    bench_close(&b);
    fx_pause_controller_fini(&pause_controller);
}

static enum err_code verify(struct bench *b, const char *id)
{
    struct err e = {0};

    assert_int_equal(updates_verify(b->updates, id, NULL, 0, fx_done, &b->answer, &e), 0);
    return fx_await(&b->answer);
}

static void test_session_verified_is_not_served_until_it_is_finished(void **state)
{
    struct update_chunk *late;
    struct bench b;
    struct update_info info;
    struct err e = {0};

    (void)state;
    bench_open(&b);
    assert_int_equal(send_mask(&b, "", FX_ALL, 1), ERR_NONE);
    info = start(&b, (struct update_start){.label = "two"});
    assert_int_equal(send_mask(&b, info.id, FX_ALL, 2), ERR_NONE);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(verify(&b, info.id), ERR_NONE);
        assert_int_equal(b.answer.info.phase, UPDATE_VERIFIED);
        assert_true(b.answer.info.lease_left_us > 0);
        assert_served(&b, 1, "serial-1", 1);
    }
    late = chunk_of(&b, info.id, fx_tensor_list_of(FX_ALL), (struct fx_source_cfg)FX_STEP(3));
    assert_int_equal(updates_submit(b.updates, late, &e), -1);
    assert_int_equal(e.code, ERR_ENDED);
    assert_non_null(strstr(e.msg, "verified"));
    update_chunk_free(late);
    assert_int_equal(finish(&b, info.id, ""), ERR_NONE);
    assert_served(&b, 2, "two", 2);
    bench_close(&b);
}

static void test_session_that_cannot_be_verified_is_aborted(void **state)
{
    struct bench b;
    struct update_info info;

    (void)state;
    bench_open(&b);
    assert_int_equal(send_mask(&b, "", FX_ALL, 1), ERR_NONE);
    info = start(&b, (struct update_start){0});
    assert_int_equal(send_mask(&b, info.id, 1, 2), ERR_NONE);
    assert_int_equal(verify(&b, info.id), ERR_INCOMPLETE);
    assert_int_equal(b.answer.info.phase, UPDATE_ABORTED);
    assert_served(&b, 1, "serial-1", 1);
    bench_close(&b);
}

static void test_session_verified_can_be_aborted(void **state)
{
    struct bench b;
    struct update_info info;
    struct err e = {0};

    (void)state;
    bench_open(&b);
    assert_int_equal(send_mask(&b, "", FX_ALL, 1), ERR_NONE);
    info = start(&b, (struct update_start){0});
    assert_int_equal(send_mask(&b, info.id, FX_ALL, 2), ERR_NONE);
    assert_int_equal(verify(&b, info.id), ERR_NONE);
    assert_int_equal(updates_abort(b.updates, info.id, "another could not", &info, &e), 0);
    assert_int_equal(updates_finish(b.updates, info.id, "", NULL, 0, fx_done, &b.answer, &e), -1);
    assert_int_equal(e.code, ERR_ENDED);
    assert_served(&b, 1, "serial-1", 1);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_submit_whole_commits_before_done),
        cmocka_unit_test(test_submit_whole_failure_leaves_what_was_served),
        cmocka_unit_test(test_submit_whole_believes_no_source),
        cmocka_unit_test(test_submit_refuses_what_is_not_the_model),
        cmocka_unit_test(test_submit_whole_updates_queue_up),
        cmocka_unit_test(test_abort_unused_counts_what_is_queued),
        cmocka_unit_test(test_submit_whole_update_follows_a_failed_one),
        cmocka_unit_test(test_start_ends_an_update_that_yields),
        cmocka_unit_test(test_submit_whole_of_a_client_that_left_is_not_taken),
        cmocka_unit_test(test_submit_whole_repeated_is_known_by_its_label),
        cmocka_unit_test(test_submit_partial_keeps_the_rest),
        cmocka_unit_test(test_submit_partial_of_ignored_tensors_only_is_incomplete),
        cmocka_unit_test(test_session_receives_in_any_order_and_commits),
        cmocka_unit_test(test_session_label_of_finish_wins),
        cmocka_unit_test(test_session_finish_lists_what_is_missing),
        cmocka_unit_test(test_session_takes_a_failed_chunk_again),
        cmocka_unit_test(test_session_answers_a_repeated_chunk),
        cmocka_unit_test(test_session_finish_checks_checksums),
        cmocka_unit_test(test_session_refuses_finish_while_chunks_are_under_way),
        cmocka_unit_test(test_session_verified_is_not_served_until_it_is_finished),
        cmocka_unit_test(test_session_that_cannot_be_verified_is_aborted),
        cmocka_unit_test(test_session_verified_can_be_aborted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
