/* JSON written as text, piece by piece, for parts of replies that may be large, such as
 * logprobs: a tree of values takes ten times the memory of its text.
 *
 * The text is that of reply_append_json. The last byte of the buffer determines whether a comma
 * is needed, so the functions keep no state, and lists that were written separately can be
 * joined. The caller makes sure that brackets match and that no name is repeated. A lack of
 * memory sets out->failed. */
#ifndef BATON_HANDLERS_JSON_PUT_H
#define BATON_HANDLERS_JSON_PUT_H

#include "base/buf.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

void json_put_open(struct buf *out, char bracket);     /* '{' or '[' */
void json_put_close(struct buf *out, char bracket);    /* '}' or ']' */
void json_put_name(struct buf *out, const char *name); /* of a member, whose value comes next */

/* json_put_string - text that is not UTF-8 makes out->failed. */
void json_put_string(struct buf *out, const char *text, size_t len);
void json_put_int(struct buf *out, int64_t v);
void json_put_real(struct buf *out, double v); /* finite; 9 digits, as REPLY_JSON_FLAGS has it */
void json_put_null(struct buf *out);

/* json_put_base64 - a string: the bytes in base64 (RFC 4648, padded). */
void json_put_base64(struct buf *out, const void *data, size_t nbytes);

/* json_put_value - @v  stolen; NULL: there was no memory to make it */
void json_put_value(struct buf *out, json_t *v);

/* json_put_members - the members of an object, as json_put_value takes it. */
void json_put_members(struct buf *out, json_t *object);

/* json_put_text - append text that was written separately: one value, or several with commas
 * between them, or nothing. */
void json_put_text(struct buf *out, const struct buf *text);

#endif
