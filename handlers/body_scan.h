/* What has to be known of JSON text before, or without, parsing it. */
#ifndef BATON_HANDLERS_BODY_SCAN_H
#define BATON_HANDLERS_BODY_SCAN_H

#include <stdbool.h>
#include <stddef.h>

/* scan_depth - where `text` is first nested deeper than `depth_max`, or `len`. Text that is not
 * JSON gets some answer: the parser, which comes next, refuses it. */
size_t scan_depth(const char *text, size_t len, unsigned depth_max);

/* scan_string_end - offset of the quote that ends the string whose first byte is at `i`, or `len`.
 */
size_t scan_string_end(const char *text, size_t len, size_t i);

/* scan_line - line and column, from 1, in bytes, of offset `at`. */
void scan_line(const char *text, size_t at, size_t *line, size_t *column);

/* scan_pointer - the JSON pointer of the member or element that offset `at` lies in, cut at a
 * whole step when it is longer than `cap`.
 * @text  of which text[0..at) is no deeper than BODY_DEPTH_MAX; text that is not JSON gets some
 *        answer */
void scan_pointer(const char *text, size_t at, char *out, size_t cap);

/* scan_escape - append "/" and the member's name in a pointer's spelling (~0, ~1) to what is in
 * `out`; nothing when it does not fit whole. */
void scan_escape(char *out, size_t cap, const char *name, size_t len);

/* A member of the object that a text is. */
struct scan_member {
    const char *name, *value; /* borrowed from the text; of strings without their quotes */
    size_t name_len, value_len;
    size_t next; /* where the scan goes on */
};

/* scan_next_member - the first member (of a zeroed one), or the next. False: there is none, or the
 * text is not JSON from here on. Nothing is decoded: escapes stand as they came. */
bool scan_next_member(const char *text, size_t len, struct scan_member *m);

/* scan_equals - is the text of that length this word? */
bool scan_equals(const char *text, size_t len, const char *word);

#endif
