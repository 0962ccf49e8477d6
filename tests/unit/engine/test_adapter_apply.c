/* What adapters add to a linear layer: against a slow reference in double, and to the bit over
 * batches, threads and instruction sets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/engine/adapter_fixture.h"

#include "engine/lora/adapter_apply.h"

#include <math.h>

enum { ROWS_MAX = 100, N_ADAPTERS = 4, WIDTH_MAX = 40, LD = 44, N_OUTPUTS = 3 };

static const struct calls {
    enum adapter_module modules[N_OUTPUTS];
    uint32_t n;
} calls[] = {{{ADAPTER_Q, ADAPTER_K, ADAPTER_V}, 3},
             {{ADAPTER_O}, 1},
             {{ADAPTER_GATE, ADAPTER_UP}, 2},
             {{ADAPTER_DOWN}, 1}};
enum { N_CALLS = sizeof calls / sizeof calls[0] };

struct world {
    struct model_config m;
    struct adapter *adapters[N_ADAPTERS];
    float x[ROWS_MAX][LD];
    const struct adapter *of[ROWS_MAX]; /* which adapter a row has */
};

static uint64_t rng_at = 7;

static uint32_t below(uint32_t n)
{
    rng_at = rng_at * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(rng_at >> 33) % n;
}

static float between(void)
{
    return (float)(int32_t)below(2000001) * 1e-6F - 1.0F;
}

static struct world *world_new(void)
{
    struct world *w = calloc(1, sizeof *w);

    assert_non_null(w);
    w->m = small_model();
    w->adapters[0] = adapter_made(&w->m, ALL_MODULES, 4, DTYPE_BF16, 1);
    w->adapters[1] = adapter_made(&w->m, ALL_MODULES, 37, DTYPE_F32, 2);
    w->adapters[2] = adapter_made(&w->m, 1U << ADAPTER_Q | 1U << ADAPTER_V, 1, DTYPE_F16, 3);
    w->adapters[3] = adapter_made(&w->m, 1U << ADAPTER_DOWN, 64, DTYPE_BF16, 4);
    for (size_t r = 0; r < ROWS_MAX; r++) {
        uint32_t k = below(N_ADAPTERS + 2);

        w->of[r] = k < N_ADAPTERS ? w->adapters[k] : NULL;
        for (size_t i = 0; i < LD; i++)
            w->x[r][i] = between();
    }
    for (size_t r = 40; r < 80; r++) /* a prompt: rows of one adapter together, over a tile */
        w->of[r] = w->adapters[1];
    return w;
}

static void world_free(struct world *w)
{
    for (size_t i = 0; i < N_ADAPTERS; i++)
        adapter_free(w->adapters[i]);
    free(w);
}

static double element(const void *p, enum dtype dtype, size_t i)
{
    float f;

    dtype_convert(&f, DTYPE_F32, (const char *)p + i * dtype_nbytes(dtype), dtype, 1);
    return (double)f;
}

/* What an adapter adds to output j of one row. */
static double expected(const struct world *w, const struct adapter *a, uint32_t layer,
                       enum adapter_module module, const float *x, uint32_t j)
{
    const struct adapter_pair *p = a != NULL ? adapter_pair(a, layer, module) : NULL;
    uint32_t n_out, n_in;
    double sum = 0;

    adapter_module_shape(&w->m, module, &n_out, &n_in);
    for (size_t r = 0; p != NULL && r < p->r; r++) {
        double t = 0;

        for (size_t i = 0; i < n_in; i++)
            t += element(p->a, p->a_dtype, r * n_in + i) * (double)x[i];
        sum += element(p->b, p->b_dtype, (size_t)j * p->r + r) * t * (double)p->scale;
    }
    return sum;
}

typedef float outputs[N_OUTPUTS][ROWS_MAX][LD];

/* The rows `rows` of the world as one batch, over y of 0.5; results land at their own row. */
static void apply(const struct world *w, const uint32_t *rows, uint32_t n, uint32_t n_threads,
                  enum kernels_isa isa, uint32_t layer, const struct calls *call, outputs y)
{
    static float x[ROWS_MAX][LD];
    static outputs out;
    const struct adapter *of[ROWS_MAX];
    struct adapter_linears l = {.layer = layer, .x = x[0], .ldx = LD, .n = call->n};
    struct adapter_apply *s = NULL;
    struct compute *c = NULL;
    struct err e = {0};
    long before;

