/* Element types: names, and conversions against arithmetic that shares no code with them. */
#include "memory/dtype.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct format {
    enum dtype dtype;
    int exp_bits, frac_bits;
};
static const struct format f16 = {DTYPE_F16, 5, 10}, bf16 = {DTYPE_BF16, 8, 7};

/* The value of a 16-bit float, by the definition. */
static double value_of(uint16_t h, struct format f)
{
    int bias = (1 << (f.exp_bits - 1)) - 1, exp_max = (1 << f.exp_bits) - 1;
    int exp = h >> f.frac_bits & exp_max, frac = h & ((1 << f.frac_bits) - 1);
    double sign = h >> 15 != 0 ? -1.0 : 1.0;

    if (exp == exp_max)
        return frac != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exp == 0)
        return sign * ldexp(frac, 1 - bias - f.frac_bits);
    return sign * ldexp((1 << f.frac_bits) + frac, exp - bias - f.frac_bits);
}

/* The nearest 16-bit float, found by searching all of them: the positive ones grow with their
 * bits, infinity stands where the next power of two would, and the even one wins a tie. */
static uint16_t nearest(double x, struct format f)
{
    int exp_max = (1 << f.exp_bits) - 1;
    uint16_t inf = (uint16_t)(exp_max << f.frac_bits), low = 0, high = inf;
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double top = ldexp(1.0, exp_max - ((1 << (f.exp_bits - 1)) - 1));
    double below, above;

    x = fabs(x);
    if (x >= top)
        return sign | inf;
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (value_of(middle, f) <= x)
            low = middle;
        else
            high = middle;
    }
    below = x - value_of(low, f);
    above = (high == inf ? top : value_of(high, f)) - x;
    if (below != above)
        return sign | (below < above ? low : high);
    return sign | ((low & 1) == 0 ? low : high);
}

static uint64_t random_state = 0x9e3779b97f4a7c15;

