/* weights/update*: every driver call and every allocation of an update of GPUs fails in turn,
 * mapped or received, and memory runs out. Whatever the answer was is true of what is served,
 * nothing is left behind, and the next update works. The linker wraps the allocator
 * (CMakeLists.txt): ours, not the fake's. */
#include "tests/unit/failing_alloc.h"
#include "tests/unit/weights/recv_fixture.h"

#include <stdatomic.h>

static struct mfx_lib libs[2]; /* with kernels, and without */

/* One update of two chunks. Both are queued before the first is mapped, so that it always goes the
 * same way. */
struct pair {
    struct gpus g; /* first */
    struct fx_answer answers[2];
    struct fx_pause_controller pause_controller;
    struct update_start req;
    bool summed, received;
    struct rfx_group group; /* received: what its senders saw */
};

static struct update_chunk *pair_chunk(struct pair *p, const char *id, int i, unsigned step)
{
    const struct fx_tensor *const first[] = {&fx_model[5], &fx_model[0], &fx_model[4]};
    struct fx_tensor qkv = fx_qkv, head = fx_lm_head;
    const struct fx_tensor *const second[] = {&qkv, &head, &fx_model[6], &fx_old_scale};
    struct mfx_cfg mapped = MFX_STEP(step);
    struct rfx_cfg received = RFX_STEP(step);
    struct update_chunk *c;
    struct tensor_list *tensor_list;

    if (p->req.convert)
        qkv.dtype = head.dtype = DTYPE_F32;
    tensor_list = i == 0 ? fx_tensor_list(first, 3) : fx_tensor_list(second, 4);
    mapped.n_each = 2;
    received.n_each = i == 0 ? 1 : 2;
    received.group = &p->group;
    if (i == 0)
        mapped.pause_controller = received.pause_controller = &p->pause_controller;
    c = p->received ? rfx_chunk(&p->g, id, tensor_list, received)
                    : mfx_chunk(&p->g, id, tensor_list, mapped);
    (void)snprintf(c->chunk_id, sizeof c->chunk_id, "bucket-%d", i);
    if (p->summed)
        c->checksums = mfx_sums(c->tensor_list, step);
    c->done_arg = &p->answers[i];
    return c;
}

/* Did the update end well? With what fails armed, between the start and the last answer. */
static bool pair_update(struct pair *p, unsigned step, void (*arm)(struct pair *, long), long nth)
{
    struct update_info info = start(&p->g.b, p->req);
    struct update_chunk *chunks[2];
    bool queued[2], good = true;
    struct err e = {0};

    fx_pause_controller_init(&p->pause_controller);
    for (int i = 0; i < 2; i++)
        chunks[i] = pair_chunk(p, info.id, i, step);
    arm(p, nth);
    for (int i = 0; i < 2; i++) {
        err_clear(&e);
        queued[i] = updates_submit(p->g.b.updates, chunks[i], &e) == 0;
        assert_true(queued[i] == (e.code == ERR_NONE));
        if (!queued[i])
            update_chunk_free(chunks[i]);
    }
    fx_pause_controller_open(&p->pause_controller);
    for (int i = 0; i < 2; i++)
        good = (queued[i] && fx_await(&p->answers[i]) == ERR_NONE) && good;
    err_clear(&e);
    if (good)
        good = updates_finish(p->g.b.updates, info.id, "", NULL, 0, fx_done, &p->g.b.answer, &e) ==
                   0 &&
               fx_await(&p->g.b.answer) == ERR_NONE;
    if (!good) { /* it may have ended already */
        err_clear(&e);
        (void)updates_abort(p->g.b.updates, info.id, "", &info, &e);
    }
    fx_pause_controller_fini(&p->pause_controller);
    return good;
}

static void arm_nothing(struct pair *p, long nth)
{
    (void)p;
    (void)nth;
}

static void arm_driver(struct pair *p, long nth)
{
    p->g.lib->fail_nth((uint64_t)nth);
}

