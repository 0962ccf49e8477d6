/* The exponent of what is not finite is all ones (of E4M3 and E8M0, which have no infinity, so is
 * all that is looked at). Added to such bits, one more carries out of them, and only then; bits
 * that are left out of the sum cannot carry, so that no element touches its neighbour. */
#include "memory/non_finite.h"

#include "base/utf8.h"

#include <endian.h>
#include <string.h>

bool non_finite_policy_parse(enum non_finite_policy *out, const char *text)
{
    static const char *const words[] = {"refuse", "warn", "allow"};

    for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(text, words[i]) == 0) {
            *out = (enum non_finite_policy)i;
            return true;
        }
    }
    return false;
}

#define EACH8(x)  (UINT64_C(0x0101010101010101) * (x))
#define EACH16(x) (UINT64_C(0x0001000100010001) * (x))
#define EACH32(x) (UINT64_C(0x0000000100000001) * (x))

struct non_finite_bits non_finite_bits(enum dtype d)
{
    switch (d) {
    case DTYPE_F8_E5M2:
        return (struct non_finite_bits){EACH8(0x7c), EACH8(0x04), EACH8(0x80), UINT64_MAX};
    case DTYPE_F8_E4M3:
        return (struct non_finite_bits){EACH8(0x7f), EACH8(0x01), EACH8(0x80), UINT64_MAX};
    case DTYPE_F8_E8M0: /* has no sign: only 0xff is NaN */
        return (struct non_finite_bits){EACH8(0x7f), EACH8(0x01), EACH8(0x80), 0};
    case DTYPE_F16:
        return (struct non_finite_bits){EACH16(0x7c00), EACH16(0x0400), EACH16(0x8000), UINT64_MAX};
    case DTYPE_BF16:
        return (struct non_finite_bits){EACH16(0x7f80), EACH16(0x0080), EACH16(0x8000), UINT64_MAX};
    case DTYPE_F32:
    case DTYPE_C64:
        return (struct non_finite_bits){EACH32(0x7f800000), EACH32(0x00800000), EACH32(0x80000000),
                                        UINT64_MAX};
    case DTYPE_F64:
        return (struct non_finite_bits){UINT64_C(0x7ff) << 52, UINT64_C(1) << 52, UINT64_C(1) << 63,
                                        UINT64_MAX};
    case DTYPE_NONE:
    case DTYPE_BOOL:
    case DTYPE_U8:
    case DTYPE_I8:
    case DTYPE_I16:
    case DTYPE_U16:
    case DTYPE_I32:
    case DTYPE_U32:
    case DTYPE_I64:
    case DTYPE_U64:
    case DTYPE_COUNT:
        break;
    }
    return (struct non_finite_bits){0, 0, 0, 0};
}

static uint64_t carries(uint64_t word, const struct non_finite_bits *b)
{
    return ((word & b->mask) + b->step) & (word | b->keep);
}

static uint64_t word_at(const uint8_t *p)
{
    uint64_t w;

    memcpy(&w, p, sizeof w);
    return le64toh(w);
}

#if defined(__x86_64__)
#include <immintrin.h>

enum { STEP_NBYTES = 64 };

__attribute__((target("avx2"))) static __m256i carries_32(const uint8_t *p, const __m256i b[3])
{
    __m256i w = _mm256_loadu_si256((const __m256i_u *)p);

    return _mm256_and_si256(_mm256_add_epi64(_mm256_and_si256(w, b[0]), b[1]),
                            _mm256_or_si256(w, b[2]));
}

