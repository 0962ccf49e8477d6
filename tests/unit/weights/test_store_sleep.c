/* Sleep and wake: the memory really goes, the bytes really come back, and whatever fails changes
 * nothing. On stores of every kind, over libfakecuda.so. */
#include "tests/unit/weights/gpus_fixture.h"

#include <pthread.h>
#include <unistd.h>

enum { N_FAILURES = 60 };

static struct mfx_lib lib;

static uint64_t device_nbytes(void)
{
    struct fakecuda_counts c;

    lib.counts(&c);
    return c.nbytes;
}

/* What the store itself has of it. */
static uint64_t pools_nbytes(struct store *s)
{
    uint64_t n = 0;

    for (uint32_t p = 0; p < store_n_places(s); p++) {
        struct slab_stats st;

        slab_pool_stats(store_slabs(s, p), &st);
        n += store_device(s, p) != NULL ? st.nbytes_live + st.nbytes_idle : 0;
    }
    return n;
}

/* A version of that step, in every place; `sharded`: rank r has only tensors i with i % n == r. */
static void commit_step(struct store *s, unsigned step, bool sharded)
{
    struct staging_cfg cfg = {.sharded = sharded};
    unsigned char bytes[FX_NBYTES_MAX];
    struct store_stats stats;
    struct staging *g;
    struct err e = {0};
    char label[16];

    assert_int_equal(store_stage(s, &cfg, CLOCK_NEVER, NULL, &g, &e), 0);
    for (uint32_t p = 0; p < store_n_places(s); p++) {
        for (uint32_t i = 0; i < FX_N; i++) {
            uint64_t n = fx_bytes(fx_model[i].name, step, bytes);
            struct staging_memory room;

            if (sharded && store_device(s, p) != NULL && i % store_n_ranks(s) != p)
                continue;
            assert_int_equal(staging_memory(g, p, n, &room, &e), 0);
            assert_int_equal(place_write(s, p, room.slab->addr + room.offset, bytes, n, &e), 0);
            assert_int_equal(staging_view(g, p, i, room.slab, room.slab->addr + room.offset, &e),
                             0);
            slab_unref(room.slab);
        }
    }
    (void)snprintf(label, sizeof label, "step-%u", step);
    if (store_commit(s, g, label, &stats, &e) != 0)
        fail_msg("no commit: %s", e.msg);
}

/* Every place has exactly the bytes of that step, where it has the tensor at all. */
static void assert_step(struct store *s, unsigned step, bool sharded)
{
    unsigned char want[FX_NBYTES_MAX], found[FX_NBYTES_MAX];
    const struct version *v;
    struct err e = {0};
    char label[16];

    assert_int_equal(store_pin(s, &v, &e), 0);
    (void)snprintf(label, sizeof label, "step-%u", step);
    assert_string_equal(v->label, label);
    for (uint32_t p = 0; p < store_n_places(s); p++) {
        for (uint32_t i = 0; i < FX_N; i++) {
            uint64_t n = fx_bytes(fx_model[i].name, step, want);
            bool absent = sharded && store_device(s, p) != NULL && i % store_n_ranks(s) != p;
            struct checksum sum, of_want = checksum_of(want, n);

            assert_int_equal(v->places[p][i].slab == NULL, absent);
            if (absent)
                continue;
            assert_int_equal(v->places[p][i].addr % STAGING_ALIGN, 0);
            assert_int_equal(place_read(s, p, found, v->places[p][i].addr, n, &e), 0);
            assert_memory_equal(found, want, n);
            assert_int_equal(place_sum(s, p, v->places[p][i].addr, n, &sum, &e), 0);
            assert_memory_equal(&sum, &of_want, sizeof sum);
            assert_int_equal(store_checksum(s, v, i, &sum, &e), 0);
            assert_memory_equal(&sum, &of_want, sizeof sum);
        }
    }
    store_unpin(s, v);
}

static enum store_state state_of(struct store *s)
{
    struct store_info info;

    store_info(s, &info);
    return info.state;
}

