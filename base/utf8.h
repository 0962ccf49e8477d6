/* UTF-8 as the Unicode standard has it, table 3-7: no overlong forms, no surrogates, nothing beyond
 * U+10FFFF. Pure functions; threads: any. */
#ifndef BATON_BASE_UTF8_H
#define BATON_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

enum { UTF8_MAX = 4 }; /* bytes of a character */

/* utf8_scan - look at the bytes at `s` (`len` > 0 of them).
 * Returns: > 0  a whole character of so many bytes, its code point in *cp
 *          0    the start of a character, cut off by the end of `s`
 *          < 0  not UTF-8; minus the length of the maximal part that one U+FFFD replaces */
int utf8_scan(const unsigned char *s, size_t len, uint32_t *cp);

/* utf8_put - write a code point up to U+10FFFF.
 * @out  room for UTF8_MAX bytes
 * Returns: the number written. */
size_t utf8_put(char *out, uint32_t cp);

/* utf8_valid_prefix - the offset of the first byte that is not part of a character; `len` if there
 * is none. */
size_t utf8_valid_prefix(const char *text, size_t len);

/* utf8_clean - replace in place, by '?', every byte that is not part of a character (also what a
 * cut through a character has left): for text that comes from outside and goes into JSON or
 * metrics. Returns how many. */
unsigned utf8_clean(char *text);

/* utf8_cut - how many bytes of foreign text to print in a message ("%.*s"): at most `max`, never
 * half a character. utf8_cut_name: the same, with the length that two names in one message may
 * have. */
int utf8_cut(const char *text, uint32_t max);
int utf8_cut_name(const char *name);

#endif
