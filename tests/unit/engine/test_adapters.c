/* Which adapters there are: names, revisions, limits, users; and many threads at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/engine/adapter_fixture.h"

#include "engine/lora/adapters.h"

#include <pthread.h>

static const char *const base_names[] = {"base", "org/base", NULL};

static struct adapters *set_new(uint32_t n_max, uint64_t nbytes_max)
{
    struct adapters_config cfg = {
        .n_max = n_max, .rank_max = 8, .nbytes_max = nbytes_max, .base_names = base_names};
    struct adapters *s = NULL;
    struct err e = {0};

    assert_int_equal(adapters_new(&s, &cfg, &e), 0);
    return s;
}

static struct adapter *any(uint64_t seed)
{
    struct model_config m = small_model();

    return adapter_made(&m, 1U << ADAPTER_Q, 4, DTYPE_F32, seed);
}

static int load(struct adapters *s, const char *name, struct adapter *a,
                const struct adapters_options *o, struct adapters_outcome *out, struct err *e)
{
    static const struct adapters_options none = {.path = "/somewhere"};
    struct adapters_outcome ignored;
    struct adapters_load *l = NULL;

    if (adapters_begin(s, name, o != NULL ? o : &none, &l, e) != 0) {
        adapter_free(a);
        return -1;
    }
    return adapters_put(l, a, out != NULL ? out : &ignored, e);
}

static void loads(struct adapters *s, const char *name, uint64_t seed, uint64_t revision)
{
    struct adapters_outcome out = {0};
    struct err e = {0};

    if (load(s, name, any(seed), NULL, &out, &e) != 0)
        fail_msg("%s", e.msg);
    assert_int_equal(out.revision, revision);
}

static void unloads(struct adapters *s, const char *name, uint64_t revision, uint64_t n_users)
{
    struct adapters_unloaded out = {0};
    struct err e = {0};

    assert_int_equal(adapters_unload(s, name, &out, &e), 0);
    assert_int_equal(out.revision, revision);
    assert_int_equal(out.n_users, n_users);
}

static void test_begin_refuses_names(void **state)
{
    char longest[ADAPTERS_NAME_LEN_MAX + 2];
    const char *const bad[] = {"", longest, "a\nb", "\x7f", "\xff", "\xc0\xaf", "base", "org/base"};
    struct adapters *s = set_new(8, UINT64_MAX / 2);

    (void)state;
    memset(longest, 'a', sizeof longest);
    longest[ADAPTERS_NAME_LEN_MAX + 1] = '\0';
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err e = {0};

        assert_int_equal(load(s, bad[i], any(1), NULL, NULL, &e), -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_string_equal(e.field, "/lora_name");
    }
    longest[ADAPTERS_NAME_LEN_MAX] = '\0';
    loads(s, longest, 1, 1);
    loads(s, "Base", 1, 1);
    loads(s, "\xc3\xa4 name / with: anything", 1, 1);
    adapters_free(s);
    assert_int_equal(atomic_load(&nbytes_mapped), 0);
}

static void test_put_counts_revisions_and_never_repeats_one(void **state)
{
    struct adapters *s = set_new(8, UINT64_MAX / 2);
    struct adapters_outcome out = {0};
    struct adapter_ref ref = {0};
    struct err e = {0};

    (void)state;
    loads(s, "a", 1, 1);
    loads(s, "a", 2, 2);
    assert_int_equal(load(s, "a", any(2), NULL, &out, &e), 0);
    assert_true(out.unchanged && !out.replaced && out.revision == 2);
    loads(s, "a", 1, 3); /* an older content is a new revision */
    loads(s, "b", 1, 1);
    unloads(s, "a", 3, 0);
    assert_int_equal(adapters_pin(s, "a", &ref, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    assert_string_equal(e.field, "/model");
    err_clear(&e);
    loads(s, "a", 1, 4);
    loads(s, "b", 2, 2);
    assert_int_equal(adapters_unload(s, "c", &(struct adapters_unloaded){0}, &e), -1);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    adapters_free(s);
    assert_int_equal(atomic_load(&nbytes_mapped), 0);
}

static void test_put_honours_the_options(void **state)
{
    static const struct {
        struct adapters_options o;
        const char *name;
        enum err_code code; /* ERR_NONE: it is loaded */
        uint64_t revision;
    } rows[] = {
        {{.has_if_revision = true, .if_revision = 1}, "a", ERR_PRECONDITION, 0},
        {{.has_if_revision = true, .if_revision = 0}, "a", ERR_NONE, 1},
        {{.has_if_revision = true, .if_revision = 0}, "a", ERR_PRECONDITION, 0},
        {{.has_if_revision = true, .if_revision = 2}, "a", ERR_PRECONDITION, 0},
        {{.has_if_revision = true, .if_revision = 1}, "a", ERR_NONE, 2},
        {{.only_new = true}, "a", ERR_BAD_REQUEST, 0},
        {{.only_new = true}, "b", ERR_NONE, 1},
    };
    struct adapters *s = set_new(8, UINT64_MAX / 2);

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct adapters_outcome out = {0};
        struct err e = {0};
        int rc = load(s, rows[i].name, any(10 + i), &rows[i].o, &out, &e);

        assert_int_equal(e.code, rows[i].code);
        assert_int_equal(rc, rows[i].code == ERR_NONE ? 0 : -1);
        assert_int_equal(out.revision, rows[i].revision);
    }
    adapters_free(s);
}

