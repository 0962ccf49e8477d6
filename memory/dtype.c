/* Names, widths and conversions of element types.
 *
 * Every narrowing rounds once, from the exact value: going through float on the way from F64 to
 * BF16, as torch does, would round twice. */
#include "memory/dtype.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct dtype_row {
    const char *name;
    uint64_t nbytes;
    const char *torch;
};

static const struct dtype_row rows[DTYPE_COUNT] = {
#define X(constant, name, bits, torch) [constant] = {name, (bits) / 8, torch},
    DTYPES(X)
#undef X
};

static const struct {
    const char *name;
    enum dtype dtype;
} short_names[] = {{"half", DTYPE_F16}, {"float", DTYPE_F32}, {"double", DTYPE_F64}};

/* A binary floating-point format of 16 bits. */
struct half_format {
    unsigned exp_bits, frac_bits;
};
static const struct half_format format_f16 = {5, 10};
static const struct half_format format_bf16 = {8, 7};

enum dtype dtype_parse(const char *text)
{
    static const char prefix[] = "torch.";
    bool torch = strncmp(text, prefix, sizeof prefix - 1) == 0;

    if (torch)
        text += sizeof prefix - 1;
    for (enum dtype d = DTYPE_NONE + 1; d < DTYPE_COUNT; d++)
        if ((!torch && strcmp(text, rows[d].name) == 0) || strcmp(text, rows[d].torch) == 0)
            return d;
    for (size_t i = 0; i < sizeof short_names / sizeof short_names[0]; i++)
        if (strcmp(text, short_names[i].name) == 0)
            return short_names[i].dtype;
    return DTYPE_NONE;
}

const char *dtype_name(enum dtype d)
{
    assert(d > DTYPE_NONE && d < DTYPE_COUNT);
    return rows[d].name;
}

const char *dtype_torch_name(enum dtype d)
{
    assert(d > DTYPE_NONE && d < DTYPE_COUNT);
    return rows[d].torch;
}

uint64_t dtype_nbytes(enum dtype d)
{
    assert(d > DTYPE_NONE && d < DTYPE_COUNT);
    return rows[d].nbytes;
}

const char *dtype_list(void)
{
#define X(constant, name, bits, torch) ", " name
    return &DTYPES(X)[2];
#undef X
}

static bool is_float(enum dtype d)
{
    return d == DTYPE_F64 || d == DTYPE_F32 || d == DTYPE_F16 || d == DTYPE_BF16;
}

bool dtype_convertible(enum dtype from, enum dtype to)
{
    return from != DTYPE_NONE && (from == to || (is_float(from) && is_float(to)));
}

