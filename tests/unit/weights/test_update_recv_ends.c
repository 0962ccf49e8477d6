/* weights/update_recv: what may go on at the same time, what may end it half-way, and the memory
 * that it takes. Logs: P0 bucket 0 was posted, V0 it was waited for, C closed; those of
 * map_fixture.h beside. */
#include "tests/unit/weights/recv_fixture.h"

#include <sched.h>

static struct mfx_lib lib;

/* Pairs of 3 bytes and a float: no bucket of one pair lies where it stays. */
enum { PAIRS = 6 };

static struct tensor_list *pairs_tensor_list(void)
{
    struct fx_tensor made[2 * PAIRS];
    const struct fx_tensor *tensors[2 * PAIRS];
    char names[2 * PAIRS][16];

    for (unsigned i = 0; i < 2 * PAIRS; i++) {
        (void)snprintf(names[i], sizeof names[i], "made.%u", i);
        made[i] = i % 2 == 0 ? (struct fx_tensor){names[i], DTYPE_U8, 1, {3}}
                             : (struct fx_tensor){names[i], DTYPE_F32, 2, {5, 7}};
        tensors[i] = &made[i];
    }
    return fx_tensor_list(tensors, 2 * PAIRS);
}

static void open_of(struct gpus *g, struct gpus_cfg world, struct tensor_list *tensor_list)
{
    struct err e = {0};

    assert_int_equal(model_spec_new(&world.model_spec, tensor_list, NULL, 0, &e), 0);
    gpus_open(g, &lib, world);
}

static unsigned n_different(const struct rfx_group *group, unsigned rank)
{
    unsigned n = 0;

    for (unsigned k = 0; k < group->n_buckets; k++) {
        bool seen = false;

        for (unsigned other = 0; other < k; other++)
            seen = seen || group->dst[other][rank] == group->dst[k][rank];
        n += !seen;
    }
    return n;
}

static void log_clear(struct gpus *g)
{
    mtx_lock(&g->watch.lock);
    memset(g->watch.log, 0, sizeof g->watch.log);
    mtx_unlock(&g->watch.lock);
}

/* at the same time */

/* Held GPUs empty no bounce buffer: two buckets come, and the third one when they go on. */
static void test_next_bucket_comes_while_the_last_is_copied(void **state)
{
    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;

        if (mfx_worlds[w].sharded) /* the buckets that a rank drops wait for nothing */
            continue;
        open_of(&g, mfx_worlds[w], pairs_tensor_list());
        for (unsigned step = 1; step < 5; step++) {
            struct rfx_group group = {0};
            struct rfx_cfg cfg = RFX_STEP(step);
            struct update_chunk *c;

            cfg.n_each = 2;
            cfg.unheld_at = BOUNCES_MAX;
            cfg.group = &group;
            c = rfx_chunk(&g, "", pairs_tensor_list(), cfg);
            if (step % 2 != 0)
                c->checksums = mfx_sums(c->tensor_list, step);
            log_clear(&g);
            gpus_hold(&g, true);
            submit(&g.b, c);
            mfx_await_log(&g.watch, "P0P1V0");
            gpus_hold(&g, false);
            assert_int_equal(fx_await(&g.b.answer), ERR_NONE);
            mfx_assert_log(&g.watch, "P0P1V0P2V1P3V2P4V3P5V4V5C");
            assert_int_equal(group.n_ahead, BOUNCES_MAX);
            for (unsigned r = 0; r < g.n_devices; r++)
                assert_int_equal(n_different(&group, r), BOUNCES_MAX);
            mfx_assert_step(&g, step);
        }
        gpus_close(&g);
    }
}

enum { LARGE_N = 3, LARGE_NBYTES = 17 << 20 };

static struct tensor_list *large_tensor_list(void)
{
    static const struct fx_tensor large[LARGE_N] = {
        {"a", DTYPE_U8, 1, {LARGE_NBYTES}},
        {"bb", DTYPE_U8, 1, {LARGE_NBYTES}},
        {"ccc", DTYPE_U8, 1, {LARGE_NBYTES}},
    };
    const struct fx_tensor *const tensors[LARGE_N] = {&large[0], &large[1], &large[2]};

    return fx_tensor_list(tensors, LARGE_N);
}

static struct update_chunk *large_chunk(struct gpus *g, struct rfx_cfg cfg)
{
    struct update_chunk *c = rfx_chunk(g, "", large_tensor_list(), cfg);
    unsigned char *sent = malloc(LARGE_NBYTES);

