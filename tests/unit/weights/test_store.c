/* weights/store and weights/staging: versions, pins, commits, and what an abort leaves behind. */
#include "tests/unit/weights_fixture.h"

#include <pthread.h>

enum { N_COMMITS = 200, N_READERS = 4 };

static struct checksum sum_of(struct store *s, const struct version *v, uint32_t index)
{
    struct checksum sum = {0};
    struct err e = {0};

    assert_int_equal(store_checksum(s, v, index, &sum, &e), 0);
    return sum;
}

static struct store *store_of(uint32_t n_versions, uint64_t nbytes_max)
{
    struct store_cfg cfg = {
        .model_spec = fx_model_spec(), .n_versions_max = n_versions, .nbytes_max = nbytes_max};
    struct store *s = NULL;
    struct err e = {0};

    assert_int_equal(store_new(&s, &cfg, &e), 0);
    return s;
}

/* Frees, and fails if a slab was lost. */
static void store_done(struct store *s)
{
    struct store_info info;
    struct slab_stats st;

    store_info(s, &info);
    slab_pool_stats(store_slabs(s, 0), &st);
    assert_true(info.serial != 0 || st.n_live == 0);
    assert_true(info.n_live <= 1);
    store_free(s); /* asserts that nothing is live */
}

static struct staging *stage(struct store *s, bool partial)
{
    struct staging_cfg cfg = {.partial = partial};
    struct staging *g = NULL;
    struct err e = {0};

    assert_int_equal(store_stage(s, &cfg, 0, NULL, &g, &e), 0);
    return g;
}

static enum err_code stage_refused(struct store *s, bool partial)
{
    struct staging_cfg cfg = {.partial = partial};
    struct staging *g = NULL;
    struct err e = {0};

    assert_int_equal(store_stage(s, &cfg, 0, NULL, &g, &e), -1);
    assert_null(g);
    return e.code;
}

/* Brings the tensors of `mask`, packed into one slab; of odd steps one by one, else at once. */
static void bring(struct staging *g, unsigned mask, unsigned step)
{
    struct tensor_list *tensor_list = fx_tensor_list_of(mask);
    struct dst_slot dst_slots[FX_N];
    struct slab *slab = NULL;
    struct err e = {0};
    size_t n = 0;

    assert_int_equal(staging_slab(g, tensor_list->nbytes + FX_N * 64, &slab, &e), 0);
    for (uint32_t i = 0; i < FX_N; i++) {
        uint64_t at;

        if (!(mask & 1U << i))
            continue;
        at = (slab->addr + tensor_list->tensors[n].offset + n * 64 + 63) / 64 * 64;
        (void)fx_bytes(fx_model[i].name, step, (unsigned char *)(uintptr_t)at);
        dst_slots[n++] = (struct dst_slot){.index = i, .offset = at - slab->addr};
        if (step % 2 == 1)
            assert_int_equal(staging_view(g, 0, i, slab, at, &e), 0);
    }
    if (step % 2 == 0)
        staging_views(g, 0, dst_slots, n, slab, slab->addr);
    slab_unref(slab);
    tensor_list_unref(tensor_list);
}

static void commit(struct store *s, struct staging *g, const char *label)
{
    struct store_stats stats;
    struct err e = {0};

    assert_int_equal(store_commit(s, g, label, &stats, &e), 0);
}

static void commit_step(struct store *s, unsigned step, const char *label)
{
    struct staging *g = stage(s, false);

    bring(g, FX_ALL, step);
    commit(s, g, label);
}

static struct store_info info_of(struct store *s)
{
    struct store_info info;

    store_info(s, &info);
    return info;
}

static enum err_code pin_refused(struct store *s)
{
    const struct version *v = NULL;
    struct err e = {0};

    assert_int_equal(store_pin(s, &v, &e), -1);
    assert_null(v);
    return e.code;
}

