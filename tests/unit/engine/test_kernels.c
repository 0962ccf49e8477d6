/* Every instruction set against one independent definition of the canonical order, to the bit. */
#include "engine/kernels/compute.h"
#include "engine/kernels/kernels.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

/* Beyond a block of tokens, a tile of outputs, a stretch of k. */
enum { M_MAX = 15, N_MAX = 27, K_MAX = 2100 };

static uint64_t rng_state = 1;

static uint32_t rng(void)
{
    rng_state = rng_state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(rng_state >> 33);
}

/* Of both signs and of magnitudes that make the order of a sum visible. */
static float rng_float(void)
{
    return ldexpf((float)(int32_t)(rng() - (1U << 30)), (int)(rng() % 12) - 36);
}

/* nbytes of memory that ends where reading faults. */
struct guarded {
    char *map, *data;
    size_t map_nbytes;
};

static struct guarded guarded_new(size_t nbytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (nbytes + page - 1) / page * page;
    struct guarded g = {.map_nbytes = body + page};

    g.map = mmap(NULL, g.map_nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    assert_int_equal(mprotect(g.map + body, page, PROT_NONE), 0);
    g.data = g.map + body - nbytes;
    return g;
}

static void guarded_free(struct guarded *g)
{
    assert_int_equal(munmap(g->map, g->map_nbytes), 0);
}

static float f16_value(uint16_t h)
{
    int exponent = (h >> 10) & 31, frac = h & 1023;
    float f = exponent == 31  ? (frac != 0 ? NAN : INFINITY)
              : exponent == 0 ? ldexpf((float)frac, -24)
                              : ldexpf((float)(1024 + frac), exponent - 25);

    return (h & 0x8000) != 0 ? -f : f;
}

static float bf16_value(uint16_t h)
{
    int exponent = (h >> 7) & 255, frac = h & 127;
    float f = exponent == 255 ? (frac != 0 ? NAN : INFINITY)
              : exponent == 0 ? ldexpf((float)frac, -133)
                              : ldexpf((float)(128 + frac), exponent - 134);

    return (h & 0x8000) != 0 ? -f : f;
}

static float value(const char *w, enum dtype dtype, size_t i)
{
    uint16_t h;
    float f;

    if (dtype == DTYPE_F32) {
        memcpy(&f, w + i * 4, 4);
        return f;
    }
    memcpy(&h, w + i * 2, 2);
    return dtype == DTYPE_BF16 ? bf16_value(h) : f16_value(h);
}

/* The canonical dot, as kernels.h says it. */
static float expected_dot(const float *x, const char *w, enum dtype dtype, size_t k)
{
    float lane[16] = {0};
    size_t padded = (k + 15) / 16 * 16;

    for (size_t i = 0; i < padded; i++)
        lane[i % 16] = fmaf(i < k ? x[i] : 0.0F, i < k ? value(w, dtype, i) : 0.0F, lane[i % 16]);
    for (int i = 0; i < 8; i++)
        lane[i] = lane[i] + lane[i + 8];
    for (int i = 0; i < 4; i++)
        lane[i] = lane[i] + lane[i + 4];
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

static void fill_weights(char *w, enum dtype dtype, size_t numel)
{
    for (size_t i = 0; i < numel; i++) {
        float f = rng_float();
        uint32_t bits;
        uint16_t h;

        memcpy(&bits, &f, sizeof bits);
        h = dtype == DTYPE_BF16 ? (uint16_t)(bits >> 16) : (uint16_t)(rng() & 0xbbff);
        if (dtype == DTYPE_F32)
            memcpy(w + i * 4, &f, 4);
        else
            memcpy(w + i * 2, &h, 2);
    }
}

static void assert_bits(const float *found, const float *expected, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++) {
        if (isnan(found[i]) && isnan(expected[i]))
            continue;
        if (memcmp(&found[i], &expected[i], sizeof *found) != 0)
            fail_msg("%s: element %zu is %a, not %a", what, i, (double)found[i],
                     (double)expected[i]);
    }
}

/* All outputs of one shape, in two calls split at an odd place; weights at an odd address. */
static void check_matmul(const struct kernels *ks, enum dtype dtype, size_t m, size_t n, size_t k)
{
    size_t ldx = k + rng() % 3, ldy = n + rng() % 3, esize = dtype == DTYPE_F32 ? 4 : 2;
    struct guarded x = guarded_new(((m - 1) * ldx + k) * sizeof(float));
    struct guarded w = guarded_new(n * k * esize + rng() % 2);
    float y[M_MAX * (N_MAX + 2)], expected[M_MAX * (N_MAX + 2)];
    struct matmul a = {.x = (const float *)(void *)x.data,
                       .ldx = ldx,
                       .w = w.data,
                       .dtype = dtype,
                       .y = y,
                       .ldy = ldy,
                       .m = (uint32_t)m,
                       .k = (uint32_t)k};
    uint32_t split = rng() % (uint32_t)(n + 1);

    for (size_t i = 0; i < (m - 1) * ldx + k; i++)
        ((float *)(void *)x.data)[i] = rng_float();
    fill_weights(w.data, dtype, n * k);
    memset(y, 0x7e, sizeof y);
    memcpy(expected, y, sizeof y); /* what lies between the rows stays */
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < n; j++)
            expected[i * ldy + j] = expected_dot(a.x + i * ldx, w.data + j * k * esize, dtype, k);
    }
    kernels_matmul(ks, &a, 0, split);
    kernels_matmul(ks, &a, split, (uint32_t)n);
    assert_bits(y, expected, M_MAX * (N_MAX + 2), ks->name);
    guarded_free(&x);
    guarded_free(&w);
}