    assert_non_null(sent);
    c->checksums = calloc(LARGE_N, sizeof *c->checksums);
    assert_non_null(c->checksums);
    for (unsigned i = 0; i < LARGE_N; i++) {
        rfx_sent(&c->tensor_list->tensors[i], cfg.step, sent);
        c->checksums[i] = checksum_of(sent, LARGE_NBYTES);
    }
    free(sent);
    return c;
}

/* Each large bucket that lies where it stays is summed at once: while the last one is on its way,
 * the GPUs have begun with those before it. Held ones hold nobody up. */
static void test_sums_are_made_while_the_next_bucket_comes(void **state)
{
    struct fakecuda_counts before, now;
    struct rfx_cfg cfg = RFX_STEP(1);
    struct fx_pause_controller pause_controller;
    struct gpus g;

    (void)state;
    open_of(&g, (struct gpus_cfg){.n_devices = 1, .mirror = true}, large_tensor_list());
    fx_pause_controller_init(&pause_controller);
    cfg.n_each = 1;
    cfg.pause_controller = &pause_controller;
    cfg.pause_controller_at = LARGE_N - 1;
    lib.counts(&before);
    submit(&g.b, large_chunk(&g, cfg));
    fx_pause_controller_await(&pause_controller);
    do { /* what waits for the GPU here cannot be told that it is done */
        (void)sched_yield();
        lib.counts(&now);
    } while (now.nbytes_copied - before.nbytes_copied < UINT64_C(2) * LARGE_NBYTES);
    assert_int_equal(now.n_launches - before.n_launches, 2);
    fx_pause_controller_open(&pause_controller);
    assert_int_equal(fx_await(&g.b.answer), ERR_NONE);
    cfg = RFX_STEP(2);
    cfg.n_each = 1;
    log_clear(&g);
    gpus_hold(&g, true);
    submit(&g.b, large_chunk(&g, cfg));
    mfx_await_log(&g.watch, "V2");
    gpus_hold(&g, false);
    assert_int_equal(fx_await(&g.b.answer), ERR_NONE);
    cfg.corrupt_at = 1;
    cfg.corrupt_rank = 0;
    assert_int_equal(mfx_send(&g, large_chunk(&g, cfg)), ERR_CHECKSUM);
    assert_int_equal(mfx_info(&g).serial, 2);
    fx_pause_controller_fini(&pause_controller);
    gpus_close(&g);
}

static void test_progress_grows_bucket_by_bucket(void **state)
{
    struct gpus g;

    (void)state;
    gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 2, .mirror = true});
    for (int at = 0; at < FX_N; at++) {
        struct update_info info = start(&g.b, (struct update_start){0}), seen;
        struct tensor_list *tensor_list = rfx_tensor_list();
        struct rfx_cfg cfg = RFX_STEP(1);
        struct fx_pause_controller pause_controller;
        struct err e = {0};

        fx_pause_controller_init(&pause_controller);
        cfg.n_each = 1;
        cfg.pause_controller = &pause_controller;
        cfg.pause_controller_at = at;
        submit(&g.b, rfx_chunk(&g, info.id, tensor_list_ref(tensor_list), cfg));
        fx_pause_controller_await(&pause_controller);
        assert_int_equal(updates_get(g.b.updates, info.id, &seen, &e), 0);
        assert_int_equal(seen.phase, UPDATE_RECEIVING);
        assert_int_equal(seen.nbytes_done, tensor_list->tensors[at].offset);
        assert_int_equal(seen.nbytes_total, tensor_list->nbytes);
        assert_string_equal(seen.tensor, tensor_list->tensors[at].name);
        fx_pause_controller_open(&pause_controller);
        assert_int_equal(fx_await(&g.b.answer), ERR_NONE);
        assert_int_equal(g.b.answer.info.nbytes_done, tensor_list->nbytes);
        mfx_abort(&g, info.id);
        tensor_list_unref(tensor_list);
        fx_pause_controller_fini(&pause_controller);
    }
    gpus_close(&g);
}