    assert_int_equal(compute_new(&c, n_threads, &e), 0);
    assert_int_equal(adapter_apply_new(&s, &w->m, ROWS_MAX, 64, &e), 0);
    for (uint32_t i = 0; i < n; i++) {
        of[i] = w->of[rows[i]];
        memcpy(x[i], w->x[rows[i]], sizeof x[i]);
    }
    for (size_t i = 0; i < sizeof out / sizeof(float); i++)
        ((float *)out)[i] = 0.5F;
    for (uint32_t o = 0; o < call->n; o++)
        l.outputs[o] = (struct adapter_output){call->modules[o], out[o][0], LD};
    before = atomic_load(&n_allocations);
    (void)adapter_apply_rows(s, of, n);
    adapter_apply(s, c, kernels_get(isa), &l);
    assert_int_equal(atomic_load(&n_allocations), before);
    for (uint32_t o = 0; o < call->n; o++)
        for (uint32_t i = 0; i < n; i++)
            memcpy(y[o][rows[i]], out[o][i], sizeof out[o][i]);
    adapter_apply_free(s);
    compute_free(c);
}

static void all_rows(uint32_t rows[ROWS_MAX])
{
    for (uint32_t i = 0; i < ROWS_MAX; i++)
        rows[i] = i;
}

static void test_apply_adds_what_the_formula_says(void **state)
{
    struct world *w = world_new();
    static outputs y;
    uint32_t rows[ROWS_MAX], n_changed = 0;

    (void)state;
    all_rows(rows);
    for (uint32_t i = 0; i < 2 * N_CALLS; i++) {
        const struct calls *call = &calls[i / 2];

        apply(w, rows, ROWS_MAX, 1, KERNELS_SCALAR, i % 2, call, y);
        for (size_t o = 0; o < call->n; o++) {
            uint32_t n_out, n_in;

            adapter_module_shape(&w->m, call->modules[o], &n_out, &n_in);
            for (size_t r = 0; r < ROWS_MAX; r++) {
                for (uint32_t j = 0; j < LD; j++) {
                    double want = j < n_out
                                      ? expected(w, w->of[r], i % 2, call->modules[o], w->x[r], j)
                                      : 0.0;
                    double found = (double)y[o][r][j] - 0.5;

                    if (fabs(found - want) > 3e-5 * (1.0 + fabs(want)))
                        fail_msg("module %d, row %zu, output %u: %g, not %g", (int)call->modules[o],
                                 r, j, found, want);
                    n_changed += fabs(want) > 1e-3;
                    if (w->of[r] == NULL)
                        assert_true(y[o][r][j] == 0.5F); /* untouched, not only near */
                }
            }
        }
    }
    assert_true(n_changed > 5000);
    world_free(w);
}

static void check_same(const struct calls *call, outputs a, outputs b, const uint32_t *rows,
                       uint32_t n, const char *what)
{
    for (uint32_t o = 0; o < call->n; o++)
        for (uint32_t i = 0; i < n; i++)
            if (memcmp(a[o][rows[i]], b[o][rows[i]], sizeof a[o][0]) != 0)
                fail_msg("%s changes row %u of module %d", what, rows[i], (int)call->modules[o]);
}

static void test_apply_is_the_same_in_every_batch(void **state)
{
    struct world *w = world_new();
    static outputs all, some;
    uint32_t rows[ROWS_MAX];

    (void)state;
    for (uint32_t k = 0; k < N_CALLS; k++) {
        all_rows(rows);
        apply(w, rows, ROWS_MAX, 1, KERNELS_SCALAR, 1, &calls[k], all);
        for (uint32_t r = 0; r < ROWS_MAX; r++) { /* alone */
            apply(w, &r, 1, 1, KERNELS_SCALAR, 1, &calls[k], some);
            check_same(&calls[k], all, some, &r, 1, "being alone");
        }
        for (int round = 0; round < 30; round++) { /* some of them, in any order */
            uint32_t n = 1 + below(ROWS_MAX);

            all_rows(rows);
            for (uint32_t i = 0; i < n; i++) {
                uint32_t j = i + below(ROWS_MAX - i), x = rows[i];

                rows[i] = rows[j];
                rows[j] = x;
            }
            apply(w, rows, n, 1 + below(3), KERNELS_SCALAR, 1, &calls[k], some);
            check_same(&calls[k], all, some, rows, n, "the batch");
        }
    }
    world_free(w);
}