static double double_of_bits(uint64_t bits)
{
    double x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Exact; a NaN comes out quiet, with its sign and payload. */
static double half_widen(uint16_t half, struct half_format f)
{
    uint64_t sign = (uint64_t)(half >> 15) << 63;
    unsigned exp_max = (1u << f.exp_bits) - 1;
    unsigned exp = (half >> f.frac_bits) & exp_max;
    uint64_t frac = half & ((1u << f.frac_bits) - 1);
    int bias = (int)(exp_max >> 1);
    int msb;

    if (exp == exp_max) {
        uint64_t quiet = frac != 0 ? UINT64_C(1) << 51 : 0;
        return double_of_bits(sign | UINT64_C(0x7ff) << 52 | quiet | frac << (52 - f.frac_bits));
    }
    if (exp != 0)
        return double_of_bits(sign | (uint64_t)((int)exp - bias + 1023) << 52 |
                              frac << (52 - f.frac_bits));
    if (frac == 0)
        return double_of_bits(sign);
    msb = 63 - __builtin_clzll(frac);
    return double_of_bits(sign | (uint64_t)(msb + 1 - bias - (int)f.frac_bits + 1023) << 52 |
                          (frac << (52 - msb) & ((UINT64_C(1) << 52) - 1)));
}

/* m / 2^shift, to nearest, ties to even; 1 <= shift <= 63. */
static uint64_t shift_round(uint64_t m, unsigned shift)
{
    uint64_t rest = m & ((UINT64_C(1) << shift) - 1);
    uint64_t half = UINT64_C(1) << (shift - 1);
    uint64_t q = m >> shift;

    return q + (rest > half || (rest == half && (q & 1) != 0));
}

static uint16_t half_narrow(double x, struct half_format f)
{
    unsigned exp_max = (1u << f.exp_bits) - 1;
    uint16_t infinity = (uint16_t)(exp_max << f.frac_bits);
    unsigned shift = 52 - f.frac_bits;
    uint64_t bits, frac, q;
    uint16_t sign;
    int exp;

    memcpy(&bits, &x, sizeof bits);
    sign = (uint16_t)(bits >> 48 & 0x8000);
    frac = bits & ((UINT64_C(1) << 52) - 1);
    exp = (int)(bits >> 52 & 0x7ff);
    if (exp == 0x7ff && frac != 0)
        return (uint16_t)(sign | infinity | 1u << (f.frac_bits - 1) | (uint16_t)(frac >> shift));
    if (exp == 0) /* zero, or far below the least subnormal of either format */
        return sign;
    exp += (int)(exp_max >> 1) - 1023;
    if (exp >= (int)exp_max)
        return sign | infinity;
    frac |= UINT64_C(1) << 52;
    if (exp > 0) { /* the implicit bit adds one to exp - 1; rounding up may carry to infinity */
        q = shift_round(frac, shift) + ((uint64_t)(exp - 1) << f.frac_bits);
        return (uint16_t)(sign | q);
    }
    shift += (unsigned)(1 - exp);
    return shift > 63 ? sign : (uint16_t)(sign | shift_round(frac, shift));
}

/* The pair that trainers use is written so that the compiler vectorises it. */
static void bf16_of_f32(uint8_t *dst, const uint8_t *src, uint64_t numel)
{
    for (uint64_t i = 0; i < numel; i++) {
        uint32_t w, rounded;
        uint16_t h;

        memcpy(&w, src + 4 * i, 4);
        rounded = w + 0x7fff + (w >> 16 & 1);
        h = (uint16_t)((w & 0x7fffffff) > 0x7f800000 ? (w >> 16 | 0x40) : rounded >> 16);
        memcpy(dst + 2 * i, &h, 2);
    }
}

static void f32_of_bf16(uint8_t *dst, const uint8_t *src, uint64_t numel)
{
    for (uint64_t i = 0; i < numel; i++) {
        uint16_t h;
        uint32_t w;

        memcpy(&h, src + 2 * i, 2);
        w = (uint32_t)h << 16;
        w |= (h & 0x7fff) > 0x7f80 ? 0x00400000u : 0;
        memcpy(dst + 4 * i, &w, 4);
    }
}

static double element_load(const uint8_t *src, enum dtype d)
{
    double x;
    float y;
    uint16_t half;

    if (d == DTYPE_F64) {
        memcpy(&x, src, 8);
        return x;
    }
    if (d == DTYPE_F32) {
        memcpy(&y, src, 4);
        return (double)y;
    }
    memcpy(&half, src, 2);
    return half_widen(half, d == DTYPE_F16 ? format_f16 : format_bf16);
}

/* double to float, where a finite value beyond float's range is infinity and not undefined. */
static float f32_of_f64(double x)
{
    static const double half_beyond =
        0x1.ffffffp127; /* nearest even rounds from here up to 2^128 */

    if (x >= half_beyond)
        return __builtin_inff();
    if (x <= -half_beyond)
        return -__builtin_inff();
    return (float)x;
}

static void element_store(uint8_t *dst, enum dtype d, double x)
{
    float y;
    uint16_t half;

    if (d == DTYPE_F64) {
        memcpy(dst, &x, 8);
    } else if (d == DTYPE_F32) {
        y = f32_of_f64(x);
        memcpy(dst, &y, 4);
    } else {
        half = half_narrow(x, d == DTYPE_F16 ? format_f16 : format_bf16);
        memcpy(dst, &half, 2);
    }
}

void dtype_convert(void *dst, enum dtype to, const void *src, enum dtype from, uint64_t numel)
{
    uint64_t n_to = dtype_nbytes(to), n_from = dtype_nbytes(from);
    const uint8_t *s = src;
    uint8_t *d = dst;

    assert(dtype_convertible(from, to));
    if (numel == 0)
        return;
    if (from == to)
        memcpy(dst, src, numel * n_to);
    else if (from == DTYPE_F32 && to == DTYPE_BF16)
        bf16_of_f32(dst, src, numel);
    else if (from == DTYPE_BF16 && to == DTYPE_F32)
        f32_of_bf16(dst, src, numel);
    else
        for (uint64_t i = 0; i < numel; i++)
            element_store(d + i * n_to, to, element_load(s + i * n_from, from));
}