/* Mapped chunks before it and behind it: neither is under way at the same time. */
static void test_no_chunk_is_begun_beside_one_that_is_received(void **state)
{
    static const unsigned masks[3] = {0x0a, 0x51, 0x24};
    struct fx_answer answers[3];
    struct update_info info;
    struct fx_pause_controller pause_controller;
    struct gpus g;

    (void)state;
    gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 2});
    fx_pause_controller_init(&pause_controller);
    info = start(&g.b, (struct update_start){0});
    for (int i = 0; i < 3; i++) {
        struct mfx_cfg mapped = MFX_STEP(1);
        struct rfx_cfg received = RFX_STEP(1);
        struct update_chunk *c;

        mapped.id = i;
        mapped.pause_controller = i == 0 ? &pause_controller : NULL;
        received.n_each = 1;
        fx_answer_init(&answers[i]);
        c = i == 1 ? rfx_chunk(&g, info.id, fx_tensor_list_of(masks[i]), received)
                   : mfx_chunk(&g, info.id, fx_tensor_list_of(masks[i]), mapped);
        c->done_arg = &answers[i];
        submit(&g.b, c);
    }
    fx_pause_controller_open(&pause_controller);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(fx_await(&answers[i]), ERR_NONE);
        fx_answer_fini(&answers[i]);
    }
    assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
    mfx_assert_log(&g.watch, "J0M0M0R0C0P0P1P2V0V1V2CJ2M2M2R2C2S");
    mfx_assert_step(&g, 1);
    fx_pause_controller_fini(&pause_controller);
    gpus_close(&g);
}

/* ends */

static void test_refuses_a_sharded_update(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 3; n++) {
        struct update_chunk *c;
        struct update_info info;
        struct err e;
        struct gpus g;

        gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = n});
        info = start(&g.b, (struct update_start){.sharded = true});
        for (int single = 0; single < 2; single++) {
            c = rfx_chunk(&g, single ? "" : info.id, rfx_tensor_list(), RFX_STEP(1));
            c->sharded = true;
            if (n == 1) { /* there are no shards */
                assert_int_equal(mfx_send(&g, c), ERR_NONE);
            } else {
                e = refused(&g.b, c);
                assert_int_equal(e.code, ERR_PRECONDITION);
                assert_string_equal(e.field, "/placement");
                assert_non_null(strstr(e.msg, "received brings every tensor to all"));
            }
            if (!single)
                mfx_abort(&g, info.id);
        }
        gpus_close(&g);
    }
}

static void test_failed_bucket_leaves_what_serves(void **state)
{
    static const enum err_code codes[] = {ERR_NCCL, ERR_GONE, ERR_TIMEOUT, ERR_CUDA, ERR_CONFLICT};

    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct gpus g;

        gpus_open(&g, &lib, mfx_worlds[w]);
        assert_int_equal(rfx_push(&g, RFX_STEP(1)), ERR_NONE);
        for (unsigned turn = 0; turn < 4U * FX_N; turn++) {
            struct update_info info = start(&g.b, (struct update_start){0});
            struct rfx_group group = {0};
            struct rfx_cfg cfg = RFX_STEP(2 + turn);
            struct update_chunk *c;

            cfg.n_each = 1 + turn / FX_N % 2;
            cfg.fail_at = (int)(turn % (FX_N / cfg.n_each));
            cfg.fail_code = codes[turn % 5];
            cfg.group = &group;
            for (int again = 0; again < 3; again++) { /* the chunk may be sent again */
                if (again == 2)
                    cfg.fail_at = -1;
                c = rfx_chunk(&g, info.id,
                              turn % 2 != 0 ? rfx_tensor_list() : fx_tensor_list_of(FX_ALL), cfg);
                c->checksums = mfx_sums(c->tensor_list, cfg.step);
                assert_int_equal(mfx_send(&g, c), again < 2 ? cfg.fail_code : ERR_NONE);
                if (again < 2)
                    assert_string_equal(g.b.answer.e.msg, "the sender died");
                assert_int_equal(g.b.answer.info.phase, UPDATE_RECEIVING);
                mfx_assert_step(&g, 1 + turn);
            }
            assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
            mfx_assert_step(&g, 2 + turn);
        }
        gpus_close(&g);
    }
}

static void test_something_undeclared_at_the_end(void **state)
{
    struct rfx_cfg cfg = RFX_STEP(2);
    struct gpus g;

    (void)state;
    gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 2});
    assert_int_equal(rfx_push(&g, RFX_STEP(1)), ERR_NONE);
    cfg.more = true;
    assert_int_equal(rfx_push(&g, cfg), ERR_UNREADABLE);
    mfx_assert_step(&g, 1);
    gpus_close(&g);
}