static void arm_allocator(struct pair *p, long nth)
{
    (void)p;
    atomic_store(&alloc_left, nth - 1);
}

static bool disarm(struct pair *p, void (*arm)(struct pair *, long), uint64_t n_calls, long nth)
{
    struct fakecuda_counts now;
    bool reached = arm == arm_allocator ? atomic_load(&alloc_left) < 0 : false;

    p->g.lib->counts(&now);
    if (arm == arm_driver)
        reached = now.n_calls - n_calls >= (uint64_t)nth;
    p->g.lib->fail_nth(0);
    atomic_store(&alloc_left, -1);
    return reached;
}

static void assert_no_more(const struct fakecuda_counts *now, const struct fakecuda_counts *before)
{
    assert_true(now->n_allocations <= before->n_allocations);
    assert_true(now->n_host_blocks <= before->n_host_blocks);
    assert_true(now->n_events <= before->n_events);
    assert_int_equal(now->n_streams, before->n_streams);
    assert_int_equal(now->n_contexts, before->n_contexts);
    assert_int_equal(now->n_modules, before->n_modules);
    assert_int_equal(now->n_mappings, before->n_mappings);
    assert_true(now->nbytes <= before->nbytes);
}

static void pair_open(struct pair *p, struct mfx_lib *lib, struct gpus_cfg world)
{
    memset(p, 0, sizeof *p);
    gpus_open(&p->g, lib, world);
    fx_answer_init(&p->answers[0]);
    fx_answer_init(&p->answers[1]);
}

static void pair_close(struct pair *p)
{
    gpus_close(&p->g);
    fx_answer_fini(&p->answers[0]);
    fx_answer_fini(&p->answers[1]);
}

/* Whatever fails here leaves no sender alone with the rest. */
static void assert_whole(const struct pair *p)
{
    assert_int_equal(p->group.n_torn, 0);
}

/* Returns how many calls an update makes of what fails. */
static long torture(struct mfx_lib *lib, struct update_start req, bool summed, bool received,
                    void (*arm)(struct pair *, long))
{
    struct fakecuda_counts before, now;
    bool reached = true;
    struct pair p;
    long n = 0;

    pair_open(&p, lib, (struct gpus_cfg){.n_devices = 2, .mirror = true});
    p.req = req;
    p.summed = summed;
    p.received = received;
    for (unsigned step = 1; step < 4; step++)
        assert_true(pair_update(&p, step, arm_nothing, 0));
    lib->counts(&before);
    while (reached) {
        enum store_state state;
        bool good;

        n++;
        lib->counts(&now);
        good = pair_update(&p, 4, arm, n);
        reached = disarm(&p, arm, now.n_calls, n);
        assert_true(good || reached);
        if (good) {
            mfx_assert_step(&p.g, 4);
        } else {
            mfx_assert_step(&p.g, 3);
        }
        assert_whole(&p);
        assert_true(pair_update(&p, 3, arm_nothing, 0)); /* and everything was given back */
        state = mfx_info(&p.g).state;
        assert_int_equal(state, STORE_READY);
        mfx_assert_step(&p.g, 3);
        lib->counts(&now);
        assert_no_more(&now, &before);
    }
    pair_close(&p);
    return n;
}

static void test_every_driver_call_fails_in_turn(void **state)
{
    const struct update_start staged = {.convert = true};

    (void)state;
    for (int k = 0; k < 4; k++) {
        bool received = k > 1;

        assert_true(torture(&libs[k % 2], staged, false, received, arm_driver) > 50);
        assert_true(torture(&libs[k % 2], staged, true, received, arm_driver) > 50);
    }
}

static void test_every_allocation_fails_in_turn(void **state)
{
    const struct update_start staged = {.convert = true};

    (void)state;
    for (int k = 0; k < 4; k++) {
        bool received = k > 1;

        assert_true(torture(&libs[k % 2], staged, true, received, arm_allocator) > 10);
    }
}

