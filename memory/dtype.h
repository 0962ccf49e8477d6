/* Element types of tensors, by their safetensors names. */
#ifndef BATON_MEMORY_DTYPE_H
#define BATON_MEMORY_DTYPE_H

#include <stdint.h>

/* Row: constant, canonical (safetensors) name, bits per element, torch's name. */
#define DTYPES(X)                                                                                  \
    X(DTYPE_BOOL, "BOOL", 8, "bool")                                                               \
    X(DTYPE_U8, "U8", 8, "uint8")                                                                  \
    X(DTYPE_I8, "I8", 8, "int8")                                                                   \
    X(DTYPE_F8_E5M2, "F8_E5M2", 8, "float8_e5m2")                                                  \
    X(DTYPE_F8_E4M3, "F8_E4M3", 8, "float8_e4m3fn")                                                \
    X(DTYPE_F8_E8M0, "F8_E8M0", 8, "float8_e8m0fnu")                                               \
    X(DTYPE_I16, "I16", 16, "int16")                                                               \
    X(DTYPE_U16, "U16", 16, "uint16")                                                              \
    X(DTYPE_F16, "F16", 16, "float16")                                                             \
    X(DTYPE_BF16, "BF16", 16, "bfloat16")                                                          \
    X(DTYPE_I32, "I32", 32, "int32")                                                               \
    X(DTYPE_U32, "U32", 32, "uint32")                                                              \
    X(DTYPE_F32, "F32", 32, "float32")                                                             \
    X(DTYPE_I64, "I64", 64, "int64")                                                               \
    X(DTYPE_U64, "U64", 64, "uint64")                                                              \
    X(DTYPE_F64, "F64", 64, "float64")                                                             \
    X(DTYPE_C64, "C64", 64, "complex64")

enum dtype {
    DTYPE_NONE = 0,
#define X(constant, name, bits, torch) constant,
    DTYPES(X)
#undef X
        DTYPE_COUNT
};

/* dtype_parse - read `BF16`, `bfloat16` or `torch.bfloat16` (all one), and torch's short names
 * `half`, `float`, `double`. Returns DTYPE_NONE for anything else. */
enum dtype dtype_parse(const char *text);

const char *dtype_name(enum dtype d);       /* canonical: "BF16" */
const char *dtype_torch_name(enum dtype d); /* "bfloat16" */
uint64_t dtype_nbytes(enum dtype d);        /* bytes per element, 1..8 */
const char *dtype_list(void);               /* "BOOL, U8, ..." for messages */

/* dtype_convertible - can dtype_convert turn `from` into `to`? (F64, F32, F16, BF16 among
 * themselves; a type to itself.) */
_Bool dtype_convertible(enum dtype from, enum dtype to);

/* dtype_convert - convert numel elements, round to nearest even; overflow becomes infinity, as in
 * torch. @dst and @src are unaligned, do not overlap. Asserts dtype_convertible. */
void dtype_convert(void *dst, enum dtype to, const void *src, enum dtype from, uint64_t numel);

#endif
