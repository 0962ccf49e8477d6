/* weights/leases: a leased version stays, and goes when its lease ends in any of the ways it can.
 */
#include "base/progress.h"
#include "tests/unit/weights_fixture.h"
#include "weights/state/version_file.h"
#include "weights/store/leases.h"
#include "weights/store/store_priv.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { WAIT_US = 60 * 1000 * 1000, SHORT_S = 3, N_THREADS = 4, N_ROUNDS = 200, VERSIONS_MAX = 4 };

struct world {
    struct store *store;
    struct handle_leases *leases;
};

static void commit_step(struct store *s, unsigned step)
{
    struct staging_cfg cfg = {0};
    struct store_stats stats;
    struct staging *g = NULL;
    struct staging_memory room = {0};
    struct err e = {0};
    uint64_t at;

    assert_int_equal(store_stage(s, &cfg, clock_after_us(WAIT_US), NULL, &g, &e), 0);
    assert_int_equal(staging_memory(g, 0, FX_N * FX_NBYTES_MAX, &room, &e), 0);
    for (uint32_t i = 0; i < FX_N; i++) {
        at = room.slab->addr + room.offset + (uint64_t)i * FX_NBYTES_MAX;
        (void)fx_bytes(fx_model[i].name, step, (unsigned char *)(uintptr_t)at);
        assert_int_equal(staging_view(g, 0, i, room.slab, at, &e), 0);
    }
    slab_unref(room.slab);
    assert_int_equal(store_commit(s, g, "", &stats, &e), 0);
}

static int begin(void **state)
{
    struct store_cfg cfg = {
        .model_spec = fx_model_spec(), .n_versions_max = VERSIONS_MAX, .nbytes_max = UINT64_MAX};
    struct world *w = calloc(1, sizeof *w);
    struct err e = {0};

    assert_non_null(w);
    assert_int_equal(store_new(&w->store, &cfg, &e), 0);
    assert_int_equal(leases_new(&w->leases, w->store, &e), 0);
    *state = w;
    return 0;
}

static int end(void **state)
{
    struct world *w = *state;

    leases_free(w->leases);
    store_free(w->store); /* asserts that no pin is left */
    free(w);
    return 0;
}

static struct lease_info open_lease(struct world *w, uint32_t lease_s)
{
    const struct version *v = NULL;
    struct lease_info info = {0};
    struct err e = {0};

    if (lease_open(w->leases, LEASE_HANDLES, lease_s, &info, &v, &e) != 0)
        fail_msg("%s", e.msg);
    assert_int_equal(info.serial, v->serial);
    assert_string_equal(info.label, v->label);
    assert_int_equal(info.timer.length_s, lease_s);
    assert_int_equal(strlen(info.id), LEASE_ID_LEN);
    lease_start(w->leases, info.id, NULL, NULL);
    return info;
}

static enum err_code open_refused(struct world *w)
{
    const struct version *v = NULL;
    struct lease_info info;
    struct err e = {0};

    assert_int_equal(lease_open(w->leases, LEASE_HANDLES, 60, &info, &v, &e), -1);
    assert_null(v);
    return e.code;
}

static void close_lease(struct world *w, const struct lease_info *info)
{
    struct err e = {0};

    assert_int_equal(lease_close(w->leases, LEASE_HANDLES, info->id, &e), 0);
}

static bool alive(struct world *w, const struct lease_info *info)
{
    struct lease_info now;
    struct err e = {0};

    if (lease_renew(w->leases, LEASE_HANDLES, info->id, 0, &now, &e) == 0) {
        assert_int_equal(now.serial, info->serial);
        return true;
    }
    assert_int_equal(e.code, ERR_NOT_FOUND);
    return false;
}

static uint32_t n_live(struct world *w)
{
    struct store_info info;

    store_info(w->store, &info);
    return info.n_live;
}

/* Waits until no more than the served version is left. */
static void await_drained(struct world *w)
{
    assert_true(store_wait_drained(w->store, clock_after_us(WAIT_US), NULL));
}

