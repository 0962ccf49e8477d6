/* A device over the fakes, for the tests of weights/device: two libraries in one process, memory
 * with a model, and what must be left after each test: nothing. */
#ifndef BATON_TESTS_UNIT_MEMORY_DEVICE_FIXTURE_H
#define BATON_TESTS_UNIT_MEMORY_DEVICE_FIXTURE_H

#include "base/clock.h"
#include "base/log.h"
#include "memory/copy_sum.h"
#include "memory/device.h"
#include "tests/fakes/libcuda/fakecuda.h"
#include "tests/unit/device_pieces.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { ARENA = 9 << 20, PIECES_MAX = 4096 };

/* Any bytes are the fake's kernels: the same with and without nvcc. */
const unsigned char copy_sum_image[] = "an image";
const size_t copy_sum_image_nbytes = sizeof copy_sum_image;

/* One fake: a library of its own, with a state of its own. */
struct fake_lib {
    struct cu_api cu;
    fakecuda_fail_nth_fn *fail_nth;
    fakecuda_counts_fn *counts;
    fakecuda_hold_fn *hold;
    struct cuda_device devices[CUDA_DEVICES_MAX];
    size_t n_devices;
};

static struct fake_lib whole, plain; /* plain: has no calls to run kernels */

static inline int bind_symbol(const struct fake_lib *f, void *to, const char *name)
{
    void *at = dlsym(f->cu.lib, name);

    memcpy(to, &at, sizeof at);
    return at != NULL ? 0 : -1;
}

static inline int open_fake(struct fake_lib *f, const char *path)
{
    struct err e = {0};

    if (cu_load(&f->cu, path, &e) != 0 || bind_symbol(f, &f->fail_nth, "fakecuda_fail_nth") != 0 ||
        bind_symbol(f, &f->counts, "fakecuda_counts") != 0 ||
        bind_symbol(f, &f->hold, "fakecuda_hold") != 0 || f->cu.init(0) != CUDA_SUCCESS)
        return -1;
    return cuda_devices(&f->cu, f->devices, &f->n_devices, &e);
}

static inline int open_fakes(void **state)
{
    (void)state;
    return open_fake(&whole, FAKECUDA) == 0 && open_fake(&plain, FAKECUDA_WITHOUT_KERNELS) == 0
               ? 0
               : -1;
}

static inline int close_fakes(void **state)
{
    (void)state;
    cu_unload(&whole.cu);
    cu_unload(&plain.cu);
    return 0;
}

static inline bool nothing_left(const struct fake_lib *f)
{
    struct fakecuda_counts c;

    f->counts(&c);
    return c.n_allocations + c.n_mappings + c.n_host_blocks + c.n_streams + c.n_events +
               c.n_contexts + c.n_modules + c.nbytes ==
           0;
}

/* After each test. */
static inline int leaves_nothing(void **state)
{
    (void)state;
    return nothing_left(&whole) && nothing_left(&plain) ? 0 : -1;
}

static inline struct device *device_of(struct fake_lib *f)
{
    struct device *d = NULL;
    struct err e = {0};

    assert_int_equal(device_new(&d, &f->cu, &f->devices[0], &e), 0);
    return d;
}

static inline void ok(int rc, const struct err *e)
{
    if (rc != 0)
        fail_msg("%s", e->msg);
}

/* Two blocks of the device with random bytes, and their model. */
struct arena {
    struct device *d;
    struct slab_pool *pool;
    struct slab *src, *dst;
    struct pieces_world w;
};

static inline void arena_open(struct arena *a, struct fake_lib *f, uint64_t seed)
{
    struct slab_memory memory;
    struct err e = {0};

    a->d = device_of(f);
    memory = device_memory(a->d);
    ok(slab_pool_new(&a->pool, &memory, UINT64_MAX, 0, &e), &e);
    ok(slab_new(&a->src, a->pool, ARENA, &e), &e);
    ok(slab_new(&a->dst, a->pool, ARENA, &e), &e);
    a->w = (struct pieces_world){a->src->addr, a->dst->addr, ARENA, NULL, NULL, seed};
    a->w.host_src = malloc(ARENA);
    a->w.host_dst = malloc(ARENA);
    pieces_fill(&a->w, a->w.host_src, ARENA);
    pieces_fill(&a->w, a->w.host_dst, ARENA);
    ok(device_write(a->d, a->w.src, a->w.host_src, ARENA, &e), &e);
    ok(device_write(a->d, a->w.dst, a->w.host_dst, ARENA, &e), &e);
}

/* Every byte of dst, also those between the pieces. */
static inline void arena_assert(struct arena *a)
{
    unsigned char *back = malloc(ARENA);
    struct err e = {0};

    ok(device_read(a->d, back, a->w.dst, ARENA, &e), &e);
    assert_memory_equal(back, a->w.host_dst, ARENA);
    free(back);
}

static inline void arena_close(struct arena *a)
{
    slab_unref(a->src);
    slab_unref(a->dst);
    slab_pool_free(a->pool);
    device_free(a->d);
    free(a->w.host_src);
    free(a->w.host_dst);
}

static inline struct progress patient(void)
{
    struct progress p = {0};

    p.deadline_us = clock_after_us(60 * 1000000ULL);
    return p;
}

static inline void wait_for(struct device_batch *b)
{
    struct progress p = patient();
    struct err e = {0};

    ok(device_batch_wait(b, &p, &e), &e);
}

static inline struct device_batch *batch_of(struct device *d)
{
    struct device_batch *b = NULL;
    struct err e = {0};

    ok(device_batch_new(d, &b, &e), &e);
    return b;
}

static inline struct fakecuda_counts counts_of(const struct fake_lib *f)
{
    struct fakecuda_counts c;

    f->counts(&c);
    return c;
}

/* Fakes of two devices with 64 MiB each; warnings are most of what a test of failures brings. */
static inline int run_device_tests(const struct CMUnitTest *tests, size_t n)
{
    struct err e = {0};
    int n_failed;

    if (log_open(STDERR_FILENO, LOG_ERROR, &e) != 0)
        return 1;
    n_failed = _cmocka_run_group_tests("device", tests, n, open_fakes, close_fakes);
    log_close();
    return n_failed;
}

#define DEVICE_TEST(name) cmocka_unit_test_teardown(name, leaves_nothing)

#endif
