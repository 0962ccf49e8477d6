/* UTF-8 as in table 3-7 of the Unicode standard: no overlong forms, no surrogates, nothing beyond
 * U+10FFFF. Pure functions; threads: any. */
#ifndef BATON_BASE_UTF8_H
#define BATON_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { UTF8_MAX = 4 }; /* bytes of a character */

/* utf8_scan - examine the bytes at `s` (`len` > 0 of them).
 * Returns: > 0  the number of bytes of a whole character; its code point is in *cp
 *          0    the start of a character, cut off by the end of `s`
 *          < 0  not UTF-8; minus the length of the maximal part that one U+FFFD replaces */
int utf8_scan(const unsigned char *s, size_t len, uint32_t *cp);

/* utf8_put - write a code point up to U+10FFFF.
 * @out  at least UTF8_MAX bytes
 * Returns: the number written. */
size_t utf8_put(char *out, uint32_t cp);

/* utf8_valid_prefix - the offset of the first byte that is not part of a character; `len` if there
 * is none. */
size_t utf8_valid_prefix(const char *text, size_t len);

/* utf8_clean - replace in place every byte that is not part of a character by '?' (also the rest of
 * a character that was cut): for text from outside that is written to JSON or metrics. Returns the
 * number of bytes replaced. */
unsigned utf8_clean(char *text);

/* utf8_is_hidden - is it a control character (C0, DEL, C1), a line separator or a bidirectional
 * mark? It is not seen, and may control a terminal, or make the rest of a line read otherwise.
 * utf8_find_hidden: the offset of the first one, or of the first byte that is not part of a
 * character; `len` if there is none. */
bool utf8_is_hidden(uint32_t cp);
size_t utf8_find_hidden(const char *text, size_t len);

/* utf8_cut - the number of bytes of a foreign text to print in a message ("%.*s"): at most `max`,
 * never half a character. utf8_cut_name: the same, with a limit at which two names fit into one
 * message. */
int utf8_cut(const char *text, uint32_t max);
int utf8_cut_name(const char *name);

#endif
