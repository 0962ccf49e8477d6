/* torch's counters, taken down exactly once for each export whatever happens to the update; and
 * everything that can fail, failed in turn: the driver's calls, and our allocations (the linker
 * wraps them, CMakeLists.txt). */
#include "base/log.h"
#include "tests/unit/transport/ipc_fixture.h"
#include "transport/ipc/ipc_scope.h"

#include <sys/stat.h>

enum { N_MANY = 30, LOG_MAX = 1 << 16 };

void *__real_malloc(size_t nbytes);
void *__real_calloc(size_t n, size_t nbytes);
void *__real_realloc(void *p, size_t nbytes);
void __real_free(void *p);
void *__wrap_malloc(size_t nbytes);
void *__wrap_calloc(size_t n, size_t nbytes);
void *__wrap_realloc(void *p, size_t nbytes);
void __wrap_free(void *p);

static long left = -1; /* allocations until the one that fails; -1: none does */
static long n_asked, live;

static bool starved(void)
{
    n_asked++;
    return left >= 0 && left-- == 0;
}

void *__wrap_malloc(size_t nbytes)
{
    void *p = starved() ? NULL : __real_malloc(nbytes);

    live += p != NULL;
    return p;
}

void *__wrap_calloc(size_t n, size_t nbytes)
{
    void *p = starved() ? NULL : __real_calloc(n, nbytes);

    live += p != NULL;
    return p;
}

void *__wrap_realloc(void *p, size_t nbytes)
{
    void *q = starved() ? NULL : __real_realloc(p, nbytes);

    live += p == NULL && q != NULL;
    return q;
}

void __wrap_free(void *p)
{
    live -= p != NULL;
    __real_free(p);
}

static uint64_t slot(uint32_t i)
{
    return *ifx_slot(&ifx.counters[0], i);
}

static uint64_t n_released(void)
{
    return atomic_load(&ifx.stats.n_exports_released);
}

static uint64_t n_stuck(void)
{
    return atomic_load(&ifx.stats.n_exports_stuck);
}

/* vLLM's form: an export for each tensor, here from three counter objects by turns. */
static void test_many_exports_of_one_bucket(void **state)
{
    struct ifx_answer mem = ifx_block(0, IFX_BLOCK, 1);
    struct ipc_handle h[N_MANY];
    struct ifx_bucket b = {.handles = {h}, .n = {N_MANY}};
    struct source_scope *scope = NULL;
    uint64_t nbytes[N_MANY];
    struct source *s;
    struct tensor_list *p;

    (void)state;
    for (int k = 0; k < 3; k++)
        ifx_counter_make(&ifx.counters[k], ifx.peer.pid, k);
    for (uint32_t i = 0; i < N_MANY; i++) {
        nbytes[i] = 1 + i;
        h[i] = ifx_handle(&mem, nbytes[i]);
        ifx_export_as(&h[i], &ifx.counters[i % 3], IPC_REF_SLOTS - 1 - i);
    }
    p = ifx_tensor_list(nbytes, N_MANY);
    s = ifx_source(&b, 1, p, NULL);
    ifx_join(s, &scope);
    assert_int_equal(ifx_map(s, 0, 0), N_MANY);
    for (uint32_t i = 0; i < N_MANY; i++)
        assert_int_equal(*ifx_slot(&ifx.counters[i % 3], IPC_REF_SLOTS - 1 - i), 1);
    ifx_release(s);
    for (int k = 0; k < 3; k++)
        for (uint32_t i = 0; i < IPC_REF_SLOTS; i++)
            assert_int_equal(*ifx_slot(&ifx.counters[k], i), 0);
    assert_int_equal(n_released(), N_MANY);
    assert_int_equal(ifx_counts(scope).n_opened, 1);
    source_scope_close(scope);
    tensor_list_unref(p);
}

/* The next bucket is mapped while the last one is copied, out of the same export. */
static void test_an_export_of_two_sources_in_flight(void **state)
{
    struct ipc_handle h = ifx_export(1, 4);
    struct source *a = ifx_source_small(&h), *b = ifx_source_small(&h);
    struct source_scope *scope = NULL;

    (void)state;
    ifx_join(a, &scope);
    assert_int_equal(ifx_map(a, 0, 0), IFX_N_SMALL);
    ifx_join(b, &scope);
    ifx_release(a);
    assert_int_equal(slot(4), 1);
    assert_int_equal(ifx_map(b, 0, 0), IFX_N_SMALL);
    ifx_check(b, 0, 0, ifx_small[0], 1, 0);
    ifx_release(b);
    assert_int_equal(slot(4), 0);
    assert_int_equal(n_released(), 1);
    *ifx_slot(&ifx.counters[0], 4) = 1; /* a third bucket of it: counted down is counted down */
    ifx_pass(&h, &scope, 1);
    assert_int_equal(slot(4), 1);
    assert_int_equal(n_released(), 1);
    source_scope_close(scope);
}

