/* Well-formed byte sequences of the Unicode standard, table 3-7. */
#include "base/utf8.h"

#include <stddef.h>

/* Length of the well-formed character at p, or 0. Reads no further than the first wrong byte, so
 * the NUL at the end stops it. */
static size_t character(const unsigned char *p)
{
    unsigned char low = 0x80, high = 0xbf;
    size_t len;

    if (p[0] < 0x80)
        return 1;
    if (p[0] >= 0xc2 && p[0] <= 0xdf)
        len = 2;
    else if (p[0] >= 0xe0 && p[0] <= 0xef)
        len = 3;
    else if (p[0] >= 0xf0 && p[0] <= 0xf4)
        len = 4;
    else
        return 0;
    if (p[0] == 0xe0)
        low = 0xa0; /* overlong */
    else if (p[0] == 0xed)
        high = 0x9f; /* surrogates */
    else if (p[0] == 0xf0)
        low = 0x90; /* overlong */
    else if (p[0] == 0xf4)
        high = 0x8f; /* beyond U+10FFFF */
    if (p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < len; i++) {
        if (p[i] < 0x80 || p[i] > 0xbf)
            return 0;
    }
    return len;
}

unsigned utf8_clean(char *text)
{
    unsigned char *p = (unsigned char *)text;
    unsigned n = 0;
    size_t len;

    while (*p != '\0') {
        len = character(p);
        if (len == 0) {
            *p = '?';
            n++;
            len = 1;
        }
        p += len;
    }
    return n;
}
