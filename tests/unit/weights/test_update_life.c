/* weights/update: leases, aborts, memory, auto-commit sessions, tensor lists, and many threads. */
#include "tests/unit/update_fixture.h"

#include "weights/update/update_priv.h"

#include <pthread.h>

enum { N_UPDATES = 200, N_READERS = 3 };

/* leases, aborts, the end */

static void test_lease_lost_aborts_and_gives_memory_back(void **state)
{
    struct bench b;
    struct slab_stats st;
    struct update_info info;
    struct err e = {0};

    (void)state;
    bench_open(&b);
    info = start(&b, (struct update_start){.lease_s = LEASE_S});
    assert_int_equal(send_mask(&b, info.id, 0x0f, 1), ERR_NONE);
    assert_true(b.answer.info.lease_left_us > 0);
    assert_true(b.answer.info.lease_left_us <= (uint64_t)LEASE_S * 1000000);
    assert_int_equal(updates_renew(b.updates, info.id, 1, &info, &e), 0);
    assert_true(info.lease_left_us <= 1000000);
    await_phase(&b, info.id, UPDATE_ABORTED);
    assert_int_equal(updates_get(b.updates, info.id, &info, &e), 0);
    assert_int_equal(info.error.code, ERR_TIMEOUT);
    assert_non_null(strstr(info.error.msg, "lease of 1 s"));
    assert_int_equal(info.lease_left_us, 0);
    assert_int_equal(info.n_missing, 3);
    assert_int_equal(info.deadline_left_us, 0);
    assert_int_equal(updates_renew(b.updates, info.id, 5, &info, &e), -1);
    assert_int_equal(e.code, ERR_ENDED);
    e = refused(&b, chunk_of(&b, info.id, fx_tensor_list_of(0x70), FX_STEP(1)));
    assert_int_equal(e.code, ERR_ENDED);
    assert_non_null(strstr(e.msg, "lease of 1 s"));
    info = start(&b, (struct update_start){0}); /* a new owner is let in */
    assert_int_equal(send_mask(&b, info.id, FX_ALL, 2), ERR_NONE);
    slab_pool_stats(store_slabs(b.store, 0), &st);
    assert_int_equal(st.n_live, 1); /* of the new session only */
    assert_int_equal(finish(&b, info.id, ""), ERR_NONE);
    bench_close(&b);
}

static void test_lease_is_renewed_by_use_and_held_by_a_running_chunk(void **state)
{
    struct bench b;
    struct fx_pause_controller pause_controller;
    struct fx_source_cfg cfg = FX_STEP(1);
    struct update_info info;
    struct err e = {0};
    uint64_t late;

    (void)state;
    fx_pause_controller_init(&pause_controller);
    cfg.pause_controller = &pause_controller;
    bench_open(&b);
    info = start(&b, (struct update_start){.lease_s = LEASE_S});
    submit(&b, chunk_of(&b, info.id, fx_tensor_list_of(0x0f), cfg));
    fx_pause_controller_await(&pause_controller);
    assert_int_equal(updates_renew(b.updates, info.id, 1, &info, &e), 0);
    late = clock_after_us(1200000);
    mtx_lock(&b.lock); /* until well after the lease would have ended */
    while (!clock_passed(late))
        (void)cnd_wait(&b.changed, &b.lock, late);
    mtx_unlock(&b.lock);
    assert_int_equal(updates_get(b.updates, info.id, &info, &e), 0);
    assert_int_equal(info.phase, UPDATE_RECEIVING);
    assert_int_equal(info.lease_left_us, 1000000);
    assert_true(info.deadline_left_us > 1000000); /* of the chunk, which may outlast the lease */
    assert_int_equal(updates_renew(b.updates, info.id, 600, &info, &e), 0);
    assert_int_equal(info.lease_left_us, 600000000);
    fx_pause_controller_open(&pause_controller);
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    assert_true(b.answer.info.lease_left_us > UINT64_C(590000000));
    assert_true(b.answer.info.deadline_left_us > UINT64_C(590000000));
    assert_int_equal(send_mask(&b, info.id, 0x70, 1), ERR_NONE);
    assert_true(b.answer.info.lease_left_us > UINT64_C(590000000));
    assert_int_equal(finish(&b, info.id, ""), ERR_NONE);
    bench_close(&b);
    fx_pause_controller_fini(&pause_controller);
}