static void test_an_export_that_was_not_read(void **state)
{
    struct ipc_handle h[] = {ifx_export(1, 0), ifx_export(2, 1), ifx_export(3, 2)};
    struct source_scope *scope = NULL;
    struct source *s = ifx_source_small(&h[0]);

    (void)state;
    source_close(s); /* refused before it joined: as if it had never come */
    assert_int_equal(slot(0), 1);
    s = ifx_source_small(&h[1]);
    ifx_join(s, &scope);
    ifx_release(s); /* aborted before it was mapped */
    assert_int_equal(slot(1), 0);
    assert_int_equal(ifx_counts(scope).n_opened, 0);
    h[2].mem[0] ^= 0xff;
    s = ifx_source_small(&h[2]);
    ifx_join(s, &scope);
    assert_int_equal(ifx_map_fails(s, CLOCK_NEVER, false).code, ERR_UNREADABLE);
    ifx_release(s);
    assert_int_equal(slot(2), 0);
    assert_int_equal(n_released(), 2);
    source_scope_close(scope);
}

static void test_a_counter_that_is_down_already(void **state)
{
    struct ipc_handle h = ifx_export(1, 0);
    struct source_scope *scope = NULL;

    (void)state;
    *ifx_slot(&ifx.counters[0], 0) = 0;
    ifx_pass(&h, &scope, 1);
    assert_int_equal(slot(0), 0);
    assert_int_equal(n_released() + n_stuck(), 0);
    source_scope_close(scope);
}

/* What the log says while `fn` runs. */
static void logged(char text[LOG_MAX], void (*fn)(void))
{
    int fd = memfd_create("log", MFD_CLOEXEC);
    struct err e = {0};
    ssize_t n;

    assert_true(fd >= 0);
    assert_int_equal(log_open(fd, LOG_DEBUG, &e), 0);
    fn();
    log_close();
    n = pread(fd, text, LOG_MAX - 1, 0);
    assert_true(n >= 0);
    text[n] = '\0';
    (void)close(fd);
}

static unsigned n_times(const char *text, const char *what)
{
    unsigned n = 0;

    for (; (text = strstr(text, what)) != NULL; text++)
        n++;
    return n;
}

/* An update of four buckets whose counters cannot be reached, for four reasons. */
static void pass_four(void)
{
    static const char *const other = "/other_1_2_3";
    struct ipc_handle h[4];
    struct source_scope *scope = NULL;
    char path[128], real[160];

    for (uint32_t i = 0; i < 4; i++) {
        h[i] = ifx_export(i, i);
        ifx_counter_drop(&ifx.counters[0]);
    }
    for (int i = 0; i < 3; i++)
        ifx_counter_make(&ifx.counters[i], ifx.peer.pid, i);
    for (uint32_t i = 0; i < 3; i++)
        ifx_export_as(&h[i], &ifx.counters[i], i);
    memcpy(h[3].ref_name, other, strlen(other) + 1);
    assert_int_equal(shm_unlink(ifx.counters[0].name), 0);
    (void)snprintf(path, sizeof path, "/dev/shm%s", ifx.counters[1].name);
    assert_int_equal(truncate(path, REF_COUNTER_NBYTES - 1), 0);
    (void)snprintf(path, sizeof path, "/dev/shm%s", ifx.counters[2].name);
    (void)snprintf(real, sizeof real, "%s.real", path);
    assert_int_equal(rename(path, real), 0);
    assert_int_equal(symlink(real, path), 0);
    for (uint32_t i = 0; i < 4; i++)
        ifx_pass(&h[i], &scope, i);
    assert_int_equal(*ifx_slot(&ifx.counters[2], 2), 1);
    (void)remove(real);
    source_scope_close(scope);
}

static void test_counters_out_of_reach_are_told_once(void **state)
{
    static char text[LOG_MAX];

    (void)state;
    logged(text, pass_four);
    assert_int_equal(n_times(text, "ipc.export_stuck"), 1);
    assert_int_equal(n_times(text, "will keep this memory until it exits"), 1);
    assert_int_equal(n_times(text, "No such file"), 1); /* the first reason, and its name */
    assert_int_equal(n_times(text, ifx.counters[0].name), 1);
    assert_int_equal(n_released(), 0);
    assert_int_equal(n_stuck(), 4);
}