static void test_abort_and_deadline_end_a_bucket(void **state)
{
    (void)state;
    for (int at = 0; at < 4; at++) {
        for (int abort = 0; abort < 2; abort++) {
            struct gpus_cfg world = {.n_devices = 2, .mirror = true};
            struct rfx_cfg cfg = RFX_STEP(2);
            struct update_info info;
            struct fx_pause_controller pause_controller;
            struct gpus g;

            gpus_open(&g, &lib, world);
            assert_int_equal(rfx_push(&g, RFX_STEP(1)), ERR_NONE);
            fx_pause_controller_init(&pause_controller);
            pause_controller.late = abort == 0;
            info = start(&g.b, (struct update_start){0});
            cfg.n_each = 2;
            cfg.pause_controller = &pause_controller;
            cfg.pause_controller_at = at;
            submit(&g.b, rfx_chunk(&g, info.id, fx_tensor_list_of(FX_ALL), cfg));
            fx_pause_controller_await(&pause_controller);
            if (abort)
                mfx_abort(&g, info.id);
            assert_int_equal(fx_await(&g.b.answer), abort ? ERR_ENDED : ERR_TIMEOUT);
            mfx_assert_step(&g, 1);
            if (!abort)
                mfx_abort(&g, info.id);
            assert_int_equal(rfx_push(&g, RFX_STEP(3)), ERR_NONE);
            mfx_assert_step(&g, 3);
            fx_pause_controller_fini(&pause_controller);
            gpus_close(&g);
        }
    }
}

/* What is found wrong here half-way is told when all has come: the sender and its group go on. */
static void test_own_failure_does_not_leave_the_sender_alone(void **state)
{
    static const struct fx_tensor *const head[] = {&fx_lm_head};

    (void)state;
    for (unsigned w = 0; w < MFX_WORLDS; w++) {
        struct rfx_group group = {0};
        struct rfx_cfg cfg = RFX_STEP(2);
        struct update_info info;
        struct gpus g;

        gpus_open(&g, &lib, mfx_worlds[w]);
        assert_int_equal(rfx_push(&g, RFX_STEP(1)), ERR_NONE);
        info = start(&g.b, (struct update_start){0});
        assert_int_equal(mfx_send(&g, rfx_chunk(&g, info.id, fx_tensor_list(head, 1), RFX_STEP(3))),
                         ERR_NONE);
        cfg.n_each = 1;
        cfg.group = &group;
        assert_int_equal(mfx_send(&g, rfx_chunk(&g, info.id, mfx_tied_tensor_list(true), cfg)),
                         ERR_MISMATCH);
        assert_non_null(strstr(g.b.answer.e.msg, "arrived before in this update"));
        assert_int_equal(group.n_whole, 1);
        assert_int_equal(group.n_torn, 0);
        assert_int_equal(group.n_buckets, FX_N + 1);
        mfx_abort(&g, info.id);
        assert_true(store_wait_pinnable(g.b.store, CLOCK_NEVER));
        assert_int_equal(mfx_info(&g).state, STORE_READY);
        mfx_assert_step(&g, 1);
        gpus_close(&g);
    }
}

/* memory */

enum { PIECE_NBYTES = 1 << 20, PIECES_MAX = 300 };

/* All of a GPU's memory but so many bytes. */
struct full {
    struct slab_memory memory;
    uint64_t at[PIECES_MAX];
    unsigned n;
};

static void full_take(struct full *full, struct device *d, uint64_t nbytes_left)
{
    uint64_t now, total;
    struct err e = {0};

    full->memory = device_memory(d);
    for (full->n = 0; device_room(d, &now, &total, &e) == 0 && now >= nbytes_left + PIECE_NBYTES;
         full->n++) {
        assert_true(full->n < PIECES_MAX);
        assert_int_equal(full->memory.take(full->memory.arg, PIECE_NBYTES, &full->at[full->n], &e),
                         0);
    }
}

static void full_give(struct full *full)
{
    while (full->n > 0)
        full->memory.give(full->memory.arg, full->at[--full->n], PIECE_NBYTES);
}

static uint64_t granule(struct gpus *g)
{
    return device_memory(g->devices[0]).granule_nbytes;
}

