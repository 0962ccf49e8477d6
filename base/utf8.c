/* Well-formed byte sequences of the Unicode standard, table 3-7. */
#include "base/utf8.h"

#include <string.h>

enum { NAME_SHOWN_MAX = 160 }; /* bytes */

/* The length in bytes of the character that begins with `lead`, and the range of its second byte
 * (which excludes overlong forms, surrogates and values above U+10FFFF); 0 for a byte that begins
 * no character. */
static int lead_length(unsigned char lead, unsigned char *low, unsigned char *high)
{
    *low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    *high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (lead < 0x80)
        return 1;
    if (lead < 0xc2 || lead > 0xf4)
        return 0;
    return lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

int utf8_scan(const unsigned char *s, size_t len, uint32_t *cp)
{
    unsigned char low, high;
    int n = lead_length(s[0], &low, &high);

    if (n == 0)
        return -1;
    *cp = n == 1 ? s[0] : s[0] & (0x7fU >> n);
    for (int i = 1; i < n; i++) {
        if ((size_t)i == len)
            return 0;
        if (s[i] < low || s[i] > high)
            return -i;
        *cp = *cp << 6 | (s[i] & 0x3fU);
        low = 0x80;
        high = 0xbf;
    }
    return n;
}

size_t utf8_put(char *out, uint32_t cp)
{
    size_t n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;

    if (n == 1) {
        out[0] = (char)cp;
        return 1;
    }
    for (size_t i = n - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3f));
        cp >>= 6;
    }
    out[0] = (char)((0xf00U >> n & 0xff) | cp);
    return n;
}

size_t utf8_valid_prefix(const char *text, size_t len)
{
    size_t at = 0;
    uint32_t cp;

    while (at < len) {
        int n = utf8_scan((const unsigned char *)text + at, len - at, &cp);

        if (n <= 0)
            return at;
        at += (size_t)n;
    }
    return at;
}

bool utf8_is_hidden(uint32_t cp)
{
    return cp < 0x20 || (cp >= 0x7f && cp <= 0x9f) || cp == 0x061c || cp == 0x200e ||
           cp == 0x200f || (cp >= 0x2028 && cp <= 0x202e) || (cp >= 0x2066 && cp <= 0x2069);
}

size_t utf8_find_hidden(const char *text, size_t len)
{
    size_t at = 0;
    uint32_t cp;

    while (at < len) {
        int n = utf8_scan((const unsigned char *)text + at, len - at, &cp);

        if (n <= 0 || utf8_is_hidden(cp))
            return at;
        at += (size_t)n;
    }
    return len;
}

unsigned utf8_clean(char *text)
{
    size_t len = strlen(text), at = 0;
    unsigned n = 0;

    while ((at += utf8_valid_prefix(text + at, len - at)) < len) {
        text[at++] = '?';
        n++;
    }
    return n;
}

int utf8_cut(const char *text, uint32_t max)
{
    size_t len = strnlen(text, (size_t)max + 1);

    if (len <= max)
        return (int)len;
    for (len = max; len > 0 && ((unsigned char)text[len] & 0xc0) == 0x80;)
        len--;
    return (int)len;
}

int utf8_cut_name(const char *name)
{
    return utf8_cut(name, NAME_SHOWN_MAX);
}