static void test_apply_is_the_same_on_every_machine(void **state)
{
    struct world *w = world_new();
    static outputs first, other;
    uint32_t rows[ROWS_MAX], n_sets = 0;

    (void)state;
    all_rows(rows);
    for (uint32_t k = 0; k < N_CALLS; k++) {
        apply(w, rows, ROWS_MAX, 1, KERNELS_SCALAR, 0, &calls[k], first);
        for (int isa = 0; isa < KERNELS_ISA_COUNT; isa++) {
            for (uint32_t n_threads = 1; n_threads <= 4; n_threads++) {
                if (kernels_get((enum kernels_isa)isa) == NULL)
                    continue;
                apply(w, rows, ROWS_MAX, n_threads, (enum kernels_isa)isa, 0, &calls[k], other);
                check_same(&calls[k], first, other, rows, ROWS_MAX, "the machine");
                n_sets++;
            }
        }
    }
    assert_true(n_sets >= 4 * N_CALLS);
    world_free(w);
}

/* A prompt of the trained fixture's width: many tiles, shared out among threads. */
static void test_apply_shares_large_work(void **state)
{
    enum { N = 300, OUT = 384 };
    struct model_config m = kjv_model();
    struct adapter *a = adapter_made(&m, ALL_MODULES, 32, DTYPE_BF16, 9);
    static float x[N][128], y[4][N][2][OUT];
    const struct adapter *of[N];

    (void)state;
    for (size_t i = 0; i < N; i++) {
        of[i] = i % 7 == 3 ? NULL : a;
        for (size_t k = 0; k < 128; k++)
            x[i][k] = between();
    }
    for (uint32_t threads = 1; threads <= 4; threads++) {
        struct adapter_linears l = {.layer = 3, .x = x[0], .ldx = 128, .n = 2};
        struct adapter_apply *s = NULL;
        struct compute *c = NULL;
        struct err e = {0};

        assert_int_equal(compute_new(&c, threads, &e), 0);
        assert_int_equal(adapter_apply_new(&s, &m, N, 32, &e), 0);
        assert_int_equal(adapter_apply_rows(s, of, N), 1);
        l.outputs[0] = (struct adapter_output){ADAPTER_GATE, y[threads - 1][0][0], 2 * OUT};
        l.outputs[1] = (struct adapter_output){ADAPTER_UP, y[threads - 1][0][1], 2 * OUT};
        adapter_apply(s, c, kernels_current(), &l);
        assert_memory_equal(y[threads - 1], y[0], sizeof y[0]);
        assert_true(y[threads - 1][0][0][OUT - 1] != 0.0F && y[threads - 1][3][1][0] == 0.0F);
        adapter_apply_free(s);
        compute_free(c);
    }
    adapter_free(a);
}

static void test_apply_without_adapters_touches_nothing(void **state)
{
    struct world *w = world_new();
    static outputs y;
    uint32_t rows[ROWS_MAX];

    (void)state;
    all_rows(rows);
    for (size_t r = 0; r < ROWS_MAX; r++)
        w->of[r] = NULL;
    apply(w, rows, ROWS_MAX, 2, KERNELS_SCALAR, 0, &calls[0], y);
    for (size_t i = 0; i < sizeof y / sizeof(float); i++)
        assert_true(((float *)y)[i] == 0.5F);
    world_free(w);
}

static void test_apply_new_unwinds_every_failed_allocation(void **state)
{
    struct model_config m = small_model();
    int rc = -1;

    (void)state;
    for (long n = 0; rc != 0; n++) {
        struct adapter_apply *s = NULL;
        struct err e = {0};

        assert_true(n < 100);
        fail_nth(n);
        rc = adapter_apply_new(&s, &m, 8, 8, &e);
        fail_nth(-1);
        assert_true((rc == 0) == (s != NULL) && (rc == 0 || e.code == ERR_NO_MEMORY));
        adapter_apply_free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_apply_adds_what_the_formula_says),
        cmocka_unit_test(test_apply_is_the_same_in_every_batch),
        cmocka_unit_test(test_apply_is_the_same_on_every_machine),
        cmocka_unit_test(test_apply_shares_large_work),
        cmocka_unit_test(test_apply_without_adapters_touches_nothing),
        cmocka_unit_test(test_apply_new_unwinds_every_failed_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