/* Waits until one of VERSIONS_MAX versions has gone. */
static void await_one_gone(struct world *w)
{
    struct staging_cfg cfg = {0};
    struct staging *g = NULL;
    struct err e = {0};

    assert_int_equal(store_stage(w->store, &cfg, clock_after_us(WAIT_US), NULL, &g, &e), 0);
    store_abort(w->store, g);
}

static void test_lease_holds_its_version(void **state)
{
    struct world *w = *state;
    struct lease_info first, second;

    commit_step(w->store, 1);
    first = open_lease(w, 60);
    commit_step(w->store, 2);
    second = open_lease(w, 60);
    assert_string_not_equal(first.id, second.id);
    assert_int_equal(second.serial, first.serial + 1);
    assert_int_equal(n_live(w), 2);
    assert_true(alive(w, &first) && alive(w, &second));
    close_lease(w, &first);
    assert_int_equal(n_live(w), 1);
    assert_false(alive(w, &first));
    assert_true(alive(w, &second));
    assert_int_equal(leases_stop(w->leases), 1);
}

static void test_lease_close_refuses_unknown(void **state)
{
    static const char *const ids[] = {"", "lse-", "lse-00000000000000000000000000000000", "x"};
    struct world *w = *state;
    struct lease_info info, held;

    commit_step(w->store, 1);
    held = open_lease(w, 60);
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        struct err e = {0};

        assert_int_equal(lease_close(w->leases, LEASE_HANDLES, ids[i], &e), -1);
        assert_int_equal(e.code, ERR_NOT_FOUND);
        err_clear(&e);
        assert_int_equal(lease_renew(w->leases, LEASE_HANDLES, ids[i], 1, &info, &e), -1);
        assert_int_equal(e.code, ERR_NOT_FOUND);
    }
    assert_true(alive(w, &held));
}

static void test_lease_ends_by_itself(void **state)
{
    struct world *w = *state;
    struct lease_info info, open;

    commit_step(w->store, 1);
    info = open_lease(w, 1);
    assert_true(leases_first(w->leases, &open));
    assert_string_equal(open.id, info.id);
    commit_step(w->store, 2);
    await_drained(w);
    assert_false(alive(w, &info));
    assert_false(leases_first(w->leases, &open));
}

/* Three short leases: one renewed for long, one whose answer is still being written, and one that
 * nobody thinks of, which alone ends. */
static void test_lease_renew_and_unstarted_outlive(void **state)
{
    struct world *w = *state;
    struct lease_info renewed, slow = {0}, forgotten, now;
    const struct version *v = NULL;
    struct err e = {0};

    commit_step(w->store, 1);
    renewed = open_lease(w, SHORT_S);
    assert_int_equal(lease_renew(w->leases, LEASE_HANDLES, renewed.id, 3600, &now, &e), 0);
    assert_int_equal(now.timer.length_s, 3600);
    commit_step(w->store, 2);
    assert_int_equal(lease_open(w->leases, LEASE_HANDLES, SHORT_S, &slow, &v, &e), 0);
    commit_step(w->store, 3);
    forgotten = open_lease(w, SHORT_S);
    commit_step(w->store, 4);
    await_one_gone(w);
    assert_false(alive(w, &forgotten));
    assert_true(alive(w, &renewed));
    assert_int_equal(v->serial, 2);
    assert_true(fx_is_step(v, 0, 2)); /* sanitizers see if it had been freed */
    lease_start(w->leases, slow.id, NULL, NULL);
    assert_true(alive(w, &slow));
}

static void test_lease_renew_can_shorten(void **state)
{
    struct world *w = *state;
    struct lease_info info, now;
    struct err e = {0};

    commit_step(w->store, 1);
    info = open_lease(w, LEASE_S_MAX);
    commit_step(w->store, 2);
    assert_int_equal(lease_renew(w->leases, LEASE_HANDLES, info.id, 1, &now, &e), 0);
    await_drained(w);
    assert_false(alive(w, &info));
}