static void test_bounce_buffers_are_refused_before_anything_comes(void **state)
{
    (void)state;
    for (unsigned bounces = 0; bounces <= BOUNCES_MAX; bounces++) {
        for (unsigned rank = 0; rank < 2; rank++) {
            struct rfx_group group = {0};
            struct rfx_cfg cfg = RFX_STEP(2);
            struct update_info info;
            struct full full;
            struct gpus g;

            open_of(&g, (struct gpus_cfg){.n_devices = 2}, pairs_tensor_list());
            for (int i = 0; i < 2; i++) /* both versions have their memory */
                assert_int_equal(mfx_send(&g, mfx_chunk(&g, "", pairs_tensor_list(), MFX_STEP(1))),
                                 ERR_NONE);
            cfg.n_each = 2;
            cfg.group = &group;
            info = start(&g.b, (struct update_start){0});
            full_take(&full, g.devices[rank], bounces * granule(&g));
            assert_int_equal(mfx_send(&g, rfx_chunk(&g, info.id, pairs_tensor_list(), cfg)),
                             bounces == 0 ? ERR_NO_STAGING : ERR_NONE);
            assert_int_equal(group.n_buckets, bounces == 0 ? 0 : PAIRS);
            assert_int_equal(n_different(&group, rank), bounces);
            assert_int_equal(n_different(&group, 1 - rank), bounces == 0 ? 0 : BOUNCES_MAX);
            if (bounces == 0)
                assert_non_null(strstr(g.b.answer.e.msg, device_name(g.devices[rank])));
            full_give(&full);
            if (bounces == 0)
                assert_int_equal(mfx_send(&g, rfx_chunk(&g, info.id, pairs_tensor_list(), cfg)),
                                 ERR_NONE);
            assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
            mfx_assert_step(&g, 2);
            gpus_close(&g);
        }
    }
}

/* The version that is about to go holds the memory for the bounce buffers. */
static void test_bounce_buffers_wait_for_the_memory_of_an_old_version(void **state)
{
    const struct version *v = NULL;
    struct rfx_group group = {0};
    struct rfx_cfg cfg = RFX_STEP(3);
    struct update_info info;
    struct full full;
    struct gpus g;
    struct err e = {0};

    (void)state;
    open_of(&g, (struct gpus_cfg){.n_devices = 1}, pairs_tensor_list());
    assert_int_equal(mfx_send(&g, mfx_chunk(&g, "", pairs_tensor_list(), MFX_STEP(1))), ERR_NONE);
    assert_int_equal(store_pin(g.b.store, &v, &e), 0);
    assert_int_equal(mfx_send(&g, mfx_chunk(&g, "", pairs_tensor_list(), MFX_STEP(2))), ERR_NONE);
    full_take(&full, g.devices[0], granule(&g)); /* for the version to be, and nothing else */
    info = start(&g.b, (struct update_start){0});
    cfg.n_each = 2;
    cfg.group = &group;
    submit(&g.b, rfx_chunk(&g, info.id, pairs_tensor_list(), cfg));
    await_phase(&g.b, info.id, UPDATE_RECEIVING);
    mfx_assert_view(&g, v, 0, 0, 1);
    store_unpin(g.b.store, v);
    assert_int_equal(fx_await(&g.b.answer), ERR_NONE);
    assert_int_equal(n_different(&group, 0), 1); /* there is memory for one */
    assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
    full_give(&full);
    mfx_assert_step(&g, 3);
    gpus_close(&g);
}

/* More failures than there is room for, were anything of it lost. */
static void test_memory_of_failed_chunks_comes_back(void **state)
{
    struct fakecuda_counts first = {0}, now;
    struct update_info info;
    struct gpus g;

    (void)state;
    gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 2, .mirror = true});
    assert_int_equal(rfx_push(&g, RFX_STEP(1)), ERR_NONE);
    info = start(&g.b, (struct update_start){0});
    for (unsigned i = 0; i < 60; i++) {
        struct rfx_cfg cfg = RFX_STEP(2);
        struct update_chunk *c;

        cfg.n_each = 2;
        cfg.fail_at = (int)(i % 4);
        cfg.fail_code = ERR_NCCL;
        c = rfx_chunk(&g, info.id, mfx_tied_tensor_list(i % 2 != 0), cfg);
        c->checksums = mfx_sums(c->tensor_list, 2);
        assert_int_equal(mfx_send(&g, c), ERR_NCCL);
        lib.counts(&now);
        if (i == 3) /* each kind of failure has been */
            first = now;
        if (i > 3) {
            assert_int_equal(now.nbytes, first.nbytes);
            assert_int_equal(now.n_events, first.n_events);
            assert_int_equal(now.n_host_blocks, first.n_host_blocks);
        }
    }
    mfx_assert_step(&g, 1);
    assert_int_equal(mfx_send(&g, rfx_chunk(&g, info.id, rfx_tensor_list(), RFX_STEP(2))),
                     ERR_NONE);
    assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
    mfx_assert_step(&g, 2);
    gpus_close(&g);
}