static void test_fifty_updates_take_no_more_than_three(void **state)
{
    struct fakecuda_counts after_three = {0}, now;
    struct pair p;

    (void)state;
    for (int k = 0; k < 4; k++) {
        pair_open(&p, &libs[k % 2], (struct gpus_cfg){.n_devices = 2, .mirror = true});
        p.received = k > 1;
        for (unsigned i = 1; i <= 50; i++) {
            p.summed = i % 2 != 0;
            assert_true(pair_update(&p, i, arm_nothing, 0));
            mfx_assert_step(&p.g, i);
            libs[k % 2].counts(&now);
            if (i == 3)
                after_three = now;
            if (i > 3)
                assert_no_more(&now, &after_three);
        }
        pair_close(&p);
    }
}

/* memory */

static void test_start_names_the_place_without_room(void **state)
{
    const struct update_start req = {.lease_s = LEASE_S};

    (void)state;
    for (unsigned full = 0; full < 2; full++) {
        struct update_room rooms[STORE_PLACES_MAX];
        struct update_info info;
        struct hog hog;
        struct gpus g;
        struct err e = {0};

        gpus_open(&g, &libs[0], (struct gpus_cfg){.n_devices = 2, .mirror = true});
        assert_int_equal(mfx_push(&g, 1), ERR_NONE);
        hog_take(&hog, g.devices[full], 0);
        assert_int_equal(updates_start(g.b.updates, &req, &info, &e), -1);
        assert_int_equal(e.code, ERR_NO_STAGING);
        assert_non_null(strstr(e.msg, device_name(g.devices[full])));
        mfx_assert_step(&g, 1);
        hog_give(&hog);
        info = start(&g.b, (struct update_start){0});
        hog_take(&hog, g.devices[full], 0);
        assert_int_equal(updates_room(g.b.updates, &info, rooms), 3);
        assert_string_equal(rooms[full].place, device_name(g.devices[full]));
        assert_int_equal(rooms[full].nbytes_available, 0);
        mfx_abort(&g, info.id);
        hog_give(&hog);
        assert_int_equal(mfx_push(&g, 2), ERR_NONE);
        mfx_assert_step(&g, 2);
        gpus_close(&g);
    }
}

/* Memory that others took after the start was granted. */
static void test_room_that_is_gone_by_the_first_chunk(void **state)
{
    struct update_info info;
    struct update_chunk *c;
    struct hog hog;
    struct gpus g;

    (void)state;
    gpus_open(&g, &libs[0], (struct gpus_cfg){.n_devices = 2});
    assert_int_equal(mfx_push(&g, 1), ERR_NONE);
    info = start(&g.b, (struct update_start){0});
    c = mfx_chunk(&g, info.id, fx_tensor_list_of(FX_ALL), MFX_STEP(2));
    hog_take(&hog, g.devices[1], 0);
    assert_int_equal(mfx_send(&g, c), ERR_NO_STAGING);
    assert_non_null(strstr(g.b.answer.e.msg, "cuda:1"));
    assert_int_equal(g.b.answer.info.phase, UPDATE_RECEIVING);
    hog_give(&hog);
    assert_int_equal(mfx_send(&g, mfx_chunk(&g, info.id, fx_tensor_list_of(FX_ALL), MFX_STEP(2))),
                     ERR_NONE);
    assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
    mfx_assert_step(&g, 2);
    gpus_close(&g);
}

/* More failures than there is room for, were it not used again; and no other memory. */
static void test_room_of_a_failed_chunk_is_used_again(void **state)
{
    struct update_info info;
    struct hog hog;
    struct gpus g;

    (void)state;
    gpus_open(&g, &libs[0], (struct gpus_cfg){.n_devices = 1, .mirror = true});
    assert_int_equal(mfx_push(&g, 1), ERR_NONE);
    assert_int_equal(mfx_push(&g, 1), ERR_NONE);
    info = start(&g.b, (struct update_start){0});
    hog_take(&hog, g.devices[0], HOG_NBYTES); /* the trainer's own, less than a slab */
    for (unsigned i = 0; i < 50; i++) {
        struct mfx_cfg cfg = MFX_STEP(2);

        cfg.fail_release = i < 49;
        assert_int_equal(mfx_send(&g, mfx_chunk(&g, info.id, fx_tensor_list_of(FX_ALL), cfg)),
                         i < 49 ? ERR_GONE : ERR_NONE);
    }
    assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
    hog_give(&hog);
    mfx_assert_step(&g, 2);
    gpus_close(&g);
}