/* Whole steps; returns how many bytes it took. */
__attribute__((target("avx2"))) static uint64_t
carries_avx2(uint64_t *found, const uint8_t *p, uint64_t nbytes, const struct non_finite_bits *bits)
{
    const __m256i b[3] = {_mm256_set1_epi64x((long long)bits->mask),
                          _mm256_set1_epi64x((long long)bits->step),
                          _mm256_set1_epi64x((long long)bits->keep)};
    __m256i x = _mm256_setzero_si256(), y = x;
    uint64_t n = nbytes / STEP_NBYTES, lanes[4];

    for (uint64_t i = 0; i < n; i++, p += STEP_NBYTES) {
        x = _mm256_or_si256(x, carries_32(p, b));
        y = _mm256_or_si256(y, carries_32(p + STEP_NBYTES / 2, b));
    }
    _mm256_storeu_si256((__m256i_u *)lanes, _mm256_or_si256(x, y));
    *found |= lanes[0] | lanes[1] | lanes[2] | lanes[3];
    return n * STEP_NBYTES;
}
#endif

bool non_finite_in(const void *data, uint64_t nbytes, enum dtype d)
{
    const struct non_finite_bits b = non_finite_bits(d);
    uint64_t found = 0, done = 0;
    const uint8_t *p = data;

    if (b.top == 0)
        return false;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        done = carries_avx2(&found, p, nbytes, &b);
#endif
    for (; nbytes - done >= 8; done += 8)
        found |= carries(word_at(p + done), &b);
    if (done < nbytes) { /* the part that is cut off lacks the upper bits of its exponent */
        uint8_t last[8] = {0};

        memcpy(last, p + done, nbytes - done);
        found |= carries(word_at(last), &b);
    }
    return (found & b.top) != 0;
}

/* Of an element that is not finite: is it NaN? */
static bool is_nan(uint64_t bits, enum dtype d)
{
    switch (d) {
    case DTYPE_F8_E5M2:
        return (bits & 0x03) != 0;
    case DTYPE_F16:
        return (bits & 0x03ff) != 0;
    case DTYPE_BF16:
        return (bits & 0x007f) != 0;
    case DTYPE_F32:
        return (bits & 0x007fffff) != 0;
    case DTYPE_F64:
        return (bits & ((UINT64_C(1) << 52) - 1)) != 0;
    default:
        return true; /* dtypes without infinity */
    }
}

static void count_element(struct non_finite *out, const uint8_t *p, uint64_t size, enum dtype d,
                          uint64_t index)
{
    const struct non_finite_bits b = non_finite_bits(d);
    uint8_t bytes[8] = {0};
    uint64_t bits;

    memcpy(bytes, p, size);
    bits = word_at(bytes);
    if ((carries(bits, &b) & b.top) == 0)
        return;
    if (out->n++ > 0)
        return;
    if (d == DTYPE_C64) { /* the part that is it */
        bits = (carries(bits & UINT32_MAX, &b) & b.top) != 0 ? bits & UINT32_MAX : bits >> 32;
        d = DTYPE_F32;
        size = 4;
    }
    out->first = index;
    out->first_nan = is_nan(bits, d);
    out->first_negative = (bits >> (8 * size - 1) & 1) != 0;
}

void non_finite_count(struct non_finite *out, const void *data, uint64_t nbytes, enum dtype d,
                      uint64_t index)
{
    uint64_t size = dtype_nbytes(d);
    const uint8_t *p = data;

    for (; nbytes >= size; p += size, nbytes -= size, index++)
        count_element(out, p, size, d, index);
}

const char *non_finite_what(const struct non_finite *found)
{
    if (found->first_nan)
        return "NaN";
    return found->first_negative ? "-infinity" : "infinity";
}

int non_finite_refuse(const struct non_finite *found, const char *name, uint64_t numel,
                      const char *of, const char *field, struct err *e)
{
    return err_set(e, ERR_NON_FINITE, field,
                   "'%.*s'%s: %llu of its %llu numbers are not finite, the first is %s at index "
                   "%llu; look for the step that made it, or start the server with --non-finite "
                   "warn or allow",
                   utf8_cut_name(name), name, of, (unsigned long long)found->n,
                   (unsigned long long)numel, non_finite_what(found),
                   (unsigned long long)found->first);
}