/* A version that was let go is freed by whoever reaps, and alive until then. */
static void test_store_let_go_frees_nothing(void **state)
{
    struct store *s = store_of(2, UINT64_MAX);
    const struct version *v;
    struct version_label *name;
    struct err e = {0};

    (void)state;
    commit_step(s, 1, "a");
    assert_int_equal(store_pin(s, &v, &e), 0);
    store_pin_again(s, v);
    assert_false(store_unpin_deferred(s, v));
    commit_step(s, 2, "b");
    assert_int_equal(info_of(s).n_live, 2);
    assert_int_equal(stage_refused(s, false), ERR_CONFLICT);
    name = version_label_ref(v->name);
    assert_true(store_unpin_deferred(s, v));
    assert_int_equal(info_of(s).n_live, 2);
    assert_int_equal(stage_refused(s, false), ERR_CONFLICT);
    store_reap(s);
    assert_int_equal(info_of(s).n_live, 1);
    store_reap(s);                        /* nothing to do */
    assert_string_equal(name->text, "a"); /* outlives the weights */
    version_label_unref(name);
    commit_step(s, 3, "c");
    store_done(s);
}

static void test_store_new_is_unsynced(void **state)
{
    struct store *s = store_of(2, UINT64_MAX);
    struct err e = {0};
    uint64_t serial = 0;

    (void)state;
    assert_int_equal(info_of(s).state, STORE_UNSYNCED);
    assert_int_equal(info_of(s).serial, 0);
    assert_int_equal(pin_refused(s), ERR_UNSYNCED);
    assert_false(store_wait_pinnable(s, CLOCK_NEVER)); /* only an update can help: no wait */
    assert_int_equal(store_set_label(s, "x", 0, &serial, &e), -1);
    assert_int_equal(e.code, ERR_UNSYNCED);
    assert_int_equal(stage_refused(s, true), ERR_UNSYNCED);
    store_unpin(s, NULL);
    store_abort(s, NULL);
    store_done(s);
    store_free(NULL);
}

static void test_store_commit_publishes_labels_and_serials(void **state)
{
    struct store *s = store_of(2, UINT64_MAX);
    char label[VERSION_LABEL_MAX + 1];

    (void)state;
    commit_step(s, 1, "");
    assert_int_equal(info_of(s).state, STORE_READY);
    assert_string_equal(info_of(s).label, "serial-1");
    fx_assert_step(s, 1);
    commit_step(s, 2, "step-2");
    commit_step(s, 3, "");
    assert_string_equal(info_of(s).label, "serial-3"); /* new weights, so not the old name */
    assert_int_equal(info_of(s).serial, 3);
    assert_int_equal(info_of(s).n_commits, 3);
    assert_int_equal(info_of(s).n_live, 1);
    assert_true(info_of(s).committed_at_us > 0);
    fx_assert_step(s, 3);
    assert_true(store_label_of(s, 1, label));
    assert_string_equal(label, "serial-1");
    assert_false(store_label_of(s, 4, label));
    assert_false(store_label_of(s, 0, label));
    for (unsigned i = 0; i < STORE_LABELS_KEPT; i++)
        commit_step(s, i, "late");
    assert_false(store_label_of(s, 1, label)); /* forgotten */
    assert_true(store_label_of(s, 4, label));
    store_done(s);
}

/* An older version's, which is known late, takes nothing away. */
static void test_store_keeps_the_digest_of_the_latest_version(void **state)
{
    struct store *s = store_of(2, UINT64_MAX);

    (void)state;
    commit_step(s, 1, "");
    store_note_content(s, 1, "first");
    assert_string_equal(info_of(s).content, "first");
    commit_step(s, 2, "");
    assert_string_equal(info_of(s).content, "");
    store_note_content(s, 2, "second");
    store_note_content(s, 1, "first");
    assert_string_equal(info_of(s).content, "second");
    store_done(s);
}

static void test_store_unpin_of_the_last_reader_frees_an_old_version(void **state)
{
    struct store *s = store_of(3, UINT64_MAX);
    const struct version *v = NULL, *again = NULL;
    struct slab_stats st;
    struct err e = {0};

    (void)state;
    commit_step(s, 1, "a");
    assert_int_equal(store_pin(s, &v, &e), 0);
    assert_int_equal(store_pin(s, &again, &e), 0);
    assert_ptr_equal(v, again);
    commit_step(s, 2, "b");
    assert_int_equal(info_of(s).n_live, 2);
    assert_string_equal(v->label, "a");
    assert_true(fx_is_step(v, 0, 1));
    store_unpin(s, v);
    assert_int_equal(info_of(s).n_live, 2);
    store_unpin(s, again);
    assert_int_equal(info_of(s).n_live, 1);
    slab_pool_stats(store_slabs(s, 0), &st);
    assert_true(st.nbytes_idle > 0); /* kept for the next update */
    fx_assert_step(s, 2);
    store_done(s);
}