static void test_abort_stops_a_blocked_fill(void **state)
{
    struct bench b;
    struct fx_pause_controller pause_controller;
    struct fx_source_cfg cfg = FX_STEP(2);
    struct update_info info;
    struct err e = {0};

    (void)state;
    fx_pause_controller_init(&pause_controller);
    cfg.pause_controller = &pause_controller;
    cfg.pause_controller_at = 2;
    bench_open(&b);
    assert_int_equal(push(&b, 1, "one"), ERR_NONE);
    info = start(&b, (struct update_start){0});
    submit(&b, chunk_of(&b, info.id, fx_tensor_list_of(0x0f), cfg));
    fx_pause_controller_await(&pause_controller);
    submit(&b, chunk_of(&b, info.id, fx_tensor_list_of(0x70), FX_STEP(2))); /* waits behind it */
    assert_int_equal(updates_abort(b.updates, info.id, "step was bad", &info, &e), 0);
    assert_int_equal(info.phase, UPDATE_ABORTED); /* at once */
    assert_idle(&b);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fx_await(&b.answer), ERR_ENDED);
        assert_non_null(strstr(b.answer.e.msg, "step was bad"));
    }
    assert_true(clock_now_us() - pause_controller.stopped_us <
                RECEIVE_US / 2); /* not at the deadline */
    assert_served(&b, 1, "one", 1);
    assert_int_equal(push(&b, 3, "three"), ERR_NONE);
    assert_served(&b, 3, "three", 2);
    bench_close(&b);
    fx_pause_controller_fini(&pause_controller);
}

static void test_receive_deadline_ends_a_blocked_fill(void **state)
{
    struct bench b;
    struct fx_pause_controller pause_controller;
    struct fx_source_cfg cfg = FX_STEP(1);

    (void)state;
    fx_pause_controller_init(&pause_controller);
    cfg.pause_controller = &pause_controller;
    bench_open_with(&b, UINT64_MAX, 50000);
    submit(&b, chunk_of(&b, "", fx_tensor_list_of(FX_ALL), cfg));
    assert_int_equal(fx_await(&b.answer), ERR_TIMEOUT);
    assert_int_equal(b.answer.info.error.code, ERR_TIMEOUT);
    bench_close(&b);
    fx_pause_controller_fini(&pause_controller);
}

static void test_free_answers_everything_that_waits(void **state)
{
    struct bench b;
    struct fx_pause_controller pause_controller;
    struct fx_source_cfg cfg = FX_STEP(1);
    atomic_uint n_closed = 0;

    (void)state;
    fx_pause_controller_init(&pause_controller);
    cfg.pause_controller = &pause_controller;
    cfg.n_closed = &n_closed;
    bench_open(&b);
    for (int i = 0; i < 3; i++)
        submit(&b, chunk_of(&b, "", fx_tensor_list_of(FX_ALL), cfg));
    fx_pause_controller_await(&pause_controller);
    updates_free(b.updates);
    b.updates = NULL;
    assert_int_equal(b.answer.n, 3);
    assert_int_equal(b.answer.e.code, ERR_DRAINING);
    assert_int_equal(atomic_load(&n_closed), 3);
    bench_close(&b);
    fx_pause_controller_fini(&pause_controller);
    updates_free(NULL);
    update_chunk_free(NULL);
}

static atomic_bool has_left; /* relaxed: the source looks again */

static bool left(void *arg)
{
    (void)arg;
    return atomic_load(&has_left);
}

/* Whoever would get the answer is gone, and what is waited for may never come: others wait too. */
static void test_client_that_leaves_stops_a_blocked_fill(void **state)
{
    struct bench b;
    struct fx_pause_controller pause_controller;
    struct fx_source_cfg cfg = FX_STEP(2);
    struct update_info info;
    struct update_chunk *c;

    (void)state;
    fx_pause_controller_init(&pause_controller);
    cfg.pause_controller = &pause_controller;
    cfg.pause_controller_at = 2;
    bench_open(&b);
    assert_int_equal(push(&b, 1, "one"), ERR_NONE);
    info = start(&b, (struct update_start){0});
    c = chunk_of(&b, info.id, fx_tensor_list_of(0x0f), cfg);
    c->gone = left;
    submit(&b, c);
    fx_pause_controller_await(&pause_controller);
    atomic_store(&has_left, true);
    assert_int_equal(fx_await(&b.answer), ERR_GONE);
    assert_served(&b, 1, "one", 1);
    assert_int_equal(send_mask(&b, info.id, FX_ALL, 2), ERR_NONE); /* nothing of it had arrived */
    assert_int_equal(finish(&b, info.id, "two"), ERR_NONE);
    assert_served(&b, 2, "two", 2);
    bench_close(&b);
    fx_pause_controller_fini(&pause_controller);
}