/* The version that is about to go holds the memory: the chunk waits for its last reader. */
static void test_chunk_waits_for_the_memory_of_an_old_version(void **state)
{
    const struct version *v = NULL;
    struct update_info info;
    struct hog hog;
    struct gpus g;
    struct err e = {0};

    (void)state;
    gpus_open(&g, &libs[0], (struct gpus_cfg){.n_devices = 2});
    assert_int_equal(mfx_push(&g, 1), ERR_NONE);
    assert_int_equal(store_pin(g.b.store, &v, &e), 0);
    assert_int_equal(mfx_push(&g, 2), ERR_NONE);
    hog_take(&hog, g.devices[0], HOG_NBYTES);
    info = start(&g.b, (struct update_start){0}); /* it will have room */
    submit(&g.b, mfx_chunk(&g, info.id, fx_tensor_list_of(FX_ALL), MFX_STEP(3)));
    await_phase(&g.b, info.id, UPDATE_RECEIVING);
    mfx_assert_log(&g.watch, "J0M0M0R0SC0J0M0M0R0SC0");
    mfx_assert_view(&g, v, 0, 0, 1);
    store_unpin(g.b.store, v);
    assert_int_equal(fx_await(&g.b.answer), ERR_NONE);
    assert_int_equal(finish(&g.b, info.id, ""), ERR_NONE);
    hog_give(&hog);
    mfx_assert_step(&g, 3);
    gpus_close(&g);
}

static void test_store_needs_room_for_one_version(void **state)
{
    struct device *devices[2] = {0};
    struct store_cfg cfg = {.n_versions_max = 2, .nbytes_max = UINT64_MAX, .devices = devices};
    struct store *s = NULL;
    struct hog hog;
    struct err e = {0};

    (void)state;
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(device_new(&devices[i], &libs[0].cu, &libs[0].about[i], &e), 0);
    hog_take(&hog, devices[0], 0);
    cfg.n_devices = 1;
    cfg.model_spec = fx_model_spec();
    assert_int_equal(store_new(&s, &cfg, &e), -1);
    assert_int_equal(e.code, ERR_NO_STAGING);
    assert_null(s);
    cfg.n_devices = 2; /* they may be meant to share it */
    cfg.model_spec = fx_model_spec();
    err_clear(&e);
    assert_int_equal(store_new(&s, &cfg, &e), 0);
    store_free(s);
    hog_give(&hog);
    for (unsigned i = 0; i < 2; i++)
        device_free(devices[i]);
}

/* Copies are done by whoever queues them, so that the n-th call is always the same one. */
static int open_libs(void **state)
{
    (void)state;
    assert_int_equal(setenv("FAKECUDA_STREAMS", "at_once", 1), 0);
    mfx_lib_open(&libs[0], FAKECUDA);
    mfx_lib_open(&libs[1], FAKECUDA_WITHOUT_KERNELS);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_driver_call_fails_in_turn),
        cmocka_unit_test(test_every_allocation_fails_in_turn),
        cmocka_unit_test(test_fifty_updates_take_no_more_than_three),
        cmocka_unit_test(test_start_names_the_place_without_room),
        cmocka_unit_test(test_room_that_is_gone_by_the_first_chunk),
        cmocka_unit_test(test_room_of_a_failed_chunk_is_used_again),
        cmocka_unit_test(test_chunk_waits_for_the_memory_of_an_old_version),
        cmocka_unit_test(test_store_needs_room_for_one_version),
    };

    return cmocka_run_group_tests(tests, open_libs, NULL);
}