static void test_store_stage_bounds_live_versions(void **state)
{
    struct store *s = store_of(2, UINT64_MAX);
    const struct version *v = NULL;
    struct staging *g;
    struct err e = {0};

    (void)state;
    commit_step(s, 1, "");
    assert_int_equal(store_pin(s, &v, &e), 0);
    g = stage(s, false);
    assert_int_equal(stage_refused(s, false), ERR_CONFLICT); /* one at a time */
    bring(g, FX_ALL, 2);
    commit(s, g, "");
    assert_int_equal(stage_refused(s, false), ERR_CONFLICT); /* v1 is still read */
    store_unpin(s, v);
    store_abort(s, stage(s, false));
    store_done(s);
}

static void test_store_commit_refuses_what_is_incomplete(void **state)
{
    struct store *s = store_of(2, UINT64_MAX);
    struct staging *g = stage(s, false);
    uint32_t missing[FX_N];
    struct store_stats stats;
    struct err e = {0};

    (void)state;
    bring(g, FX_ALL & ~((1U << 2) | (1U << 4)), 1);
    assert_int_equal(staging_missing(g, missing, FX_N), 2);
    assert_int_equal(missing[0], 2);
    assert_int_equal(missing[1], 4);
    assert_false(staging_has(g, 0, 2));
    assert_int_equal(store_commit(s, g, "x", &stats, &e), -1);
    assert_int_equal(e.code, ERR_INCOMPLETE);
    assert_non_null(strstr(e.msg, "2 of 7"));
    assert_non_null(strstr(e.msg, "layers.0.k"));
    assert_int_equal(info_of(s).state, STORE_UNSYNCED);
    bring(g, (1U << 2) | (1U << 4), 1); /* the staging stands */
    commit(s, g, "x");
    fx_assert_step(s, 1);
    store_done(s);
}

static void test_store_commit_refuses_a_partial_of_nothing(void **state)
{
    struct store *s = store_of(2, UINT64_MAX);
    struct staging *g;
    struct store_stats stats;
    struct err e = {0};

    (void)state;
    commit_step(s, 1, "a");
    g = stage(s, true);
    assert_int_equal(store_commit(s, g, "b", &stats, &e), -1);
    assert_int_equal(e.code, ERR_INCOMPLETE);
    store_abort(s, g);
    assert_string_equal(info_of(s).label, "a");
    store_done(s);
}

static void test_staging_view_refuses_a_second_arrival(void **state)
{
    struct store *s = store_of(2, UINT64_MAX);
    struct staging *g = stage(s, false);
    struct slab *slab = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(staging_slab(g, 256, &slab, &e), 0);
    assert_int_equal(staging_view(g, 0, 0, slab, slab->addr, &e), 0);
    assert_int_equal(staging_view(g, 0, 0, slab, slab->addr, &e), -1);
    assert_int_equal(e.code, ERR_PRECONDITION);
    assert_non_null(strstr(e.msg, "embed.weight"));
    slab_unref(slab);
    store_abort(s, g);
    store_done(s);
}

static void test_store_commit_partial_shares_untouched_tensors(void **state)
{
    struct store *s = store_of(2, UINT64_MAX);
    const struct version *old = NULL, *new = NULL;
    struct store_stats stats;
    struct staging *g;
    struct err e = {0};

    (void)state;
    commit_step(s, 1, "a");
    assert_int_equal(store_pin(s, &old, &e), 0);
    g = stage(s, true);
    bring(g, 1U << 4, 2);
    assert_int_equal(store_commit(s, g, "b", &stats, &e), 0);
    assert_int_equal(stats.n_updated, 1);
    assert_int_equal(stats.serial, 2);
    assert_int_equal(stats.n_live, 2);
    assert_int_equal(store_pin(s, &new, &e), 0);
    assert_ptr_equal(new->views[0].data, old->views[0].data);
    assert_int_equal(new->views[0].serial, 1);
    assert_int_equal(new->views[4].serial, 2);
    assert_true(fx_is_step(new, 4, 2));
    assert_true(fx_is_step(old, 4, 1));
    store_unpin(s, old); /* its shared slab lives on */
    for (uint32_t i = 0; i < FX_N; i++)
        assert_true(fx_is_step(new, i, i == 4 ? 2 : 1));
    store_unpin(s, new);
    store_done(s);
}