/* Each of these has an object of its own: more than any trainer makes, and 80 kB of us each. */
static void test_counter_objects_are_bounded(void **state)
{
    enum { N = IPC_COUNTERS_MAX + 1 };
    struct ipc_handle *h = calloc(N, sizeof *h);
    uint64_t *nbytes = calloc(N, sizeof *nbytes);
    struct ifx_bucket b = {.handles = {h}, .n = {N}};
    struct ipc_handle one = ifx_export(1, 7);
    struct source_scope *scope = NULL;
    struct source *s;
    struct tensor_list *p;
    struct err e = {0};

    (void)state;
    assert_true(h != NULL && nbytes != NULL);
    for (uint32_t i = 0; i < N; i++)
        (void)snprintf(h[i].ref_name, sizeof h[i].ref_name, "/torch_1_2_%u", (unsigned)i);
    h[0] = one;
    nbytes[0] = 10;
    p = ifx_tensor_list(nbytes, N);
    s = ifx_source(&b, 1, p, NULL);
    assert_int_equal(s->ops->join(s, &scope, &e), -1);
    ifx_says(&e, ERR_TOO_LARGE, "more than 1024 counter objects");
    assert_null(scope);
    ifx_release(s); /* of nothing: it has not joined */
    assert_int_equal(slot(7), 1);
    ifx_pass(&one, &scope, 1);
    assert_int_equal(slot(7), 0);
    source_scope_close(scope);
    tensor_list_unref(p);
    free(h);
    free(nbytes);
}

/* Two sources in flight, packed and not, on two GPUs, with events: whatever a cycle can meet. */
static struct ifx_bucket cycle_buckets[2];
static struct ipc_handle cycle_packed[IFX_RANKS], cycle_single[IFX_N_SMALL];
static CUcontext cycle_ctx;
static CUdeviceptr cycle_dst;

static void cycle_begin(void)
{
    struct ifx_answer event = ifx_ask(&ifx.peer, (struct ifx_command){.what = IFX_EVENT});

    for (uint32_t i = 0; i < IFX_RANKS; i++)
        cycle_packed[i] = ifx_export(i, i);
    cycle_single[0] = ifx_export(7, 2);
    cycle_single[1] = (struct ipc_handle){.has_memory = false};
    cycle_single[2] = cycle_single[0];
    ifx_export_as(&cycle_single[2], &ifx.counters[0], 3);
    ifx_wait_for(&cycle_packed[0], &event);
    ifx_wait_for(&cycle_single[2], &event);
    (void)ifx_ask(&ifx.peer, (struct ifx_command){.what = IFX_FIRE});
    cycle_buckets[0] = (struct ifx_bucket){.packed = true,
                                           .handles = {&cycle_packed[0], &cycle_packed[1]},
                                           .n = {IFX_N_SMALL, IFX_N_SMALL}};
    cycle_buckets[1] = (struct ifx_bucket){.handles = {cycle_single}, .n = {IFX_N_SMALL}};
    assert_int_equal(ifx.lib.cu.primary_ctx_retain(&cycle_ctx, 0), CUDA_SUCCESS);
    assert_int_equal(ifx.lib.cu.ctx_push_current(cycle_ctx), CUDA_SUCCESS);
    assert_int_equal(ifx.lib.cu.mem_alloc(&cycle_dst, IFX_BLOCK), CUDA_SUCCESS);
}

static void cycle_end(void)
{
    CUcontext popped;

    assert_int_equal(ifx.lib.cu.mem_free(cycle_dst), CUDA_SUCCESS);
    assert_int_equal(ifx.lib.cu.ctx_pop_current(&popped), CUDA_SUCCESS);
    assert_int_equal(ifx.lib.cu.primary_ctx_release(0), CUDA_SUCCESS);
}

/* Maps a rank's tensors and copies them. */
static int cycle_read(struct source *s, uint32_t rank, struct err *e)
{
    struct progress p = {.deadline_us = CLOCK_NEVER};
    struct cu_api *cu = &ifx.lib.cu;
    uint32_t n;

    if (s->ops->map(s, rank, 0, SOURCE_WAIT, &p, &n, e) != 0)
        return -1;
    for (uint32_t i = 0; i < n; i++)
        if (cu_try(cu, cu->memcpy_dtod(cycle_dst, s->ops->at(s, rank, i), ifx_small[i]),
                   "cuMemcpyDtoD", e) != 0)
            return -1;
    return 0;
}

/* What was made and done of a cycle, for its end. */
struct cycle {
    struct source *s[2];
    struct source_scope *scope;
    bool asked[2], joined[2];
};