static void assert_refused(struct store *s, enum err_code code)
{
    const struct version *v = NULL;
    struct err e = {0};

    assert_int_equal(store_pin(s, &v, &e), -1);
    assert_int_equal(e.code, code);
    assert_null(v);
}

static struct store_slept sleep_now(struct store *s, int level)
{
    struct store_slept slept;
    struct err e = {0};

    if (store_sleep(s, level, CLOCK_NEVER, &slept, &e) != 0)
        fail_msg("no sleep: %s", e.msg);
    return slept;
}

static uint64_t wake_now(struct store *s)
{
    uint64_t nbytes = UINT64_MAX;
    struct err e = {0};

    if (store_wake(s, CLOCK_NEVER, &nbytes, &e) != 0)
        fail_msg("no wake: %s", e.msg);
    return nbytes;
}

static void world(const struct gpus_cfg *cfg, bool sharded)
{
    uint64_t taken, own; /* own: of the devices themselves */
    struct store_slept slept;
    struct gpus g;
    struct store *s;

    gpus_open(&g, &lib, *cfg);
    s = g.b.store;
    commit_step(s, 1, sharded);
    sleep_now(s, 1);
    (void)wake_now(s);
    assert_step(s, 1, sharded); /* sums take memory of the device's own once */
    own = device_nbytes() - pools_nbytes(s);
    for (int round = 0; round < 3; round++) {
        uint64_t before = device_nbytes(), mine = pools_nbytes(s);
        struct store_info info;

        slept = sleep_now(s, 1);
        assert_int_equal(state_of(s), STORE_ASLEEP);
        assert_int_equal(device_nbytes(), own); /* the fake's own count: all of it went */
        assert_int_equal(before - device_nbytes(), mine);
        assert_true(slept.nbytes_device > 0 && slept.nbytes_device <= mine);
        assert_true(slept.nbytes_kept >= s->model_spec->tensor_list->nbytes);
        assert_refused(s, ERR_ASLEEP);
        assert_int_equal(sleep_now(s, 1).nbytes_device, 0); /* again: nothing more */
        taken = wake_now(s);
        assert_true(taken > 0 && device_nbytes() - own >= taken);
        assert_int_equal(wake_now(s), 0);
        store_info(s, &info);
        assert_int_equal(info.serial, 1);
        assert_int_equal(info.n_commits, 1);
        assert_step(s, 1, sharded);
    }
    slept = sleep_now(s, 2);
    assert_int_equal(state_of(s), STORE_DROPPED);
    assert_int_equal(device_nbytes(), own);
    assert_true(slept.nbytes_device > 0);
    assert_int_equal(slept.nbytes_host > 0, cfg->mirror);
    assert_int_equal(slept.nbytes_kept, 0);
    assert_refused(s, ERR_ASLEEP);
    assert_int_equal(sleep_now(s, 1).nbytes_device, 0); /* there is nothing to keep */
    assert_int_equal(state_of(s), STORE_DROPPED);
    assert_int_equal(wake_now(s), 0);
    assert_true(device_nbytes() > own); /* room for what has to come */
    assert_refused(s, ERR_ASLEEP);
    commit_step(s, 2, sharded);
    assert_step(s, 2, sharded);
    sleep_now(s, 1); /* a store may be freed asleep */
    gpus_close(&g);
}

static void test_worlds(void **state)
{
    (void)state;
    for (size_t i = 0; i < MFX_WORLDS; i++) {
        if (mfx_worlds[i].host_memory)
            continue; /* it is not put to sleep */
        world(&mfx_worlds[i], false);
        if (mfx_worlds[i].n_devices > 1)
            world(&mfx_worlds[i], true);
    }
}