static void test_free_ends_an_open_session(void **state)
{
    struct bench b;
    struct update_info info;

    (void)state;
    bench_open(&b);
    info = start(&b, (struct update_start){0});
    assert_int_equal(send_mask(&b, info.id, 0x0f, 1), ERR_NONE);
    bench_close(&b);
}

/* What one version needs, what two need, and a way out. */
static void assert_two_versions(const struct err *e)
{
    struct model_spec *spec = fx_model_spec();
    unsigned long long nbytes = spec->tensor_list->nbytes;
    char words[128];

    model_spec_free(spec);
    (void)snprintf(words, sizeof words,
                   "a version has %llu bytes, and an update needs room for two, %llu,", nbytes,
                   2 * nbytes);
    assert_non_null(strstr(e->msg, words));
    assert_non_null(strstr(e->msg, "are needed for weights, "));
    assert_non_null(strstr(e->msg, "or let the weights sleep at level 2 before a whole update"));
}

static void test_memory_that_is_not_there_is_refused(void **state)
{
    struct bench b;
    struct update_start req = {.lease_s = LEASE_S};
    struct update_info info;
    struct store_slept slept;
    struct err e = {0};

    (void)state;
    bench_open_with(&b, 4096, RECEIVE_US); /* one version */
    assert_int_equal(push(&b, 1, "one"), ERR_NONE);
    assert_int_equal(updates_start(b.updates, &req, &info, &e), -1);
    assert_int_equal(e.code, ERR_NO_STAGING);
    assert_two_versions(&e);
    e = refused(&b, chunk_of(&b, "", fx_tensor_list_of(FX_ALL), FX_STEP(2)));
    assert_int_equal(e.code, ERR_NO_STAGING);
    assert_two_versions(&e);
    err_clear(&e);
    assert_int_equal(store_sleep(b.store, 2, CLOCK_NEVER, &slept, &e), 0); /* the way around it */
    info = start(&b, (struct update_start){0});
    assert_int_equal(send_mask(&b, info.id, FX_ALL, 2), ERR_NONE);
    assert_int_equal(finish(&b, info.id, "two"), ERR_NONE);
    assert_served(&b, 2, "two", 2);
    bench_close(&b);
}

/* The bucket fits, but not the tied name's bytes beside it: nothing of it has arrived. */
static void test_memory_that_ends_half_way_takes_the_chunk_back(void **state)
{
    static const struct fx_tensor *const both[] = {&fx_model[5], &fx_lm_head};
    struct bench b;
    struct slab_stats st;
    struct update_info info;

    (void)state;
    bench_open_with(&b, 4096, RECEIVE_US);
    info = start(&b, (struct update_start){0});
    for (int i = 0; i < 2; i++) {
        submit(&b, chunk_of(&b, info.id, fx_tensor_list(both, 2), FX_STEP(1)));
        assert_int_equal(fx_await(&b.answer), ERR_NO_STAGING);
        assert_int_equal(b.answer.info.n_missing, FX_N);
        slab_pool_stats(store_slabs(b.store, 0), &st);
        assert_int_equal(st.n_live, 0);
    }
    assert_int_equal(send_mask(&b, info.id, 0x30, 1), ERR_NONE);
    bench_close(&b);
}

