/* Functions on JSON text that has not been parsed. */
#ifndef BATON_HANDLERS_BODY_SCAN_H
#define BATON_HANDLERS_BODY_SCAN_H

#include <stdbool.h>
#include <stddef.h>

/* scan_depth - the offset where `text` is first nested deeper than `depth_max`, or `len`. For
 * text that is not JSON the result is arbitrary: the parser refuses it afterwards. */
size_t scan_depth(const char *text, size_t len, unsigned depth_max);

/* scan_string_end - offset of the quote that ends the string whose first byte is at `i`, or `len`.
 */
size_t scan_string_end(const char *text, size_t len, size_t i);

/* scan_line - line and column, from 1, in bytes, of offset `at`. */
void scan_line(const char *text, size_t at, size_t *line, size_t *column);

/* scan_pointer - the JSON pointer of the member or element that contains offset `at`; shortened
 * by whole steps if it is longer than `cap`.
 * @text  text[0..at) is no deeper than BODY_DEPTH_MAX; for text that is not JSON the result is
 *        arbitrary */
void scan_pointer(const char *text, size_t at, char *out, size_t cap);

/* scan_escape - append "/" and the member's name, escaped for a JSON pointer (~0, ~1), to `out`;
 * nothing if it does not fit completely. */
void scan_escape(char *out, size_t cap, const char *name, size_t len);

/* A member of an object, found in its text. */
struct scan_member {
    const char *name, *value; /* borrowed from the text; of strings without their quotes */
    size_t name_len, value_len;
    size_t next; /* where the scan continues */
};

/* scan_next_member - the next member; the first one if *m is zeroed. Returns false if there is
 * none, or if the text is not JSON from here on. Nothing is decoded: escapes remain. */
bool scan_next_member(const char *text, size_t len, struct scan_member *m);

/* scan_equals - is the text of that length this word? */
bool scan_equals(const char *text, size_t len, const char *word);

#endif