/* What was summed before it slept says nothing about what came back. */
static void test_sums_are_of_what_came_back(void **state)
{
    unsigned n = 0;

    (void)state;
    for (size_t i = 0; i < MFX_WORLDS; i++) {
        unsigned char want[FX_NBYTES_MAX];
        uint64_t nbytes = fx_bytes(fx_model[0].name, 1, want);
        struct checksum before, after, of_want;
        const struct version *v;
        struct err e = {0};
        struct gpus g;

        if (mfx_worlds[i].mirror || mfx_worlds[i].host_memory)
            continue; /* its sums are of the host's copy, which stays */
        gpus_open(&g, &lib, mfx_worlds[i]);
        commit_step(g.b.store, 1, false);
        assert_int_equal(store_pin(g.b.store, &v, &e), 0);
        assert_int_equal(store_checksum(g.b.store, v, 0, &before, &e), 0);
        store_unpin(g.b.store, v);
        sleep_now(g.b.store, 1);
        *((unsigned char *)g.b.store->host_backup.slab->base +
          g.b.store->host_backup.offsets[0]) ^= 1;
        want[0] ^= 1;
        of_want = checksum_of(want, nbytes);
        (void)wake_now(g.b.store);
        assert_int_equal(store_pin(g.b.store, &v, &e), 0);
        assert_int_equal(store_checksum(g.b.store, v, 0, &after, &e), 0);
        store_unpin(g.b.store, v);
        assert_false(checksum_equal(before, after));
        assert_true(checksum_equal(after, of_want));
        gpus_close(&g);
        n++;
    }
    assert_true(n > 0);
}

static struct store *host_store(void)
{
    struct store_cfg cfg = {
        .model_spec = fx_model_spec(), .n_versions_max = 3, .nbytes_max = UINT64_MAX};
    struct store *s;
    struct err e = {0};

    assert_int_equal(store_new(&s, &cfg, &e), 0);
    return s;
}

static void test_host_memory_keeps_its_weights(void **state)
{
    struct store *s = host_store();
    struct store_slept slept;

    (void)state;
    slept = sleep_now(s, 2); /* nothing yet: nothing to drop */
    assert_int_equal(state_of(s), STORE_UNSYNCED);
    assert_refused(s, ERR_UNSYNCED);
    commit_step(s, 1, false);
    slept = sleep_now(s, 1);
    assert_int_equal(slept.nbytes_device, 0);
    assert_int_equal(slept.nbytes_host, 0);
    assert_true(slept.nbytes_kept > 0);
    assert_refused(s, ERR_ASLEEP);
    assert_int_equal(wake_now(s), 0);
    assert_step(s, 1, false);
    sleep_now(s, 1);
    slept = sleep_now(s, 2); /* from level 1 */
    assert_true(slept.nbytes_host >= s->model_spec->tensor_list->nbytes);
    assert_int_equal(state_of(s), STORE_DROPPED);
    commit_step(s, 2, false);
    assert_step(s, 2, false);
    store_free(s);
}