/* Two loads of one name at once: the later put wins, unless it said what it expects. */
static void test_overlapping_loads_are_ordered_by_their_puts(void **state)
{
    struct adapters *s = set_new(1, UINT64_MAX / 2);
    struct adapters_options cas = {.has_if_revision = true, .if_revision = 0}, plain = {0};
    struct adapters_load *first = NULL, *second = NULL, *third = NULL, *other = NULL;
    struct adapters_outcome out = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(adapters_begin(s, "a", &plain, &first, &e), 0);
    assert_int_equal(adapters_begin(s, "a", &cas, &second, &e), 0);
    assert_int_equal(adapters_begin(s, "a", &plain, &third, &e), 0);
    assert_int_equal(adapters_begin(s, "b", &plain, &other, &e), -1); /* a place is a name */
    assert_int_equal(e.code, ERR_CONFLICT);
    err_clear(&e);
    assert_int_equal(adapters_put(third, any(3), &out, &e), 0);
    assert_int_equal(out.revision, 1);
    assert_int_equal(adapters_put(second, any(2), &out, &e), -1);
    assert_int_equal(e.code, ERR_PRECONDITION);
    assert_string_equal(e.field, "/if_revision");
    err_clear(&e);
    unloads(s, "a", 1, 0); /* does not stop a load under way */
    assert_int_equal(adapters_put(first, any(1), &out, &e), 0);
    assert_true(out.revision == 2 && !out.replaced);
    unloads(s, "a", 2, 0);
    loads(s, "b", 1, 3);
    adapters_free(s);
    assert_int_equal(atomic_load(&nbytes_mapped), 0);
}