static uint64_t random_u64(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static void test_dtype_parse_knows_every_spelling(void **state)
{
    static const struct {
        const char *text;
        enum dtype dtype;
    } rows[] = {{"BF16", DTYPE_BF16},
                {"bfloat16", DTYPE_BF16},
                {"torch.bfloat16", DTYPE_BF16},
                {"half", DTYPE_F16},
                {"torch.half", DTYPE_F16},
                {"float", DTYPE_F32},
                {"double", DTYPE_F64},
                {"torch.float8_e4m3fn", DTYPE_F8_E4M3},
                {"bool", DTYPE_BOOL},
                {"torch.BF16", DTYPE_NONE},
                {"bf16", DTYPE_NONE},
                {"", DTYPE_NONE},
                {"torch.", DTYPE_NONE},
                {"NONE", DTYPE_NONE},
                {"F4", DTYPE_NONE},
                {"float32 ", DTYPE_NONE}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(dtype_parse(rows[i].text), rows[i].dtype);
    for (enum dtype d = DTYPE_NONE + 1; d < DTYPE_COUNT; d++) {
        assert_int_equal(dtype_parse(dtype_name(d)), d);
        assert_int_equal(dtype_parse(dtype_torch_name(d)), d);
        assert_true(dtype_nbytes(d) >= 1 && dtype_nbytes(d) <= 8);
        assert_non_null(strstr(dtype_list(), dtype_name(d)));
    }
    assert_memory_equal(dtype_list(), "BOOL, U8", 8);
}

static void test_dtype_convertible_is_floats_and_identity(void **state)
{
    (void)state;
    assert_true(dtype_convertible(DTYPE_F32, DTYPE_BF16));
    assert_true(dtype_convertible(DTYPE_F64, DTYPE_F16));
    assert_true(dtype_convertible(DTYPE_I8, DTYPE_I8));
    assert_false(dtype_convertible(DTYPE_I8, DTYPE_U8));
    assert_false(dtype_convertible(DTYPE_I32, DTYPE_F32));
    assert_false(dtype_convertible(DTYPE_F8_E4M3, DTYPE_F32));
    assert_false(dtype_convertible(DTYPE_NONE, DTYPE_NONE));
}

/* Every 16-bit float: widened to its value, and narrowed back to its own bits. */
static void check_all_halves(struct format f)
{
    for (uint32_t i = 0; i <= UINT16_MAX; i++) {
        uint16_t h = (uint16_t)i, back;
        double want = value_of(h, f), wide;
        float single;

        dtype_convert(&wide, DTYPE_F64, &h, f.dtype, 1);
        dtype_convert(&single, DTYPE_F32, &h, f.dtype, 1);
        if (isnan(want)) {
            uint64_t bits;
            uint32_t bits32;
            memcpy(&bits, &wide, 8);
            memcpy(&bits32, &single, 4);
            assert_true(isnan(wide) && (bits >> 51 & 1) == 1);
            assert_true(isnan(single) && (bits32 >> 22 & 1) == 1);
            assert_int_equal(signbit(wide) != 0, h >> 15);
        } else {
            assert_memory_equal(&wide, &want, sizeof wide);
            assert_true((double)single == want);
            assert_int_equal(signbit(single) != 0, h >> 15);
        }
        dtype_convert(&back, f.dtype, &wide, DTYPE_F64, 1);
        assert_int_equal(back, isnan(want) ? h | 1 << (f.frac_bits - 1) : h);
        dtype_convert(&back, f.dtype, &single, DTYPE_F32, 1);
        assert_int_equal(back, isnan(want) ? h | 1 << (f.frac_bits - 1) : h);
    }
}

static void test_dtype_convert_all_halves(void **state)
{
    (void)state;
    check_all_halves(f16);
    check_all_halves(bf16);
}

/* Between any two neighbours: the middle (a tie), and the doubles next to it on either side. */
static void check_all_ties(struct format f)
{
    uint16_t inf = (uint16_t)(((1 << f.exp_bits) - 1) << f.frac_bits);

    for (uint16_t h = 0; h < inf; h++) {
        double low = value_of(h, f);
        double high = h + 1 < inf ? value_of((uint16_t)(h + 1), f)
                                  : ldexp(1.0, 1 << (f.exp_bits - 1));
        double tie = low + (high - low) / 2;
        const double xs[] = {tie, nextafter(tie, 0.0), nextafter(tie, (double)INFINITY), -tie};
        uint16_t got[4];

        dtype_convert(got, f.dtype, xs, DTYPE_F64, 4);
        assert_int_equal(got[0], (h & 1) == 0 ? h : h + 1);
        assert_int_equal(got[1], h);
        assert_int_equal(got[2], h + 1);
        assert_int_equal(got[3], got[0] | 0x8000);
        for (int i = 0; i < 4; i++)
            assert_int_equal(got[i], nearest(xs[i], f));
    }
}

static void test_dtype_convert_rounds_ties_to_even(void **state)
{
    (void)state;
    check_all_ties(f16);
    check_all_ties(bf16);
}

static void test_dtype_convert_random_floats(void **state)
{
    (void)state;
    for (int i = 0; i < 200000; i++) {
        uint32_t bits = (uint32_t)random_u64();
        uint16_t half, brain;
        float x;

        memcpy(&x, &bits, 4);
        dtype_convert(&half, DTYPE_F16, &x, DTYPE_F32, 1);
        dtype_convert(&brain, DTYPE_BF16, &x, DTYPE_F32, 1);
        if (isnan(x)) {
            assert_true(isnan(value_of(half, f16)) && (half & 0x200) != 0);
            assert_true(isnan(value_of(brain, bf16)) && (brain & 0x40) != 0);
            continue;
        }
        assert_int_equal(half, nearest((double)x, f16));
        assert_int_equal(brain, nearest((double)x, bf16));
    }
}

static void test_dtype_convert_doubles_round_once(void **state)
{
    /* 1 + 2^-8 is a tie in BF16; a little more, lost on the way through float, is not. */
    const double x = 1.0 + 0x1p-8 + 0x1p-40, big = 0x1.ffffffp127, less = 0x1.fffffefffp127;
    const double tiny = 5e-324;
    uint16_t brain;
    float single;

    (void)state;
    dtype_convert(&brain, DTYPE_BF16, &x, DTYPE_F64, 1);
    assert_int_equal(brain, 0x3f81);
    dtype_convert(&single, DTYPE_F32, &big, DTYPE_F64, 1);
    assert_true(isinf(single));
    dtype_convert(&single, DTYPE_F32, &less, DTYPE_F64, 1);
    assert_true(single == 0x1.fffffep127f);
    dtype_convert(&brain, DTYPE_BF16, &tiny, DTYPE_F64, 1);
    assert_int_equal(brain, 0);
    for (int i = 0; i < 200000; i++) {
        uint64_t bits = random_u64();
        double y;
        if ((i & 1) != 0) /* most of all doubles overflow or vanish: stay near the small types */
            bits = (bits & ~(UINT64_C(0x7ff) << 52)) | (1023 - 30 + bits % 60) << 52;
        memcpy(&y, &bits, 8);
        if (isnan(y))
            continue;
        dtype_convert(&brain, DTYPE_BF16, &y, DTYPE_F64, 1);
        assert_int_equal(brain, nearest(y, bf16));
        dtype_convert(&brain, DTYPE_F16, &y, DTYPE_F64, 1);
        assert_int_equal(brain, nearest(y, f16));
    }
}

/* Arrays at odd addresses, through the vectorised pair. */
static void test_dtype_convert_unaligned_arrays(void **state)
{
    enum { N = 1031 };
    uint8_t *src = malloc(4 * N + 1), *dst = malloc(2 * N + 1), *back = malloc(4 * N + 1);

    (void)state;
    for (size_t i = 0; i < N; i++) {
        float x = (float)(int32_t)random_u64() / 1000.0f;
        memcpy(src + 1 + 4 * i, &x, 4);
    }
    dtype_convert(dst + 1, DTYPE_BF16, src + 1, DTYPE_F32, N);
    dtype_convert(back + 1, DTYPE_F32, dst + 1, DTYPE_BF16, N);
    for (size_t i = 0; i < N; i++) {
        uint16_t h;
        float x, y;
        memcpy(&x, src + 1 + 4 * i, 4);
        memcpy(&y, back + 1 + 4 * i, 4);
        memcpy(&h, dst + 1 + 2 * i, 2);
        assert_int_equal(h, nearest((double)x, bf16));
        assert_true((double)y == value_of(h, bf16));
    }
    dtype_convert(back, DTYPE_F32, src, DTYPE_F32, N);
    assert_memory_equal(back, src, 4 * N);
    dtype_convert(NULL, DTYPE_F16, NULL, DTYPE_F32, 0);
    free(src);
    free(dst);
    free(back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtype_parse_knows_every_spelling),
        cmocka_unit_test(test_dtype_convertible_is_floats_and_identity),
        cmocka_unit_test(test_dtype_convert_all_halves),
        cmocka_unit_test(test_dtype_convert_rounds_ties_to_even),
        cmocka_unit_test(test_dtype_convert_random_floats),
        cmocka_unit_test(test_dtype_convert_doubles_round_once),
        cmocka_unit_test(test_dtype_convert_unaligned_arrays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