static void test_store_abort_gives_staged_memory_back(void **state)
{
    struct store *s = store_of(2, UINT64_MAX);
    struct slab_stats before, after;
    struct staging *g;

    (void)state;
    commit_step(s, 1, "a");
    slab_pool_stats(store_slabs(s, 0), &before);
    g = stage(s, false);
    bring(g, 7, 2);
    store_abort(s, g);
    slab_pool_stats(store_slabs(s, 0), &after);
    assert_int_equal(after.nbytes_live, before.nbytes_live);
    assert_int_equal(after.n_live, before.n_live);
    fx_assert_step(s, 1);
    store_done(s);
}

static void test_staging_slab_refuses_over_the_bound(void **state)
{
    struct store *s = store_of(2, 4096);
    struct staging *g = stage(s, false);
    struct slab *slab = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(staging_slab(g, 4097, &slab, &e), -1);
    assert_int_equal(e.code, ERR_NO_STAGING);
    store_abort(s, g);
    store_done(s);
}

static void test_store_set_label_keeps_bytes_and_serial(void **state)
{
    struct store *s = store_of(2, UINT64_MAX);
    const struct version *v = NULL, *renamed = NULL;
    char label[VERSION_LABEL_MAX + 1];
    struct err e = {0};
    uint64_t serial = 0;

    (void)state;
    commit_step(s, 1, "a");
    assert_int_equal(store_pin(s, &v, &e), 0);
    assert_int_equal(store_set_label(s, "b", 0, &serial, &e), 0);
    assert_int_equal(store_pin(s, &renamed, &e), 0);
    assert_string_equal(v->label, "a");
    assert_string_equal(renamed->label, "b");
    assert_int_equal(renamed->serial, v->serial);
    assert_ptr_equal(renamed->views[0].data, v->views[0].data);
    assert_true(store_label_of(s, 1, label));
    assert_string_equal(label, "b");
    store_unpin(s, v);
    store_unpin(s, renamed);
    assert_int_equal(info_of(s).n_live, 1);
    assert_int_equal(info_of(s).n_commits, 1);
    store_done(s);
}

static void test_store_set_label_only_of_that_serial(void **state)
{
    struct store *s = store_of(2, UINT64_MAX);
    struct err e = {0};
    uint64_t serial = 0;

    (void)state;
    commit_step(s, 1, "a");
    commit_step(s, 2, "b");
    assert_int_equal(store_set_label(s, "c", 1, &serial, &e), -1);
    assert_int_equal(e.code, ERR_PRECONDITION);
    assert_string_equal(e.field, "/if_serial");
    assert_int_equal(serial, 0);
    assert_string_equal(info_of(s).label, "b");
    err_clear(&e);
    assert_int_equal(store_set_label(s, "c", 2, &serial, &e), 0);
    assert_int_equal(serial, 2);
    assert_string_equal(info_of(s).label, "c");
    assert_int_equal(info_of(s).n_live, 1);
    store_done(s);
}

static void test_store_checksum_is_remembered(void **state)
{
    struct store *s = store_of(2, UINT64_MAX);
    const struct version *v = NULL;
    struct checksum first;
    struct staging *g;
    struct err e = {0};

    (void)state;
    commit_step(s, 1, "a");
    assert_int_equal(store_pin(s, &v, &e), 0);
    first = sum_of(s, v, 1);
    assert_true(checksum_equal(first, checksum_of(v->views[1].data, 128)));
    /* A reader may not write; this shows that the second call does not look at the bytes. */
    ((unsigned char *)(uintptr_t)v->views[1].data)[0] ^= 1;
    assert_true(checksum_equal(first, sum_of(s, v, 1)));
    ((unsigned char *)(uintptr_t)v->views[1].data)[0] ^= 1;
    store_unpin(s, v);
    g = stage(s, true);
    bring(g, 1U << 1, 2);
    commit(s, g, "");
    assert_int_equal(store_pin(s, &v, &e), 0);
    assert_true(checksum_equal(sum_of(s, v, 1), checksum_of(v->views[1].data, 128)));
    assert_false(checksum_equal(sum_of(s, v, 1), first));
    store_unpin(s, v);
    store_done(s);
}

