/* Bytes as text. */
#ifndef BATON_BASE_HEX_H
#define BATON_BASE_HEX_H

#include <stddef.h>
#include <stdint.h>

/* hex_text - write two lower-case hex digits for each of n bytes, and a NUL.
 * @out  [2 * n + 1]. Threads: any. */
static inline void hex_text(char *out, const uint8_t *bytes, size_t n)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < n; i++) {
        *out++ = digits[bytes[i] >> 4];
        *out++ = digits[bytes[i] & 15];
    }
    *out = '\0';
}

#endif
