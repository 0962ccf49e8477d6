/* weights/slab: bounds, reuse, and that nothing is lost; from any memory. */
#include "memory/slab.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

enum { PAGE = 4096, BIG = 5 << 20 };

static struct slab_pool *pool_of(uint64_t nbytes_max, uint64_t nbytes_idle)
{
    struct slab_pool *p = NULL;
    struct err e = {0};

    assert_int_equal(slab_pool_new(&p, NULL, nbytes_max, nbytes_idle, &e), 0);
    return p;
}

static struct slab *slab_of(struct slab_pool *p, uint64_t nbytes)
{
    struct slab *s = NULL;
    struct err e = {0};

    assert_int_equal(slab_new(&s, p, nbytes, &e), 0);
    assert_int_equal(s->nbytes, nbytes);
    assert_int_equal((uintptr_t)s->base % PAGE, 0);
    memset(s->base, 0xa5, nbytes);
    return s;
}

static void assert_stats(struct slab_pool *p, uint64_t live, uint64_t idle, uint64_t n_live)
{
    struct slab_stats st;

    slab_pool_stats(p, &st);
    assert_int_equal(st.nbytes_live, live);
    assert_int_equal(st.nbytes_idle, idle);
    assert_int_equal(st.n_live, n_live);
}

static void test_slab_new_gives_usable_memory_of_any_size(void **state)
{
    struct slab_pool *p = pool_of(UINT64_MAX, 0);
    const uint64_t sizes[] = {0, 1, PAGE, PAGE + 1, BIG, BIG + 12345};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        slab_unref(slab_of(p, sizes[i]));
    slab_unref(NULL);
    assert_stats(p, 0, 0, 0);
    slab_pool_free(p);
    slab_pool_free(NULL);
}

static void test_slab_unref_frees_only_after_the_last_reference(void **state)
{
    struct slab_pool *p = pool_of(UINT64_MAX, 0);
    struct slab *s = slab_of(p, BIG);

    (void)state;
    assert_ptr_equal(slab_ref(s), s);
    slab_unref(s);
    assert_stats(p, BIG, 0, 1);
    assert_int_equal(((unsigned char *)s->base)[BIG - 1], 0xa5);
    slab_unref(s);
    assert_stats(p, 0, 0, 0);
    slab_pool_free(p);
}

/* It is still there, for whoever writes to it; the pool has forgotten it. */
static void test_slab_quarantine_keeps_the_memory_from_everybody(void **state)
{
    struct slab_pool *p = pool_of(UINT64_MAX, 4 * PAGE);
    struct slab *s = slab_of(p, PAGE), *other;
    unsigned char *base = s->base;

    (void)state;
    (void)slab_ref(s);
    slab_quarantine(s);
    slab_quarantine(s);
    slab_unref(s);
    assert_stats(p, PAGE, 0, 1);
    slab_unref(s);
    assert_stats(p, 0, 0, 0);
    other = slab_of(p, PAGE);
    assert_ptr_not_equal(other->base, base);
    slab_unref(other);
    slab_pool_free(p);
    assert_int_equal(base[PAGE - 1], 0xa5);
    assert_int_equal(munmap(base, PAGE), 0);
}

static void test_slab_new_uses_idle_memory_of_equal_size(void **state)
{
    struct slab_pool *p = pool_of(UINT64_MAX, 4 * PAGE);
    struct slab *a = slab_of(p, 2 * PAGE), *b;
    void *base = a->base;

    (void)state;
    slab_unref(a);
    assert_stats(p, 0, 2 * PAGE, 0);
    b = slab_of(p, 2 * PAGE - 5); /* same pages */
    assert_ptr_equal(b->base, base);
    assert_stats(p, 2 * PAGE, 0, 1);
    slab_unref(b);
    slab_pool_free(p);
}

static void test_slab_new_drops_idle_memory_of_other_sizes(void **state)
{
    struct slab_pool *p = pool_of(UINT64_MAX, 8 * PAGE);
    struct slab *a = slab_of(p, PAGE), *b = slab_of(p, 2 * PAGE), *c;

    (void)state;
    slab_unref(a);
    slab_unref(b);
    assert_stats(p, 0, 3 * PAGE, 0);
    c = slab_of(p, 3 * PAGE);
    assert_stats(p, 3 * PAGE, 0, 1);
    slab_unref(c);
    slab_pool_free(p);
}

static void test_slab_unref_keeps_no_more_idle_than_the_bound(void **state)
{
    struct slab_pool *p = pool_of(UINT64_MAX, 3 * PAGE);
    struct slab *a = slab_of(p, 2 * PAGE), *b = slab_of(p, 2 * PAGE), *c = slab_of(p, PAGE);

    (void)state;
    slab_unref(a);
    slab_unref(b);
    slab_unref(c);
    assert_stats(p, 0, 3 * PAGE, 0);
    slab_pool_free(p);
}

