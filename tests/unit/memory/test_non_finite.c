/* Every dtype against arithmetic, and the fast look against the slow one at every place and cut. */
#include "memory/non_finite.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * UINT64_C(0x9e3779b97f4a7c15);
    return x ^ x >> 29;
}

/* By the definition of the format, not by masks: is the element NaN or infinite? */
static bool defined(uint64_t bits, enum dtype d)
{
    static const struct {
        enum dtype d;
        int exponent, mantissa;
    } ieee[] = {{DTYPE_F8_E5M2, 5, 2}, {DTYPE_F16, 5, 10}, {DTYPE_BF16, 8, 7}};
    double f64;
    float f32[2];

    if (d == DTYPE_F64) {
        memcpy(&f64, &bits, 8);
        return !isfinite(f64);
    }
    if (d == DTYPE_F32 || d == DTYPE_C64) {
        memcpy(f32, &bits, 8);
        return !isfinite(f32[0]) || (d == DTYPE_C64 && !isfinite(f32[1]));
    }
    if (d == DTYPE_F8_E4M3)
        return bits == 0x7f || bits == 0xff;
    if (d == DTYPE_F8_E8M0)
        return bits == 0xff;
    for (size_t i = 0; i < sizeof ieee / sizeof ieee[0]; i++)
        if (ieee[i].d == d)
            return (bits >> ieee[i].mantissa & ((1U << ieee[i].exponent) - 1)) ==
                   (1U << ieee[i].exponent) - 1;
    return false; /* integers */
}

static bool look_at(uint64_t bits, enum dtype d)
{
    return non_finite_in(&bits, dtype_nbytes(d), d);
}

static void test_every_element_of_small_dtypes(void **state)
{
    (void)state;
    for (enum dtype d = DTYPE_NONE + 1; d < DTYPE_COUNT; d++)
        for (uint64_t bits = 0; dtype_nbytes(d) <= 2 && bits < UINT64_C(1) << 8 * dtype_nbytes(d);
             bits++)
            assert_int_equal(look_at(bits, d), defined(bits, d));
}

static void test_elements_of_large_dtypes(void **state)
{
    static const uint64_t f32[] = {0,          0x80000000, 1,          0x007fffff, 0x807fffff,
                                   0x00800000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
                                   0x7f800001, 0x7fc00000, 0xffc00000, 0xffffffff, 0x7fffffff};

    (void)state;
    for (size_t i = 0; i < sizeof f32 / sizeof f32[0]; i++) {
        uint64_t bits = f32[i];

        assert_int_equal(look_at(bits, DTYPE_F32), defined(bits, DTYPE_F32));
        assert_int_equal(look_at(bits << 32, DTYPE_C64), defined(bits << 32, DTYPE_C64));
        assert_int_equal(look_at(bits << 32, DTYPE_F64), defined(bits << 32, DTYPE_F64));
        assert_false(look_at(bits, DTYPE_I32) || look_at(bits << 32, DTYPE_U64));
    }
    for (uint64_t i = 0; i < 200000; i++) {
        uint64_t bits = mix(i), exponents = i % 3 == 0 ? UINT64_C(0x7ff0000000000000) : 0;

        for (enum dtype d = DTYPE_NONE + 1; d < DTYPE_COUNT; d++)
            if (dtype_nbytes(d) >= 4)
                assert_int_equal(look_at(bits | exponents, d), defined(bits | exponents, d));
    }
    assert_true(look_at(UINT64_C(0x7ff0000000000000), DTYPE_F64));
    assert_true(look_at(UINT64_C(0xfff8000000000000), DTYPE_F64));
    assert_false(look_at(UINT64_C(0x7fefffffffffffff), DTYPE_F64));
}

enum { LONG = 211, PAD = 9 };

/* One bad element among finite ones: at every index, from every alignment, and of every length that
 * holds it or not, cut inside an element too. */
static void test_every_place_and_cut(void **state)
{
    uint8_t memory[LONG + 2 * PAD], *data;

    (void)state;
    for (enum dtype d = DTYPE_NONE + 1; d < DTYPE_COUNT; d++) {
        uint64_t size = dtype_nbytes(d), n = LONG / size, part = d == DTYPE_C64 ? 4 : size;
        bool finite = non_finite_bits(d).top == 0;

        for (uint64_t skip = 0; skip < 8; skip++) {
            memset(memory, 0xff, sizeof memory); /* what lies beside must not count */
            data = memory + PAD - 1 + skip;
            memset(data, 0x3b, LONG);
            for (uint64_t at = 0; at < n; at++) {
                memset(data + at * size, 0xff, size);
                for (uint64_t end = at * size > 3 ? at * size - 3 : 0;
                     end <= LONG && end < at * size + 80; end++)
                    assert_int_equal(non_finite_in(data, end, d),
                                     !finite && end >= at * size + part);
                assert_int_equal(non_finite_in(data, LONG, d), !finite);
                memset(data + at * size, 0x3b, size);
            }
        }
    }
}