static int cycle_run(struct cycle *c, struct ipc_bucket *const buckets[2], struct err *e)
{
    struct tensor_list *tensor_lists[IFX_RANKS] = {ifx.tensor_list, ifx.tensor_list};
    int rc = 0;

    for (int i = 0; i < 2; i++) {
        struct cuda_ipc_cfg cfg = {ifx.devices, IFX_RANKS, tensor_lists, buckets[i], 1, &ifx.stats};
        struct err second = {0};
        if (cuda_ipc_source_new(&c->s[i], &cfg, rc == 0 ? e : &second) != 0)
            rc = -1;
    }
    for (int i = 0; i < 2 && rc == 0; i++) {
        c->asked[i] = true;
        rc = c->s[i]->ops->join(c->s[i], &c->scope, e);
        c->joined[i] = rc == 0;
        if (rc == 0)
            rc = cycle_read(c->s[i], 0, e);
    }
    return rc == 0 ? cycle_read(c->s[0], 1, e) : -1;
}

/* @fail_at  the allocation that fails, counted from the first of ours; -1: none */
static int cycle(long fail_at, struct err *e)
{
    struct ipc_bucket *buckets[2] = {ifx_buckets(&cycle_buckets[0], 1),
                                     ifx_buckets(&cycle_buckets[1], 1)};
    struct cycle c = {0};
    struct err none = {0};
    int rc;

    for (uint32_t i = 0; i < 4; i++)
        *ifx_slot(&ifx.counters[0], i) = 1;
    n_asked = 0;
    left = fail_at;
    rc = cycle_run(&c, buckets, e);
    for (int i = 0; i < 2; i++) {
        if (c.asked[i])
            assert_int_equal(c.s[i]->ops->release(c.s[i], &none), 0);
        source_close(c.s[i]);
    }
    source_scope_close(c.scope);
    left = -1;
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(slot(i), c.joined[i / 2] ? 0 : 1);
    return rc;
}

static void cycle_check(struct err *e, int rc, long live_before, int n_files)
{
    struct fakecuda_counts c = ifx_counted();

    assert_true((rc == 0) == (e->code == ERR_NONE));
    assert_int_equal(c.n_mappings, 0);
    assert_int_equal(c.n_events, ifx.n_events_before);
    assert_int_equal(atomic_load(&ifx.stats.n_mapped), 0);
    assert_int_equal(atomic_load(&ifx.stats.n_opened), atomic_load(&ifx.stats.n_closed));
    assert_int_equal(ifx_n_files(), n_files);
    assert_int_equal(live, live_before);
}

static void test_every_call_and_every_allocation_may_fail(void **state)
{
    int n_files, n_failed = 0, rc;
    uint64_t n_calls;
    long n_allocations, live_before;
    struct err e = {0};

    (void)state;
    cycle_begin();
    n_files = ifx_n_files();
    live_before = live;
    n_calls = ifx_counted().n_calls;
    assert_int_equal(cycle(-1, &e), 0);
    n_calls = ifx_counted().n_calls - n_calls;
    n_allocations = n_asked;
    cycle_check(&e, 0, live_before, n_files);
    for (uint64_t n = 1; n <= n_calls; n++) {
        ifx.lib.fail_nth(n);
        rc = cycle(-1, &e);
        ifx.lib.fail_nth(0);
        n_failed += rc != 0;
        if (rc != 0)
            assert_int_equal(e.code, ERR_CUDA);
        cycle_check(&e, rc, live_before, n_files);
        err_clear(&e);
    }
    assert_true(n_failed > 10); /* of the rest, a release failed, and was made all the same */
    for (long n = 0; n < n_allocations; n++) {
        rc = cycle(n, &e);
        if (rc != 0)
            assert_int_equal(e.code, ERR_NO_MEMORY);
        cycle_check(&e, rc, live_before, n_files);
        err_clear(&e);
    }
    cycle_end();
}

int main(int argc, char **argv)
{
#define T(name) cmocka_unit_test_setup_teardown(name, ifx_begin, ifx_end)
    const struct CMUnitTest tests[] = {
        T(test_many_exports_of_one_bucket),
        T(test_an_export_of_two_sources_in_flight),
        T(test_an_export_that_was_not_read),
        T(test_a_counter_that_is_down_already),
        T(test_counters_out_of_reach_are_told_once),
        T(test_counter_objects_are_bounded),
        T(test_every_call_and_every_allocation_may_fail),
    };
#undef T

    (void)setenv("FAKECUDA_DEVICES", "2", 1);
    if (argc == 2 && strcmp(argv[1], "exporter") == 0)
        return ifx_exporter();
    return cmocka_run_group_tests(tests, ifx_open_devices, ifx_close_devices);
}