/* Does a bucket begin where the lost one may be written to? */
static bool is_lost(uint64_t at, const struct rfx_group *lost, uint64_t nbytes)
{
    bool yes = false;

    for (unsigned r = 0; r < MFX_RANKS_MAX; r++)
        yes = yes || (at >= lost->dst[0][r] && at < lost->dst[0][r] + nbytes);
    return yes;
}

/* An abort that does not come back: where it may still write, nothing else ever comes to lie. */
static void test_memory_of_a_stuck_bucket_goes_to_nobody(void **state)
{
    (void)state;
    for (unsigned turn = 0; turn < 8; turn++) {
        bool moves = turn % 2 != 0;
        uint64_t nbytes;
        struct rfx_group lost = {0};
        struct rfx_cfg cfg = RFX_STEP(2);
        struct update_info info;
        struct gpus g;

        gpus_open(&g, &lib, (struct gpus_cfg){.n_devices = 2, .mirror = turn > 3});
        assert_int_equal(rfx_push(&g, RFX_STEP(1)), ERR_NONE);
        nbytes = store_model_spec(g.b.store)->tensor_list->nbytes;
        info = start(&g.b, (struct update_start){0});
        cfg.fail_at = 0;
        cfg.fail_code = ERR_NCCL;
        cfg.stuck = true;
        cfg.group = &lost;
        assert_int_equal(
            mfx_send(&g, rfx_chunk(&g, info.id,
                                   moves ? fx_tensor_list_of(FX_ALL) : rfx_tensor_list(), cfg)),
            ERR_NCCL);
        for (unsigned step = 3; step < 9; step++) {
            struct rfx_group group = {0};

            if (step > 3 || turn % 4 > 1) { /* in the same session, or after it */
                if (step == 3)
                    mfx_abort(&g, info.id);
                info = start(&g.b, (struct update_start){0});
            }
            cfg = RFX_STEP(step);
            cfg.group = &group;
            cfg.n_each = 2;
            assert_int_equal(mfx_send(&g, rfx_chunk(&g, info.id, fx_tensor_list_of(FX_ALL), cfg)),
                             ERR_NONE);
            assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
            for (unsigned k = 0; k < group.n_buckets; k++)
                for (unsigned r = 0; r < g.n_devices; r++)
                    assert_false(is_lost(group.dst[k][r], &lost, nbytes));
            mfx_assert_step(&g, step);
        }
        g.before.n_allocations += g.n_devices; /* those are gone for good */
        gpus_close(&g);
    }
}

static int open_lib(void **state)
{
    (void)state;
    mfx_lib_open(&lib, FAKECUDA);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_next_bucket_comes_while_the_last_is_copied),
        cmocka_unit_test(test_sums_are_made_while_the_next_bucket_comes),
        cmocka_unit_test(test_progress_grows_bucket_by_bucket),
        cmocka_unit_test(test_no_chunk_is_begun_beside_one_that_is_received),
        cmocka_unit_test(test_refuses_a_sharded_update),
        cmocka_unit_test(test_failed_bucket_leaves_what_serves),
        cmocka_unit_test(test_something_undeclared_at_the_end),
        cmocka_unit_test(test_abort_and_deadline_end_a_bucket),
        cmocka_unit_test(test_own_failure_does_not_leave_the_sender_alone),
        cmocka_unit_test(test_bounce_buffers_are_refused_before_anything_comes),
        cmocka_unit_test(test_bounce_buffers_wait_for_the_memory_of_an_old_version),
        cmocka_unit_test(test_memory_of_failed_chunks_comes_back),
        cmocka_unit_test(test_memory_of_a_stuck_bucket_goes_to_nobody),
    };

    return cmocka_run_group_tests(tests, open_lib, NULL);
}
