/* The FIFO semaphore: order, bounds, cancelling, and threads racing for it. */
#include "control/admission.h"

#include "base/mtx.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static struct admission *a;
static char order[16];

struct owner {
    struct ticket ticket;
    char letter;
};

static void note(void *arg)
{
    struct owner *o = arg;
    size_t n = strlen(order);

    mtx_assert_none();
    order[n] = o->letter;
    order[n + 1] = '\0';
}

static void make(struct owner *o, size_t n)
{
    memset(order, 0, sizeof order);
    for (size_t i = 0; i < n; i++)
        o[i] = (struct owner){.ticket = {.granted = note, .arg = &o[i]}, .letter = (char)('a' + i)};
}

static void test_fifo_bounds_and_cancel(void **state)
{
    struct owner o[7];
    struct admission_stats s;
    struct err e = {0};

    (void)state;
    make(o, 7);
    assert_int_equal(admission_new(&a, "generate", 2, 3, &e), 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(admission_enter(a, &o[i].ticket, &e), 0);
    assert_string_equal(order, "ab"); /* granted before enter returned */
    assert_int_equal(admission_enter(a, &o[5].ticket, &e), -1);
    assert_int_equal(e.code, ERR_OVERLOADED);
    assert_string_equal(e.msg, "generate is full: 2 run and 3 wait");
    err_clear(&e);
    assert_true(admission_cancel(a, &o[3].ticket));
    assert_false(admission_cancel(a, &o[3].ticket));
    assert_false(admission_cancel(a, &o[0].ticket)); /* granted already */
    assert_int_equal(admission_enter(a, &o[6].ticket, &e), 0);
    admission_leave(a, &o[1].ticket);
    admission_leave(a, &o[0].ticket);
    assert_string_equal(order, "abce");
    admission_close(a);
    assert_int_equal(admission_enter(a, &o[5].ticket, &e), -1);
    assert_int_equal(e.code, ERR_DRAINING);
    admission_leave(a, &o[2].ticket); /* what waits is still served */
    assert_string_equal(order, "abceg");
    admission_leave(a, &o[4].ticket);
    admission_leave(a, &o[6].ticket);
    admission_stats(a, &s);
    assert_int_equal(s.n_running, 0);
    assert_int_equal(s.n_waiting, 0);
    assert_int_equal(s.n_granted, 5);
    assert_int_equal(s.n_refused, 1);
    assert_int_equal(s.n_cancelled, 1);
    admission_free(a);
}

static void test_cancel_at_both_ends(void **state)
{
    struct owner o[5];
    struct err e = {0};

    (void)state;
    make(o, 5);
    assert_int_equal(admission_new(&a, "text", 1, 4, &e), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(admission_enter(a, &o[i].ticket, &e), 0);
    assert_true(admission_cancel(a, &o[3].ticket)); /* last */
    assert_true(admission_cancel(a, &o[1].ticket)); /* first */
    assert_int_equal(admission_enter(a, &o[4].ticket, &e), 0);
    admission_leave(a, &o[0].ticket);
    admission_leave(a, &o[2].ticket);
    assert_string_equal(order, "ace");
    admission_leave(a, &o[4].ticket);
    admission_free(a);
}

enum { RACERS = 4, ROUNDS = 2000, PERMITS = 2 };

static atomic_int n_inside, n_inside_max, n_entered;

struct racer {
    struct ticket ticket;
    struct mtx lock;
    struct cnd moved;
    bool granted; /* guarded by lock */
};

static void racer_granted(void *arg)
{
    struct racer *r = arg;

    mtx_lock(&r->lock);
    r->granted = true;
    cnd_broadcast(&r->moved);
    mtx_unlock(&r->lock);
}

static void racer_work(struct racer *r)
{
    int n = atomic_fetch_add(&n_inside, 1) + 1, most = atomic_load(&n_inside_max);

    while (n > most && !atomic_compare_exchange_weak(&n_inside_max, &most, n))
        ;
    (void)atomic_fetch_add(&n_entered, 1);
    (void)atomic_fetch_sub(&n_inside, 1);
    admission_leave(a, &r->ticket);
}

static void *race(void *arg)
{
    struct racer r = {.ticket = {.granted = racer_granted, .arg = &r}};
    struct err e = {0};

    (void)arg;
    mtx_init(&r.lock, MTX_LEAF);
    cnd_init(&r.moved);
    for (int i = 0; i < ROUNDS; i++) {
        r.granted = false;
        if (admission_enter(a, &r.ticket, &e) != 0)
            abort();
        if (i % 3 == 0 && admission_cancel(a, &r.ticket))
            continue;
        mtx_lock(&r.lock);
        while (!r.granted)
            (void)cnd_wait(&r.moved, &r.lock, UINT64_MAX);
        mtx_unlock(&r.lock);
        racer_work(&r);
    }
    cnd_fini(&r.moved);
    mtx_fini(&r.lock);
    return NULL;
}

static void test_held_grants_nobody(void **state)
{
    struct owner o[7];
    struct admission_stats s;
    struct err e = {0}, refusal = {0};

    (void)state;
    make(o, 7);
    assert_int_equal(admission_new(&a, "generate", 2, 3, &e), 0);
    assert_int_equal(admission_enter(a, &o[0].ticket, &e), 0);
    admission_hold(a, NULL);
    for (int i = 1; i < 4; i++)
        assert_int_equal(admission_enter(a, &o[i].ticket, &e), 0); /* a permit is free */
    assert_int_equal(admission_enter(a, &o[4].ticket, &e), -1);
    assert_int_equal(e.code, ERR_OVERLOADED); /* bounded as ever */
    err_clear(&e);
    (void)err_set(&refusal, ERR_PAUSED, "", "paused by me");
    admission_hold(a, &(struct admission_hold){.refusal = &refusal});
    assert_int_equal(admission_enter(a, &o[5].ticket, &e), -1);
    assert_int_equal(e.code, ERR_PAUSED);
    assert_string_equal(e.msg, "paused by me");
    err_clear(&e);
    admission_leave(a, &o[0].ticket);
    assert_string_equal(order, "a");
    admission_release(a);
    admission_release(a);
    assert_string_equal(order, "abc"); /* as many as there are permits, in order */
    admission_leave(a, &o[1].ticket);
    admission_leave(a, &o[2].ticket);
    admission_leave(a, &o[3].ticket);
    assert_string_equal(order, "abcd");
    admission_stats(a, &s);
    assert_int_equal(s.n_running + s.n_waiting, 0);
    assert_int_equal(s.n_refused, 2);
    admission_free(a);
}

/* Of a hold that grants what came before it: those that queue and those that come late alike, in
 * order; the others wait for the release. */
static void test_held_grants_those_before_the_line(void **state)
{
    struct err e = {0}, refusal = {0};
    struct owner o[7];

    (void)state;
    make(o, 7);
    for (unsigned i = 0; i < 6; i++)
        o[i].ticket.arrival = i + 1;
    assert_int_equal(admission_new(&a, "generate", 1, 7, &e), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(admission_enter(a, &o[i].ticket, &e), 0);
    admission_hold(a, NULL);
    assert_int_equal(admission_enter(a, &o[5].ticket, &e), 0); /* arrived since */
    assert_int_equal(admission_enter(a, &o[6].ticket, &e), 0); /* without a number: since */
    admission_leave(a, &o[0].ticket);
    assert_string_equal(order, "a");
    (void)err_set(&refusal, ERR_PAUSED, "", "paused by me");
    admission_hold(a, &(struct admission_hold){.refusal = &refusal, .line = 6});
    assert_string_equal(order, "a");
    assert_int_equal(admission_enter(a, &o[3].ticket, &e), 0); /* late, and not refused */
    admission_hold(a,
                   &(struct admission_hold){.refusal = &refusal, .line = 6, .grants_before = true});
    assert_string_equal(order, "ab");
    admission_leave(a, &o[1].ticket);
    admission_leave(a, &o[2].ticket);
    admission_leave(a, &o[3].ticket);
    assert_string_equal(order, "abcd");
    assert_int_equal(admission_enter(a, &o[4].ticket, &e), 0); /* a permit is free */
    assert_string_equal(order, "abcde");
    admission_leave(a, &o[4].ticket);
    assert_string_equal(order, "abcde");
    admission_release(a);
    admission_leave(a, &o[5].ticket);
    admission_leave(a, &o[6].ticket);
    assert_string_equal(order, "abcdefg");
    admission_free(a);
}

static void count_idle(void *arg)
{
    mtx_assert_none();
    ++*(int *)arg;
}

static void test_the_last_one_out_says_so(void **state)
{
    struct owner o[3];
    struct err e = {0};
    int n_idle = 0;

    (void)state;
    make(o, 3);
    assert_int_equal(admission_new(&a, "generate", 1, 3, &e), 0);
    admission_on_idle(a, count_idle, &n_idle);
    assert_int_equal(admission_enter(a, &o[0].ticket, &e), 0);
    assert_int_equal(admission_enter(a, &o[1].ticket, &e), 0);
    admission_leave(a, &o[0].ticket); /* the next has it */
    assert_int_equal(n_idle, 0);
    admission_hold(a, NULL);
    assert_int_equal(admission_enter(a, &o[2].ticket, &e), 0);
    admission_leave(a, &o[1].ticket);
    assert_int_equal(n_idle, 1); /* whoever queues has none */
    admission_release(a);
    admission_leave(a, &o[2].ticket);
    assert_int_equal(n_idle, 2);
    admission_free(a);
}

static void test_threads_race_for_permits(void **state)
{
    pthread_t threads[RACERS];
    struct admission_stats s;
    struct err e = {0};

    (void)state;
    assert_int_equal(admission_new(&a, "generate", PERMITS, RACERS, &e), 0);
    for (int i = 0; i < RACERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, race, NULL), 0);
    for (int i = 0; i < RACERS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    admission_stats(a, &s);
    assert_true(atomic_load(&n_inside_max) <= PERMITS);
    assert_int_equal(s.n_running, 0);
    assert_int_equal(s.n_waiting, 0);
    assert_int_equal(s.n_granted, atomic_load(&n_entered));
    assert_int_equal(s.n_granted + s.n_cancelled, RACERS * ROUNDS);
    admission_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fifo_bounds_and_cancel),
        cmocka_unit_test(test_cancel_at_both_ends),
        cmocka_unit_test(test_held_grants_nobody),
        cmocka_unit_test(test_held_grants_those_before_the_line),
        cmocka_unit_test(test_the_last_one_out_says_so),
        cmocka_unit_test(test_threads_race_for_permits),
    };

    return cmocka_run_group_tests_name("admission", tests, NULL, NULL);
}