static void test_limits_hold_for_loads_at_once(void **state)
{
    struct adapter *probe = any(1);
    uint64_t each = adapter_nbytes(probe);
    struct adapters *s = set_new(3, 3 * each);
    struct adapters_load *l[3] = {0};
    struct adapters_options plain = {0};
    struct adapters_gauges g;
    struct adapter_ref ref = {0};
    struct err e = {0};

    (void)state;
    adapter_free(probe);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(adapters_begin(s, (const char *[]){"a", "b", "c"}[i], &plain, &l[i], &e),
                         0);
    assert_int_equal(adapters_reserve(l[0], 2 * each, &e), 0);
    assert_int_equal(adapters_reserve(l[1], 2 * each, &e), -1);
    assert_int_equal(e.code, ERR_NO_STAGING);
    err_clear(&e);
    assert_int_equal(adapters_reserve(l[0], each, &e), 0); /* in place of the first */
    assert_int_equal(adapters_reserve(l[1], 2 * each, &e), 0);
    assert_int_equal(adapters_reserve(l[2], 1, &e), -1);
    err_clear(&e);
    assert_int_equal(adapters_reserve(l[2], UINT64_MAX, &e), -1);
    assert_int_equal(e.code, ERR_TOO_LARGE);
    err_clear(&e);
    assert_int_equal(adapters_put(l[2], any(3), &(struct adapters_outcome){0}, &e), -1);
    assert_int_equal(e.code, ERR_NO_STAGING);
    err_clear(&e);
    adapters_cancel(l[1]);
    assert_int_equal(adapters_put(l[0], any(1), &(struct adapters_outcome){0}, &e), 0);
    adapters_gauges(s, &g);
    assert_true(g.nbytes == each && g.nbytes_reserved == 0 && g.n_loaded == 1 && g.n_loading == 0);
    /* Older revisions in use count: nothing is evicted. */
    assert_int_equal(adapters_pin(s, "a", &ref, &e), 0);
    loads(s, "a", 2, 2);
    loads(s, "b", 2, 1);
    assert_int_equal(load(s, "c", any(2), NULL, NULL, &e), -1);
    assert_int_equal(e.code, ERR_NO_STAGING);
    err_clear(&e);
    adapters_unpin(s, &ref);
    adapters_unpin(s, &ref); /* zeroed: nothing */
    loads(s, "c", 2, 1);
    assert_int_equal(load(s, "d", any(2), NULL, NULL, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_non_null(strstr(e.msg, "--max-loras"));
    adapters_free(s);
    assert_int_equal(atomic_load(&nbytes_mapped), 0);
}

static void test_put_refuses_a_rank_over_the_limit(void **state)
{
    struct model_config m = small_model();
    struct adapters *s = set_new(3, UINT64_MAX / 2);
    struct err e = {0};

    (void)state;
    assert_int_equal(load(s, "a", adapter_made(&m, 1, 9, DTYPE_F32, 1), NULL, NULL, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    adapters_free(s);
    assert_int_equal(atomic_load(&nbytes_mapped), 0);
}

/* Users keep what they pinned, are counted by revision, and the last gives the memory back. */
static void test_pins_outlive_reload_and_unload(void **state)
{
    struct adapters *s = set_new(3, UINT64_MAX / 2);
    struct adapters_options pinned = {.pinned = true, .path = "/p"};
    struct adapter_ref old = {0}, old_too = {0}, young = {0};
    struct adapters_outcome out = {0};
    struct adapters_list list = {0};
    struct adapters_gauges g;
    struct err e = {0};
    char digest[ADAPTER_DIGEST_LEN + 1];
    long with_two;

    (void)state;
    loads(s, "a", 1, 1);
    assert_int_equal(adapters_pin(s, "a", &old, &e), 0);
    assert_int_equal(adapters_pin(s, "a", &old_too, &e), 0);
    (void)snprintf(digest, sizeof digest, "%s", adapter_digest(old.adapter));
    assert_int_equal(load(s, "a", any(2), &pinned, &out, &e), 0);
    assert_true(out.revision == 2 && out.replaced && out.n_users == 2);
    assert_int_equal(adapters_pin(s, "a", &young, &e), 0);
    assert_true(young.revision == 2 && old.revision == 1 && young.adapter != old.adapter);
    assert_true(adapters_serves(s, &young) && !adapters_serves(s, &old));
    loads(s, "b", 2, 1);
    assert_int_equal(adapters_list(s, &list, &e), 0);
    assert_int_equal(list.n, 2);
    assert_string_equal(list.items[0].name, "a");
    assert_string_equal(list.items[0].path, "/p");
    assert_string_equal(list.items[1].name, "b");
    assert_string_equal(list.items[0].digest, list.items[1].digest);
    assert_true(list.items[0].pinned && !list.items[1].pinned);
    assert_true(list.items[0].n_users == 1 && list.items[0].n_users_older == 2);
    assert_true(list.items[0].rank == 4 && list.items[0].loaded_at > 0);
    adapters_list_fini(&list);
    unloads(s, "a", 2, 3);
    assert_false(adapters_serves(s, &young));
    assert_string_equal(adapter_digest(old.adapter), digest);
    assert_string_equal(young.name, "a");
    adapters_gauges(s, &g);
    assert_true(g.n_older == 2 && g.n_pinned_refs == 3 && g.n_loaded == 1);
    with_two = atomic_load(&nbytes_mapped);
    adapters_unpin(s, &old);
    assert_int_equal(atomic_load(&nbytes_mapped), with_two);
    adapters_unpin(s, &old_too);
    assert_true(atomic_load(&nbytes_mapped) < with_two);
    adapters_unpin(s, &young);
    adapters_gauges(s, &g);
    assert_int_equal(g.n_older, 0);
    unloads(s, "b", 1, 0);
    adapters_gauges(s, &g);
    assert_int_equal(g.nbytes, 0);
    assert_int_equal(atomic_load(&nbytes_mapped), 0);
    adapters_free(s);
}

static void test_list_is_empty_before_and_after(void **state)
{
    struct adapters *s = set_new(3, UINT64_MAX / 2);
    struct adapters_load *l = NULL;
    struct adapters_list list = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(adapters_begin(s, "a", &(struct adapters_options){0}, &l, &e), 0);
    assert_int_equal(adapters_list(s, &list, &e), 0);
    assert_int_equal(list.n, 0);
    adapters_list_fini(&list);
    adapters_cancel(l);
    adapters_cancel(NULL);
    adapters_free(s);
    adapters_free(NULL);
}

/* ---- many threads ---- */

enum { N_RELOADS = 1000, N_USERS = 3, N_HELD = 4, A_NBYTES = 4 * 20 * 4 };

struct crowd {
    struct adapters *set;
    struct {
        char digest[ADAPTER_DIGEST_LEN + 1], a[A_NBYTES];
    } made[N_RELOADS + 1]; /* [revision]: what it holds */
    atomic_bool done;
    atomic_uint n_pins, n_wrong, n_older;
};

/* Is what is pinned the revision that it says, whole? */
static bool right(const struct crowd *c, const struct adapter_ref *ref)
{
    const struct adapter_pair *p = adapter_pair(ref->adapter, 1, ADAPTER_Q);

    return strcmp(adapter_digest(ref->adapter), c->made[ref->revision].digest) == 0 &&
           memcmp(p->a, c->made[ref->revision].a, A_NBYTES) == 0;
}

static void *use(void *arg)
{
    struct crowd *c = arg;
    struct adapter_ref held[N_HELD] = {0};
    uint64_t last = 0;

    for (unsigned i = 0; !atomic_load(&c->done) || i < 100; i++) {
        struct adapter_ref *ref = &held[i % N_HELD];
        struct err e = {0};

        if (ref->held != NULL && !right(c, ref))
            (void)atomic_fetch_add(&c->n_wrong, 1);
        if (ref->held != NULL && ref->revision < last)
            (void)atomic_fetch_add(&c->n_older, 1);
        adapters_unpin(c->set, ref);
        if (adapters_pin(c->set, "policy", ref, &e) != 0 || ref->revision < last || !right(c, ref))
            (void)atomic_fetch_add(&c->n_wrong, 1);
        last = ref->revision;
        (void)atomic_fetch_add(&c->n_pins, 1);
    }
    for (size_t i = 0; i < N_HELD; i++)
        adapters_unpin(c->set, &held[i]);
    return NULL;
}

static void *watch(void *arg)
{
    struct crowd *c = arg;

    while (!atomic_load(&c->done)) {
        struct adapters_list list = {0};
        struct err e = {0};

        if (adapters_list(c->set, &list, &e) != 0 || list.n != 1 ||
            strcmp(list.items[0].digest, c->made[list.items[0].revision].digest) != 0)
            (void)atomic_fetch_add(&c->n_wrong, 1);
        adapters_list_fini(&list);
    }
    return NULL;
}

static void test_reloads_against_pins(void **state)
{
    struct crowd *c = calloc(1, sizeof *c);
    pthread_t users[N_USERS], watcher;
    struct adapters_gauges g;
    uint64_t each = 0;

    (void)state;
    assert_non_null(c);
    c->set = set_new(2, UINT64_MAX / 2);
    for (uint64_t i = 1; i <= N_RELOADS; i++) {
        struct adapter *a = any(i);

        each = adapter_nbytes(a);
        memcpy(c->made[i].digest, adapter_digest(a), sizeof c->made[i].digest);
        memcpy(c->made[i].a, adapter_pair(a, 1, ADAPTER_Q)->a, A_NBYTES);
        adapter_free(a);
    }
    assert_int_equal(load(c->set, "policy", any(1), NULL, NULL, &(struct err){0}), 0);
    for (size_t i = 0; i < N_USERS; i++)
        assert_int_equal(pthread_create(&users[i], NULL, use, c), 0);
    assert_int_equal(pthread_create(&watcher, NULL, watch, c), 0);
    for (uint64_t i = 2; i <= N_RELOADS; i++) {
        struct adapters_outcome out = {0};
        struct err e = {0};
        unsigned seen = atomic_load(&c->n_pins);

        assert_int_equal(load(c->set, "policy", any(i), NULL, &out, &e), 0);
        assert_int_equal(out.revision, i);
        while (i % 4 == 0 && atomic_load(&c->n_pins) == seen)
            (void)sched_yield(); /* so that revisions are really used */
    }
    atomic_store(&c->done, true);
    for (size_t i = 0; i < N_USERS; i++)
        assert_int_equal(pthread_join(users[i], NULL), 0);
    assert_int_equal(pthread_join(watcher, NULL), 0);
    assert_int_equal(atomic_load(&c->n_wrong), 0);
    assert_true(atomic_load(&c->n_older) > 0); /* some were held over a reload */
    adapters_gauges(c->set, &g);
    assert_true(g.n_older == 0 && g.n_pinned_refs == 0 && g.nbytes == each);
    unloads(c->set, "policy", N_RELOADS, 0);
    adapters_gauges(c->set, &g);
    assert_int_equal(g.nbytes, 0);
    assert_int_equal(atomic_load(&nbytes_mapped), 0);
    adapters_free(c->set);
    free(c);
}

struct racer {
    struct adapters *set;
    pthread_t thread;
    atomic_uint *n_won, *n_tried;
};

/* Each of several loads the next revision by compare-and-swap until it has won 50 times. */
static void *race(void *arg)
{
    struct racer *r = arg;

    for (uint64_t n = 0; n < 50;) {
        struct adapters_options o = {.has_if_revision = true};
        struct adapters_outcome out = {0};
        struct adapter_ref ref = {0};
        struct err e = {0};

        if (adapters_pin(r->set, "a", &ref, &e) == 0)
            o.if_revision = ref.revision;
        adapters_unpin(r->set, &ref);
        err_clear(&e);
        if (load(r->set, "a", any(atomic_fetch_add(r->n_tried, 1)), &o, &out, &e) == 0) {
            n++;
            (void)atomic_fetch_add(r->n_won, 1);
        } else if (e.code != ERR_PRECONDITION) {
            return r;
        }
    }
    return NULL;
}

static void test_compare_and_swap_loses_no_revision(void **state)
{
    enum { N = 4 };
    struct adapters *s = set_new(2, UINT64_MAX / 2);
    struct racer racers[N];
    struct adapters_unloaded out = {0};
    atomic_uint n_won = 0, n_tried = 0;
    struct err e = {0};

    (void)state;
    for (size_t i = 0; i < N; i++) {
        racers[i] = (struct racer){.set = s, .n_won = &n_won, .n_tried = &n_tried};
        assert_int_equal(pthread_create(&racers[i].thread, NULL, race, &racers[i]), 0);
    }
    for (size_t i = 0; i < N; i++) {
        void *failed;

        assert_int_equal(pthread_join(racers[i].thread, &failed), 0);
        assert_null(failed);
    }
    assert_int_equal(adapters_unload(s, "a", &out, &e), 0);
    assert_int_equal(out.revision, atomic_load(&n_won));
    adapters_free(s);
    assert_int_equal(atomic_load(&nbytes_mapped), 0);
}

static void test_every_failed_allocation_leaves_what_served(void **state)
{
    struct adapters *s = set_new(2, UINT64_MAX / 2);
    struct adapters_options o = {.path = "/p"};
    struct adapters_gauges g;
    int rc = -1;

    (void)state;
    loads(s, "a", 1, 1);
    for (long n = 0; rc != 0; n++) {
        struct adapter *a = any(2);
        struct adapters_outcome out = {0};
        struct adapters_list list = {0};
        struct err e = {0};

        assert_true(n < 100);
        fail_nth(n);
        rc = load(s, "a", a, &o, &out, &e);
        if (rc == 0)
            rc = adapters_list(s, &list, &e);
        fail_nth(-1);
        assert_true(rc == 0 || e.code == ERR_NO_MEMORY);
        adapters_list_fini(&list);
        adapters_gauges(s, &g);
        assert_true(g.n_loaded == 1 && g.n_loading == 0 && g.nbytes_reserved == 0);
        assert_int_equal(out.revision, rc == 0 ? 2 : out.revision);
    }
    adapters_free(s);
    assert_int_equal(atomic_load(&nbytes_mapped), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_begin_refuses_names),
        cmocka_unit_test(test_put_counts_revisions_and_never_repeats_one),
        cmocka_unit_test(test_put_honours_the_options),
        cmocka_unit_test(test_overlapping_loads_are_ordered_by_their_puts),
        cmocka_unit_test(test_limits_hold_for_loads_at_once),
        cmocka_unit_test(test_put_refuses_a_rank_over_the_limit),
        cmocka_unit_test(test_pins_outlive_reload_and_unload),
        cmocka_unit_test(test_list_is_empty_before_and_after),
        cmocka_unit_test(test_reloads_against_pins),
        cmocka_unit_test(test_compare_and_swap_loses_no_revision),
        cmocka_unit_test(test_every_failed_allocation_leaves_what_served),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