static void test_slab_new_refuses_over_the_bound(void **state)
{
    struct slab_pool *p = pool_of(4 * PAGE, 4 * PAGE);
    struct slab *a = slab_of(p, 3 * PAGE), *b = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(slab_new(&b, p, 2 * PAGE, &e), -1);
    assert_int_equal(e.code, ERR_NO_STAGING);
    assert_non_null(strstr(e.msg, "8192"));
    assert_non_null(strstr(e.msg, "4096"));
    assert_null(b);
    assert_stats(p, 3 * PAGE, 0, 1);
    slab_unref(a);
    slab_unref(slab_of(p, 4 * PAGE));
    slab_pool_free(p);
}

static void test_slab_new_refuses_what_no_address_space_holds(void **state)
{
    struct slab_pool *p = pool_of(UINT64_MAX, 0);
    const uint64_t sizes[] = {UINT64_MAX, UINT64_MAX - PAGE, INT64_MAX, UINT64_C(1) << 60};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct slab *s = NULL;
        struct err e = {0}, checked = {0};

        assert_int_equal(slab_new(&s, p, sizes[i], &e), -1);
        assert_int_equal(e.code, ERR_NO_STAGING);
        assert_int_equal(slab_pool_check(p, sizes[i], &checked), -1);
        assert_int_equal(checked.code, ERR_NO_STAGING);
    }
    assert_stats(p, 0, 0, 0);
    slab_pool_free(p);
}

static void test_slab_pool_check_knows_the_bound_and_the_machine(void **state)
{
    struct slab_pool *p = pool_of(4 * PAGE, PAGE), *open = pool_of(UINT64_MAX, 0);
    struct slab *a = slab_of(p, PAGE);
    struct err e = {0};

    (void)state;
    assert_int_equal(slab_pool_check(p, 3 * PAGE, &e), 0);
    assert_int_equal(slab_pool_check(p, 3 * PAGE + 1, &e), -1);
    assert_int_equal(e.code, ERR_NO_STAGING);
    assert_non_null(strstr(e.msg, "--max-weight-bytes"));
    err_clear(&e);
    assert_int_equal(slab_pool_check(open, PAGE, &e), 0);
    assert_int_equal(slab_pool_check(open, UINT64_C(1) << 50, &e), -1); /* a petabyte */
    assert_null(strstr(e.msg, "--max-weight-bytes"));
    slab_unref(a);
    slab_pool_free(p);
    slab_pool_free(open);
}

/* Memory that is numbers only: whoever touches it dies. */
struct numbers {
    struct slab_memory ops;
    uint64_t next, nbytes_taken, nbytes_room;
    int n_takes, n_gives;
};

static int numbers_take(void *arg, uint64_t nbytes, uint64_t *addr, struct err *e)
{
    struct numbers *m = arg;

    assert_int_equal(nbytes % m->ops.granule_nbytes, 0);
    m->n_takes++;
    if (nbytes > m->nbytes_room)
        return err_set(e, ERR_NO_STAGING, "", "no more numbers");
    m->nbytes_room -= nbytes;
    m->nbytes_taken += nbytes;
    *addr = m->next;
    m->next += nbytes;
    return 0;
}

static void numbers_give(void *arg, uint64_t addr, uint64_t nbytes)
{
    struct numbers *m = arg;

    assert_true(addr >= 4096 && addr + nbytes <= m->next);
    m->n_gives++;
    m->nbytes_room += nbytes;
    m->nbytes_taken -= nbytes;
}

static struct memory_room numbers_room(void *arg)
{
    const struct numbers *m = arg;

    return (struct memory_room){m->nbytes_room, "the numbers"};
}

enum { GRANULE = 1000 };

static struct slab_pool *pool_of_numbers(struct numbers *m, uint64_t nbytes_room,
                                         uint64_t nbytes_max, uint64_t nbytes_idle)
{
    struct slab_pool *p = NULL;
    struct err e = {0};

    *m = (struct numbers){.ops = {.take = numbers_take,
                                  .give = numbers_give,
                                  .room = numbers_room,
                                  .granule_nbytes = GRANULE,
                                  .arg = m},
                          .next = 4096,
                          .nbytes_room = nbytes_room};
    assert_int_equal(slab_pool_new(&p, &m->ops, nbytes_max, nbytes_idle, &e), 0);
    return p;
}

