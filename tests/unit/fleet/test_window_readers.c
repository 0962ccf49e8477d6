/* Which SGLangs have a window: none is given while one is out, and what an ended process counts
 * down is not counted for the next. */
#include "fleet/handoff/window_readers.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 4, ROUNDS = 500 };

static struct upstream_info info_of(uint64_t incarnation, const char *label)
{
    struct upstream_info info = {.incarnation = incarnation};

    (void)snprintf(info.report.label, sizeof info.report.label, "%s", label);
    return info;
}

static void expect(struct window_reader *r, uint32_t half, uint64_t n_ranks)
{
    struct upstream_info info = info_of(1, "a");
    struct err e = {0};

    assert_int_equal(window_reader_expect(r, half, n_ranks, &info, &e), 0);
}

/* As torch in a rank. */
static int count_down(const char *ref_name, uint32_t half, uint64_t rank)
{
    struct err e = {0};

    return ref_counter_release(ref_name, window_reader_slot(half, rank), &e);
}

/* Objects that this process has made and not removed. */
static unsigned n_objects(void)
{
    DIR *dir = opendir("/dev/shm");
    char head[32];
    unsigned n = 0;

    assert_non_null(dir);
    (void)snprintf(head, sizeof head, "torch_%ld_", (long)getpid());
    for (const struct dirent *d = readdir(dir); d != NULL; d = readdir(dir))
        n += strncmp(d->d_name, head, strlen(head)) == 0;
    (void)closedir(dir);
    return n;
}

static void test_every_rank_counts(void **state)
{
    struct window_reader r = {0};

    (void)state;
    assert_false(window_reader_has_window(&r));
    for (uint32_t half = 0; half < WINDOW_HALVES; half++) {
        expect(&r, half, RANKS);
        for (uint64_t rank = 0; rank < RANKS; rank++) {
            assert_true(window_reader_has_window(&r));
            assert_int_equal(count_down(r.ref_name, half, RANKS - 1 - rank), 0);
        }
        assert_false(window_reader_has_window(&r));
    }
    assert_int_equal(n_objects(), 1); /* of both */
    expect(&r, 0, 1);                 /* it was restarted with fewer ranks */
    assert_int_equal(count_down(r.ref_name, 0, 0), 0);
    assert_false(window_reader_has_window(&r));
    expect(&r, 1, WINDOW_RANKS_MAX);
    assert_int_equal(count_down(r.ref_name, 1, WINDOW_RANKS_MAX - 1), 0);
    assert_true(window_reader_has_window(&r));
    window_reader_forget(&r);
    assert_false(window_reader_has_window(&r));
    assert_int_equal(n_objects(), 0);
    window_reader_forget(&r);
}

static void test_late_decrements_are_of_the_old_object(void **state)
{
    struct window_reader r = {0};
    char old[sizeof r.ref_name];

    (void)state;
    expect(&r, 0, 1);
    memcpy(old, r.ref_name, sizeof old);
    window_reader_forget(&r);
    expect(&r, 0, 1);
    assert_string_not_equal(old, r.ref_name);
    assert_int_equal(count_down(old, 0, 0), -1);
    assert_true(window_reader_has_window(&r));
    window_reader_forget(&r);
}

static void test_an_ended_process(void **state)
{
    struct upstream_info same = info_of(1, "a"), other = info_of(2, "a");
    struct upstream_info marked = info_of(2, FLEET_DIRTY_MARKER "upd-1"), stale = info_of(2, "");
    struct window_reader r = {0};

    (void)state;
    stale.report.is_stale = true;
    expect(&r, 0, 1);
    assert_false(window_reader_has_ended(&r, &same));
    same.synced = true; /* what is known of its weights says nothing of its process */
    same.n_failures = 100;
    assert_false(window_reader_has_ended(&r, &same));
    assert_true(window_reader_has_ended(&r, &other));
    assert_false(window_reader_has_ended(&r, &marked));
    assert_false(window_reader_has_ended(&r, &stale));
    window_reader_forget(&r);
}

/* Without room for the object nothing is expected. */
static void test_a_failure_expects_nothing(void **state)
{
    struct upstream_info info = info_of(1, "a");
    struct window_reader r = {0};
    struct err e = {0};
    struct rlimit none, was;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(window_reader_expect(&r, 0, 1, &info, &e), -1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    assert_int_not_equal(e.code, ERR_NONE);
    assert_false(window_reader_has_window(&r));
    window_reader_forget(&r);
}

/* Ranks that drop each window as soon as they see it, while another waits for all of them. */
struct rank {
    const struct window_reader *r;
    uint64_t rank;
    uint32_t *round;  /* atomic: the window that is out */
    uint32_t *n_down; /* atomic */
};

static void *run_rank(void *arg)
{
    const struct rank *a = arg;

    for (uint32_t k = 1; k <= ROUNDS; k++) {
        while (__atomic_load_n(a->round, __ATOMIC_ACQUIRE) < k)
            (void)usleep(1);
        (void)__atomic_add_fetch(a->n_down, 1, __ATOMIC_RELAXED);
        if (count_down(a->r->ref_name, k % WINDOW_HALVES, a->rank) != 0)
            break;
    }
    return NULL;
}

static void test_ranks_at_once(void **state)
{
    struct window_reader r = {0};
    uint32_t round = 0, n_down = 0;
    pthread_t threads[RANKS];
    struct rank ranks[RANKS];

    (void)state;
    for (uint64_t i = 0; i < RANKS; i++) {
        ranks[i] = (struct rank){&r, i, &round, &n_down};
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &ranks[i]), 0);
    }
    for (uint32_t k = 1; k <= ROUNDS; k++) {
        expect(&r, k % WINDOW_HALVES, RANKS);
        __atomic_store_n(&round, k, __ATOMIC_RELEASE);
        while (window_reader_has_window(&r))
            (void)usleep(1);
        assert_int_equal(__atomic_load_n(&n_down, __ATOMIC_RELAXED), k * RANKS);
    }
    for (uint64_t i = 0; i < RANKS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    window_reader_forget(&r);
    assert_int_equal(n_objects(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_rank_counts),
        cmocka_unit_test(test_late_decrements_are_of_the_old_object),
        cmocka_unit_test(test_an_ended_process),
        cmocka_unit_test(test_a_failure_expects_nothing),
        cmocka_unit_test(test_ranks_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