/* Readers that pin, look and let go while versions change under them. */
struct reader {
    struct store *store;
    atomic_bool *stop;
    atomic_uint n_read; /* relaxed: so that the writer knows that everybody looked */
    unsigned n_torn, n_backwards, n_wrong;
};

static void *reader_main(void *arg)
{
    struct reader *r = arg;
    uint64_t last = 0;

    while (!atomic_load(r->stop)) {
        const struct version *v = NULL;
        struct err e = {0};

        if (store_pin(r->store, &v, &e) != 0) {
            r->n_wrong += e.code != ERR_CONFLICT;
            (void)store_wait_pinnable(r->store, CLOCK_NEVER);
            continue;
        }
        for (uint32_t i = 0; i < FX_N; i++)
            r->n_torn += !fx_is_step(v, i, (unsigned)v->serial);
        r->n_backwards += v->serial < last;
        last = v->serial;
        (void)sum_of(r->store, v, (uint32_t)(last % FX_N));
        (void)atomic_fetch_add(&r->n_read, 1);
        store_unpin(r->store, v);
    }
    return NULL;
}

static bool all_read(struct reader *readers)
{
    for (int i = 0; i < N_READERS; i++)
        if (atomic_load(&readers[i].n_read) < 10)
            return false;
    return true;
}

static void test_store_commits_are_atomic_to_readers(void **state)
{
    struct store *s = store_of(8, UINT64_MAX);
    struct reader readers[N_READERS];
    pthread_t threads[N_READERS];
    atomic_bool stop = false;
    unsigned step = 1;

    (void)state;
    commit_step(s, 1, "");
    for (int i = 0; i < N_READERS; i++) {
        readers[i] = (struct reader){.store = s, .stop = &stop};
        assert_int_equal(pthread_create(&threads[i], NULL, reader_main, &readers[i]), 0);
    }
    while (step < N_COMMITS || !all_read(readers)) {
        struct staging_cfg cfg = {0};
        struct staging *g = NULL;
        struct err e = {0};

        step++;
        assert_int_equal(store_stage(s, &cfg, CLOCK_NEVER, NULL, &g, &e), 0);
        bring(g, FX_ALL, step);
        commit(s, g, "");
    }
    atomic_store(&stop, true);
    for (int i = 0; i < N_READERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(readers[i].n_torn, 0);
        assert_int_equal(readers[i].n_backwards, 0);
        assert_int_equal(readers[i].n_wrong, 0);
    }
    fx_assert_step(s, step);
    assert_int_equal(info_of(s).n_live, 1);
    store_done(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_new_is_unsynced),
        cmocka_unit_test(test_store_let_go_frees_nothing),
        cmocka_unit_test(test_store_commit_publishes_labels_and_serials),
        cmocka_unit_test(test_store_keeps_the_digest_of_the_latest_version),
        cmocka_unit_test(test_store_unpin_of_the_last_reader_frees_an_old_version),
        cmocka_unit_test(test_store_stage_bounds_live_versions),
        cmocka_unit_test(test_store_commit_refuses_what_is_incomplete),
        cmocka_unit_test(test_store_commit_refuses_a_partial_of_nothing),
        cmocka_unit_test(test_staging_view_refuses_a_second_arrival),
        cmocka_unit_test(test_store_commit_partial_shares_untouched_tensors),
        cmocka_unit_test(test_store_abort_gives_staged_memory_back),
        cmocka_unit_test(test_staging_slab_refuses_over_the_bound),
        cmocka_unit_test(test_store_set_label_keeps_bytes_and_serial),
        cmocka_unit_test(test_store_set_label_only_of_that_serial),
        cmocka_unit_test(test_store_checksum_is_remembered),
        cmocka_unit_test(test_store_commits_are_atomic_to_readers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