static void test_slab_new_takes_whole_granules_of_the_memory(void **state)
{
    struct numbers m;
    struct slab_pool *p = pool_of_numbers(&m, 10 * GRANULE, UINT64_MAX, 2 * GRANULE);
    struct slab *a = NULL, *b = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(slab_new(&a, p, GRANULE + 1, &e), 0);
    assert_int_equal(a->nbytes, GRANULE + 1);
    assert_int_equal(a->addr, 4096);
    assert_int_equal(slab_new(&b, p, 0, &e), 0); /* an address of its own */
    assert_int_equal(b->addr, 4096 + 2 * GRANULE);
    assert_stats(p, 3 * GRANULE, 0, 2);
    slab_unref(a);
    assert_stats(p, GRANULE, 2 * GRANULE, 1);
    assert_int_equal(m.n_gives, 0);
    assert_int_equal(slab_new(&a, p, 2 * GRANULE, &e), 0); /* the idle one */
    assert_int_equal(m.n_takes, 2);
    slab_unref(a);
    slab_unref(b); /* over the bound of what is kept */
    assert_int_equal(m.n_gives, 1);
    slab_pool_free(p);
    assert_int_equal(m.n_gives, 2);
    assert_int_equal(m.nbytes_taken, 0);
}

static void test_slab_new_passes_on_why_the_memory_refuses(void **state)
{
    struct numbers m;
    struct slab_pool *p = pool_of_numbers(&m, 3 * GRANULE, UINT64_MAX, UINT64_MAX);
    struct slab *a = NULL, *b = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(slab_new(&a, p, 4 * GRANULE, &e), -1);
    assert_int_equal(e.code, ERR_NO_STAGING);
    assert_string_equal(e.msg, "no more numbers");
    assert_null(a);
    assert_stats(p, 0, 0, 0);
    err_clear(&e);
    assert_int_equal(slab_new(&a, p, 2 * GRANULE, &e), 0);
    slab_unref(a);
    assert_int_equal(slab_new(&b, p, 3 * GRANULE, &e), 0); /* the idle two make room */
    assert_stats(p, 3 * GRANULE, 0, 1);
    slab_unref(b);
    slab_pool_free(p);
    assert_int_equal(m.nbytes_taken, 0);
}

static void test_slab_pool_room_is_what_check_accepts(void **state)
{
    static const struct {
        uint64_t room, max, nbytes;
        const char *bound;
    } rows[] = {
        {5 * GRANULE, UINT64_MAX, 5 * GRANULE, "the numbers"},
        {5 * GRANULE + 7, UINT64_MAX, 5 * GRANULE, "the numbers"},
        {5 * GRANULE, 4 * GRANULE + 7, 3 * GRANULE, "--max-weight-bytes"},
        {5 * GRANULE, GRANULE, 0, "--max-weight-bytes"},
        {0, UINT64_MAX, 0, "the numbers"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct numbers m;
        struct slab_pool *p = pool_of_numbers(&m, rows[i].room + 2 * GRANULE, rows[i].max,
                                              UINT64_MAX);
        struct slab *live = NULL, *idle = NULL;
        struct memory_room room;
        struct err e = {0};

        /* One granule is live; another is idle, and available. */
        assert_int_equal(slab_new(&live, p, GRANULE, &e), 0);
        m.nbytes_room = rows[i].room;
        if (rows[i].room >= GRANULE && rows[i].max >= 2 * GRANULE) {
            assert_int_equal(slab_new(&idle, p, GRANULE, &e), 0);
            slab_unref(idle);
            assert_stats(p, GRANULE, GRANULE, 1);
        }
        room = slab_pool_room(p);
        assert_int_equal(room.nbytes, rows[i].nbytes);
        assert_string_equal(room.bound, rows[i].bound);
        assert_int_equal(slab_pool_check(p, room.nbytes + 1, &e), -1);
        assert_int_equal(e.code, ERR_NO_STAGING);
        assert_non_null(strstr(e.msg, rows[i].bound));
        err_clear(&e);
        if (room.nbytes > 0)
            assert_int_equal(slab_pool_check(p, room.nbytes, &e), 0);
        slab_unref(live);
        slab_pool_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slab_new_gives_usable_memory_of_any_size),
        cmocka_unit_test(test_slab_unref_frees_only_after_the_last_reference),
        cmocka_unit_test(test_slab_quarantine_keeps_the_memory_from_everybody),
        cmocka_unit_test(test_slab_new_uses_idle_memory_of_equal_size),
        cmocka_unit_test(test_slab_new_drops_idle_memory_of_other_sizes),
        cmocka_unit_test(test_slab_unref_keeps_no_more_idle_than_the_bound),
        cmocka_unit_test(test_slab_new_refuses_over_the_bound),
        cmocka_unit_test(test_slab_new_refuses_what_no_address_space_holds),
        cmocka_unit_test(test_slab_pool_check_knows_the_bound_and_the_machine),
        cmocka_unit_test(test_slab_new_takes_whole_granules_of_the_memory),
        cmocka_unit_test(test_slab_new_passes_on_why_the_memory_refuses),
        cmocka_unit_test(test_slab_pool_room_is_what_check_accepts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