static void test_matmul_equals_the_canonical_order(void **state)
{
    static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    static const size_t lengths[] = {63, 64, 65, 127, 384, 1023, 1024, 1025, 2048, K_MAX};
    unsigned n_sets = 0;

    (void)state;
    for (int isa = 0; isa < KERNELS_ISA_COUNT; isa++) {
        const struct kernels *ks = kernels_get((enum kernels_isa)isa);

        if (ks == NULL)
            continue;
        n_sets++;
        for (size_t d = 0; d < 3; d++) {
            for (size_t k = 1; k <= 36; k++)
                check_matmul(ks, dtypes[d], 1 + rng() % M_MAX, 1 + rng() % N_MAX, k);
            for (size_t m = 1; m <= M_MAX; m++) {
                for (size_t n = 1; n <= N_MAX; n++)
                    check_matmul(ks, dtypes[d], m, n, 1 + rng() % 50);
            }
            for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
                check_matmul(ks, dtypes[d], 1 + rng() % M_MAX, N_MAX, lengths[i]);
        }
    }
    print_message("%u instruction sets compared, best: %s\n", n_sets, kernels_current()->name);
    assert_true(n_sets >= 1);
}

/* More rows than a tile holds. */
static void test_matmul_tiles_join(void **state)
{
    enum { N = 700, K = 520, M = 6 };
    float *x = malloc(sizeof(float) * M * K), *y = malloc(sizeof(float) * M * N);
    float *expected = malloc(sizeof(float) * M * N);
    char *w = malloc((size_t)N * K * 2);

    (void)state;
    assert_true(x != NULL && y != NULL && expected != NULL && w != NULL);
    for (size_t i = 0; i < M * K; i++)
        x[i] = rng_float();
    fill_weights(w, DTYPE_BF16, N * K);
    for (size_t i = 0; i < M; i++) {
        for (size_t j = 0; j < N; j++)
            expected[i * N + j] = expected_dot(x + i * K, w + j * K * 2, DTYPE_BF16, K);
    }
    for (int isa = 0; isa < KERNELS_ISA_COUNT; isa++) {
        const struct kernels *ks = kernels_get((enum kernels_isa)isa);
        struct matmul a = {
            .x = x, .ldx = K, .w = w, .dtype = DTYPE_BF16, .y = y, .ldy = N, .m = M, .k = K};

        if (ks == NULL)
            continue;
        memset(y, 0, sizeof(float) * M * N);
        kernels_matmul(ks, &a, 0, N);
        assert_bits(y, expected, (size_t)M * N, ks->name);
    }
    free(w);
    free(expected);
    free(y);
    free(x);
}