/* Room for two versions, while an old one is still read: the update waits for it to go. */
static void test_memory_of_a_version_that_is_read_is_waited_for(void **state)
{
    struct bench b;
    const struct version *v = NULL;
    struct update_info info;
    struct err e = {0};

    (void)state;
    bench_open_with(&b, 2 * 4096, RECEIVE_US);
    assert_int_equal(push(&b, 1, "one"), ERR_NONE);
    assert_int_equal(store_pin(b.store, &v, &e), 0);
    assert_int_equal(push(&b, 2, "two"), ERR_NONE);
    submit(&b, chunk_of(&b, "", fx_tensor_list_of(FX_ALL), FX_STEP(3)));
    updates_current(b.updates, &info);
    await_phase(&b, info.id, UPDATE_RECEIVING);
    assert_served(&b, 2, "two", 2);
    assert_true(fx_is_step(v, 0, 1));
    store_unpin(b.store, v);
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    assert_served(&b, 3, "serial-3", 3);
    bench_close(&b);
}

static void test_ended_updates_are_shown_for_a_while(void **state)
{
    struct bench b;
    char first[UPDATE_ID_MAX + 1];
    struct update_info info;
    struct err e = {0};

    (void)state;
    bench_open(&b);
    assert_int_equal(push(&b, 1, ""), ERR_NONE);
    memcpy(first, b.answer.info.id, sizeof first);
    for (unsigned i = 0; i < UPDATE_ENDED_KEPT - 1; i++)
        assert_int_equal(push(&b, i, ""), ERR_NONE);
    assert_int_equal(updates_get(b.updates, first, &info, &e), 0);
    assert_int_equal(info.serial, 1);
    assert_int_equal(push(&b, 1, ""), ERR_NONE);
    assert_int_equal(updates_get(b.updates, first, &info, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    err_clear(&e);
    assert_int_equal(updates_abort(b.updates, first, "", &info, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    bench_close(&b);
}

/* auto-commit sessions */

static void test_auto_commit_session_commits_when_covered(void **state)
{
    struct bench b;
    struct update_info info;

    (void)state;
    bench_open(&b);
    info = start(&b, (struct update_start){.auto_commit = true, .label = "one"});
    assert_int_equal(send_mask(&b, info.id, 0x0f, 1), ERR_NONE);
    assert_int_equal(b.answer.info.phase, UPDATE_RECEIVING);
    assert_int_equal(send_mask(&b, info.id, 0x70, 1), ERR_NONE);
    assert_int_equal(b.answer.info.phase, UPDATE_COMMITTED);
    assert_served(&b, 1, "one", 1);
    assert_idle(&b);
    bench_close(&b);
}

static void test_commit_auto_finishes_what_is_open(void **state)
{
    struct bench b;
    struct update_info info;
    struct err e = {0};

    (void)state;
    bench_open(&b);
    assert_int_equal(updates_commit_auto(b.updates, fx_done, &b.answer, &e), 0);
    assert_int_equal(b.answer.n, 1); /* at once: there is none */
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    assert_int_equal(b.answer.info.phase, UPDATE_NONE);
    assert_int_equal(push(&b, 1, "one"), ERR_NONE);
    info = start(&b, (struct update_start){.auto_commit = true, .partial = true});
    assert_int_equal(send_mask(&b, info.id, 0x10, 2), ERR_NONE);
    assert_int_equal(updates_commit_auto(b.updates, fx_done, &b.answer, &e), 0);
    assert_int_equal(fx_await(&b.answer), ERR_NONE);
    assert_int_equal(b.answer.info.phase, UPDATE_COMMITTED);
    info = start(&b, (struct update_start){.auto_commit = true});
    assert_int_equal(send_mask(&b, info.id, 0x0f, 2), ERR_NONE);
    assert_int_equal(updates_commit_auto(b.updates, fx_done, &b.answer, &e), 0);
    assert_int_equal(fx_await(&b.answer), ERR_INCOMPLETE);
    assert_int_equal(b.answer.info.n_missing, 3);
    bench_close(&b);
}

/* One chunk, and what became of it. */
static enum err_code send_named(struct bench *b, const char *id, unsigned mask, const char *label)
{
    struct update_chunk *c = chunk_of(b, id, fx_tensor_list_of(mask), FX_STEP(1));
    struct err e = {0};

    (void)snprintf(c->label, sizeof c->label, "%s", label);
    if (updates_submit(b->updates, c, &e) == 0)
        return fx_await(&b->answer);
    update_chunk_free(c);
    return e.code;
}

/* Two steps never make one version: what is of another one is refused, and changes nothing. */
static void test_auto_commit_session_takes_one_version(void **state)
{
    struct update_info info;
    struct bench b;

    (void)state;
    bench_open(&b);
    info = start(&b, (struct update_start){.auto_commit = true});
    assert_int_equal(send_named(&b, info.id, 0x01, ""), ERR_NONE);
    assert_int_equal(send_named(&b, info.id, 0x02, "one"), ERR_NONE);
    assert_int_equal(send_named(&b, info.id, 0x0c, "two"), ERR_CONFLICT);
    assert_int_equal(send_named(&b, info.id, 0x0c, ""), ERR_NONE);
    assert_int_equal(send_named(&b, info.id, 0x70, "one"), ERR_NONE);
    assert_int_equal(b.answer.info.phase, UPDATE_COMMITTED);
    assert_served(&b, 1, "one", 1);
    bench_close(&b);
}

/* The last chunk again, as whoever has lost its answer sends it, begins no other update. */
static void test_auto_commit_session_does_not_begin_with_the_last_end(void **state)
{
    struct update_info info, ended;
    struct err e = {0};
    struct bench b;

    (void)state;
    bench_open(&b);
    for (unsigned step = 0; step < 3; step++) {
        const char *label = step == 0 ? "named" : "";

        info = start(&b, (struct update_start){.auto_commit = true});
        assert_int_equal(send_named(&b, info.id, 0x0f, label), ERR_NONE);
        assert_int_equal(send_named(&b, info.id, 0x70, label), ERR_NONE);
        assert_int_equal(b.answer.info.phase, UPDATE_COMMITTED);
        info = start(&b, (struct update_start){.auto_commit = true});
        assert_int_equal(send_named(&b, info.id, 0x70, label), ERR_CONFLICT);
        if (step == 1) { /* who continues begins anew */
            assert_int_equal(updates_commit_auto(b.updates, fx_done, &b.answer, &e), 0);
            assert_int_equal(fx_await(&b.answer), ERR_INCOMPLETE);
            info = start(&b, (struct update_start){.auto_commit = true});
            label = "";
        } else { /* or who names another version */
            label = "another";
        }
        assert_int_equal(send_named(&b, info.id, 0x70, label), ERR_NONE);
        assert_int_equal(updates_abort(b.updates, info.id, "", &ended, &e), 0);
    }
    /* A whole model in one chunk is new each time. */
    for (unsigned step = 0; step < 2; step++) {
        info = start(&b, (struct update_start){.auto_commit = true});
        assert_int_equal(send_named(&b, info.id, FX_ALL, ""), ERR_NONE);
        assert_int_equal(b.answer.info.phase, UPDATE_COMMITTED);
    }
    bench_close(&b);
}

/* many threads */

struct reader {
    struct bench *bench;
    atomic_bool *stop;
    atomic_uint n_read; /* relaxed: a test only waits for it to grow */
    unsigned n_torn, n_mislabelled;
};

static void *reader_main(void *arg)
{
    struct reader *r = arg;

    while (!atomic_load(r->stop)) {
        const struct version *v = NULL;
        struct err e = {0};
        unsigned step;

        if (store_pin(r->bench->store, &v, &e) != 0)
            continue;
        step = (unsigned)strtoul(v->label, NULL, 10);
        for (uint32_t i = 0; i < FX_N; i++)
            r->n_torn += !fx_is_step(v, i, step);
        (void)atomic_fetch_add(&r->n_read, 1);
        store_unpin(r->bench->store, v);
    }
    return NULL;
}

static void *pollster_main(void *arg)
{
    struct reader *r = arg;

    while (!atomic_load(r->stop)) {
        struct update_info info;
        struct updates_stats stats;

        updates_current(r->bench->updates, &info);
        r->n_mislabelled += info.nbytes_done > info.nbytes_total;
        updates_stats(r->bench->updates, &stats);
        (void)atomic_fetch_add(&r->n_read, 1);
    }
    return NULL;
}

/* One update of every kind in turn: good ones serve their step, bad ones change nothing. */
static void one_update(struct bench *b, unsigned i, unsigned step, bool *committed)
{
    struct fx_source_cfg cfg = FX_STEP(step);
    char label[16];

    (void)snprintf(label, sizeof label, "%u", step);
    *committed = i % 4 != 3;
    if (i % 4 == 3) {
        cfg.fail_at = (int)(i % FX_N);
        submit(b, chunk_of(b, "", fx_tensor_list_of(FX_ALL), cfg));
        assert_int_equal(fx_await(&b->answer), ERR_UNREADABLE);
    } else if (i % 4 == 2) {
        struct update_info info = start(b, (struct update_start){0});

        assert_int_equal(send_mask(b, info.id, 0x55, step), ERR_NONE);
        assert_int_equal(send_mask(b, info.id, 0x2a, step), ERR_NONE);
        assert_int_equal(finish(b, info.id, label), ERR_NONE);
    } else {
        assert_int_equal(push(b, step, label), ERR_NONE);
    }
}

static void test_updates_are_atomic_to_many_readers(void **state)
{
    struct bench b;
    struct reader readers[N_READERS + 1];
    pthread_t threads[N_READERS + 1];
    atomic_bool stop = false;
    unsigned n_idle = 1, step = 1;

    (void)state;
    bench_open(&b);
    assert_int_equal(push(&b, 1, "1"), ERR_NONE);
    for (int i = 0; i <= N_READERS; i++) {
        readers[i] = (struct reader){.bench = &b, .stop = &stop};
        assert_int_equal(pthread_create(&threads[i], NULL,
                                        i == N_READERS ? pollster_main : reader_main, &readers[i]),
                         0);
    }
    for (unsigned i = 0; i < N_UPDATES || n_idle > 0; i++) {
        bool committed;

        one_update(&b, i, step + 1, &committed);
        step += committed;
        n_idle = 0;
        for (int k = 0; k <= N_READERS; k++)
            n_idle += atomic_load(&readers[k].n_read) == 0;
    }
    atomic_store(&stop, true);
    for (int i = 0; i <= N_READERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(readers[i].n_torn, 0);
        assert_int_equal(readers[i].n_mislabelled, 0);
    }
    fx_assert_step(b.store, step);
    bench_close(&b);
}

/* Out of order, and with more missing than are listed: what is told is always what is missing. */
static void test_missing_is_told_as_it_shrinks(void **state)
{
    static const unsigned masks[] = {0x40, 0x0c, 0x01, 0x20, 0x12};
    struct bench b;
    struct update_info info;
    unsigned mask = 0;

    (void)state;
    bench_open(&b);
    info = start(&b, (struct update_start){0});
    for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
        uint32_t n = 0;

        assert_int_equal(send_mask(&b, info.id, masks[i], 1), ERR_NONE);
        mask |= masks[i];
        for (uint32_t k = 0; k < FX_N; k++)
            if ((mask & 1U << k) == 0)
                assert_string_equal(b.answer.info.missing[n++], fx_model[k].name);
        assert_int_equal(b.answer.info.n_missing, n);
    }
    assert_int_equal(finish(&b, info.id, ""), ERR_NONE);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lease_lost_aborts_and_gives_memory_back),
        cmocka_unit_test(test_lease_is_renewed_by_use_and_held_by_a_running_chunk),
        cmocka_unit_test(test_abort_stops_a_blocked_fill),
        cmocka_unit_test(test_client_that_leaves_stops_a_blocked_fill),
        cmocka_unit_test(test_receive_deadline_ends_a_blocked_fill),
        cmocka_unit_test(test_free_answers_everything_that_waits),
        cmocka_unit_test(test_free_ends_an_open_session),
        cmocka_unit_test(test_memory_that_is_not_there_is_refused),
        cmocka_unit_test(test_memory_that_ends_half_way_takes_the_chunk_back),
        cmocka_unit_test(test_memory_of_a_version_that_is_read_is_waited_for),
        cmocka_unit_test(test_ended_updates_are_shown_for_a_while),
        cmocka_unit_test(test_auto_commit_session_commits_when_covered),
        cmocka_unit_test(test_commit_auto_finishes_what_is_open),
        cmocka_unit_test(test_auto_commit_session_takes_one_version),
        cmocka_unit_test(test_auto_commit_session_does_not_begin_with_the_last_end),
        cmocka_unit_test(test_missing_is_told_as_it_shrinks),
        cmocka_unit_test(test_updates_are_atomic_to_many_readers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