static void test_leases_are_bounded(void **state)
{
    static struct lease_info all[LEASES_MAX];
    struct world *w = *state;

    for (int i = 0; i <= LEASES_MAX; i++) /* a refused one takes no place */
        assert_int_equal(open_refused(w), ERR_UNSYNCED);
    commit_step(w->store, 1);
    for (int i = 0; i < LEASES_MAX; i++)
        all[i] = open_lease(w, 60);
    assert_int_equal(open_refused(w), ERR_OVERLOADED);
    close_lease(w, &all[LEASES_MAX / 2]);
    all[LEASES_MAX / 2] = open_lease(w, 60);
    assert_int_equal(open_refused(w), ERR_OVERLOADED);
    for (int i = 0; i < LEASES_MAX; i++)
        close_lease(w, &all[i]);
    commit_step(w->store, 2);
    assert_int_equal(n_live(w), 1);
}

static void test_update_waits_for_leases(void **state)
{
    struct staging_cfg staged = {0};
    struct world *w = *state;
    struct lease_info held[VERSIONS_MAX];
    struct staging *g = NULL;
    struct err e = {0};

    commit_step(w->store, 1);
    held[0] = open_lease(w, 60);
    for (int i = 1; i < VERSIONS_MAX; i++) {
        commit_step(w->store, (unsigned)i + 1);
        held[i] = open_lease(w, 60);
    }
    assert_int_equal(store_stage(w->store, &staged, clock_now_us(), NULL, &g, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_non_null(strstr(e.msg, "still being read"));
    err_clear(&e);
    for (int i = 0; i < VERSIONS_MAX; i++)
        close_lease(w, &held[i]);
    assert_int_equal(store_stage(w->store, &staged, clock_now_us(), NULL, &g, &e), 0);
    store_abort(w->store, g);
}

static void test_leases_stop_ends_all(void **state)
{
    struct world *w = *state;
    struct lease_info info;

    commit_step(w->store, 1);
    info = open_lease(w, 60);
    (void)open_lease(w, 3600);
    commit_step(w->store, 2);
    assert_int_equal(leases_stop(w->leases), 2);
    assert_int_equal(n_live(w), 1);
    assert_false(alive(w, &info));
    assert_int_equal(open_refused(w), ERR_DRAINING);
    assert_int_equal(leases_stop(w->leases), 0);
}

static atomic_uint n_freed; /* files of leases */

static void count_freed(void *file)
{
    free(file);
    n_freed++;
}

/* A file goes a moment after its version. */
static void await_freed(unsigned n)
{
    uint64_t deadline_us = clock_after_us(WAIT_US);

    while (n_freed < n && !clock_passed(deadline_us))
        (void)usleep(1000);
    assert_int_equal(n_freed, n);
}

static struct lease_info open_file(struct world *w, uint32_t lease_s)
{
    const struct version *v = NULL;
    struct lease_info info = {0};
    struct err e = {0};

    while (lease_open(w->leases, LEASE_FILE, lease_s, &info, &v, &e) != 0) {
        assert_non_null(strstr(e.msg, "is being opened")); /* by another thread */
        err_clear(&e);
    }
    lease_start(w->leases, info.id, malloc(1), count_freed);
    return info;
}

/* What is in use stays until it is not, and nobody else gets it; of another kind it is unknown. */
static void test_file_stays_while_it_is_used(void **state)
{
    struct world *w = *state;
    struct lease_use use[2], none;
    struct lease_info info, first;
    struct err e = {0};

    n_freed = 0;
    commit_step(w->store, 1);
    info = open_file(w, 60);
    assert_false(leases_first(w->leases, &first));
    assert_int_equal(lease_close(w->leases, LEASE_HANDLES, info.id, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    err_clear(&e);
    for (int i = 0; i < 2; i++)
        assert_int_equal(lease_use(w->leases, info.id, &use[i], &e), 0);
    commit_step(w->store, 2);
    assert_int_equal(lease_close(w->leases, LEASE_FILE, info.id, &e), 0);
    assert_int_equal(lease_use(w->leases, info.id, &none, &e), -1);
    assert_int_equal(e.code, ERR_LEASE_ENDED);
    lease_unuse(w->leases, &use[0]);
    assert_int_equal(n_live(w), 2);
    assert_true(fx_is_step(use[1].version, 0, 1)); /* sanitizers see if it had been freed */
    assert_int_equal(n_freed, 0);
    lease_unuse(w->leases, &use[1]);
    assert_int_equal(n_live(w), 1);
    assert_int_equal(n_freed, 1);
}

/* An update that waits for room ends leases of files at once, but none of the served version. */
static void test_file_gives_way(void **state)
{
    struct staging_cfg staged = {0};
    struct lease_info files[VERSIONS_MAX], now;
    struct world *w = *state;
    struct staging *g = NULL;
    struct lease_use use;
    struct err e = {0};

    n_freed = 0;
    for (unsigned i = 0; i < VERSIONS_MAX; i++) {
        commit_step(w->store, i + 1);
        files[i] = open_file(w, 60);
    }
    assert_int_equal(store_stage(w->store, &staged, clock_after_us(WAIT_US), NULL, &g, &e), 0);
    store_abort(w->store, g);
    assert_int_equal(lease_use(w->leases, files[VERSIONS_MAX - 1].id, &use, &e), 0);
    lease_unuse(w->leases, &use);
    assert_true(n_freed < VERSIONS_MAX);
    assert_int_equal(store_set_label(w->store, "another", 0, &(uint64_t){0}, &e), 0);
    await_drained(w); /* the renamed version too */
    await_freed(VERSIONS_MAX);
    assert_int_equal(lease_renew(w->leases, LEASE_FILE, files[VERSIONS_MAX - 1].id, 0, &now, &e),
                     -1);
}

static void test_files_are_bounded(void **state)
{
    struct world *w = *state;
    const struct version *v = NULL;
    struct lease_info info;
    struct err e = {0};

    n_freed = 0;
    commit_step(w->store, 1);
    for (int i = 0; i < LEASES_FILE_MAX; i++)
        info = open_file(w, 60);
    assert_int_equal(lease_open(w->leases, LEASE_FILE, 60, &info, &v, &e), -1);
    assert_int_equal(e.code, ERR_OVERLOADED);
    (void)open_lease(w, 60);
    assert_int_equal(leases_stop(w->leases), 1); /* files are nobody's but ours */
    assert_int_equal(n_freed, LEASES_FILE_MAX);
}

/* One at a time, and not beside those of handles. */
static void test_files_are_opened_in_turn(void **state)
{
    struct world *w = *state;
    const struct version *v = NULL;
    struct lease_info first, second;
    struct err e = {0};

    n_freed = 0;
    commit_step(w->store, 1);
    assert_int_equal(lease_open(w->leases, LEASE_FILE, 60, &first, &v, &e), 0);
    assert_int_equal(lease_open(w->leases, LEASE_FILE, 60, &second, &v, &e), -1);
    assert_int_equal(e.code, ERR_OVERLOADED);
    err_clear(&e);
    (void)open_lease(w, 60);
    lease_start(w->leases, first.id, malloc(1), count_freed);
    assert_int_equal(lease_open(w->leases, LEASE_FILE, 60, &second, &v, &e), 0);
    assert_int_equal(lease_close(w->leases, LEASE_FILE, second.id, &e), 0);
    (void)open_file(w, 60);
}

static bool is_gone(void *arg)
{
    (void)arg;
    return true;
}

static void *drain(void *arg)
{
    struct world *w = arg;

    await_drained(w);
    return NULL;
}

/* A file whose checksums are not known yet is not made against an update that waits. */
static void test_file_is_not_made_while_it_is_awaited(void **state)
{
    struct progress progress = {.deadline_us = CLOCK_NEVER};
    struct world *w = *state;
    const struct version *v = NULL;
    struct version_file *f = NULL;
    struct err e = {0};
    pthread_t thread;

    commit_step(w->store, 1);
    assert_int_equal(store_pin(w->store, &v, &e), 0);
    progress.gone = is_gone;
    assert_int_equal(version_file_new(&f, w->store, v, &progress, &e), -1);
    assert_int_equal(e.code, ERR_GONE);
    err_clear(&e);
    progress.gone = NULL;
    commit_step(w->store, 2);
    assert_int_equal(pthread_create(&thread, NULL, drain, w), 0);
    while (!store_reader_awaited(w->store, v))
        (void)usleep(1000);
    assert_int_equal(version_file_new(&f, w->store, v, &progress, &e), -1);
    assert_int_equal(e.code, ERR_LEASE_ENDED);
    assert_null(f);
    store_unpin(w->store, v);
    (void)pthread_join(thread, NULL);
    err_clear(&e);
    assert_int_equal(store_pin(w->store, &v, &e), 0);
    assert_int_equal(version_file_new(&f, w->store, v, &progress, &e), 0);
    version_file_free(f);
    store_unpin(w->store, v);
}

/* Uses leases that others close, and that give way. */
static void *use_much(void *arg)
{
    struct world *w = arg;
    struct err e = {0};

    for (int i = 0; i < N_ROUNDS; i++) {
        struct lease_info info = open_file(w, 60);
        struct lease_use use;

        if (lease_use(w->leases, info.id, &use, &e) == 0) {
            assert_int_equal(use.version->serial, info.serial);
            if (i % 2 == 0)
                (void)lease_close(w->leases, LEASE_FILE, info.id, &e);
            lease_unuse(w->leases, &use);
        }
        err_clear(&e);
        if (i % 2 != 0)
            (void)lease_close(w->leases, LEASE_FILE, info.id, &e);
        err_clear(&e);
    }
    return NULL;
}

static void test_files_from_many_threads(void **state)
{
    struct world *w = *state;
    pthread_t threads[N_THREADS];

    n_freed = 0;
    commit_step(w->store, 1);
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_much, w), 0);
    for (unsigned i = 0; i < N_ROUNDS / 2; i++)
        commit_step(w->store, i + 2);
    for (int i = 0; i < N_THREADS; i++)
        (void)pthread_join(threads[i], NULL);
    await_drained(w);
    await_freed(N_THREADS * N_ROUNDS);
}

/* Opens, renews and ends leases while versions come and go. */
static void *lease_much(void *arg)
{
    struct world *w = arg;

    for (int i = 0; i < N_ROUNDS; i++) {
        struct lease_info info = open_lease(w, 60);

        assert_true(alive(w, &info));
        close_lease(w, &info);
    }
    return NULL;
}

static void test_leases_from_many_threads(void **state)
{
    struct world *w = *state;
    pthread_t threads[N_THREADS];
    struct lease_info open;

    commit_step(w->store, 1);
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, lease_much, w), 0);
    for (unsigned i = 0; i < N_ROUNDS / 2; i++)
        commit_step(w->store, i + 2);
    for (int i = 0; i < N_THREADS; i++)
        (void)pthread_join(threads[i], NULL);
    await_drained(w);
    assert_false(leases_first(w->leases, &open));
}

#define T(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_lease_holds_its_version),  T(test_lease_close_refuses_unknown),
        T(test_lease_ends_by_itself),     T(test_lease_renew_and_unstarted_outlive),
        T(test_lease_renew_can_shorten),  T(test_leases_are_bounded),
        T(test_update_waits_for_leases),  T(test_leases_stop_ends_all),
        T(test_leases_from_many_threads), T(test_file_stays_while_it_is_used),
        T(test_file_gives_way),           T(test_files_are_bounded),
        T(test_files_are_opened_in_turn), T(test_file_is_not_made_while_it_is_awaited),
        T(test_files_from_many_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