static void test_weighted_sum_adds_in_order(void **state)
{
    enum { D_MAX = 130, ROWS_MAX = 20 };

    (void)state;
    for (int isa = 0; isa < KERNELS_ISA_COUNT; isa++) {
        const struct kernels *ks = kernels_get((enum kernels_isa)isa);

        for (uint32_t d = 1; ks != NULL && d <= D_MAX; d++) {
            uint32_t n = rng() % ROWS_MAX;
            struct guarded v = guarded_new((size_t)n * d * sizeof(float));
            float p[ROWS_MAX], o[D_MAX], expected[D_MAX];
            float *values = (float *)(void *)v.data;

            for (size_t i = 0; i < D_MAX; i++)
                o[i] = expected[i] = rng_float();
            for (size_t j = 0; j < n; j++) {
                p[j] = rng_float();
                for (size_t i = 0; i < d; i++) {
                    values[j * d + i] = rng_float();
                    expected[i] = fmaf(p[j], values[j * d + i], expected[i]);
                }
            }
            ks->weighted_sum(o, p, values, n, d);
            assert_bits(o, expected, D_MAX, ks->name);
            guarded_free(&v);
        }
    }
}

/* The C library's exp in double, rounded, is right to well under an ulp; so is ours. */
static void test_exp_is_near_exact_and_the_same_everywhere(void **state)
{
    enum { N = 40003 };
    static const float special[] = {0.0F,  -0.0F,  INFINITY,  -INFINITY, NAN,
                                    88.7F, 88.8F,  -87.4F,    -103.9F,   -104.1F,
                                    1e30F, -1e30F, 0x1p-149F, -745.2F,   199.9F};
    static float x[N], first[N], found[N];

    (void)state;
    for (size_t i = 0; i < N; i++)
        x[i] = i < sizeof special / sizeof special[0]
                   ? special[i]
                   : (float)(int32_t)(rng() - (1U << 30)) * (110.0F / (1U << 30));
    for (int isa = 0; isa < KERNELS_ISA_COUNT; isa++) {
        const struct kernels *ks = kernels_get((enum kernels_isa)isa);

        if (ks == NULL)
            continue;
        memcpy(found, x, sizeof x);
        ks->exp_shifted(found, 0.25F, N);
        if (isa == KERNELS_SCALAR)
            memcpy(first, found, sizeof found);
        assert_bits(found, first, N, ks->name);
    }
    for (size_t i = 0; i < N; i++) {
        float expected = (float)exp((double)(x[i] - 0.25F));

        if (isnan(expected))
            assert_true(isnan(first[i]));
        else if (first[i] != expected)
            assert_true(first[i] == nextafterf(expected, first[i]));
    }
}

static void test_silu_mul_is_near_exact_and_the_same_everywhere(void **state)
{
    enum { N = 20005 };
    static float gate[N], up[N], first[N], found[N];

    (void)state;
    for (size_t i = 0; i < N; i++) {
        gate[i] = (float)(int32_t)(rng() - (1U << 30)) * (30.0F / (1U << 30));
        up[i] = rng_float();
    }
    gate[0] = -150.0F;
    gate[1] = 150.0F;
    gate[2] = 0.0F;
    gate[3] = NAN;
    for (int isa = 0; isa < KERNELS_ISA_COUNT; isa++) {
        const struct kernels *ks = kernels_get((enum kernels_isa)isa);

        if (ks == NULL)
            continue;
        memcpy(found, gate, sizeof gate);
        ks->silu_mul(found, up, N);
        if (isa == KERNELS_SCALAR)
            memcpy(first, found, sizeof found);
        assert_bits(found, first, N, ks->name);
    }
    assert_true(isnan(first[3]));
    for (size_t i = 0; i < N; i++) {
        double g = (double)gate[i], expected = g / (1.0 + exp(-g)) * (double)up[i];

        if (i != 3)
            assert_true(fabs((double)first[i] - expected) <= 3e-7 * fabs(expected) + 1e-40);
    }
}