static void test_readers_and_updates_are_in_the_way(void **state)
{
    struct staging_cfg cfg = {0}, partial = {.partial = true};
    struct store *s = host_store();
    const struct version *v;
    struct store_slept slept;
    struct staging *g = NULL;
    uint64_t nbytes = 0;
    struct err e = {0};

    (void)state;
    commit_step(s, 1, false);
    assert_int_equal(store_pin(s, &v, &e), 0);
    assert_int_equal(store_sleep(s, 1, clock_after_us(1000), &slept, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    err_clear(&e);
    store_unpin(s, v);
    assert_step(s, 1, false); /* it serves as before */
    assert_int_equal(store_stage(s, &cfg, 0, NULL, &g, &e), 0);
    assert_int_equal(store_sleep(s, 2, 0, &slept, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    err_clear(&e);
    store_abort(s, g);
    g = NULL;
    sleep_now(s, 1);
    assert_int_equal(store_stage(s, &cfg, 0, NULL, &g, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    err_clear(&e);
    sleep_now(s, 2);
    assert_int_equal(store_stage(s, &partial, 0, NULL, &g, &e), -1);
    assert_int_equal(e.code, ERR_ASLEEP);
    err_clear(&e);
    assert_null(g);
    assert_int_equal(store_stage(s, &cfg, 0, NULL, &g, &e), 0);
    assert_int_equal(store_wake(s, 0, &nbytes, &e), -1); /* its room is being used */
    assert_int_equal(e.code, ERR_CONFLICT);
    store_abort(s, g);
    assert_int_equal(state_of(s), STORE_DROPPED);
    store_free(s);
}

struct leaver {
    struct store *store;
    struct staging *staging;
};

static void *leave_soon(void *arg)
{
    const struct leaver *l = arg;

    (void)usleep(20 * 1000);
    store_abort(l->store, l->staging);
    return NULL;
}

/* An aborted update's staging goes back a moment after its trainer has its answer. */
static void test_what_is_aborted_is_waited_for(void **state)
{
    struct staging_cfg cfg = {0};
    struct store *s = host_store();
    struct leaver l = {.store = s};
    struct err e = {0};
    pthread_t thread;

    (void)state;
    commit_step(s, 1, false);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(store_stage(s, &cfg, CLOCK_NEVER, NULL, &l.staging, &e), 0);
        assert_int_equal(pthread_create(&thread, NULL, leave_soon, &l), 0);
        if (i < 2) {
            (void)sleep_now(s, i + 1);
            if (i == 0)
                (void)wake_now(s);
        } else {
            (void)wake_now(s);
        }
        assert_int_equal(pthread_join(thread, NULL), 0);
    }
    assert_int_equal(state_of(s), STORE_DROPPED);
    store_free(s);
}

/* Each call of the driver fails in turn: the store is as before, or as it was asked to be. */
static void torture(const struct gpus_cfg *cfg)
{
    struct store_slept slept;
    struct gpus g;
    int failed = 0;

    gpus_open(&g, &lib, *cfg);
    commit_step(g.b.store, 1, false);
    for (uint64_t nth = 1; nth <= N_FAILURES; nth++) {
        struct err e = {0};
        uint64_t nbytes;
        int rc;

        lib.fail_nth(nth);
        rc = store_sleep(g.b.store, 1, CLOCK_NEVER, &slept, &e);
        lib.fail_nth(0);
        assert_int_equal(state_of(g.b.store), rc != 0 ? STORE_READY : STORE_ASLEEP);
        assert_int_equal(e.code != ERR_NONE, rc != 0);
        failed += rc != 0;
        err_clear(&e);
        if (rc == 0)
            assert_int_equal(store_wake(g.b.store, CLOCK_NEVER, &nbytes, &e), 0);
        assert_step(g.b.store, 1, false);
    }
    for (uint64_t nth = 1; nth <= N_FAILURES; nth++) {
        struct err e = {0};
        uint64_t nbytes = 0;
        int rc;

        sleep_now(g.b.store, 1);
        lib.fail_nth(nth);
        rc = store_wake(g.b.store, CLOCK_NEVER, &nbytes, &e);
        lib.fail_nth(0);
        assert_int_equal(state_of(g.b.store), rc != 0 ? STORE_ASLEEP : STORE_READY);
        failed += rc != 0;
        err_clear(&e);
        if (rc != 0)
            assert_int_equal(store_wake(g.b.store, CLOCK_NEVER, &nbytes, &e), 0);
        assert_step(g.b.store, 1, false);
    }
    assert_true(failed > 0);
    gpus_close(&g);
}

static void test_a_driver_that_fails(void **state)
{
    (void)state;
    for (size_t i = 0; i < MFX_WORLDS; i++)
        if (!mfx_worlds[i].host_memory)
            torture(&mfx_worlds[i]);
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
        cmocka_unit_test(test_worlds),
        cmocka_unit_test(test_sums_are_of_what_came_back),
        cmocka_unit_test(test_host_memory_keeps_its_weights),
        cmocka_unit_test(test_readers_and_updates_are_in_the_way),
        cmocka_unit_test(test_what_is_aborted_is_waited_for),
        cmocka_unit_test(test_a_driver_that_fails),
    };

    return cmocka_run_group_tests_name("store_sleep", tests, open_lib, NULL);
}