/* Neighbours that are nearly it, so that a carry which went astray would show. */
static void test_fast_is_slow(void **state)
{
    uint8_t data[LONG];
    unsigned n_found = 0;

    (void)state;
    for (uint64_t round = 0; round < 30000; round++) {
        enum dtype d = (enum dtype)(DTYPE_NONE + 1 + round % (DTYPE_COUNT - 1));
        uint64_t size = dtype_nbytes(d), nbytes = mix(round) % (LONG + 1);
        struct non_finite found = {0};

        nbytes -= d == DTYPE_C64 ? nbytes % size : 0;
        for (uint64_t i = 0; i < LONG; i++) {
            uint64_t r = mix(round * LONG + i);

            data[i] = (uint8_t)(r % 7 == 0    ? 0x7f
                                : r % 5 == 0  ? 0xfe
                                : r % 64 == 1 ? 0xff
                                              : r >> 8);
        }
        non_finite_count(&found, data, nbytes, d, 1000);
        assert_int_equal(non_finite_in(data, nbytes, d), found.n > 0);
        for (uint64_t i = 0, n = 0; i < nbytes / size; i++) {
            uint64_t bits = 0;

            memcpy(&bits, data + i * size, size);
            if (!defined(bits, d))
                continue;
            assert_true(n > 0 || found.first == 1000 + i);
            n++;
            assert_true(n <= found.n);
        }
        n_found += found.n > 0;
    }
    assert_in_range(n_found, 3000, 27000);
}

static void test_what_is_told(void **state)
{
    static const struct {
        enum dtype d;
        uint64_t bits;
        const char *what;
    } cases[] = {
        {DTYPE_BF16, 0x7f80, "infinity"},
        {DTYPE_BF16, 0xff80, "-infinity"},
        {DTYPE_BF16, 0xffc0, "NaN"},
        {DTYPE_F16, 0xfc00, "-infinity"},
        {DTYPE_F16, 0x7e00, "NaN"},
        {DTYPE_F32, 0x7f800000, "infinity"},
        {DTYPE_F32, 0x7f800001, "NaN"},
        {DTYPE_F64, UINT64_C(0xfff0000000000000), "-infinity"},
        {DTYPE_F64, UINT64_C(0xfff0000000000001), "NaN"},
        {DTYPE_C64, UINT64_C(0xff80000000000000), "-infinity"},
        {DTYPE_C64, UINT64_C(0x7fc00000), "NaN"},
        {DTYPE_F8_E5M2, 0xfc, "-infinity"},
        {DTYPE_F8_E5M2, 0x7d, "NaN"},
        {DTYPE_F8_E4M3, 0xff, "NaN"},
        {DTYPE_F8_E8M0, 0xff, "NaN"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t data[3] = {0}, size = dtype_nbytes(cases[i].d);
        struct non_finite found = {0};
        struct err e = {0};

        memcpy((uint8_t *)data + size, &cases[i].bits, size);
        memcpy((uint8_t *)data + 2 * size, &cases[i].bits, size);
        non_finite_count(&found, data, 3 * size, cases[i].d, 40);
        assert_int_equal(found.n, 2);
        assert_int_equal(found.first, 41);
        assert_string_equal(non_finite_what(&found), cases[i].what);
        assert_int_equal(non_finite_refuse(&found, "w", 99, " of 'v'", "/names/3", &e), -1);
        assert_int_equal(e.code, ERR_NON_FINITE);
        assert_non_null(strstr(e.msg, "'w' of 'v': 2 of its 99 numbers are not finite, the first"));
        assert_non_null(strstr(e.msg, cases[i].what));
    }
}

static void test_policy_words(void **state)
{
    enum non_finite_policy p = NON_FINITE_REFUSE;

    (void)state;
    assert_true(non_finite_policy_parse(&p, "allow") && p == NON_FINITE_ALLOW);
    assert_true(non_finite_policy_parse(&p, "warn") && p == NON_FINITE_WARN);
    assert_true(non_finite_policy_parse(&p, "refuse") && p == NON_FINITE_REFUSE);
    assert_false(non_finite_policy_parse(&p, "") || non_finite_policy_parse(&p, "Warn"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_element_of_small_dtypes),
        cmocka_unit_test(test_elements_of_large_dtypes),
        cmocka_unit_test(test_every_place_and_cut),
        cmocka_unit_test(test_fast_is_slow),
        cmocka_unit_test(test_what_is_told),
        cmocka_unit_test(test_policy_words),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