static void test_widen_is_exact_for_every_half(void **state)
{
    char odd[3];
    float f;

    (void)state;
    for (uint32_t h = 0; h <= UINT16_MAX; h++) {
        uint16_t half = (uint16_t)h;
        float expected = f16_value(half);

        memcpy(odd + 1, &half, sizeof half);
        kernels_widen(&f, odd + 1, DTYPE_F16, 1);
        assert_bits(&f, &expected, 1, "f16");
        expected = bf16_value(half);
        kernels_widen(&f, odd + 1, DTYPE_BF16, 1);
        assert_bits(&f, &expected, 1, "bf16");
    }
    kernels_widen(&f, &(float){1.25F}, DTYPE_F32, 1);
    assert_true(f == 1.25F);
}

static void test_rms_norm(void **state)
{
    enum { N = 70 };
    float x[N], w[N], y[N];
    double sum = 0;

    (void)state;
    for (size_t i = 0; i < N; i++) {
        x[i] = (float)(rng() % 2001) / 1000.0F - 1.0F;
        w[i] = (float)(rng() % 2001) / 1000.0F;
        sum += (double)x[i] * (double)x[i];
    }
    kernels_rms_norm(kernels_current(), y, x, w, N, 0.5F);
    for (size_t i = 0; i < N; i++) {
        double expected = (double)w[i] * (double)x[i] / sqrt(sum / N + 0.5);

        assert_true(fabs((double)y[i] - expected) < 1e-6);
    }
}

static void test_select_is_what_a_model_gets(void **state)
{
    const struct kernels *best = kernels_current();

    (void)state;
    assert_false(kernels_select(KERNELS_ISA_COUNT));
    assert_ptr_equal(kernels_current(), best);
    assert_true(kernels_select(KERNELS_SCALAR));
    assert_string_equal(kernels_current()->name, "scalar");
    for (int isa = KERNELS_ISA_COUNT - 1; isa >= 0; isa--) {
        if (kernels_select((enum kernels_isa)isa))
            break;
    }
    assert_ptr_equal(kernels_current(), best);
}

enum { ITEMS_MAX = 5000 };

struct items {
    atomic_uint hits[ITEMS_MAX];
    uint32_t plain[ITEMS_MAX]; /* written without an atomic: TSan sees a missing order */
    atomic_uint threads;       /* bit i: thread i ran a part */
    uint32_t n_threads, grain;
    atomic_bool bad;
};

static void hit_items(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    struct items *it = arg;

    if (thread >= it->n_threads || first >= last)
        atomic_store(&it->bad, true);
    (void)atomic_fetch_or(&it->threads, 1U << thread);
    for (uint32_t i = first; i < last; i++) {
        (void)atomic_fetch_add(&it->hits[i], 1);
        it->plain[i]++;
    }
}

static void test_compute_runs_every_item_once(void **state)
{
    static struct items it;

    (void)state;
    for (uint32_t n_threads = 1; n_threads <= 9; n_threads += 2) {
        struct compute *c;
        struct err e = {0};

        assert_int_equal(compute_new(&c, n_threads, &e), 0);
        assert_int_equal(compute_n_threads(c), n_threads);
        for (uint32_t round = 0; round < 1500; round++) {
            uint32_t n = round % 50 == 0 ? rng() % ITEMS_MAX : rng() % 40;

            it.n_threads = n_threads;
            it.grain = 1 + rng() % 7;
            compute_run(c, n, it.grain, hit_items, &it);
            for (uint32_t i = 0; i < n; i++) {
                assert_int_equal(atomic_load(&it.hits[i]), 1);
                assert_int_equal(it.plain[i], 1);
                atomic_store(&it.hits[i], 0);
                it.plain[i] = 0;
            }
            assert_int_equal(atomic_load(&it.hits[n]), 0);
        }
        assert_false(atomic_load(&it.bad));
        compute_free(c);
    }
}

struct meeting {
    atomic_uint n_here;
};

static void meet(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    struct meeting *mt = arg;

    (void)thread;
    (void)first;
    (void)last;
    (void)atomic_fetch_add(&mt->n_here, 1);
    while (atomic_load(&mt->n_here) < 4) /* hangs, and times out, unless four threads are in */
        (void)sched_yield();
}

/* Again and again, so that workers have gone to sleep in some rounds: four threads are more than
 * many machines have, and then do not spin. */
