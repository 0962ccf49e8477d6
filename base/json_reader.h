/* Reading JSON from bytes, member by member, without building a tree.
 *
 * For headers and indexes of untrusted origin: the caller's own limits bound what is read, while a
 * tree of 100 MB of text would take gigabytes before the first check. Strict: RFC 8259, valid
 * UTF-8, no lone surrogates. On an error a function returns false and sets `wrong`; `at` is then
 * the place of the error. `wrong` keeps the first error, and every later call returns false. */
#ifndef BATON_BASE_JSON_READER_H
#define BATON_BASE_JSON_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_reader {
    const uint8_t *start, *at, *end; /* borrowed */
    const char *wrong;               /* static; NULL while all is well */
};

void json_reader_init(struct json_reader *r, const void *data, size_t len);

/* json_reader_offset - bytes before the current place, for messages. */
size_t json_reader_offset(const struct json_reader *r);

/* json_reader_peek - the next byte that is not white space, or -1 at the end. */
int json_reader_peek(struct json_reader *r);

/* json_reader_open - take `bracket`, '{' or '['. */
bool json_reader_open(struct json_reader *r, char bracket);

/* json_reader_next - is there another member before `close` ('}' or ']')? Takes the comma before
 * it, or `close`. Returns false at the end and on an error.
 * @n  counts the members so far; the caller starts it at 0 */
bool json_reader_next(struct json_reader *r, char close, uint32_t *n);

/* json_reader_string - read one string, decoded and NUL-terminated, into out[cap]. It is an error
 * if it does not fit or contains a NUL. With out NULL the string is only checked. */
bool json_reader_string(struct json_reader *r, char *out, size_t cap);

/* json_reader_plain - read a string without escapes: *out are its bytes in the text, without a NUL.
 * Returns false, and takes and sets nothing, if there is none; json_reader_string says why. */
bool json_reader_plain(struct json_reader *r, const char **out, size_t *len);

/* json_reader_key - read a string as above, and the colon after it. */
bool json_reader_key(struct json_reader *r, char *out, size_t cap);

/* json_reader_u64 - read a non-negative integer without fraction or exponent. */
bool json_reader_u64(struct json_reader *r, uint64_t *out);

/* json_reader_skip - check and skip any value nested at most `depth` deep (0: a plain value). */
bool json_reader_skip(struct json_reader *r, unsigned depth);

/* json_reader_end - is only white space left? Anything else is an error. */
bool json_reader_end(struct json_reader *r);

#endif