static void test_compute_uses_and_wakes_all_threads(void **state)
{
    struct compute *c;
    struct err e = {0};

    (void)state;
    assert_int_equal(compute_new(&c, 4, &e), 0);
    for (int round = 0; round < 300; round++) {
        struct meeting mt = {0};

        compute_run(c, 4, 1, meet, &mt);
        assert_int_equal(atomic_load(&mt.n_here), 4);
    }
    compute_free(c);
}

struct places {
    struct compute *pool;
    pthread_mutex_t gate;                /* the caller begins when it is open */
    cpu_set_t sets[COMPUTE_THREADS_MAX]; /* of each thread */
    uint32_t n_threads;
    atomic_uint n_here;
};

static void note_place(void *arg, uint32_t thread, uint32_t first, uint32_t last)
{
    struct places *p = arg;

    (void)first;
    (void)last;
    (void)sched_getaffinity(0, sizeof p->sets[thread], &p->sets[thread]);
    (void)atomic_fetch_add(&p->n_here, 1);
    while (atomic_load(&p->n_here) < p->n_threads) /* one item for each thread */
        (void)sched_yield();
}

static void *call_pool(void *arg)
{
    struct places *p = arg;

    pthread_mutex_lock(&p->gate);
    pthread_mutex_unlock(&p->gate);
    compute_run(p->pool, p->n_threads, 1, note_place, p);
    return NULL;
}

/* Pins a pool of n threads, whose caller is a thread of its own, and runs something on all. */
static int pin_and_run(struct places *p, uint32_t n, struct err *e)
{
    pthread_t caller;
    int rc;

    *p = (struct places){.n_threads = n, .gate = PTHREAD_MUTEX_INITIALIZER};
    assert_int_equal(compute_new(&p->pool, n, e), 0);
    pthread_mutex_lock(&p->gate);
    assert_int_equal(pthread_create(&caller, NULL, call_pool, p), 0);
    rc = compute_pin(p->pool, caller, e);
    pthread_mutex_unlock(&p->gate);
    assert_int_equal(pthread_join(caller, NULL), 0);
    compute_free(p->pool);
    return rc;
}

static void test_compute_pin_gives_each_thread_a_processor(void **state)
{
    static struct places p;
    uint32_t n = compute_n_processors();
    cpu_set_t before, after;
    struct err e = {0};

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(pin_and_run(&p, n, &e), 0);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(CPU_COUNT(&p.sets[i]), 1);
        for (uint32_t j = 0; j < i; j++)
            assert_false(CPU_EQUAL(&p.sets[i], &p.sets[j]));
    }
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after)); /* nobody else is touched */
    if (n == COMPUTE_THREADS_MAX)
        return; /* no pool has more threads than that */
    assert_int_equal(pin_and_run(&p, n + 1, &e), -1);
    assert_int_equal(e.code, ERR_BAD_REQUEST);
    assert_non_null(strstr(e.msg, "cannot be pinned"));
    assert_true(CPU_EQUAL(&p.sets[0], &before));
}

static void test_compute_new_refuses_no_threads_and_too_many(void **state)
{
    static const uint32_t wrong[] = {0, COMPUTE_THREADS_MAX + 1};
    struct compute *c = NULL;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct err e = {0};

        assert_int_equal(compute_new(&c, wrong[i], &e), -1);
        assert_int_equal(e.code, ERR_BAD_REQUEST);
        assert_null(c);
    }
    compute_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul_equals_the_canonical_order),
        cmocka_unit_test(test_matmul_tiles_join),
        cmocka_unit_test(test_weighted_sum_adds_in_order),
        cmocka_unit_test(test_exp_is_near_exact_and_the_same_everywhere),
        cmocka_unit_test(test_silu_mul_is_near_exact_and_the_same_everywhere),
        cmocka_unit_test(test_widen_is_exact_for_every_half),
        cmocka_unit_test(test_rms_norm),
        cmocka_unit_test(test_select_is_what_a_model_gets),
        cmocka_unit_test(test_compute_runs_every_item_once),
        cmocka_unit_test(test_compute_uses_and_wakes_all_threads),
        cmocka_unit_test(test_compute_pin_gives_each_thread_a_processor),
        cmocka_unit_test(test_compute_new_refuses_no_threads_and_too_many),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
